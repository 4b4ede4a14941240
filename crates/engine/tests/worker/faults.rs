//! A store that fails now and then.

use std::sync::atomic::Ordering;

use tidegate_core::State;
use tidegate_engine::{Context, Ended, Failure, KindOptions, Task};

use crate::rig::{Rig, Seen};

async fn noop(_: Context, (): ()) -> Result<(), Failure> {
    Ok(())
}

#[tokio::test]
async fn a_lost_answer_is_not_a_lost_lease() {
    let rig = Rig::new();
    rig.store.lose_finish_replies.store(1, Ordering::SeqCst);
    let worker = rig.start(rig.worker().handle("noop", noop));
    let first = rig.submit(Task::new("noop", &())).await;
    rig.entered(first).await;
    let second = rig.submit(Task::new("noop", &())).await;
    rig.exited(second, Ended::Completed).await;
    assert_eq!(rig.state(first).await, State::Completed);
    let summary = rig.end(worker).await;
    assert_eq!(summary.lost, 0);
}

#[tokio::test]
async fn an_exit_is_told_until_it_is_heard() {
    let rig = Rig::new();
    rig.store.lose_finishes.store(5, Ordering::SeqCst);
    let kind = KindOptions::new("noop").max_concurrent(1);
    let worker = rig.start(rig.worker().handle(kind, noop));
    let task = rig.submit(Task::new("noop", &())).await;
    rig.exited(task, Ended::Completed).await;
    let view = rig.view(task).await;
    assert_eq!((view.state, view.spent, view.deaths), (State::Completed, 0, 0));
    assert_eq!(rig.end(worker).await.completed, 1);
}

#[tokio::test]
async fn claims_that_fail_are_tried_again() {
    let rig = Rig::new();
    rig.store.lose_claims.store(3, Ordering::SeqCst);
    let task = rig.submit(Task::new("noop", &())).await;
    let worker = rig.start(rig.worker().handle("noop", noop));
    rig.exited(task, Ended::Completed).await;
    rig.end(worker).await;
}

#[tokio::test]
async fn the_poll_finds_what_no_hint_told() {
    let rig = Rig::new();
    rig.store.no_hints.store(true, Ordering::SeqCst);
    let worker = rig.start(rig.worker().handle("noop", noop));
    for _ in 0..3 {
        let task = rig.submit(Task::new("noop", &())).await;
        rig.exited(task, Ended::Completed).await;
    }
    rig.end(worker).await;
}

#[tokio::test]
async fn hooks_come_in_order() {
    let rig = Rig::new();
    let worker = rig.start(rig.worker().handle("noop", noop));
    let task = rig.submit(Task::new("noop", &())).await;
    assert_eq!(rig.next().await, Seen::Enter(task));
    assert_eq!(rig.next().await, Seen::Leave(task));
    assert_eq!(rig.next().await, Seen::Exit(task, Ended::Completed));
    rig.end(worker).await;
}
