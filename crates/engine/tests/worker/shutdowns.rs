//! The first signal drains, the second stops.

use std::time::Duration;

use tidegate_core::TaskState;
use tidegate_engine::{AttemptOutcome, Context, Failure, ShutdownPhase, Task, WorkerConfig};
use tokio::sync::watch;

use crate::harness::{AttemptEvent, Harness, within_timeout};

#[tokio::test]
async fn drain_claims_nothing_and_lets_handlers_finish() {
    let rig = Harness::new();
    let (go, gone) = watch::channel(false);
    let wait = move |_: Context, (): ()| {
        let mut gone = gone.clone();
        async move {
            gone.wait_for(|gone| *gone).await?;
            Ok::<_, Failure>(())
        }
    };
    let worker = rig.start_worker(rig.worker_builder().concurrency(2).handle("wait", wait));
    let first = rig.submit(Task::new("wait", &())).await;
    rig.wait_until_started(first).await;
    rig.shutdown.on_signal();
    rig.shutdown.wait_for_phase(ShutdownPhase::Draining).await;
    let late = rig.submit(Task::new("wait", &())).await;
    go.send_replace(true);
    let summary = within_timeout("the drain", worker).await.unwrap().unwrap();
    assert_eq!(summary.completed, 1);
    assert_eq!(rig.task_state(first).await, TaskState::Completed);
    assert_eq!(rig.task_state(late).await, TaskState::Pending, "left for others");
}

#[tokio::test]
async fn second_signal_releases_attempts() {
    let rig = Harness::new();
    let never = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    let worker = rig.start_worker(rig.worker_builder().handle("never", never));
    let task = rig.submit(Task::new("never", &())).await;
    rig.wait_until_started(task).await;
    rig.shutdown.on_signal();
    rig.shutdown.on_signal();
    let summary = within_timeout("the stop", worker).await.unwrap().unwrap();
    assert_eq!(summary.released, 1);
    assert_eq!(
        rig.next_event().await,
        AttemptEvent::HandlerDone(task),
        "left before the store was told"
    );
    assert_eq!(rig.next_event().await, AttemptEvent::Acknowledged(task, AttemptOutcome::Released));
    let view = rig.task_view(task).await;
    assert_eq!((view.state, view.attempts_used), (TaskState::Pending, 0));
}

#[tokio::test]
async fn drain_beyond_its_grace_becomes_a_stop() {
    let rig = Harness::new();
    let never = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    let grace = Some(Duration::from_millis(50));
    let options = WorkerConfig { shutdown_grace: grace, ..WorkerConfig::default() };
    let worker = rig.start_worker(rig.worker_builder_with(options).handle("never", never));
    let task = rig.submit(Task::new("never", &())).await;
    rig.wait_until_started(task).await;
    assert_eq!(rig.drain_worker(worker).await.released, 1);
    assert_eq!(rig.task_state(task).await, TaskState::Pending);
}

#[tokio::test]
async fn heartbeats_continue_during_drain() {
    let rig = Harness::new();
    let long = |_: Context, (): ()| async {
        tidegate_engine::time::sleep(Duration::from_millis(600)).await;
        Ok::<_, Failure>(())
    };
    let options = WorkerConfig { lease: Duration::from_millis(200), ..WorkerConfig::default() };
    let worker = rig.start_worker(rig.worker_builder_with(options).handle("long", long));
    let task = rig.submit(Task::new("long", &())).await;
    rig.wait_until_started(task).await;
    assert_eq!(rig.drain_worker(worker).await.completed, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_handler_does_not_delay_stop() {
    let rig = Harness::new();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Arc::new(std::sync::Mutex::new(blocked));
    let block = move |_: Context, (): ()| {
        let blocked = blocked.clone();
        async move {
            let _ = blocked.lock().unwrap().recv();
            Ok::<_, Failure>(())
        }
    };
    let release_grace = Duration::from_millis(50);
    let options = WorkerConfig { release_grace, ..WorkerConfig::default() };
    let worker = rig.start_worker(rig.worker_builder_with(options).handle("block", block));
    let task = rig.submit(Task::new("block", &())).await;
    rig.wait_until_started(task).await;
    rig.shutdown.stop();
    within_timeout("the stop", worker).await.unwrap().unwrap();
    assert_eq!(rig.task_state(task).await, TaskState::Processing, "left to its lease");
    drop(release);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_run_future_drops_its_handlers() {
    struct Gone(tokio::sync::watch::Sender<bool>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.send_replace(true);
        }
    }
    let rig = Harness::new();
    let gone = tokio::sync::watch::Sender::new(false);
    let mut is_gone = gone.subscribe();
    let endless = move |_: Context, (): ()| {
        let guard = Gone(gone.clone());
        async move {
            std::future::pending::<()>().await;
            drop(guard);
            Ok::<_, Failure>(())
        }
    };
    let worker = rig.start_worker(rig.worker_builder().handle("endless", endless));
    let task = rig.submit(Task::new("endless", &())).await;
    rig.wait_until_started(task).await;
    worker.abort();
    within_timeout("the handler to be dropped", is_gone.wait_for(|gone| *gone)).await.unwrap();
    assert_eq!(rig.task_state(task).await, TaskState::Processing, "left to its lease");
}
