//! A network that accepts all bytes of all connections and delivers none of them, under workers that are
//! busy. Every process stays alive, so no task may be counted as crashed.
//!
//! The test has a short lease. With the default lease and silences of 60 s it takes seven minutes:
//! `TIDEGATE_OUTAGE_SECONDS=60 TIDEGATE_OUTAGES=5 cargo test -p tidegate-testkit --all-features --test
//! postgres -- silence --nocapture`

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::tables::Position;
use tidegate_core::{
    Attempt, CapacitySource, NewTask, SetLimit, Store, StoreReader, Submission, TaskId, TaskState,
    Token,
};
use tidegate_engine::{
    AttemptOutcome, Context, Failure, Observer, Shutdown, Worker, WorkerSummary, time,
};
use tidegate_store::postgres::{Options, Postgres, Timeouts};
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::proxy::Proxy;
use tidegate_testkit::wait;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

const WORKERS: usize = 4;

/// Handlers of one worker that run at once.
const CONCURRENCY: u32 = 8;

/// The capacity of the limit of the kind `limited`; there are always more tasks than that.
const CAPACITY: usize = 8;

/// Tasks that run throughout the test.
const LONG_TASKS: usize = 8;

/// Completions resume within this of the network's return.
const RESUMES_WITHIN: Duration = Duration::from_secs(5);

/// Calls of one store that may be pending: two of the worker's loop, its heartbeat, its maintenance
/// pass, and as many again whose callers have given up and whose deadline has not passed yet.
const PENDING_MAX: usize = 8;

/// The load of a test run.
struct Plan {
    lease: Duration,
    silence: Duration,
    outages: u32,
    timeouts: Timeouts,
    tasks: usize,
}

impl Plan {
    /// The short run, or what the environment asks for.
    fn from_env() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
        let outages = number("TIDEGATE_OUTAGES").unwrap_or(2);
        match number("TIDEGATE_OUTAGE_SECONDS") {
            None => {
                let second = Duration::from_secs(1);
                let timeouts = Timeouts {
                    connect: second,
                    pool_wait: second,
                    request: second,
                    heartbeat: second,
                    ..Timeouts::default()
                };
                let (lease, silence) = (Duration::from_secs(6), Duration::from_secs(8));
                Self { lease, silence, outages, timeouts, tasks: 6000 }
            }
            Some(seconds) => Self {
                lease: tidegate_engine::WorkerConfig::default().lease,
                silence: Duration::from_secs(seconds.into()),
                outages,
                timeouts: Timeouts::default(),
                tasks: 40_000,
            },
        }
    }
}

/// What the observers of all workers have seen.
#[derive(Default)]
struct Log {
    state: Mutex<ObservedAttempts>,
    completed: Notify,
}

#[derive(Default)]
struct ObservedAttempts {
    /// When the handler of an attempt began.
    entered_at: HashMap<(TaskId, Token), Instant>,
    /// When the handler of an attempt was gone, in milliseconds of the wall clock; none while it runs.
    left_at: HashMap<(TaskId, Token), Option<i64>>,
    /// Handlers that run, by task; there must never be two.
    running: HashMap<TaskId, Arc<str>>,
    /// When attempts began and when their completion was accepted, by kind.
    completed: BTreeMap<Arc<str>, Vec<(Instant, Instant)>>,
    ended: BTreeMap<&'static str, u64>,
    violations: Vec<String>,
}

impl Log {
    fn seen(&self) -> MutexGuard<'_, ObservedAttempts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an attempt of a kind that began after `since` is completed, and returns when that was.
    async fn completion(&self, kind: &str, since: Instant) -> Instant {
        loop {
            let completed = self.completed.notified();
            let first = self.seen().completed.get(kind).and_then(|all| {
                all.iter().find(|(entered_at, _)| *entered_at > since).map(|(_, at)| *at)
            });
            match first {
                Some(at) => return at,
                None => completed.await,
            }
        }
    }
}

struct AttemptObserver(Arc<Log>);

impl std::fmt::Debug for AttemptObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Observer for AttemptObserver {
    fn on_start(&self, attempt: &Attempt) {
        let seen = &mut *self.0.seen();
        seen.left_at.insert((attempt.task, attempt.token), None);
        seen.entered_at.insert((attempt.task, attempt.token), time::now());
        if seen.running.insert(attempt.task, attempt.kind.clone()).is_some() {
            seen.violations.push(format!("task {} runs twice", attempt.task));
        }
        let limited = seen.running.values().filter(|kind| &***kind == "limited").count();
        if limited > CAPACITY {
            seen.violations.push(format!("{limited} tasks run under a limit of {CAPACITY}"));
        }
    }

    fn on_handler_done(&self, attempt: &Attempt, _ran: Duration) {
        let seen = &mut *self.0.seen();
        seen.left_at.insert((attempt.task, attempt.token), Some(wall_ms()));
        seen.running.remove(&attempt.task);
    }

    fn on_acknowledged(&self, attempt: &Attempt, ended: AttemptOutcome) {
        let seen = &mut *self.0.seen();
        *seen.ended.entry(ended.as_str()).or_default() += 1;
        if ended == AttemptOutcome::Completed {
            let entered_at = seen.entered_at[&(attempt.task, attempt.token)];
            let completed = (entered_at, time::now());
            seen.completed.entry(attempt.kind.clone()).or_default().push(completed);
            self.0.completed.notify_waiters();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "compared with the clock of the server")]
fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("before the year 292 million")
}

/// Runs for as long as its payload says, or until it has to stop.
async fn work(context: Context, ms: u64) -> Result<(), Failure> {
    tokio::select! {
        () = context.cancelled() => Err(Failure::cancelled()),
        () = time::sleep(Duration::from_millis(ms)) => Ok(()),
    }
}

/// Tasks of one kind that run for 50 to 350 ms.
fn tasks(kind: &str, number: usize) -> impl Iterator<Item = NewTask> {
    (0..number).map(move |nth| NewTask::new(kind, (50 + nth % 7 * 50).to_string()))
}

/// A worker with a store of its own behind the proxy.
async fn start(
    proxy: &Proxy,
    plan: &Plan,
    log: &Arc<Log>,
    shutdown: &Shutdown,
    workers: &mut JoinSet<tidegate_core::Result<WorkerSummary>>,
) -> Postgres {
    let options = Options { timeouts: plan.timeouts.clone(), ..Options::default() };
    let store = Postgres::connect(proxy.url(), options).await.expect("connect");
    let options = tidegate_engine::WorkerConfig {
        concurrency: CONCURRENCY,
        lease: plan.lease,
        ..tidegate_engine::WorkerConfig::default()
    };
    let worker = Worker::builder(Arc::new(store.clone()))
        .config(options)
        .handle("limited", work)
        .handle("plain", work)
        .handle("long", work)
        .observer(Arc::new(AttemptObserver(log.clone())))
        .build()
        .expect("a worker");
    workers.spawn(worker.run(shutdown.clone()));
    store
}

/// The attempts that run in the store, with the end of their lease.
async fn running(direct: &Postgres) -> Vec<(TaskId, Token, i64)> {
    let snapshot = direct.snapshot().await.expect("a snapshot");
    let leases: HashMap<Token, i64> =
        snapshot.leases.iter().map(|lease| (lease.token, lease.expires_at)).collect();
    let running = snapshot.tasks.iter().filter_map(|task| match task.positions.first() {
        Some(Position::Running(token)) => Some((task.id, *token)),
        _ => None,
    });
    running.map(|(task, token)| (task, token, leases[&token])).collect()
}

/// What one outage was like.
#[derive(Debug)]
struct Outage {
    /// Attempts that ran in the store at the end of the silence.
    stranded: usize,
    /// Those of them of which no worker knew: the answer to their claim was lost.
    unknown: usize,
    /// Those of them whose handlers were stopped.
    stopped: usize,
    limited_after: Duration,
    plain_after: Duration,
    pending_max: usize,
}

async fn outage(
    plan: &Plan,
    proxy: &Proxy,
    direct: &Postgres,
    stores: &[Postgres],
    log: &Log,
) -> Outage {
    proxy.go_silent();
    let is_long = |(task, kind): (&TaskId, &Arc<str>)| (**kind == *"long").then_some(*task);
    let long: Vec<TaskId> = log.seen().running.iter().filter_map(is_long).collect();
    let ends_at = time::now() + plan.silence;
    let mut pending_max = 0;
    while time::now() < ends_at {
        let pending = stores.iter().map(Postgres::pending_calls).max().unwrap_or_default();
        pending_max = pending_max.max(pending);
        time::sleep(Duration::from_millis(100)).await;
    }
    let stranded = running(direct).await;
    let (mut unknown, mut stopped) = (0, 0);
    {
        let seen = &mut *log.seen();
        for (task, token, expires_at) in &stranded {
            match seen.left_at.get(&(*task, *token)) {
                None => unknown += 1,
                Some(Some(left_at)) if left_at < expires_at => {
                    stopped += usize::from(long.contains(task));
                }
                Some(left_at) => seen.violations.push(format!(
                    "the lease of task {task} ended at {expires_at}, its handler at {left_at:?}"
                )),
            }
        }
    }
    let returned_at = time::now();
    proxy.deliver();
    let after = async |kind| {
        let completion = log.completion(kind, returned_at);
        let completed = tokio::time::timeout(4 * RESUMES_WITHIN, completion).await;
        completed.map_or(Duration::MAX, |at| at - returned_at)
    };
    let (limited_after, plain_after) = tokio::join!(after("limited"), after("plain"));
    let stranded = stranded.len();
    Outage { stranded, unknown, stopped, limited_after, plain_after, pending_max }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn silent_network_counts_no_crash_and_work_resumes() {
    let plan = Plan::from_env();
    let database = Server::shared().database();
    let direct = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    direct.migrate().await.expect("migrate");
    let limit = SetLimit {
        name: "group:limited".into(),
        capacity: Some(CAPACITY as u32),
        source: CapacitySource::Operator,
    };
    direct.set_limit(limit).await.expect("set the limit");
    // These run when the silence begins, and longer than their lease.
    let mut all = vec![NewTask::new("long", "3600000"); LONG_TASKS];
    all.extend(tasks("limited", plan.tasks / 2).chain(tasks("plain", plan.tasks / 2)));
    for tasks in all.chunks(1000) {
        let submission = Submission { tasks: tasks.to_vec(), ..Submission::default() };
        direct.submit(submission).await.expect("submit");
    }
    let proxy = Proxy::start(&database).await.expect("a proxy");
    proxy.deliver_notifications();
    let (log, shutdown, mut workers) = (Arc::<Log>::default(), Shutdown::new(), JoinSet::new());
    let mut stores = Vec::new();
    for _ in 0..WORKERS {
        stores.push(start(&proxy, &plan, &log, &shutdown, &mut workers).await);
    }
    let began_at = time::now();
    let mut outages = Vec::new();
    for _ in 0..plan.outages {
        // All workers are busy again, and their leases are renewed.
        time::sleep(plan.lease / 3 + Duration::from_secs(2)).await;
        outages.push(outage(&plan, &proxy, &direct, &stores, &log).await);
        println!("{:?}", outages.last().expect("just pushed"));
    }
    // Until the workers have released their expired leases, or the reapers have ended them and counted crashes.
    wait::until_async("no lease is expired", async || expired_leases(&database).await == 0).await;
    shutdown.stop();
    let mut lost = 0;
    while let Some(ended) = workers.join_next().await {
        lost += ended.expect("no worker panics").expect("no worker fails").lost;
    }
    let took = time::now() - began_at;
    let snapshot = direct.snapshot().await.expect("a snapshot");
    let crashed =
        snapshot.tasks.iter().filter(|task| task.crashes > 0 || task.attempts_used > 0).count();
    let unfinished = snapshot.tasks.len();
    let finished_after_a_crash = finished_after_a_crash(&database).await;
    let seen = &*log.seen();
    let completed: usize = seen.completed.values().map(Vec::len).sum();
    println!(
        "{WORKERS} workers, lease {:?}, {} silences of {:?}, {took:.0?}: {} tasks, {completed} \
         completions, {unfinished} unfinished, {crashed} with a spent attempt, {lost} lost, {:?}",
        plan.lease,
        plan.outages,
        plan.silence,
        all.len(),
        seen.ended
    );
    assert_eq!(seen.violations, Vec::<String>::new());
    assert_eq!(crashed, 0, "an attempt was counted as crashed");
    assert_eq!(finished_after_a_crash, 0, "an attempt was counted as crashed");
    let finished: Vec<(TaskState, u64)> = snapshot.finished.into_iter().collect();
    let expected = (all.len() - unfinished) as u64;
    assert_eq!(finished, [(TaskState::Completed, expected)], "no task failed or was lost");
    assert_eq!(lost, 0, "no report was rejected");
    for outage in &outages {
        assert!(outage.limited_after <= RESUMES_WITHIN, "{outage:?}");
        assert!(outage.plain_after <= RESUMES_WITHIN, "{outage:?}");
        assert!(outage.pending_max <= PENDING_MAX, "{outage:?}");
        assert_eq!(outage.stopped, LONG_TASKS, "a handler was not stopped in time: {outage:?}");
        assert!(outage.stranded >= outage.stopped + outage.unknown, "{outage:?}");
    }
}

/// The number of finished tasks of which an attempt was spent or counted as a crash.
async fn finished_after_a_crash(database: &Database) -> i64 {
    number(
        database,
        "SELECT count(*) FROM tidegate.finished WHERE attempts_used > 0 OR crashes > 0",
    )
    .await
}

/// The number of leases that are expired.
async fn expired_leases(database: &Database) -> i64 {
    let now = "extract(epoch FROM clock_timestamp()) * 1000";
    number(database, &format!("SELECT count(*) FROM tidegate.leases WHERE expires_at <= {now}"))
        .await
}

async fn number(database: &Database, sql: &str) -> i64 {
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    client.query_one(sql, &[]).await.expect("a number").get(0)
}
