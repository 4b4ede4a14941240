//! Ending tasks by request, in every state they can be in.

use tidegate_core::{CancelOutcome, NewTask, Outcome, TaskId, TaskState};

use super::fixture::{Fixture, LEASE_MS, completed_outcome, retry_in, task, task_ids, tasks};

pub async fn cancel_of_scheduled_task_is_final_at_once(fx: &Fixture) {
    let id = fx.submit(NewTask { run_at: Some(fx.now() + 100), ..task("a") }).await;
    assert_eq!(fx.cancel(id).await, CancelOutcome::Cancelled);
    fx.advance(200);
    assert_eq!(fx.claim(1).await, []);
    let view = fx.view(id).await;
    assert_eq!((view.state, view.finished_at), (TaskState::Cancelled, Some(fx.now() - 200)));
    fx.check_at_rest().await;
}

pub async fn cancel_of_inbox_task_is_final_at_once(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    let cancelled = fx.store.cancel(vec![id]).await.expect("cancel");
    assert_eq!(cancelled, [CancelOutcome::Cancelled]);
    assert_eq!(fx.claim(1).await, []);
    fx.check_at_rest().await;
}

pub async fn cancel_of_ready_task_is_final_at_once(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    assert_eq!(fx.cancel(id).await, CancelOutcome::Cancelled);
    assert_eq!(fx.claim(1).await, []);
    fx.check_at_rest().await;
}

/// A task that was admitted and not yet claimed holds a slot; it goes to the next in line.
pub async fn cancel_of_admitted_task_hands_off_its_slot(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    fx.claim(0).await;
    assert_eq!(fx.holders("group:a").await[0].task, all[0]);
    assert_eq!(fx.cancel(all[0]).await, CancelOutcome::Cancelled);
    assert_eq!(fx.holders("group:a").await[0].task, all[1]);
    assert_eq!(task_ids(&fx.claim(9).await), [all[1]]);
}

pub async fn cancel_of_blocked_task_removes_it_from_wait_queue(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    let running = fx.claim(9).await;
    assert_eq!(fx.cancel(all[1]).await, CancelOutcome::Cancelled);
    assert_eq!(fx.limit("group:a").await.waiting, 1);
    fx.complete(&running).await;
    assert_eq!(task_ids(&fx.claim(9).await), [all[2]]);
}

/// With a heavy head gone, those behind it that fit are let through.
pub async fn cancel_of_heavy_head_admits_lighter_waiters(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let of = |weight| NewTask { weight, ..task("a") };
    let all = fx.submit_all(vec![of(1), of(2), of(1)]).await;
    assert_eq!(task_ids(&fx.claim(9).await), [all[0]], "the heavy head is not overtaken");
    fx.cancel(all[1]).await;
    assert_eq!(task_ids(&fx.claim(9).await), [all[2]]);
}

pub async fn cancel_of_running_task_is_requested(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    assert_eq!(fx.cancel(id).await, CancelOutcome::Requested);
    assert_eq!(fx.cancel(id).await, CancelOutcome::Requested, "may be repeated");
    assert_eq!(fx.state(id).await, TaskState::Processing);
    assert_eq!(fx.limit("group:a").await.held, 1, "it still runs and still holds its slot");
    fx.finish_attempt(&attempt, Outcome::Cancelled).await;
    assert_eq!(fx.state(id).await, TaskState::Cancelled);
    fx.check_at_rest().await;
}

pub async fn completion_after_cancel_request_is_accepted(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.cancel(id).await;
    fx.finish_attempt(&attempt, completed_outcome()).await;
    assert_eq!(fx.state(id).await, TaskState::Completed);
}

/// What was asked to stop does not run again, however its attempt ends.
pub async fn cancel_request_turns_retry_into_cancelled(fx: &Fixture) {
    for outcome in [retry_in(0), retry_in(50), Outcome::Snoozed { delay_ms: 50 }, Outcome::Released]
    {
        let id = fx.submit(task("a")).await;
        let attempt = fx.claim_one().await;
        fx.cancel(id).await;
        fx.finish_attempt(&attempt, outcome.clone()).await;
        assert_eq!(fx.state(id).await, TaskState::Cancelled, "{outcome:?}");
    }
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    fx.cancel(id).await;
    fx.advance(LEASE_MS);
    fx.reap().await;
    assert_eq!(fx.state(id).await, TaskState::Cancelled, "a death ends it too");
    fx.check_at_rest().await;
}

pub async fn cancel_of_finished_task_changes_nothing(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, Outcome::Completed(b"7".to_vec())).await;
    assert_eq!(fx.cancel(id).await, CancelOutcome::Finished);
    let view = fx.view(id).await;
    assert_eq!((view.state, view.result), (TaskState::Completed, Some(b"7".to_vec())));
    let other = fx.submit(task("a")).await;
    fx.cancel(other).await;
    assert_eq!(fx.cancel(other).await, CancelOutcome::Finished);
}

pub async fn cancel_of_batch_returns_outcomes_in_order(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 3)).await;
    let attempt = fx.claim_one().await;
    let wanted = vec![TaskId(987_654), all[2], all[0], all[1], all[2]];
    let outcomes = fx.store.cancel(wanted).await.expect("cancel");
    use CancelOutcome::{Cancelled, Finished, NotFound, Requested};
    assert_eq!(outcomes, [NotFound, Cancelled, Requested, Cancelled, Finished]);
    assert_eq!(fx.store.cancel(vec![]).await.expect("cancel"), []);
    fx.finish_attempt(&attempt, Outcome::Cancelled).await;
    fx.check_at_rest().await;
}

/// A step that waits for its retry holds the workflow; when it is cancelled the next one runs.
pub async fn cancel_of_retrying_step_starts_next_step(fx: &Fixture) {
    let step = || NewTask { workflow: Some("w".into()), ..task("a") };
    let both = fx.submit_all(vec![step(), step()]).await;
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, retry_in(60_000)).await;
    assert_eq!(fx.claim(1).await, []);
    assert_eq!(fx.cancel(both[0]).await, CancelOutcome::Cancelled);
    assert_eq!(task_ids(&fx.claim(1).await), [both[1]]);
}

pub async fn cancel_of_parked_task_works_for_every_wait_reason(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    let heavy = fx.submit(NewTask { weight: 3, ..task("a") }).await;
    fx.set_limit("group:a", Some(2)).await;
    let unserved = fx.submit(NewTask { effective_group: Some("a".into()), ..task("nobody") }).await;
    let step = || NewTask { workflow: Some("w".into()), ..task("b") };
    let steps = fx.submit_all(vec![step(), step()]).await;
    let running = fx.claim(9).await;
    assert_eq!(task_ids(&running), [steps[0]]);
    let parked = [heavy, unserved, steps[1]];
    assert_eq!(fx.states(&parked).await, [TaskState::Blocked; 3]);
    let outcomes = fx.store.cancel(parked.to_vec()).await.expect("cancel");
    assert_eq!(outcomes, [CancelOutcome::Cancelled; 3]);
    fx.complete(&running).await;
    fx.check_at_rest().await;
}
