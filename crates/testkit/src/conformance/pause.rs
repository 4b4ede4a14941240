//! An operator pauses a queue.

use tidegate_core::reader::QueueView;
use tidegate_core::{ErrorKind, NewTask, PauseTarget, SetPaused, TaskId};

use super::fixture::{Fixture, LEASE_MS, claim_request, task, task_ids, tasks};

async fn pause(fx: &Fixture, queue: &str, paused: bool) -> bool {
    let changed = fx
        .store
        .set_paused(SetPaused { target: PauseTarget::Queue(queue.into()), paused })
        .await
        .expect("pause");
    fx.settle().await;
    changed
}

async fn queue(fx: &Fixture, name: &str) -> Option<QueueView> {
    let queues = fx.reader.queues().await.expect("queues");
    queues.into_iter().find(|queue| &*queue.name == name)
}

pub async fn paused_queue_is_not_claimed(fx: &Fixture) {
    let stored = fx.submit_all(tasks("a", 2)).await;
    let running = fx.claim_one().await;
    assert!(pause(fx, "default", true).await);
    assert!(!pause(fx, "default", true).await, "it was paused already");
    assert_eq!(fx.claim(9).await, []);
    fx.complete(&[running]).await;
    let late = fx.submit(task("b")).await;
    assert_eq!(fx.claim(9).await, [], "what comes later waits too");
    assert!(pause(fx, "default", false).await);
    assert!(!pause(fx, "default", false).await);
    assert_eq!(fx.run_all().await, [stored[1], late]);
}

pub async fn paused_queue_does_not_affect_other_queues(fx: &Fixture) {
    let on = |queue: &str| NewTask { queue: Some(queue.into()), ..task("a") };
    let stored = fx.submit_all(vec![on("slow"), on("default")]).await;
    pause(fx, "slow", true).await;
    let mut both = claim_request("worker", &["a"], 9);
    both.queues = ["slow".into(), "default".into()].into();
    assert_eq!(task_ids(&fx.claim_as(both).await), [stored[1]]);
}

pub async fn pause_is_visible_to_another_handle(fx: &Fixture) {
    let other = fx.second_handle().await;
    fx.submit_all(tasks("a", 2)).await;
    let claimed = other.store.claim(claim_request("other", &["a"], 1)).await.expect("claim");
    assert_eq!(claimed.len(), 1);
    pause(fx, "default", true).await;
    let claimed = other.store.claim(claim_request("other", &["a"], 1)).await.expect("claim");
    assert_eq!(claimed, []);
    pause(fx, "default", false).await;
    let claimed = other.store.claim(claim_request("other", &["a"], 1)).await.expect("claim");
    assert_eq!(claimed.len(), 1);
}

/// A paused queue does not keep slots from the others for ever.
pub async fn paused_queue_gives_up_slots_of_unclaimed_tasks(fx: &Fixture) {
    fx.set_limit("group:g", Some(1)).await;
    let on = |queue: &str| {
        let (queue, group) = (Some(queue.into()), Some("g".into()));
        NewTask { queue, effective_group: group, ..task("a") }
    };
    let stored = fx.submit_all(vec![on("slow"), on("default")]).await;
    let mut both = claim_request("worker", &["a"], 0);
    both.queues = ["slow".into(), "default".into()].into();
    fx.claim_as(both.clone()).await;
    fx.admit().await;
    pause(fx, "slow", true).await;
    both.tasks_max = 9;
    let mut claimed = fx.claim_as(both.clone()).await;
    for _ in 0..3 {
        if claimed.is_empty() {
            fx.advance(LEASE_MS);
            fx.claim_as(both.clone()).await;
            fx.reap().await;
            claimed = fx.claim_as(both.clone()).await;
        }
    }
    assert_eq!(task_ids(&claimed), [stored[1]]);
    fx.complete(&claimed).await;
    pause(fx, "slow", false).await;
    assert_eq!(task_ids(&fx.claim_as(both).await), [stored[0]]);
}

pub async fn pause_is_shown_in_queue_view_and_explain(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    assert_eq!(queue(fx, "default").await.expect("a queue").paused_at, None);
    assert_eq!(fx.explain(id).await.queue_paused_at, None);
    fx.advance(50);
    pause(fx, "default", true).await;
    fx.advance(50);
    let at = Some(fx.now() - 50);
    assert_eq!(queue(fx, "default").await.expect("a queue").paused_at, at);
    assert_eq!(fx.explain(id).await.queue_paused_at, at);
    assert_eq!(fx.explain(id).await.estimated_wait_ms, None, "until somebody lets it go on");
    pause(fx, "idle", true).await;
    assert!(queue(fx, "idle").await.is_some(), "a paused queue is listed even if it is empty");
    assert_eq!(fx.explain(TaskId(id.0)).await.task, id);
}

pub async fn pause_of_invalid_name_is_rejected(fx: &Fixture) {
    for name in ["", "a\0b", &"x".repeat(5000)] {
        let refused = fx
            .store
            .set_paused(SetPaused { target: PauseTarget::Queue(name.into()), paused: true })
            .await;
        assert_eq!(refused.expect_err("a bad name").kind(), ErrorKind::Invalid);
    }
}
