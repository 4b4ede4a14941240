//! Cancels and progress: what travels with the heartbeat.

use std::time::Duration;

use tidegate_core::{CancelOutcome, TaskState};
use tidegate_engine::{AttemptOutcome, Context, Failure, Task, WorkerConfig};

use crate::harness::{Harness, sleep_between_checks, within_timeout};

fn quick() -> WorkerConfig {
    WorkerConfig {
        lease: Duration::from_millis(300),
        poll_interval: Duration::from_millis(20),
        ..WorkerConfig::default()
    }
}

#[tokio::test]
async fn cancel_of_running_task_is_seen_by_its_handler() {
    let rig = Harness::new();
    let obedient = |context: Context, (): ()| async move {
        context.cancelled().await;
        assert!(context.is_cancelled());
        Err::<(), _>(Failure::cancelled())
    };
    let worker = rig.start_worker(rig.worker_builder_with(quick()).handle("obedient", obedient));
    let task = rig.submit(Task::new("obedient", &())).await;
    rig.wait_until_started(task).await;
    assert_eq!(rig.client.cancel(vec![task]).await.unwrap(), [CancelOutcome::Requested]);
    rig.wait_until_acknowledged(task, AttemptOutcome::Cancelled).await;
    assert_eq!(rig.task_state(task).await, TaskState::Cancelled);
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn cancel_drops_unresponsive_handler_after_grace() {
    let rig = Harness::new();
    let deaf = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    let options = WorkerConfig { cancel_grace: Duration::from_millis(50), ..quick() };
    let worker = rig.start_worker(rig.worker_builder_with(options).handle("deaf", deaf));
    let task = rig.submit(Task::new("deaf", &())).await;
    rig.wait_until_started(task).await;
    rig.client.cancel(vec![task]).await.unwrap();
    assert_eq!(rig.wait_until_final(task).await.state, TaskState::Cancelled);
    assert_eq!(rig.drain_worker(worker).await.cancelled, 1);
}

#[tokio::test]
async fn progress_is_visible_while_handler_runs() {
    let rig = Harness::new();
    let (go, gone) = tokio::sync::watch::channel(false);
    let reporting = move |context: Context, (): ()| {
        let mut gone = gone.clone();
        async move {
            context.progress(10, "lost among others");
            context.progress(250, "ä".repeat(1000));
            gone.wait_for(|gone| *gone).await?;
            Ok::<_, Failure>(())
        }
    };
    let worker = rig.start_worker(rig.worker_builder_with(quick()).handle("reporting", reporting));
    let task = rig.submit(Task::new("reporting", &())).await;
    rig.wait_until_started(task).await;
    let seen = within_timeout("the progress", async {
        loop {
            if let Some(progress) = rig.task_view(task).await.progress {
                return progress;
            }
            sleep_between_checks().await;
        }
    });
    let seen = seen.await;
    assert_eq!((seen.percent, seen.message), (100, "ä".repeat(100)));
    go.send_replace(true);
    rig.wait_until_acknowledged(task, AttemptOutcome::Completed).await;
    rig.drain_worker(worker).await;
}
