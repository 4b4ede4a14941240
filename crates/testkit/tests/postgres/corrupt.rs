//! Verbs refuse rows that no version of the program writes, and never loop or wait because of them.

use std::time::Duration;

use tidegate_core::invariants::check;
use tidegate_core::{
    CancelOutcome, CapacitySource, Claim, Completion, Error, ErrorKind, Finish, Heartbeat, NewTask,
    Outcome, Progress, Result, RetryOutcome, SetLimit, Store, StoreReader, Submission, TaskId,
    TaskState, Token, WorkerId,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::events::Events;
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::wait;
use tokio_postgres::{Client, NoTls};
use tracing::Level;

/// Longer than any verb here takes.
const VERB_TIMEOUT: Duration = Duration::from_secs(10);

fn claim(tasks_max: u32) -> Claim {
    Claim {
        worker: WorkerId("worker".into()),
        queues: ["default".into()].into(),
        kinds: ["a".into()].into(),
        tasks_max,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    }
}

struct Fixture {
    _database: Database,
    store: Postgres,
    sql: Client,
    url: String,
}

impl Fixture {
    async fn new() -> Self {
        let database = Server::shared().database();
        let url = database.url();
        let store = Postgres::connect(&url, Options::default()).await.expect("connect");
        store.migrate().await.expect("migrate");
        let sql = client(&url).await;
        Self { _database: database, store, sql, url }
    }

    async fn submit(&self, task: NewTask) -> TaskId {
        let submission = Submission { tasks: vec![task], ..Submission::default() };
        self.store.submit(submission).await.expect("submit")[0].task
    }

    /// Submits `running` tasks that run under a limit of as many slots, and one that waits for it.
    async fn full_limit(&self, running: u32) -> TaskId {
        let set = SetLimit {
            name: "group:a".into(),
            capacity: Some(running),
            source: CapacitySource::Configuration,
        };
        self.store.set_limit(set).await.expect("set the limit");
        for _ in 0..running {
            self.submit(NewTask::new("a", "null")).await;
        }
        assert_eq!(self.store.claim(claim(running)).await.expect("claim").len(), running as usize);
        let waiting = self.submit(NewTask::new("a", "null")).await;
        self.store.admit().await.expect("admit");
        waiting
    }

    async fn run(&self, sql: &str) {
        self.sql.batch_execute(sql).await.expect("run");
    }
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

async fn bounded<T>(verb: impl Future<Output = T>) -> T {
    tokio::time::timeout(VERB_TIMEOUT, verb).await.expect("the verb ends in time")
}

fn assert_names<T: std::fmt::Debug>(outcome: Result<T>, table: &str, column: &str, value: &str) {
    let error: Error = outcome.expect_err("the row is refused");
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    let named = format!("table tidegate.{table}, column {column}: {value} ");
    assert!(error.to_string().contains(&named), "{error}");
}

#[tokio::test]
async fn cancel_of_task_in_no_table_returns_not_found() {
    let fixture = Fixture::new().await;
    let nowhere = fixture.submit(NewTask::new("a", "null")).await;
    let ready = fixture.submit(NewTask::new("a", "null")).await;
    fixture.run(&format!("DELETE FROM tidegate.ready WHERE task = {}", nowhere.0)).await;
    let outcomes = bounded(fixture.store.cancel(vec![nowhere, ready])).await.expect("cancel");
    assert_eq!(outcomes, [CancelOutcome::NotFound, CancelOutcome::Cancelled]);
}

#[tokio::test]
async fn cancel_of_task_waiting_for_missing_limit_returns_error() {
    let fixture = Fixture::new().await;
    let waiting = fixture.full_limit(1).await;
    fixture.run("DELETE FROM tidegate.limits").await;
    let error = bounded(fixture.store.cancel(vec![waiting])).await.expect_err("no limit");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn limit_with_unknown_source_is_rejected() {
    let fixture = Fixture::new().await;
    fixture.full_limit(1).await;
    fixture.run("UPDATE tidegate.limits SET source = 99").await;
    let set = SetLimit {
        name: "group:a".into(),
        capacity: Some(5),
        source: CapacitySource::Registration,
    };
    assert_names(fixture.store.set_limit(set).await, "limits", "source", "99");
    assert_names(fixture.store.limits().await, "limits", "source", "99");
}

#[tokio::test]
async fn limit_with_negative_count_is_rejected_by_verbs_and_repaired() {
    let fixture = Fixture::new().await;
    let waiting = fixture.full_limit(1).await;
    fixture.run("UPDATE tidegate.limits SET waiting = -1").await;
    let set =
        SetLimit { name: "group:a".into(), capacity: Some(2), source: CapacitySource::Operator };
    assert_names(fixture.store.set_limit(set.clone()).await, "limits", "waiting", "-1");
    fixture.store.repair().await.expect("repair");
    fixture.store.set_limit(set).await.expect("set the limit");
    let claimed = fixture.store.claim(claim(10)).await.expect("claim");
    assert_eq!(claimed.iter().map(|attempt| attempt.task).collect::<Vec<_>>(), [waiting]);
}

#[tokio::test]
async fn waiter_with_unknown_wait_reason_is_rejected() {
    let fixture = Fixture::new().await;
    let waiting = fixture.full_limit(1).await;
    fixture.run("UPDATE tidegate.waiters SET wait_reason = 9").await;
    assert_names(fixture.store.cancel(vec![waiting]).await, "waiters", "wait_reason", "9");
    assert_names(fixture.store.explain(waiting).await, "waiters", "wait_reason", "9");
}

#[tokio::test]
async fn negative_slot_number_is_rejected() {
    let fixture = Fixture::new().await;
    let waiting = fixture.full_limit(1).await;
    let set =
        SetLimit { name: "group:a".into(), capacity: Some(2), source: CapacitySource::Operator };
    fixture.store.set_limit(set).await.expect("set the limit");
    fixture.run(&format!("UPDATE tidegate.slots SET number = -7 WHERE task = {}", waiting.0)).await;
    assert_names(fixture.store.claim(claim(1)).await, "slots", "number", "-7");
}

#[tokio::test]
async fn task_with_unknown_state_or_negative_weight_is_rejected() {
    let fixture = Fixture::new().await;
    let task = fixture.submit(NewTask::new("a", "null")).await;
    fixture.run("UPDATE tidegate.tasks SET weight = -3").await;
    assert_names(fixture.store.task(task).await, "tasks", "weight", "-3");
    fixture.run("UPDATE tidegate.tasks SET weight = 1").await;
    fixture.store.cancel(vec![task]).await.expect("cancel");
    fixture.run("UPDATE tidegate.finished SET state = 77").await;
    assert_names(fixture.store.retry(vec![task]).await, "finished", "state", "77");
}

/// Fails a task with the unique key `k`, so that a retry needs the key again.
async fn failed_with_key(fixture: &Fixture) -> TaskId {
    let mut task = NewTask::new("a", "null");
    task.unique_key = Some("k".into());
    let task = fixture.submit(task).await;
    let attempts = fixture.store.claim(claim(1)).await.expect("claim");
    let outcome = Outcome::Failed { error: "no".into(), retryable: false, retry_in_ms: None };
    let exits = vec![Completion { task, token: attempts[0].token, outcome }];
    fixture.store.finish(Finish { completions: exits, claim: None }).await.expect("finish");
    task
}

#[tokio::test]
async fn retry_waiting_for_unique_key_does_not_block_cancel() {
    let fixture = Fixture::new().await;
    let failed = failed_with_key(&fixture).await;
    let mut later = NewTask::new("a", "null");
    later.run_at = Some(i64::MAX / 2);
    let scheduled = fixture.submit(later).await;
    let mut caller = client(&fixture.url).await;
    let transaction = caller.transaction().await.expect("begin");
    let mut same_key = NewTask::new("a", "null");
    same_key.unique_key = Some("k".into());
    let submission = Submission { tasks: vec![same_key], ..Submission::default() };
    fixture.store.submit_in(&transaction, &submission).await.expect("submit in a transaction");
    let retry = {
        let store = fixture.store.clone();
        tokio::spawn(async move { store.retry(vec![failed, scheduled]).await })
    };
    let is_waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted
        AND locktype = 'transactionid')";
    wait::until_async("the retry waits for the key", async || {
        fixture.sql.query_one(is_waiting, &[]).await.expect("locks").get::<_, bool>(0)
    })
    .await;
    let outcomes = bounded(fixture.store.cancel(vec![scheduled])).await.expect("cancel");
    assert_eq!(outcomes, [CancelOutcome::Cancelled]);
    transaction.commit().await.expect("commit");
    let outcomes = bounded(retry).await.expect("the retry").expect("retry");
    assert_eq!(outcomes, [RetryOutcome::UniqueKeyTaken, RetryOutcome::Retried]);
}

#[tokio::test]
async fn retry_waiting_for_unique_key_takes_it_after_rollback() {
    let fixture = Fixture::new().await;
    let failed = failed_with_key(&fixture).await;
    let mut caller = client(&fixture.url).await;
    let transaction = caller.transaction().await.expect("begin");
    let mut same_key = NewTask::new("a", "null");
    same_key.unique_key = Some("k".into());
    let submission = Submission { tasks: vec![same_key.clone()], ..Submission::default() };
    fixture.store.submit_in(&transaction, &submission).await.expect("submit in a transaction");
    let store = fixture.store.clone();
    let retry = tokio::spawn(async move { store.retry(vec![failed]).await });
    transaction.rollback().await.expect("roll back");
    let outcomes = bounded(retry).await.expect("the retry").expect("retry");
    assert_eq!(outcomes, [RetryOutcome::Retried]);
    let again = Submission { tasks: vec![same_key], ..Submission::default() };
    let submitted = fixture.store.submit(again).await.expect("submit");
    assert_eq!((submitted[0].task, submitted[0].is_new), (failed, false));
}

/// Claims two tasks under a lease each, which lists its task.
async fn two_leases(fixture: &Fixture) -> [(TaskId, i64); 2] {
    let mut leases = [(TaskId(0), 0); 2];
    for lease in &mut leases {
        let task = fixture.submit(NewTask::new("a", "null")).await;
        let attempt = fixture.store.claim(claim(1)).await.expect("claim").remove(0);
        assert_eq!(attempt.task, task);
        *lease = (task, attempt.token.0);
    }
    leases
}

/// Asserts that an error names all of these and the command that repairs the store.
fn assert_reported<T: std::fmt::Debug>(outcome: Result<T>, named: &[&str]) {
    let error = outcome.expect_err("the fault is reported");
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    for part in named.iter().chain(&["tidegate doctor --repair"]) {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

async fn assert_repaired(fixture: &Fixture) {
    let before = fixture.store.snapshot().await.expect("snapshot");
    assert_ne!(check(&before), [], "the check sees the fault");
    fixture.store.repair().await.expect("repair");
    let after = fixture.store.snapshot().await.expect("snapshot");
    assert_eq!(check(&after), []);
}

/// Puts a task that another lease lists into a lease.
async fn list_again(fixture: &Fixture, task: TaskId, token: i64) {
    let task = task.0;
    let list =
        format!("UPDATE tidegate.leases SET tasks = tasks || {task}::bigint WHERE token = {token}");
    fixture.run(&list).await;
}

#[tokio::test]
async fn task_listed_by_two_leases_is_reported_by_verbs_and_repaired() {
    let fixture = Fixture::new().await;
    let [(first, _), (_, second_token)] = two_leases(&fixture).await;
    list_again(&fixture, first, second_token).await;
    let cancelled = bounded(fixture.store.cancel(vec![first])).await;
    assert_reported(cancelled, &[&format!("task {first}")]);
    assert_repaired(&fixture).await;
    let cancelled = bounded(fixture.store.cancel(vec![first])).await.expect("cancel");
    assert_eq!(cancelled, [CancelOutcome::Requested]);
}

#[tokio::test]
async fn slot_listed_by_two_leases_is_reported_by_verbs_and_repaired() {
    let fixture = Fixture::new().await;
    let set =
        SetLimit { name: "group:a".into(), capacity: Some(2), source: CapacitySource::Operator };
    fixture.store.set_limit(set).await.expect("set the limit");
    let [(first, _), (second, _)] = two_leases(&fixture).await;
    fixture.run("UPDATE tidegate.leases SET numbers = '{0}' WHERE limits <> '{}'").await;
    let cancelled = bounded(fixture.store.cancel(vec![first, second])).await;
    assert_reported(cancelled, &["slot 0", "group:a"]);
    assert_repaired(&fixture).await;
    let cancelled = bounded(fixture.store.cancel(vec![first, second])).await.expect("cancel");
    assert_eq!(cancelled, [CancelOutcome::Requested; 2]);
}

#[tokio::test]
async fn progress_of_task_listed_by_two_leases_is_logged_and_leases_are_renewed() {
    let events = Events::capture();
    let fixture = Fixture::new().await;
    let [(first, first_token), (_, second_token)] = two_leases(&fixture).await;
    list_again(&fixture, first, second_token).await;
    let tokens = [first_token, second_token].map(Token).to_vec();
    let progress = |token| (first, token, Progress { percent: 50, message: "half".into() });
    let extend = Heartbeat {
        worker: WorkerId("worker".into()),
        progress: tokens.iter().copied().map(progress).collect(),
        tokens,
        lease_ms: 30_000,
        run_times: Vec::new(),
        report: None,
    };
    let extended = fixture.store.heartbeat(extend).await.expect("the leases are renewed");
    assert_eq!(extended.lost_leases, []);
    events.wait_for(Level::ERROR, &format!("task {first}")).await;
}

#[tokio::test]
async fn task_listed_by_two_expired_leases_does_not_block_reap_of_others() {
    let events = Events::capture();
    let fixture = Fixture::new().await;
    let [(first, _), (_, second_token)] = two_leases(&fixture).await;
    let [(clean, _), _] = two_leases(&fixture).await;
    list_again(&fixture, first, second_token).await;
    let expire = "UPDATE tidegate.leases SET expires_at = 1 WHERE token <=";
    fixture.run(&format!("{expire} (SELECT max(token) - 1 FROM tidegate.leases)")).await;
    // A second pass does not make it worse.
    for expired in [1, 0] {
        let reaped = bounded(fixture.store.reap()).await.expect("reap");
        assert_eq!(reaped.expired_attempts, expired);
        events.wait_for(Level::ERROR, &format!("task {first}")).await;
    }
    let shown = fixture.store.task(clean).await.expect("task").expect("the task");
    assert_eq!(shown.state, TaskState::Pending, "{shown:?}");
    assert_repaired(&fixture).await;
    assert_eq!(bounded(fixture.store.reap()).await.expect("reap").expired_attempts, 2);
}

#[tokio::test]
async fn slot_listed_by_two_expired_leases_does_not_block_reap_of_others() {
    let fixture = Fixture::new().await;
    let set =
        SetLimit { name: "group:a".into(), capacity: Some(4), source: CapacitySource::Operator };
    fixture.store.set_limit(set).await.expect("set the limit");
    let [(_, first), (_, second)] = two_leases(&fixture).await;
    let [(clean, _), _] = two_leases(&fixture).await;
    let same = "UPDATE tidegate.leases SET numbers = '{0}' WHERE token IN";
    fixture.run(&format!("{same} ({first}, {second})")).await;
    let expire = "UPDATE tidegate.leases SET expires_at = 1 WHERE token <=";
    fixture.run(&format!("{expire} (SELECT max(token) - 1 FROM tidegate.leases)")).await;
    for expired in [1, 0] {
        let reaped = bounded(fixture.store.reap()).await.expect("reap");
        assert_eq!(reaped.expired_attempts, expired);
    }
    let shown = fixture.store.task(clean).await.expect("task").expect("the task");
    assert_eq!(shown.state, TaskState::Pending, "{shown:?}");
    assert_repaired(&fixture).await;
    assert_eq!(bounded(fixture.store.reap()).await.expect("reap").expired_attempts, 2);
}
