//! What is removed, and when.

use tidegate_core::bounds::DAY_MS;
use tidegate_core::{Kind, NewTask, Outcome, PruneReply, Registration, TaskState};

use super::fixture::{Fixture, completed_outcome, fatal_failure, task, tasks};

async fn kind(fx: &Fixture, completed: Option<u32>, failed: Option<u32>) {
    let kind = Kind {
        remove_on_completed_days: completed,
        remove_on_failed_days: failed,
        ..Kind::new("a")
    };
    let registration = Registration { kinds: vec![kind], ..Registration::default() };
    fx.store.register(registration).await.expect("register");
}

async fn prune(fx: &Fixture) -> PruneReply {
    fx.store.prune().await.expect("prune")
}

pub async fn finished_task_is_kept_by_default(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.run_all().await;
    fx.advance(4000 * DAY_MS);
    assert_eq!(prune(fx).await, PruneReply::default());
    assert_eq!(fx.state(id).await, TaskState::Completed);
}

pub async fn finished_tasks_are_removed_after_retention_days(fx: &Fixture) {
    kind(fx, Some(2), Some(5)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    fx.cancel(all[2]).await;
    let claimed = fx.claim(2).await;
    fx.finish_attempt(&claimed[0], completed_outcome()).await;
    fx.finish_attempt(&claimed[1], fatal_failure("no")).await;
    // To the end of the last day on which they are kept.
    let rest_of_day = DAY_MS - fx.now() % DAY_MS;
    fx.advance(2 * DAY_MS + rest_of_day - 1);
    assert_eq!(prune(fx).await.tasks, 0);
    fx.advance(1);
    assert_eq!(prune(fx).await.tasks, 1);
    assert_eq!(fx.reader.task(all[0]).await.expect("task"), None);
    fx.advance(3 * DAY_MS - 1);
    assert_eq!(prune(fx).await.tasks, 0);
    assert_eq!(fx.states(&all[1..]).await, [TaskState::Failed, TaskState::Cancelled]);
    fx.advance(1);
    assert_eq!(prune(fx).await.tasks, 2, "cancelled ones are kept as failed ones are");
    assert!(fx.reader.task_counts().await.expect("counts").is_empty());
}

pub async fn retention_of_zero_days_removes_task_when_it_finishes(fx: &Fixture) {
    kind(fx, Some(0), Some(0)).await;
    fx.set_limit("group:a", Some(5)).await;
    let all = fx.submit_all(tasks("a", 4)).await;
    let claimed = fx.claim(3).await;
    fx.finish_attempt(&claimed[0], completed_outcome()).await;
    fx.finish_attempt(&claimed[1], fatal_failure("no")).await;
    fx.finish_attempt(&claimed[2], Outcome::Cancelled).await;
    fx.cancel(all[3]).await;
    assert!(fx.reader.task_counts().await.expect("counts").is_empty());
    assert_eq!(fx.reader.task(all[0]).await.expect("task"), None);
    assert_eq!(
        fx.finish(all[0], claimed[0].token, completed_outcome()).await.lost_attempts.len(),
        1
    );
    fx.check_at_rest().await;
}

pub async fn unfinished_task_is_never_removed(fx: &Fixture) {
    kind(fx, Some(0), Some(0)).await;
    let late = NewTask { run_at: Some(fx.now() + 900 * DAY_MS), ..task("a") };
    let all = fx.submit_all(vec![task("a"), task("a"), late]).await;
    fx.claim_one().await;
    fx.advance(500 * DAY_MS);
    assert_eq!(prune(fx).await.tasks, 0);
    let wanted = [TaskState::Processing, TaskState::Pending, TaskState::Scheduled];
    assert_eq!(fx.states(&all).await, wanted);
}

pub async fn unset_limit_is_removed_once_unused(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    fx.set_limit("group:b", Some(1)).await;
    fx.submit(task("a")).await;
    let claimed = fx.claim(9).await;
    fx.set_limit("group:a", None).await;
    assert_eq!(prune(fx).await.limits, 0, "it is still held");
    fx.complete(&claimed).await;
    assert_eq!(prune(fx).await.limits, 1);
    assert!(fx.find_limit("group:a").await.is_none());
    assert!(fx.find_limit("group:b").await.is_some(), "what is set stays, also unused");
}

pub async fn removed_limit_can_be_set_again(fx: &Fixture) {
    for _ in 0..2 {
        fx.set_limit("group:a", Some(1)).await;
        fx.submit_all(tasks("a", 2)).await;
        let claimed = fx.claim(9).await;
        assert_eq!(claimed.len(), 1);
        fx.complete(&claimed).await;
        fx.run_all().await;
        fx.set_limit("group:a", None).await;
        prune(fx).await;
        assert!(fx.find_limit("group:a").await.is_none());
    }
    fx.check_at_rest().await;
}

pub async fn limit_of_finished_workflow_is_removed(fx: &Fixture) {
    let step = || NewTask { workflow: Some("w".into()), ..task("a") };
    fx.submit_all(vec![step(), step()]).await;
    fx.claim(0).await;
    prune(fx).await;
    assert!(fx.find_limit("workflow:w").await.is_some(), "it is in use");
    fx.run_all().await;
    prune(fx).await;
    assert!(fx.find_limit("workflow:w").await.is_none());
    let next = fx.submit(step()).await;
    assert_eq!(fx.claim_one().await.task, next, "it can begin again");
}

pub async fn prune_of_many_tasks_runs_in_steps(fx: &Fixture) {
    kind(fx, Some(1), None).await;
    fx.submit_all(tasks("a", 1100)).await;
    let claimed = fx.claim(2000).await;
    let exits = claimed.into_iter().map(|one| tidegate_core::Completion {
        task: one.task,
        token: one.token,
        outcome: completed_outcome(),
    });
    let finish = tidegate_core::Finish { completions: exits.collect(), claim: None };
    fx.store.finish(finish).await.expect("finish");
    fx.advance(2 * DAY_MS);
    let mut removed = 0;
    for _ in 0..10 {
        let pruned = prune(fx).await;
        removed += pruned.tasks;
        if !pruned.has_more {
            break;
        }
    }
    assert_eq!(removed, 1100);
}
