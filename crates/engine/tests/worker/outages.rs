//! Outages of the store that last longer than a lease.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::{Claim, Store, TaskState, WorkerId};
use tidegate_engine::{AttemptOutcome, Context, Failure, Task, WorkerConfig, time};
use tokio::sync::Semaphore;

use crate::harness::{Harness, within_timeout};

const LEASE: Duration = Duration::from_millis(600);
const INTERVAL: Duration = Duration::from_millis(200);

fn options() -> WorkerConfig {
    WorkerConfig { lease: LEASE, ..WorkerConfig::default() }
}

async fn noop(_: Context, (): ()) -> Result<(), Failure> {
    Ok(())
}

/// A worker that is alive may have lost its lease in the outage; it gets the time to release it.
///
/// Each outage ends shortly before a maintenance pass. Without the wait that pass reaps, within the interval. At
/// another moment the jitter of the passes would hide this in one of three outages.
#[tokio::test]
async fn reap_waits_one_heartbeat_interval_after_outage() {
    const OUTAGES: usize = 2;
    // Passes are 0.375 to 0.625 of a lease apart, and a heartbeat that fails is tried again within 0.053. So the
    // first heartbeat after the return comes before the next pass, and that pass comes within a third of a lease.
    let return_after_pass = LEASE * 307 / 1000;
    let rig = Harness::new();
    let worker = rig.start_worker(rig.worker_builder_with(options()).handle("noop", noop));
    let first = rig.submit(Task::new("noop", &())).await;
    rig.wait_until_acknowledged(first, AttemptOutcome::Completed).await;
    for outage in 0..OUTAGES {
        let kind = format!("left-{outage}");
        within_timeout("a reap", rig.store.wait_for_reap_after(time::now())).await;
        rig.store.is_unavailable.store(true, Ordering::SeqCst);
        let other = Claim {
            worker: WorkerId("other".into()),
            queues: ["default".into()].into(),
            kinds: [kind.as_str().into()].into(),
            tasks_max: 1,
            lease_ms: 100,
            poll_interval_ms: 1000,
        };
        let left = rig.submit(Task::new(&kind, &())).await;
        assert_eq!(rig.store.memory.claim(other).await.expect("claim").len(), 1);
        time::sleep(2 * LEASE).await;
        assert_eq!(rig.task_view(left).await.crashes, 0, "the store is away");
        let passed_at = within_timeout("a pass", rig.store.admit_attempt_after(time::now())).await;
        time::sleep_until(passed_at + return_after_pass).await;
        let returned_at = time::now();
        rig.store.is_unavailable.store(false, Ordering::SeqCst);
        let reaped_at = within_timeout("a reap", rig.store.wait_for_reap_after(returned_at)).await;
        assert!(reaped_at - returned_at >= INTERVAL, "after {:?}", reaped_at - returned_at);
        assert_eq!(rig.task_view(left).await.crashes, 1, "it was a crash");
    }
    rig.drain_worker(worker).await;
}

/// The handler has ended in time. Only its report is late, and the worker lists the lease until then.
#[tokio::test]
async fn completion_delayed_by_outage_is_accepted_after_lease_expired() {
    let rig = Harness::new();
    let (entered, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (enters, ends) = (entered.clone(), may_end.clone());
    let work = move |_: Context, (): ()| {
        let (enters, ends) = (enters.clone(), ends.clone());
        async move {
            enters.add_permits(1);
            ends.acquire().await.expect("never closed").forget();
            Ok::<_, Failure>(())
        }
    };
    let worker = rig.start_worker(rig.worker_builder_with(options()).handle("work", work));
    let task = rig.submit(Task::new("work", &())).await;
    within_timeout("the handler", entered.acquire()).await.expect("never closed").forget();
    rig.store.is_unavailable.store(true, Ordering::SeqCst);
    may_end.add_permits(1);
    time::sleep(2 * LEASE).await;
    // The heartbeat comes first, and does not release the lease.
    rig.store.is_finish_unavailable.store(true, Ordering::SeqCst);
    rig.store.is_unavailable.store(false, Ordering::SeqCst);
    let mut beats = rig.store.heartbeat_count.subscribe();
    let before = *beats.borrow();
    within_timeout("a heartbeat", beats.wait_for(|beats| *beats > before))
        .await
        .expect("the store lives");
    rig.store.is_finish_unavailable.store(false, Ordering::SeqCst);
    rig.wait_until_acknowledged(task, AttemptOutcome::Completed).await;
    let view = rig.task_view(task).await;
    assert_eq!((view.state, view.attempts_used, view.crashes), (TaskState::Completed, 0, 0));
    let summary = rig.drain_worker(worker).await;
    assert_eq!((summary.completed, summary.lost), (1, 0));
}
