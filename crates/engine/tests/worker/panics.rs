//! A handler that panics harms no other, and its slots are free at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate_core::{JobSpec, StoreReader as _, TaskState};
use tidegate_engine::{AttemptOutcome, Context, Failure, KindConfig, Task, WorkerConfig};
use tokio::sync::watch;

use crate::harness::{Harness, within_timeout};

/// Returns when it is opened; counts who waits.
struct Door {
    open: watch::Sender<bool>,
    inside: watch::Sender<u32>,
}

impl Door {
    fn new() -> Arc<Self> {
        Arc::new(Self { open: watch::Sender::new(false), inside: watch::Sender::new(0) })
    }

    async fn pass(&self) {
        self.inside.send_modify(|inside| *inside += 1);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }

    async fn until_inside(&self, number: u32) {
        let mut inside = self.inside.subscribe();
        let reached = inside.wait_for(|inside| *inside >= number);
        within_timeout("the others to be inside", reached).await.expect("the door is there");
    }
}

/// All permits but one are held by handlers that wait. One after another, others panic beside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_does_not_affect_other_handlers() {
    for permits in [2, 5, 10] {
        let rig = Harness::new();
        let door = Door::new();
        let waits = {
            let door = door.clone();
            move |_: Context, (): ()| {
                let door = door.clone();
                async move {
                    door.pass().await;
                    Ok::<_, Failure>(())
                }
            }
        };
        let panics = |_: Context, (): ()| async {
            let panics = true;
            assert!(!panics, "on purpose");
            Ok::<_, Failure>(())
        };
        let builder = rig.worker_builder().concurrency(permits);
        let worker = rig.start_worker(builder.handle("wait", waits).handle("panic", panics));
        let others: Vec<Task> = (1..permits).map(|_| Task::new("wait", &())).collect();
        let others = rig.client.submit_many(others).await.expect("good tasks");
        door.until_inside(permits - 1).await;
        for _ in 0..2 * permits {
            let task = rig.submit(Task::new("panic", &()).max_attempts(1)).await;
            let view = rig.wait_until_final(task).await;
            assert_eq!(view.state, TaskState::Failed);
            assert!(view.error.is_some_and(|error| error.contains("on purpose")));
        }
        for other in &others {
            assert_eq!(
                rig.task_state(other.task).await,
                TaskState::Processing,
                "{permits} permits"
            );
        }
        door.open.send_replace(true);
        let summary = rig.drain_worker(worker).await;
        assert_eq!((summary.completed, summary.failed), (permits as u64 - 1, 2 * permits as u64));
    }
}

/// The lease is long: only the end of the attempt frees the slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_frees_every_slot_at_once() {
    let rig = Harness::new();
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = attempts.clone();
    let twice = move |_: Context, (): ()| {
        let attempt = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            assert!(attempt >= 2, "on purpose");
            Ok::<_, Failure>(())
        }
    };
    let job = JobSpec { concurrency: Some(1), ..JobSpec::new("j".to_owned()) };
    let options = WorkerConfig { lease: Duration::from_secs(600), ..WorkerConfig::default() };
    let kind = KindConfig::new("work").max_concurrent(1);
    let worker = rig.start_worker(rig.worker_builder_with(options).handle(kind, twice));
    let work = || Task::new("work", &()).job("j").max_attempts(1);
    let tasks =
        rig.client.submit_with_jobs(vec![job], [work(), work(), work()]).await.expect("good tasks");
    rig.wait_until_acknowledged(tasks[2].task, AttemptOutcome::Completed).await;
    for limit in rig.store.memory.limits().await.expect("limits") {
        assert_eq!(limit.held, 0, "{}", limit.name);
    }
    assert_eq!(rig.drain_worker(worker).await.failed, 2);
}
