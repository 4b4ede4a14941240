//! A handler that panics harms no other, and its slots are free at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate_core::{Inspect as _, JobSpec, State};
use tidegate_engine::{Context, Ended, Failure, KindOptions, Options, Task};
use tokio::sync::watch;

use crate::rig::{Rig, soon};

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
        soon("the others to be inside", reached).await.expect("the door is there");
    }
}

/// All permits but one are held by handlers that wait. One after another, others panic beside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_does_not_affect_others() {
    for permits in [2, 5, 10] {
        let rig = Rig::new();
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
        let builder = rig.worker().concurrency(permits);
        let worker = rig.start(builder.handle("wait", waits).handle("panic", panics));
        let others: Vec<Task> = (1..permits).map(|_| Task::new("wait", &())).collect();
        let others = rig.client.submit_many(others).await.expect("good tasks");
        door.until_inside(permits - 1).await;
        for _ in 0..2 * permits {
            let task = rig.submit(Task::new("panic", &()).max_attempts(1)).await;
            let view = rig.ended(task).await;
            assert_eq!(view.state, State::Failed);
            assert!(view.error.is_some_and(|error| error.contains("on purpose")));
        }
        for other in &others {
            assert_eq!(rig.state(other.task).await, State::Processing, "{permits} permits");
        }
        door.open.send_replace(true);
        let summary = rig.end(worker).await;
        assert_eq!((summary.completed, summary.failed), (permits as u64 - 1, 2 * permits as u64));
    }
}

/// The lease is long: only the end of the attempt frees the slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_gives_every_slot_back_at_once() {
    let rig = Rig::new();
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
    let options = Options { lease: Duration::from_secs(600), ..Options::default() };
    let kind = KindOptions::new("work").max_concurrent(1);
    let worker = rig.start(rig.worker_with(options).handle(kind, twice));
    let work = || Task::new("work", &()).job("j").max_attempts(1);
    let tasks =
        rig.client.submit_jobs(vec![job], [work(), work(), work()]).await.expect("good tasks");
    rig.exited(tasks[2].task, Ended::Completed).await;
    for limit in rig.store.memory.limits().await.expect("limits") {
        assert_eq!(limit.held, 0, "{}", limit.name);
    }
    assert_eq!(rig.end(worker).await.failed, 2);
}
