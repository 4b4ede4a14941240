//! Ending tasks by request, in every state they can be in.

use tidegate_core::{CancelOutcome, NewTask, Outcome, State, TaskId};

use super::fixture::{Fixture, LEASE_MS, done, ids, retry_in, task, tasks};

pub async fn a_scheduled_task_ends_at_once(fx: &Fixture) {
    let id = fx.submit(NewTask { run_at: Some(fx.now() + 100), ..task("a") }).await;
    assert_eq!(fx.cancel(id).await, CancelOutcome::Cancelled);
    fx.advance(200);
    assert_eq!(fx.claim(1).await, []);
    let view = fx.view(id).await;
    assert_eq!((view.state, view.finished_at), (State::Cancelled, Some(fx.now() - 200)));
    fx.check_at_rest().await;
}

pub async fn an_arrived_task_ends_at_once(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    let cancelled = fx.store.cancel(vec![id]).await.expect("cancel");
    assert_eq!(cancelled, [CancelOutcome::Cancelled]);
    assert_eq!(fx.claim(1).await, []);
    fx.check_at_rest().await;
}

pub async fn a_ready_task_ends_at_once(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    assert_eq!(fx.cancel(id).await, CancelOutcome::Cancelled);
    assert_eq!(fx.claim(1).await, []);
    fx.check_at_rest().await;
}

/// A task that was admitted and not yet claimed holds a slot; it goes to the next in line.
pub async fn an_admitted_task_gives_its_slot_to_the_next(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    fx.claim(0).await;
    assert_eq!(fx.holders("group:a").await[0].task, all[0]);
    assert_eq!(fx.cancel(all[0]).await, CancelOutcome::Cancelled);
    assert_eq!(fx.holders("group:a").await[0].task, all[1]);
    assert_eq!(ids(&fx.claim(9).await), [all[1]]);
}

pub async fn a_blocked_task_leaves_its_line(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    let running = fx.claim(9).await;
    assert_eq!(fx.cancel(all[1]).await, CancelOutcome::Cancelled);
    assert_eq!(fx.limit("group:a").await.waiting, 1);
    fx.complete(&running).await;
    assert_eq!(ids(&fx.claim(9).await), [all[2]]);
}

/// With a heavy head gone, those behind it that fit are let through.
pub async fn a_cancelled_head_makes_room_for_lighter_ones(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let of = |weight| NewTask { weight, ..task("a") };
    let all = fx.submit_all(vec![of(1), of(2), of(1)]).await;
    assert_eq!(ids(&fx.claim(9).await), [all[0]], "the heavy head is not overtaken");
    fx.cancel(all[1]).await;
    assert_eq!(ids(&fx.claim(9).await), [all[2]]);
}

pub async fn a_running_task_is_asked_to_stop(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    assert_eq!(fx.cancel(id).await, CancelOutcome::Requested);
    assert_eq!(fx.cancel(id).await, CancelOutcome::Requested, "may be repeated");
    assert_eq!(fx.state(id).await, State::Processing);
    assert_eq!(fx.limit("group:a").await.held, 1, "it still runs and still holds its slot");
    fx.exit(&attempt, Outcome::Cancelled).await;
    assert_eq!(fx.state(id).await, State::Cancelled);
    fx.check_at_rest().await;
}

pub async fn a_completion_outruns_a_cancel(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.cancel(id).await;
    fx.exit(&attempt, done()).await;
    assert_eq!(fx.state(id).await, State::Completed);
}

/// What was asked to stop does not run again, however its attempt ends.
pub async fn what_would_run_again_ends_instead(fx: &Fixture) {
    for outcome in [retry_in(0), retry_in(50), Outcome::Snoozed { for_ms: 50 }, Outcome::Released] {
        let id = fx.submit(task("a")).await;
        let attempt = fx.claim_one().await;
        fx.cancel(id).await;
        fx.exit(&attempt, outcome.clone()).await;
        assert_eq!(fx.state(id).await, State::Cancelled, "{outcome:?}");
    }
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    fx.cancel(id).await;
    fx.advance(LEASE_MS);
    fx.reap().await;
    assert_eq!(fx.state(id).await, State::Cancelled, "a death ends it too");
    fx.check_at_rest().await;
}

pub async fn a_finished_task_stays_as_it_is(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.exit(&attempt, Outcome::Completed(b"7".to_vec())).await;
    assert_eq!(fx.cancel(id).await, CancelOutcome::Finished);
    let view = fx.view(id).await;
    assert_eq!((view.state, view.result), (State::Completed, Some(b"7".to_vec())));
    let other = fx.submit(task("a")).await;
    fx.cancel(other).await;
    assert_eq!(fx.cancel(other).await, CancelOutcome::Finished);
}

pub async fn a_batch_is_answered_in_order(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 3)).await;
    let attempt = fx.claim_one().await;
    let wanted = vec![TaskId(987_654), all[2], all[0], all[1], all[2]];
    let outcomes = fx.store.cancel(wanted).await.expect("cancel");
    use CancelOutcome::{Cancelled, Finished, NotFound, Requested};
    assert_eq!(outcomes, [NotFound, Cancelled, Requested, Cancelled, Finished]);
    assert_eq!(fx.store.cancel(vec![]).await.expect("cancel"), []);
    fx.exit(&attempt, Outcome::Cancelled).await;
    fx.check_at_rest().await;
}

/// A step that waits for its retry holds the workflow; when it is cancelled the next one runs.
pub async fn a_waiting_step_gives_its_workflow_on(fx: &Fixture) {
    let step = || NewTask { workflow: Some("w".into()), ..task("a") };
    let both = fx.submit_all(vec![step(), step()]).await;
    let attempt = fx.claim_one().await;
    fx.exit(&attempt, retry_in(60_000)).await;
    assert_eq!(fx.claim(1).await, []);
    assert_eq!(fx.cancel(both[0]).await, CancelOutcome::Cancelled);
    assert_eq!(ids(&fx.claim(1).await), [both[1]]);
}

pub async fn a_task_in_every_kind_of_line_can_be_cancelled(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    let heavy = fx.submit(NewTask { weight: 3, ..task("a") }).await;
    fx.set_limit("group:a", Some(2)).await;
    let unserved = fx.submit(NewTask { group: Some("a".into()), ..task("nobody") }).await;
    let step = || NewTask { workflow: Some("w".into()), ..task("b") };
    let steps = fx.submit_all(vec![step(), step()]).await;
    let running = fx.claim(9).await;
    assert_eq!(ids(&running), [steps[0]]);
    let parked = [heavy, unserved, steps[1]];
    assert_eq!(fx.states(&parked).await, [State::Blocked; 3]);
    let outcomes = fx.store.cancel(parked.to_vec()).await.expect("cancel");
    assert_eq!(outcomes, [CancelOutcome::Cancelled; 3]);
    fx.complete(&running).await;
    fx.check_at_rest().await;
}
