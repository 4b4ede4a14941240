//! The first signal drains, the second stops.

use std::time::Duration;

use tidegate_core::State;
use tidegate_engine::{Context, Ended, Failure, Options, Phase, Task};
use tokio::sync::watch;

use crate::rig::{Rig, Seen, soon};

#[tokio::test]
async fn a_drain_claims_nothing_and_lets_handlers_finish() {
    let rig = Rig::new();
    let (go, gone) = watch::channel(false);
    let wait = move |_: Context, (): ()| {
        let mut gone = gone.clone();
        async move {
            gone.wait_for(|gone| *gone).await?;
            Ok::<_, Failure>(())
        }
    };
    let worker = rig.start(rig.worker().concurrency(2).handle("wait", wait));
    let first = rig.submit(Task::new("wait", &())).await;
    rig.entered(first).await;
    rig.shutdown.signal();
    rig.shutdown.reached(Phase::Draining).await;
    let late = rig.submit(Task::new("wait", &())).await;
    go.send_replace(true);
    let summary = soon("the drain", worker).await.unwrap().unwrap();
    assert_eq!(summary.completed, 1);
    assert_eq!(rig.state(first).await, State::Completed);
    assert_eq!(rig.state(late).await, State::Pending, "left for others");
}

#[tokio::test]
async fn the_second_signal_gives_attempts_back() {
    let rig = Rig::new();
    let never = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    let worker = rig.start(rig.worker().handle("never", never));
    let task = rig.submit(Task::new("never", &())).await;
    rig.entered(task).await;
    rig.shutdown.signal();
    rig.shutdown.signal();
    let summary = soon("the stop", worker).await.unwrap().unwrap();
    assert_eq!(summary.released, 1);
    assert_eq!(rig.next().await, Seen::Leave(task), "left before the store was told");
    assert_eq!(rig.next().await, Seen::Exit(task, Ended::Released));
    let view = rig.view(task).await;
    assert_eq!((view.state, view.spent), (State::Pending, 0));
}

#[tokio::test]
async fn a_drain_that_takes_too_long_becomes_a_stop() {
    let rig = Rig::new();
    let never = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    let grace = Some(Duration::from_millis(50));
    let options = Options { shutdown_grace: grace, ..Options::default() };
    let worker = rig.start(rig.worker_with(options).handle("never", never));
    let task = rig.submit(Task::new("never", &())).await;
    rig.entered(task).await;
    assert_eq!(rig.end(worker).await.released, 1);
    assert_eq!(rig.state(task).await, State::Pending);
}

#[tokio::test]
async fn heartbeats_go_on_during_a_drain() {
    let rig = Rig::new();
    let long = |_: Context, (): ()| async {
        tidegate_engine::time::sleep(Duration::from_millis(600)).await;
        Ok::<_, Failure>(())
    };
    let options = Options { lease: Duration::from_millis(200), ..Options::default() };
    let worker = rig.start(rig.worker_with(options).handle("long", long));
    let task = rig.submit(Task::new("long", &())).await;
    rig.entered(task).await;
    assert_eq!(rig.end(worker).await.completed, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_does_not_hold_up_a_stop() {
    let rig = Rig::new();
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
    let options = Options { release_grace, ..Options::default() };
    let worker = rig.start(rig.worker_with(options).handle("block", block));
    let task = rig.submit(Task::new("block", &())).await;
    rig.entered(task).await;
    rig.shutdown.stop();
    soon("the stop", worker).await.unwrap().unwrap();
    assert_eq!(rig.state(task).await, State::Processing, "left to its lease");
    drop(release);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_run_drops_its_handlers() {
    struct Gone(tokio::sync::watch::Sender<bool>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.send_replace(true);
        }
    }
    let rig = Rig::new();
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
    let worker = rig.start(rig.worker().handle("endless", endless));
    let task = rig.submit(Task::new("endless", &())).await;
    rig.entered(task).await;
    worker.abort();
    soon("the handler to be dropped", is_gone.wait_for(|gone| *gone)).await.unwrap();
    assert_eq!(rig.state(task).await, State::Processing, "left to its lease");
}
