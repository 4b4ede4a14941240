//! A store that fails now and then.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::invariants::check_idle_store;
use tidegate_core::{StoreReader, TaskState};
use tidegate_engine::{AttemptOutcome, Context, Failure, KindConfig, Task, WorkerConfig, time};

use crate::harness::{AttemptEvent, Harness, sleep_between_checks, within_timeout};

async fn noop(_: Context, (): ()) -> Result<(), Failure> {
    Ok(())
}

#[tokio::test]
async fn finish_with_lost_reply_loses_no_lease() {
    let rig = Harness::new();
    rig.store.finish_replies_to_lose.store(1, Ordering::SeqCst);
    let worker = rig.start_worker(rig.worker_builder().handle("noop", noop));
    let first = rig.submit(Task::new("noop", &())).await;
    rig.wait_until_started(first).await;
    let second = rig.submit(Task::new("noop", &())).await;
    rig.wait_until_acknowledged(second, AttemptOutcome::Completed).await;
    assert_eq!(rig.task_state(first).await, TaskState::Completed);
    let summary = rig.drain_worker(worker).await;
    assert_eq!(summary.lost, 0);
}

#[tokio::test]
async fn completion_is_retried_until_store_accepts_it() {
    let rig = Harness::new();
    rig.store.finishes_to_lose.store(5, Ordering::SeqCst);
    let kind = KindConfig::new("noop").max_concurrent(1);
    let worker = rig.start_worker(rig.worker_builder().handle(kind, noop));
    let task = rig.submit(Task::new("noop", &())).await;
    rig.wait_until_acknowledged(task, AttemptOutcome::Completed).await;
    let view = rig.task_view(task).await;
    assert_eq!((view.state, view.attempts_used, view.crashes), (TaskState::Completed, 0, 0));
    assert_eq!(rig.drain_worker(worker).await.completed, 1);
}

#[tokio::test]
async fn failed_claim_is_retried() {
    let rig = Harness::new();
    rig.store.claims_to_lose.store(3, Ordering::SeqCst);
    let task = rig.submit(Task::new("noop", &())).await;
    let worker = rig.start_worker(rig.worker_builder().handle("noop", noop));
    rig.wait_until_acknowledged(task, AttemptOutcome::Completed).await;
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn poll_finds_tasks_without_notifications() {
    let rig = Harness::new();
    rig.store.suppresses_notifications.store(true, Ordering::SeqCst);
    let worker = rig.start_worker(rig.worker_builder().handle("noop", noop));
    for _ in 0..3 {
        let task = rig.submit(Task::new("noop", &())).await;
        rig.wait_until_acknowledged(task, AttemptOutcome::Completed).await;
    }
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn observer_hooks_are_called_in_order() {
    let rig = Harness::new();
    let worker = rig.start_worker(rig.worker_builder().handle("noop", noop));
    let task = rig.submit(Task::new("noop", &())).await;
    assert_eq!(rig.next_event().await, AttemptEvent::Started(task));
    assert_eq!(rig.next_event().await, AttemptEvent::HandlerDone(task));
    assert_eq!(rig.next_event().await, AttemptEvent::Acknowledged(task, AttemptOutcome::Completed));
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn spurious_notifications_are_backed_off() {
    let rig = Harness::new();
    rig.store.notifies_continuously.store(true, Ordering::SeqCst);
    let poll_interval = Duration::from_millis(400);
    let options = WorkerConfig { poll_interval, run_maintenance: false, ..WorkerConfig::default() };
    let worker = rig.start_worker(rig.worker_builder_with(options).handle("noop", noop));
    let mut claims = rig.store.claim_count.subscribe();
    let started = time::now();
    within_timeout("the claims", claims.wait_for(|claims| *claims >= 9)).await.unwrap();
    // 1 + 2 + 4 + 8 + 16 + 32 ms, and then an eighth of the poll interval each.
    assert!(time::now() - started >= Duration::from_millis(150), "the pauses grow");
    let task = rig.submit(Task::new("noop", &())).await;
    rig.wait_until_acknowledged(task, AttemptOutcome::Completed).await;
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn attempt_with_expired_lease_is_not_started() {
    let rig = Harness::new();
    rig.store.next_claim_delay_ms.store(300, Ordering::SeqCst);
    let lease = Duration::from_millis(200);
    let options = WorkerConfig { lease, run_maintenance: false, ..WorkerConfig::default() };
    let worker = rig.start_worker(rig.worker_builder_with(options).handle("noop", noop));
    let task = rig.submit(Task::new("noop", &())).await;
    rig.wait_until_acknowledged(task, AttemptOutcome::Completed).await;
    let summary = rig.drain_worker(worker).await;
    // The worker gives the attempt back, or its heartbeat has released the lease before that.
    assert_eq!((summary.released + summary.lost, summary.completed), (1, 1));
    let view = rig.task_view(task).await;
    assert_eq!((view.attempts_used, view.crashes), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_store_faults_lose_no_task() {
    let rig = Harness::new();
    let kind = || KindConfig::new("noop").max_concurrent(3);
    let options = || WorkerConfig {
        lease: Duration::from_millis(600),
        poll_interval: Duration::from_millis(20),
        concurrency: 4,
        ..WorkerConfig::default()
    };
    rig.store.finish_replies_to_lose.store(12, Ordering::SeqCst);
    rig.store.finishes_to_lose.store(12, Ordering::SeqCst);
    rig.store.claims_to_lose.store(12, Ordering::SeqCst);
    let workers =
        [(); 3].map(|()| rig.start_worker(rig.worker_builder_with(options()).handle(kind(), noop)));
    rig.client.submit_many((0..300).map(|_| Task::new("noop", &()))).await.unwrap();
    within_timeout("every task to complete", async {
        while rig.store.memory.task_counts().await.unwrap().get(&TaskState::Completed) != Some(&300)
        {
            sleep_between_checks().await;
        }
    })
    .await;
    let mut lost = 0;
    for worker in workers {
        lost += rig.drain_worker(worker).await.lost;
    }
    assert_eq!(lost, 0);
    let snapshot = rig.store.memory.snapshot().await.unwrap();
    assert_eq!(check_idle_store(&snapshot), []);
}
