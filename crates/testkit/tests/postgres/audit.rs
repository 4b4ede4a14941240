//! The audit sees what a bug of the store does between two commits.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, Finish, NewTask, Outcome, SetLimit, Store,
    Submission, WorkerId,
};
use tidegate_measure::audit::{Audit, Findings, Violation};
use tidegate_measure::postgres_server::{Programs, TemporaryServer};
use tidegate_store::postgres::{InjectedBug, Options, Postgres, StatementHook};
use tidegate_testkit::wait;
use tokio::sync::Notify;
use tokio_postgres::{Client, NoTls};

const SETTINGS: [&str; 2] = ["wal_level=logical", "fsync=off"];

/// Nothing takes longer than this, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

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

async fn set(store: &Postgres, capacity: u32) {
    let set = SetLimit {
        name: "group:a".into(),
        capacity: Some(capacity),
        source: CapacitySource::Operator,
    };
    store.set_limit(set).await.expect("set");
}

/// Holds the next COMMIT once it is armed.
#[derive(Default)]
struct CommitHold {
    is_armed: AtomicBool,
    reached: Notify,
    go: Notify,
}

impl CommitHold {
    fn step(self: &Arc<Self>) -> StatementHook {
        let hold = self.clone();
        Arc::new(move |sql| {
            let hold = hold.clone();
            let stepped: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
                if sql == "COMMIT" && hold.is_armed.swap(false, Ordering::SeqCst) {
                    hold.reached.notify_one();
                    hold.go.notified().await;
                }
            });
            stepped
        })
    }
}

async fn is_waiting(monitor: &Client) -> bool {
    let waiting = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted";
    monitor.query_one(waiting, &[]).await.expect("look at the locks").get(0)
}

/// A limit of two is full, and three wait. A slot is about to be handed on, all but the COMMIT, when
/// the limit is lowered to one.
async fn lowered_as_a_slot_is_handed_on(bug: Option<InjectedBug>) -> Findings {
    let start = || TemporaryServer::start(Programs::find(None)?, &SETTINGS);
    let server = tokio::task::spawn_blocking(start).await.expect("a thread").expect("a server");
    let url = server.url("postgres");
    let hold = Arc::new(CommitHold::default());
    let held =
        Options { statement_hook: Some(hold.step()), injected_bug: bug, ..Options::default() };
    let held = Postgres::connect(&url, held).await.expect("connect");
    held.migrate().await.expect("migrate");
    let free = Postgres::connect(&url, Options::default()).await.expect("connect");
    let (monitor, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connect");
    tokio::spawn(connection);

    let audit = Audit::begin(&url, 0).await.expect("begin the audit");
    set(&free, 2).await;
    held.claim(claim(0)).await.expect("the worker is noted");
    let tasks = vec![NewTask::new("a", "null"); 5];
    held.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    let mut running: Vec<Attempt> = held.claim(claim(1)).await.expect("claim");
    running.extend(held.claim(claim(1)).await.expect("claim"));
    assert_eq!(running.len(), 2);

    hold.is_armed.store(true, Ordering::SeqCst);
    let (task, token) = (running[0].task, running[0].token);
    let exit = Completion { task, token, outcome: Outcome::Completed(b"1".to_vec()) };
    let finish = Finish { completions: vec![exit], claim: Some(claim(1)) };
    let handing = tokio::spawn(async move { held.finish(finish).await.expect("finish") });
    tokio::time::timeout(PATIENCE, hold.reached.notified()).await.expect("it comes to its end");
    let lowering = tokio::spawn(async move { set(&free, 1).await });
    wait::until_async("the change is done, or waits for a lock", async || {
        lowering.is_finished() || is_waiting(&monitor).await
    })
    .await;
    hold.go.notify_one();
    let both = async { (handing.await.expect("handed on"), lowering.await.expect("lowered")) };
    let (finished, ()) = tokio::time::timeout(PATIENCE, both).await.expect("both end");
    assert_eq!(finished.claimed.len(), 1, "the slot is handed on");
    audit.finish().await.expect("end the audit")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_finds_hand_off_that_ignores_a_lowered_limit() {
    let found = lowered_as_a_slot_is_handed_on(Some(InjectedBug::HandOffUnlocked)).await;
    assert_eq!(found.violations, 1, "{found}");
    let [Violation::Exceeded { limit, held, capacity, .. }] = found.examples.as_slice() else {
        panic!("{found}");
    };
    assert_eq!((limit.as_str(), *held, *capacity), ("group:a", 2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_of_store_without_injected_bug_finds_nothing() {
    let found = lowered_as_a_slot_is_handed_on(None).await;
    assert_eq!(found.violations, 0, "{found}");
    // Two slots are taken and one changes hands, and the limit has to drain.
    assert_eq!((found.taken, found.drains), (3, 1), "{found}");
}
