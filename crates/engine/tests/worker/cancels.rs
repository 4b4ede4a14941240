//! Cancels and progress: what travels with the heartbeat.

use std::time::Duration;

use tidegate_core::{CancelOutcome, State};
use tidegate_engine::{Context, Ended, Failure, Options, Task};

use crate::rig::{Rig, pause, soon};

fn quick() -> Options {
    Options {
        lease: Duration::from_millis(300),
        poll_interval: Duration::from_millis(20),
        ..Options::default()
    }
}

#[tokio::test]
async fn a_running_task_is_told_and_stops_by_itself() {
    let rig = Rig::new();
    let obedient = |context: Context, (): ()| async move {
        context.cancelled().await;
        assert!(context.is_cancelled());
        Err::<(), _>(Failure::cancelled())
    };
    let worker = rig.start(rig.worker_with(quick()).handle("obedient", obedient));
    let task = rig.submit(Task::new("obedient", &())).await;
    rig.entered(task).await;
    assert_eq!(rig.client.cancel(vec![task]).await.unwrap(), [CancelOutcome::Requested]);
    rig.exited(task, Ended::Cancelled).await;
    assert_eq!(rig.state(task).await, State::Cancelled);
    rig.end(worker).await;
}

#[tokio::test]
async fn a_handler_that_does_not_listen_is_dropped() {
    let rig = Rig::new();
    let deaf = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    let options = Options { cancel_grace: Duration::from_millis(50), ..quick() };
    let worker = rig.start(rig.worker_with(options).handle("deaf", deaf));
    let task = rig.submit(Task::new("deaf", &())).await;
    rig.entered(task).await;
    rig.client.cancel(vec![task]).await.unwrap();
    assert_eq!(rig.ended(task).await.state, State::Cancelled);
    assert_eq!(rig.end(worker).await.cancelled, 1);
}

#[tokio::test]
async fn progress_is_seen_while_the_handler_runs() {
    let rig = Rig::new();
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
    let worker = rig.start(rig.worker_with(quick()).handle("reporting", reporting));
    let task = rig.submit(Task::new("reporting", &())).await;
    rig.entered(task).await;
    let seen = soon("the progress", async {
        loop {
            if let Some(progress) = rig.view(task).await.progress {
                return progress;
            }
            pause().await;
        }
    });
    let seen = seen.await;
    assert_eq!((seen.percent, seen.message), (100, "ä".repeat(100)));
    go.send_replace(true);
    rig.exited(task, Ended::Completed).await;
    rig.end(worker).await;
}
