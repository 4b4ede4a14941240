//! The step that brings arrivals to the gate against a cancel of two of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::{CancelOutcome, JobSpec, NewTask, Store, StoreReader, Submission};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::Server;
use tidegate_testkit::wait;
use tokio::sync::Notify;
use tokio_postgres::NoTls;

use super::harness::{set_limit_request, task, task_of_job};

/// More than one step locks by id alone, so that the step also locks some arrivals of each job.
const ARRIVALS: usize = 1001;

/// Longer than the server takes to notice a deadlock (1 s).
const WAIT_MAX: Duration = Duration::from_secs(30);

fn submission(tasks: Vec<NewTask>) -> Submission {
    Submission { tasks, ..Submission::default() }
}

/// The step has locked 1,000 arrivals. Then an arrival of a job with a lower id is committed, and a cancel
/// locks it and waits for one that the step has locked. The step must not wait for the lower id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_racing_with_cancel_of_lower_id_does_not_deadlock() {
    let database = Server::shared().database();
    let (reached, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let is_armed = Arc::new(AtomicBool::new(false));
    let step = {
        let (reached, go, is_armed) = (reached.clone(), go.clone(), is_armed.clone());
        move |sql: &'static str| {
            let (reached, go, is_armed) = (reached.clone(), go.clone(), is_armed.clone());
            let stepped: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(async move {
                    let is_meant = sql.starts_with("-- Some tasks of every job at the gate");
                    if is_meant && is_armed.swap(false, Ordering::SeqCst) {
                        reached.notify_one();
                        go.notified().await;
                    }
                });
            stepped
        }
    };
    let held = Options { statement_hook: Some(Arc::new(step)), ..Options::default() };
    let held = Postgres::connect(&database.url(), held).await.expect("connect");
    let free = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    free.migrate().await.expect("migrate");
    free.set_limit(set_limit_request("group:a", Some(1))).await.expect("set the limit");
    let jobs = vec![JobSpec::new("j")];
    free.submit(Submission { jobs, ..Submission::default() }).await.expect("submit the job");
    let warm_up = free.submit(submission(vec![task_of_job("a", "j")])).await.expect("submit");
    free.cancel(vec![warm_up[0].task]).await.expect("cancel");
    let (mut caller, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    let (monitor, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);

    let transaction = caller.transaction().await.expect("begin");
    let low = submission(vec![task_of_job("a", "j")]);
    let low = free.submit_in(&transaction, &low).await.expect("submit in a transaction")[0].task;
    let others = vec![task("a"); ARRIVALS];
    let others = free.submit(submission(others)).await.expect("submit");
    assert!(low < others[0].task);
    is_armed.store(true, Ordering::SeqCst);
    let admitting = {
        let held = held.clone();
        tokio::spawn(async move { held.admit().await })
    };
    tokio::time::timeout(WAIT_MAX, reached.notified()).await.expect("the step locks by job");
    transaction.commit().await.expect("commit");
    let cancelling = {
        let (free, second) = (free.clone(), others[0].task);
        tokio::spawn(async move { free.cancel(vec![low, second]).await })
    };
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity \
        WHERE datname = current_database() AND wait_event_type = 'Lock')";
    let cancel_waits =
        async || monitor.query_one(waits, &[]).await.expect("activity").get::<_, bool>(0);
    wait::until_async("the cancel waits for the step", cancel_waits).await;
    go.notify_one();
    let both = async { (admitting.await, cancelling.await) };
    let (admitted, cancelled) = tokio::time::timeout(WAIT_MAX, both).await.expect("both end");
    admitted.expect("no panic").expect("admit");
    let cancelled = cancelled.expect("no panic").expect("cancel");
    assert_eq!(cancelled, [CancelOutcome::Cancelled; 2]);
    assert_eq!(
        (held.transaction_conflicts(), free.transaction_conflicts()),
        (0, 0),
        "the server undid a transaction"
    );
    let snapshot = free.snapshot().await.expect("snapshot");
    assert_eq!(tidegate_core::invariants::check(&snapshot), []);
}
