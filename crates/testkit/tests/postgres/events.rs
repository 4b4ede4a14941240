//! Errors that no caller receives are logged.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use insta::assert_snapshot;
use tidegate_core::{
    CancelOutcome, CapacitySource, Claim, Completion, Finish, JobSpec, NewTask, Outcome, SetLimit,
    Store, StoreReader, Submission, TaskId, WorkerId,
};
use tidegate_store::postgres::{Options, Postgres, StatementHook, Timeouts};
use tidegate_testkit::events::Events;
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::wait;
use tokio_postgres::NoTls;
use tracing::Level;

/// Tries to make a claim look twice, which it does while its cursor is young.
const TRIES_MAX: usize = 100;

fn claim(tasks_max: u32) -> Claim {
    Claim {
        worker: WorkerId("worker".into()),
        queues: ["default".into()].into(),
        kinds: ["a".into(), "b".into()].into(),
        tasks_max,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    }
}

async fn connect(database: &Database, options: Options) -> Postgres {
    let store = Postgres::connect(&database.url(), options).await.expect("connect");
    store.migrate().await.expect("migrate");
    store
}

async fn client(database: &Database) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

async fn submit(store: &Postgres, tasks: Vec<NewTask>) {
    let submission = Submission { tasks, ..Submission::default() };
    store.submit(submission).await.expect("submit");
}

/// Ends the connections of the store before the first statement that finds a condition true.
#[derive(Clone)]
struct ConnectionCut {
    monitor: Arc<tokio_postgres::Client>,
    when: &'static str,
    is_armed: Arc<AtomicBool>,
}

impl ConnectionCut {
    async fn new(database: &Database, when: &'static str) -> Self {
        let monitor = Arc::new(client(database).await);
        Self { monitor, when, is_armed: Arc::default() }
    }

    fn step(&self) -> StatementHook {
        let cut = self.clone();
        Arc::new(move |_| {
            let cut = cut.clone();
            let stepped: Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(async move { cut.look().await });
            stepped
        })
    }

    fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Whether it has cut, or was not armed.
    fn is_over(&self) -> bool {
        !self.is_armed.swap(false, Ordering::SeqCst)
    }

    async fn look(&self) {
        if !self.is_armed.load(Ordering::SeqCst) {
            return;
        }
        if self.monitor.query_one(self.when, &[]).await.expect("look").get::<_, bool>(0) {
            self.cut().await;
        }
    }

    async fn cut(&self) {
        self.is_armed.store(false, Ordering::SeqCst);
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        self.monitor.batch_execute(end).await.expect("end the connections");
    }

    /// Ends the connections before the first statement whose text contains `part`.
    fn step_before(&self, part: &'static str) -> StatementHook {
        let cut = self.clone();
        Arc::new(move |sql| {
            let cut = cut.clone();
            let stepped: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
                if sql.contains(part) && cut.is_armed.load(Ordering::SeqCst) {
                    cut.cut().await;
                }
            });
            stepped
        })
    }
}

/// Claims after the connections were ended. The pool may not have noticed yet that some of its connections are
/// closed.
async fn claim_again(store: &Postgres, tasks_max: u32) -> usize {
    let mut claimed = 0;
    wait::until_async("a claim gets a connection", async || {
        let attempts = store.claim(claim(tasks_max)).await;
        claimed = attempts.as_ref().map_or(0, Vec::len);
        attempts.is_ok()
    })
    .await;
    claimed
}

#[tokio::test]
async fn broken_invariant_after_claim_is_logged_and_claim_is_returned() {
    let events = Events::capture();
    let database = Server::shared().database();
    let store = connect(&database, Options::default()).await;
    let job = JobSpec::new("j");
    let of_job = NewTask { job: Some("j".into()), ..NewTask::new("a", "null") };
    let submission =
        Submission { jobs: vec![job], tasks: vec![of_job; 40], ..Submission::default() };
    store.submit(submission).await.expect("submit");
    assert_eq!(store.claim(claim(1)).await.expect("claim").len(), 1);
    assert!(events.of_level(Level::ERROR).is_empty());
    let sql = client(&database).await;
    sql.batch_execute("UPDATE tidegate.limits SET source = 99").await.expect("break the limit");
    let claimed = store.claim(claim(3)).await.expect("claim");
    assert_eq!(claimed.len(), 3);
    let event = events.wait_for(Level::ERROR, "column source: 99").await;
    assert_snapshot!(
        event.text,
        @r#"message=a step behind a commit failed, and it will fail again until the cause is removed step="admission behind a commit" error=table tidegate.limits, column source: 99 is unknown to this version; run `tidegate doctor`"#
    );
}

#[tokio::test]
async fn failed_claim_after_committed_finish_is_logged() {
    let events = Events::capture();
    let database = Server::shared().database();
    let store = connect(&database, Options::default()).await;
    submit(&store, vec![NewTask::new("a", "null")]).await;
    let attempt = store.claim(claim(1)).await.expect("claim").remove(0);
    let set =
        SetLimit { name: "group:b".into(), capacity: Some(1), source: CapacitySource::Operator };
    store.set_limit(set).await.expect("set the limit");
    submit(&store, vec![NewTask::new("b", "null")]).await;
    let cut = ConnectionCut::new(&database, "SELECT EXISTS (SELECT FROM tidegate.finished)").await;
    let held =
        connect(&database, Options { statement_hook: Some(cut.step()), ..Options::default() })
            .await;
    cut.arm();
    let outcome = Outcome::Completed(b"\"secret\"".to_vec());
    let exits = vec![Completion { task: attempt.task, token: attempt.token, outcome }];
    let finished =
        held.finish(Finish { completions: exits, claim: Some(claim(5)) }).await.expect("finish");
    assert!(cut.is_over(), "the finish sent no statement behind its commit");
    assert_eq!((finished.lost_attempts.len(), finished.claimed.len()), (0, 0));
    let event = events.wait_for(Level::INFO, "claim").await;
    assert!(!event.text.contains("secret"), "{event:?}");
    assert_eq!(claim_again(&store, 5).await, 1, "the waiting task");
}

#[tokio::test]
async fn failed_second_claim_statement_is_logged_and_first_result_is_returned() {
    let events = Events::capture();
    let database = Server::shared().database();
    let cut = ConnectionCut::new(&database, "SELECT NOT EXISTS (SELECT FROM tidegate.ready)").await;
    let store =
        connect(&database, Options { statement_hook: Some(cut.step()), ..Options::default() })
            .await;
    for _ in 0..TRIES_MAX {
        submit(&store, vec![NewTask::new("a", "null"); 3]).await;
        assert_eq!(store.claim(claim(2)).await.expect("claim").len(), 2);
        cut.arm();
        assert_eq!(store.claim(claim(5)).await.expect("claim").len(), 1);
        if cut.is_over() {
            events.wait_for(Level::INFO, "claim").await;
            return;
        }
    }
    panic!("no claim looked twice in {TRIES_MAX} tries");
}

#[tokio::test]
async fn failed_admission_of_due_tasks_during_finish_is_logged() {
    let events = Events::capture();
    let database = Server::shared().database();
    let store = connect(&database, Options::default()).await;
    let set =
        SetLimit { name: "group:a".into(), capacity: Some(2), source: CapacitySource::Operator };
    store.set_limit(set).await.expect("set the limit");
    let cut = ConnectionCut::new(&database, "").await;
    let options = Options {
        pool_size: 1,
        due_grace: Duration::ZERO,
        statement_hook: Some(cut.step_before("fast admission of due tasks")),
        ..Options::default()
    };
    let held = connect(&database, options).await;
    submit(&store, vec![NewTask::new("a", "null"); 6]).await;
    let running = held.claim(claim(2)).await.expect("claim");
    assert_eq!(running.len(), 2);
    // Another process schedules the task, so the finish does not know beforehand that it is due. A task that is due before
    // it is submitted would not be scheduled.
    let now = store.snapshot().await.expect("snapshot").now;
    submit(&store, vec![NewTask { run_at: Some(now + 1000), ..NewTask::new("a", "null") }]).await;
    wait::until_async("the task is due", async || {
        store.snapshot().await.expect("snapshot").now > now + 1000
    })
    .await;
    cut.arm();
    let retried = Outcome::Failed { error: "no".into(), retryable: true, retry_in_ms: Some(0) };
    let outcomes = [retried, Outcome::Completed(b"null".to_vec())];
    let exits = running.iter().zip(outcomes);
    let exits =
        exits.map(|(one, outcome)| Completion { task: one.task, token: one.token, outcome });
    let finish = Finish { completions: exits.collect(), claim: Some(claim(2)) };
    let finished = held.finish(finish).await.expect("finish");
    assert!(cut.is_over(), "the finish admitted no due tasks");
    assert_eq!((finished.lost_attempts.len(), finished.claimed.len()), (0, 2));
    events.wait_for(Level::INFO, "admission of due tasks").await;
}

#[tokio::test]
async fn failed_admission_after_cancel_is_logged_and_outcome_is_returned() {
    let events = Events::capture();
    let database = Server::shared().database();
    let cut = ConnectionCut::new(&database, "SELECT EXISTS (SELECT FROM tidegate.finished)").await;
    let store =
        connect(&database, Options { statement_hook: Some(cut.step()), ..Options::default() })
            .await;
    let set =
        SetLimit { name: "group:a".into(), capacity: Some(31), source: CapacitySource::Operator };
    store.set_limit(set).await.expect("set the limit");
    submit(&store, vec![NewTask::new("a", "null")]).await;
    assert_eq!(store.claim(claim(1)).await.expect("claim").len(), 1);
    let tasks = vec![NewTask::new("a", "null"); 60];
    let submission = Submission { tasks, ..Submission::default() };
    let submitted = store.submit(submission).await.expect("submit");
    store.admit().await.expect("admit");
    // More slots become free than one transaction hands to waiters.
    let ready: Vec<TaskId> = submitted[..30].iter().map(|one| one.task).collect();
    cut.arm();
    let outcomes = store.cancel(ready).await.expect("the outcome of the commit");
    assert!(cut.is_over(), "the cancel sent no statement behind its commit");
    assert_eq!(outcomes, [CancelOutcome::Cancelled; 30]);
    events.wait_for(Level::INFO, "admission behind a commit").await;
    assert_eq!(claim_again(&store, 30).await, 30, "the waiting tasks");
}

#[tokio::test]
async fn lost_listen_connection_is_logged() {
    let events = Events::capture();
    let database = Server::shared().database();
    let store = connect(&database, Options::default()).await;
    let waiting = {
        let store = store.clone();
        tokio::spawn(async move {
            loop {
                store.wait_for_notification().await;
            }
        })
    };
    let sql = client(&database).await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
        WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    let listens = async || sql.query_one(end, &[]).await.expect("end").get::<_, i64>(0) > 0;
    wait::until_async("the store listens", listens).await;
    events.wait_for(Level::INFO, "LISTEN").await;
    waiting.abort();
}

#[tokio::test]
async fn error_of_call_with_dropped_caller_is_logged() {
    let events = Events::capture();
    let database = Server::shared().database();
    let request = Duration::from_millis(300);
    let timeouts = Timeouts { request, ..Timeouts::default() };
    let store = connect(&database, Options { timeouts, ..Options::default() }).await;
    let mut sql = client(&database).await;
    let lock = sql.transaction().await.expect("begin");
    lock.batch_execute("LOCK TABLE tidegate.tasks").await.expect("lock");
    let given_up =
        tokio::time::timeout(request / 3, submit(&store, vec![NewTask::new("a", "\"secret\"")]));
    assert!(given_up.await.is_err(), "the table is locked");
    let event = events.wait_for(Level::DEBUG, "caller is gone").await;
    assert!(event.text.contains("verb=\"submit\""), "{event:?}");
    assert!(event.text.contains("0.3 s"), "{event:?}");
    assert_snapshot!(
        event.text,
        @r#"message=a call failed whose caller is gone verb="submit" error=PostgreSQL did not answer within 0.3 s (postgres.request_timeout_ms); the connection was closed"#
    );
    assert!(!event.text.contains("secret"), "{event:?}");
    lock.rollback().await.expect("rollback");
}
