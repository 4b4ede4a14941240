//! Workers with nothing to do leave PostgreSQL alone, and are there at once when there is something.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{CapacitySource, Kind, NewTask, SetLimit, Store, Submission};
use tidegate_engine::{
    ClaimStats, Context, Failure, Observer, Shutdown, Worker, WorkerBuilder, WorkerSummary, time,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::proxy::Proxy;
use tidegate_testkit::wait;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

const WORKERS: u64 = 100;

/// Longer than a task may wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often the worker asks that has to find every task soon, and how long a task may wait for it.
const BRISK: Duration = Duration::from_millis(200);
const SOON: Duration = Duration::from_secs(2);

/// How long is counted.
const WINDOW: Duration = Duration::from_secs(20);

/// What the stores of the workers have sent.
#[derive(Debug)]
struct Sent {
    statements: AtomicU64,
    /// One for each time that a worker noted that it is there.
    noted: Semaphore,
}

/// A store that counts the statements it sends.
async fn counted(database: &Database, sent: &Arc<Sent>) -> Postgres {
    let sent = sent.clone();
    let step = move |sql: &'static str| -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        sent.statements.fetch_add(1, Ordering::Relaxed);
        sent.noted.add_permits(usize::from(sql.contains("INSERT INTO tidegate.workers")));
        Box::pin(async {})
    };
    let options =
        Options { pool_size: 2, statement_hook: Some(Arc::new(step)), ..Options::default() };
    Postgres::connect(&database.url(), options).await.expect("connect")
}

/// A worker that says when it has run a task.
fn builder(
    store: Postgres,
    ran: &Arc<Semaphore>,
    options: tidegate_engine::WorkerConfig,
) -> WorkerBuilder {
    let ran = ran.clone();
    let handle = move |_: Context, (): ()| {
        ran.add_permits(1);
        async { Ok::<_, Failure>(()) }
    };
    let builder = Worker::builder(Arc::new(store)).config(options);
    builder.handle(Kind::new("a"), handle)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_workers_send_at_most_one_statement_per_second_each() {
    let database = Server::shared().database();
    let new = || Arc::new(Sent { statements: AtomicU64::new(0), noted: Semaphore::new(0) });
    let (sent, ran) = (new(), Arc::new(Semaphore::new(0)));
    let store = counted(&database, &new()).await;
    store.migrate().await.expect("migrate");
    let shutdown = Shutdown::new();
    let mut running = Vec::new();
    for _ in 0..WORKERS {
        let store = counted(&database, &sent).await;
        let worker = builder(store, &ran, Default::default()).build().expect("a worker");
        running.push(tokio::spawn(worker.run(shutdown.clone())));
    }
    // All of them have begun when each has been noted.
    let noted = sent.noted.acquire_many(WORKERS as u32).await;
    drop(noted.expect("the semaphore is open"));
    let before = sent.statements.load(Ordering::Relaxed);
    // A rate is counted over a time.
    time::sleep(WINDOW).await;
    let statements = sent.statements.load(Ordering::Relaxed) - before;
    let per_second = statements as f64 / WINDOW.as_secs_f64();
    println!("{per_second:.1} statements per second from {WORKERS} idle workers");
    assert!(per_second <= WORKERS as f64, "{per_second} statements per second");
    assert!(statements > 0, "nobody was counted");

    // They are not asleep.
    let tasks = vec![NewTask::new("a", "null")];
    store.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    drop(ran.acquire().await.expect("the semaphore is open"));
    shutdown.drain();
    for worker in running {
        worker.await.expect("a worker").expect("its work");
    }
}

/// Calls for work that found nothing, so far.
#[derive(Debug)]
struct EmptyClaims(watch::Sender<u64>);

impl Observer for EmptyClaims {
    fn on_claim(&self, asked: &ClaimStats) {
        self.0.send_modify(|calls| *calls += u64::from(asked.tasks_claimed == 0));
    }
}

/// A worker whose notifications are all discarded by a proxy. The worker has no sign of that.
struct WorkerWithoutNotifications {
    store: Postgres,
    proxy: Proxy,
    ran: Arc<Semaphore>,
    empty_claims: Arc<EmptyClaims>,
    shutdown: Shutdown,
    working: JoinHandle<tidegate_core::Result<WorkerSummary>>,
    _database: Database,
}

impl WorkerWithoutNotifications {
    async fn start(options: tidegate_engine::WorkerConfig) -> Self {
        let database = Server::shared().database();
        let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
        store.migrate().await.expect("migrate");
        let set = SetLimit {
            name: "group:a".into(),
            capacity: Some(2),
            source: CapacitySource::Operator,
        };
        store.set_limit(set).await.expect("set");
        let proxy = Proxy::start(&database).await.expect("a proxy");
        let deaf = Postgres::connect(proxy.url(), Options::default()).await.expect("connect");
        let (ran, shutdown) = (Arc::new(Semaphore::new(0)), Shutdown::new());
        let in_vain = Arc::new(EmptyClaims(watch::Sender::new(0)));
        let worker = builder(deaf, &ran, options).observer(in_vain.clone());
        let worker = worker.build().expect("a worker");
        let working = tokio::spawn(worker.run(shutdown.clone()));
        Self { store, proxy, ran, empty_claims: in_vain, shutdown, working, _database: database }
    }

    /// Returns when the worker has asked once more and found nothing.
    async fn wait_for_empty_claim(&self) {
        let mut calls = self.empty_claims.0.subscribe();
        let so_far = *calls.borrow_and_update();
        calls.wait_for(|calls| *calls > so_far).await.expect("the worker lives");
    }

    /// Submits tasks, which have to run in time.
    async fn assert_runs(&self, number: u32, in_time: Duration) {
        let tasks = (0..number).map(|_| NewTask::new("a", "null")).collect();
        self.store.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
        let all = tokio::time::timeout(in_time, self.ran.acquire_many(number)).await;
        all.expect("nobody forgets them").expect("open").forget();
    }

    async fn end(self) {
        wait::until_async("a notification is discarded", async || {
            self.proxy.notifications_discarded() > 0
        })
        .await;
        self.shutdown.drain();
        self.working.await.expect("no panic").expect("the worker ends well");
    }
}

/// All that suffers is how long a task waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_without_notifications_run_every_task() {
    // Who hears of nothing asks after a sixth of its lease.
    let lease = Duration::from_secs(3);
    let deaf = WorkerWithoutNotifications::start(tidegate_engine::WorkerConfig {
        lease,
        ..Default::default()
    })
    .await;
    for tasks in [1, 5, 1] {
        deaf.assert_runs(tasks, PATIENCE).await;
    }
    deaf.end().await;
}

/// A short poll interval bounds how long a task waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_without_notifications_keep_short_poll_interval() {
    let options = tidegate_engine::WorkerConfig { poll_interval: BRISK, ..Default::default() };
    let deaf = WorkerWithoutNotifications::start(options).await;
    for _ in 0..8 {
        deaf.wait_for_empty_claim().await;
        deaf.assert_runs(1, SOON).await;
    }
    deaf.end().await;
}
