//! An operator takes a slot away.

use tidegate_core::{Extend, NewTask, Release, ReleaseOutcome, State, WorkerId};

use super::fixture::{Fixture, LEASE_MS, done, ids, task, tasks};

async fn release(fx: &Fixture, limit: &str, slot: u32) -> ReleaseOutcome {
    let release = Release { limit: limit.into(), slot };
    let outcome = fx.store.release(release).await.expect("release");
    fx.settle().await;
    outcome
}

pub async fn the_slot_goes_to_the_next_and_the_holder_is_fenced(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let stored = fx.submit_all(tasks("a", 2)).await;
    let stuck = fx.claim_one().await;
    let slot = stuck.slots[0].number;
    assert_eq!(release(fx, "group:a", slot).await, ReleaseOutcome::Released(stored[0]));
    assert_eq!(fx.finish(stuck.task, stuck.token, done()).await.lost.len(), 1);
    let next = fx.claim(9).await;
    assert_eq!(ids(&next), [stored[1]], "the line goes first");
    let view = fx.view(stored[0]).await;
    assert_eq!(view.spent, 1, "else a handler that hangs would hang for ever");
    assert_eq!(view.error.as_deref(), Some("an operator took its slot away"));
    fx.complete(&next).await;
    assert_eq!(fx.work_off().await, [stored[0]]);
    fx.check_at_rest().await;
}

/// One lease has several attempts: the one that was fenced stops, the others do not.
pub async fn a_heartbeat_tells_the_fenced_attempt(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    fx.submit_all(tasks("a", 2)).await;
    let running = fx.claim(2).await;
    let (stuck, well) = (&running[0], &running[1]);
    assert_eq!(stuck.token, well.token);
    release(fx, "group:a", stuck.slots[0].number).await;
    let beat = || Extend {
        worker: WorkerId("worker".into()),
        tokens: vec![stuck.token],
        lease_ms: LEASE_MS,
        progress: vec![],
        ran: vec![],
        report: None,
    };
    let told = fx.store.extend(beat()).await.expect("extend");
    assert_eq!((told.lost.len(), &told.cancelled[..]), (0, &[(stuck.task, stuck.token)][..]));
    let again = fx.store.extend(beat()).await.expect("extend");
    assert_eq!(again.cancelled, told.cancelled, "an answer may be lost");
    fx.complete(std::slice::from_ref(well)).await;
    let told = fx.store.extend(beat()).await.expect("extend");
    assert_eq!(told.lost, [stuck.token], "the lease went with its last attempt");
    fx.store.prune().await.expect("prune");
    let told = fx.store.extend(beat()).await.expect("extend");
    assert_eq!((told.lost, told.cancelled), (vec![stuck.token], vec![]));
}

pub async fn an_attempt_gives_all_its_slots(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    fx.job(super::fixture::job("j", Some(1))).await;
    let new = NewTask { weight: 3, job: Some("j".into()), ..task("a") };
    let stored = fx.submit_all(vec![new.clone(), new]).await;
    let stuck = fx.claim_one().await;
    assert_eq!(release(fx, "job:j", 0).await, ReleaseOutcome::Released(stuck.task));
    assert_eq!(fx.holders("group:a").await.iter().filter(|h| h.task == stuck.task).count(), 0);
    assert_eq!(ids(&fx.claim(9).await), [stored[1]]);
}

pub async fn the_last_attempt_fails_the_task(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(NewTask { max_attempts: Some(1), ..task("a") }).await;
    fx.claim_one().await;
    release(fx, "group:a", 0).await;
    assert_eq!(fx.state(id).await, State::Failed);
    fx.check_at_rest().await;
}

pub async fn a_task_that_was_to_be_cancelled_ends(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    fx.cancel(id).await;
    release(fx, "group:a", 0).await;
    assert_eq!(fx.state(id).await, State::Cancelled);
    fx.check_at_rest().await;
}

pub async fn what_cannot_be_released_is_told(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    assert_eq!(release(fx, "group:a", 0).await, ReleaseOutcome::Free);
    assert_eq!(release(fx, "group:a", u32::MAX).await, ReleaseOutcome::Free);
    assert_eq!(release(fx, "group:x", 0).await, ReleaseOutcome::NoLimit);
    assert_eq!(release(fx, "a", 0).await, ReleaseOutcome::NoLimit);
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

pub async fn a_step_keeps_its_workflow(fx: &Fixture) {
    let step = || NewTask { workflow: Some("w".into()), ..task("a") };
    let stored = fx.submit_all(vec![step(), step()]).await;
    let running = fx.claim_one().await;
    assert_eq!(release(fx, "workflow:w", 0).await, ReleaseOutcome::ForLife(stored[0]));
    fx.complete(&[running]).await;
    assert_eq!(fx.work_off().await, [stored[1]]);
}
