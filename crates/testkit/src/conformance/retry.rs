//! An operator brings tasks back.

use tidegate_core::bounds::BATCH_MAX;
use tidegate_core::{ErrorKind, NewTask, RetryOutcome, TaskId, TaskState};

use super::fixture::{Fixture, fatal_failure, retry_in, task, task_ids, tasks};

async fn retry(fx: &Fixture, tasks: &[TaskId]) -> Vec<RetryOutcome> {
    let outcomes = fx.store.retry(tasks.to_vec()).await.expect("retry");
    fx.settle().await;
    outcomes
}

async fn fail(fx: &Fixture) -> TaskId {
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, fatal_failure("broken")).await;
    attempt.task
}

pub async fn retry_of_failed_task_resets_its_attempts(fx: &Fixture) {
    let id = fx.submit(NewTask { max_attempts: Some(1), ..task("a") }).await;
    fx.advance(100);
    assert_eq!(fail(fx).await, id);
    fx.advance(100);
    assert_eq!(retry(fx, &[id]).await, [RetryOutcome::Retried]);
    let view = fx.view(id).await;
    assert_eq!((view.state, view.attempts_used, view.crashes), (TaskState::Pending, 0, 0));
    assert_eq!((view.finished_at, view.created_at), (None, fx.now() - 200));
    let attempt = fx.claim_one().await;
    assert_eq!((attempt.task, attempt.number), (id, 1));
    fx.complete(&[attempt]).await;
    assert_eq!(fx.state(id).await, TaskState::Completed);
    fx.check_at_rest().await;
}

pub async fn retry_of_cancelled_task_runs_it(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.cancel(id).await;
    assert_eq!(retry(fx, &[id]).await, [RetryOutcome::Retried]);
    assert_eq!(fx.run_all().await, [id]);
    fx.check_at_rest().await;
}

pub async fn retry_of_completed_task_changes_nothing(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.run_all().await;
    let before = fx.view(id).await;
    assert_eq!(retry(fx, &[id]).await, [RetryOutcome::Completed]);
    assert_eq!(fx.view(id).await, before);
    assert_eq!(fx.run_all().await, []);
}

pub async fn retry_of_scheduled_task_makes_it_due_now(fx: &Fixture) {
    let later = fx.submit(NewTask { run_at: Some(fx.now() + 60_000), ..task("a") }).await;
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, retry_in(60_000)).await;
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(retry(fx, &[later, id]).await, [RetryOutcome::MadeDue; 2]);
    let mut claimed = fx.claim(9).await;
    claimed.sort_by_key(|attempt| attempt.task);
    assert_eq!(task_ids(&claimed), [later, id]);
    assert_eq!(claimed[1].number, 2, "it keeps the attempts it has left");
}

pub async fn retry_of_unfinished_task_changes_nothing(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let stored = fx.submit_all(tasks("a", 2)).await;
    let running = fx.claim_one().await;
    let before = fx.snapshot().await;
    let asked = [stored[0], stored[1], TaskId(i64::MAX), TaskId(-1)];
    let (waits, unknown) = (RetryOutcome::Unfinished, RetryOutcome::NotFound);
    assert_eq!(retry(fx, &asked).await, [waits, waits, unknown, unknown]);
    assert_eq!(fx.snapshot().await, before);
    fx.complete(&[running]).await;
}

pub async fn retry_with_repeated_id_retries_once(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fail(fx).await;
    let twice = retry(fx, &[id, id]).await;
    assert_eq!(twice, [RetryOutcome::Retried, RetryOutcome::Unfinished]);
    assert_eq!(fx.run_all().await, [id]);
}

pub async fn retry_restores_unique_key(fx: &Fixture) {
    let keyed = || NewTask { unique_key: Some("k".into()), ..task("a") };
    let id = fx.submit(keyed()).await;
    fail(fx).await;
    assert_eq!(retry(fx, &[id]).await, [RetryOutcome::Retried]);
    let again = fx.try_submit(vec![keyed()]).await.expect("submit");
    assert_eq!((again[0].task, again[0].is_new), (id, false));
    fx.check_invariants().await;
    assert_eq!(fx.run_all().await, [id]);
}

pub async fn retry_with_taken_unique_key_is_rejected(fx: &Fixture) {
    let keyed = || NewTask { unique_key: Some("k".into()), ..task("a") };
    let first = fx.submit(keyed()).await;
    fail(fx).await;
    let second = fx.submit(keyed()).await;
    let other = fx.submit(task("b")).await;
    fx.cancel(other).await;
    let outcomes = retry(fx, &[first, other]).await;
    assert_eq!(outcomes, [RetryOutcome::UniqueKeyTaken, RetryOutcome::Retried]);
    assert_eq!(fx.states(&[first, second]).await, [TaskState::Failed, TaskState::Pending]);
}

pub async fn retry_of_two_tasks_with_same_key_retries_one(fx: &Fixture) {
    let keyed = || NewTask { unique_key: Some("k".into()), ..task("a") };
    let first = fx.submit(keyed()).await;
    fail(fx).await;
    let second = fx.submit(keyed()).await;
    fail(fx).await;
    let outcomes = retry(fx, &[first, second]).await;
    assert_eq!(outcomes, [RetryOutcome::Retried, RetryOutcome::UniqueKeyTaken]);
}

pub async fn retry_is_bound_by_limits(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let stored = fx.submit_all(tasks("a", 3)).await;
    fail(fx).await;
    assert_eq!(retry(fx, &[stored[0]]).await, [RetryOutcome::Retried]);
    assert_eq!(fx.claim(9).await.len(), 1, "one at a time");
    assert_eq!(fx.limit("group:a").await.held, 1);
}

pub async fn retry_of_too_many_tasks_is_rejected(fx: &Fixture) {
    let error = fx.store.retry(vec![TaskId(1); BATCH_MAX + 1]).await.expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(retry(fx, &[]).await, []);
}
