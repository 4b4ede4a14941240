//! An operator takes a slot away.

use tidegate_core::{Heartbeat, NewTask, ReleaseOutcome, ReleaseSlot, TaskState, WorkerId};

use super::fixture::{Fixture, LEASE_MS, completed_outcome, task, task_ids, tasks};

async fn release(fx: &Fixture, limit: &str, slot: u32) -> ReleaseOutcome {
    let release = ReleaseSlot { limit: limit.into(), slot };
    let outcome = fx.store.release_slot(release).await.expect("release");
    fx.settle().await;
    outcome
}

pub async fn released_slot_goes_to_next_waiter_and_holder_is_fenced(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let stored = fx.submit_all(tasks("a", 2)).await;
    let stuck = fx.claim_one().await;
    let slot = stuck.slots[0].number;
    assert_eq!(release(fx, "group:a", slot).await, ReleaseOutcome::Released(stored[0]));
    assert_eq!(
        fx.finish(stuck.task, stuck.token, completed_outcome()).await.lost_attempts.len(),
        1
    );
    let next = fx.claim(9).await;
    assert_eq!(task_ids(&next), [stored[1]], "the line goes first");
    let view = fx.view(stored[0]).await;
    assert_eq!(view.attempts_used, 1, "else a handler that hangs would hang for ever");
    assert_eq!(view.error.as_deref(), Some("an operator took its slot away"));
    fx.complete(&next).await;
    assert_eq!(fx.run_all().await, [stored[0]]);
    fx.check_at_rest().await;
}

/// One lease has several attempts: the one that was fenced stops, the others do not.
pub async fn heartbeat_reports_fenced_attempt(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    fx.submit_all(tasks("a", 2)).await;
    let running = fx.claim(2).await;
    let (stuck, well) = (&running[0], &running[1]);
    assert_eq!(stuck.token, well.token);
    release(fx, "group:a", stuck.slots[0].number).await;
    let beat = || Heartbeat {
        worker: WorkerId("worker".into()),
        tokens: vec![stuck.token],
        lease_ms: LEASE_MS,
        progress: vec![],
        run_times: vec![],
        report: None,
    };
    let told = fx.store.heartbeat(beat()).await.expect("heartbeat");
    assert_eq!(
        (told.lost_leases.len(), &told.attempts_to_stop[..]),
        (0, &[(stuck.task, stuck.token)][..])
    );
    let again = fx.store.heartbeat(beat()).await.expect("heartbeat");
    assert_eq!(again.attempts_to_stop, told.attempts_to_stop, "an answer may be lost");
    fx.complete(std::slice::from_ref(well)).await;
    let told = fx.store.heartbeat(beat()).await.expect("heartbeat");
    assert_eq!(told.lost_leases, [stuck.token], "the lease went with its last attempt");
    fx.store.prune().await.expect("prune");
    let told = fx.store.heartbeat(beat()).await.expect("heartbeat");
    assert_eq!((told.lost_leases, told.attempts_to_stop), (vec![stuck.token], vec![]));
}

pub async fn release_frees_all_slots_of_the_attempt(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    fx.job(super::fixture::job("j", Some(1))).await;
    let new = NewTask { weight: 3, job: Some("j".into()), ..task("a") };
    let stored = fx.submit_all(vec![new.clone(), new]).await;
    let stuck = fx.claim_one().await;
    assert_eq!(release(fx, "job:j", 0).await, ReleaseOutcome::Released(stuck.task));
    assert_eq!(fx.holders("group:a").await.iter().filter(|h| h.task == stuck.task).count(), 0);
    assert_eq!(task_ids(&fx.claim(9).await), [stored[1]]);
}

pub async fn release_of_last_attempt_fails_task(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(NewTask { max_attempts: Some(1), ..task("a") }).await;
    fx.claim_one().await;
    release(fx, "group:a", 0).await;
    assert_eq!(fx.state(id).await, TaskState::Failed);
    fx.check_at_rest().await;
}

pub async fn release_of_task_with_cancel_request_cancels_it(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    fx.cancel(id).await;
    release(fx, "group:a", 0).await;
    assert_eq!(fx.state(id).await, TaskState::Cancelled);
    fx.check_at_rest().await;
}

pub async fn release_of_slot_without_running_task_is_rejected(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    assert_eq!(release(fx, "group:a", 0).await, ReleaseOutcome::SlotFree);
    assert_eq!(release(fx, "group:a", u32::MAX).await, ReleaseOutcome::SlotFree);
    assert_eq!(release(fx, "group:x", 0).await, ReleaseOutcome::LimitNotFound);
    assert_eq!(release(fx, "a", 0).await, ReleaseOutcome::LimitNotFound);
    fx.submit_all(tasks("a", 2)).await;
    let first = fx.claim_one().await;
    let holders = fx.holders("group:a").await;
    let ready = holders.iter().find(|holder| holder.worker.is_none()).expect("one is not claimed");
    let before = fx.snapshot().await;
    let outcome = release(fx, "group:a", ready.slot).await;
    assert_eq!(outcome, ReleaseOutcome::NotRunning(ready.task));
    assert_eq!(fx.snapshot().await, before);
    fx.complete(&[first]).await;
}

pub async fn release_of_workflow_slot_is_rejected(fx: &Fixture) {
    let step = || NewTask { workflow: Some("w".into()), ..task("a") };
    let stored = fx.submit_all(vec![step(), step()]).await;
    let running = fx.claim_one().await;
    assert_eq!(release(fx, "workflow:w", 0).await, ReleaseOutcome::HeldByTask(stored[0]));
    fx.complete(&[running]).await;
    assert_eq!(fx.run_all().await, [stored[1]]);
}
