//! Leases that ran out.

use tidegate_core::{Claim, Heartbeat, Kind, NewTask, Registration, TaskState, WorkerId};

use super::fixture::{Fixture, LEASE_MS, claim_request, completed_outcome, task, task_ids, tasks};

pub async fn expired_lease_returns_its_tasks(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 3)).await;
    let claimed = fx.claim(3).await;
    fx.complete(&claimed[..1]).await;
    fx.advance(LEASE_MS - 1);
    assert_eq!(fx.reap().await.expired_attempts, 0, "one millisecond is left");
    fx.advance(1);
    assert_eq!(fx.reap().await.expired_attempts, 2, "what was finished is not touched");
    let again = fx.claim(9).await;
    assert_eq!(task_ids(&again), all[1..]);
    assert_eq!((again[0].number, again[0].token > claimed[0].token), (2, true));
    let view = fx.view(all[1]).await;
    assert_eq!((view.attempts_used, view.crashes), (1, 1));
    assert!(view.error.is_some(), "it says what happened");
}

pub async fn crash_hands_off_slots_to_next_waiter(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let once = NewTask { weight: 2, max_attempts: Some(1), ..task("a") };
    let all = fx.submit_all(vec![once.clone(), once]).await;
    fx.claim(9).await;
    fx.advance(LEASE_MS);
    // Somebody must be alive for a slot to be handed to.
    fx.claim(0).await;
    assert_eq!(fx.reap().await.expired_attempts, 1);
    assert_eq!(task_ids(&fx.claim(9).await), [all[1]], "the first had one attempt");
}

pub async fn task_fails_after_default_number_of_crashes(fx: &Fixture) {
    let max_crashes = Kind::new("a").max_crashes;
    assert_eq!(crash_until_failed(fx).await, max_crashes, "a kind that nobody registered");
}

/// A kind whose tasks are to outlive many processes says so.
pub async fn task_fails_after_max_crashes_of_its_kind(fx: &Fixture) {
    for max_crashes in [1, 5] {
        let kinds = vec![Kind { max_crashes, ..Kind::new("a") }];
        let registration = Registration { kinds, ..Registration::default() };
        fx.store.register(registration).await.expect("register");
        assert_eq!(crash_until_failed(fx).await, max_crashes);
    }
}

/// A task whose worker dies until it is quarantined; returns after how many deaths it was.
async fn crash_until_failed(fx: &Fixture) -> u32 {
    let id = fx.submit(NewTask { max_attempts: Some(100), ..task("a") }).await;
    while fx.state(id).await == TaskState::Pending {
        assert_eq!(fx.claim_one().await.task, id);
        fx.advance(LEASE_MS);
        assert_eq!(fx.reap().await.expired_attempts, 1);
    }
    let view = fx.view(id).await;
    assert_eq!(view.state, TaskState::Failed);
    assert!(view.error.expect("an error").starts_with("quarantined"));
    fx.check_at_rest().await;
    view.crashes
}

pub async fn crash_of_last_attempt_fails_task(fx: &Fixture) {
    let id = fx.submit(NewTask { max_attempts: Some(1), ..task("a") }).await;
    fx.claim_one().await;
    fx.advance(LEASE_MS);
    fx.reap().await;
    let view = fx.view(id).await;
    assert_eq!((view.state, view.attempts_used, view.crashes), (TaskState::Failed, 1, 1));
}

/// Invariant 2: whoever lost its lease can do no harm.
pub async fn reaped_attempt_cannot_complete_or_renew(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    let stale = fx.claim_one().await;
    fx.advance(LEASE_MS);
    fx.reap().await;
    let attempt = fx.claim_one().await;
    let before = fx.snapshot().await;
    assert_eq!(fx.finish(id, stale.token, completed_outcome()).await.lost_attempts.len(), 1);
    assert_eq!(fx.snapshot().await, before, "the slot is the new attempt's");
    let beat = Heartbeat {
        worker: WorkerId("worker".into()),
        tokens: vec![stale.token],
        lease_ms: LEASE_MS,
        progress: vec![],
        run_times: vec![],
        report: None,
    };
    assert_eq!(fx.store.heartbeat(beat).await.expect("heartbeat").lost_leases, [stale.token]);
    fx.finish_attempt(&attempt, completed_outcome()).await;
    fx.check_at_rest().await;
}

/// Until somebody reaps it, a lease that ran out still fences the task, and its own worker may
/// still report: nobody else has it.
pub async fn completion_under_expired_lease_before_reap_is_accepted(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.advance(LEASE_MS + 1);
    fx.finish_attempt(&attempt, completed_outcome()).await;
    assert_eq!(fx.reap().await.expired_attempts, 0);
    assert_eq!(fx.state(id).await, TaskState::Completed);
    assert_eq!(fx.snapshot().await.leases, [], "the empty lease is gone");
}

pub async fn reap_takes_only_leases_that_expired(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let short = Claim { lease_ms: 1000, ..claim_request("short", &["a"], 1) };
    fx.claim_as(short).await;
    fx.claim_as(claim_request("long", &["a"], 1)).await;
    fx.advance(1000);
    assert_eq!(fx.reap().await.expired_attempts, 1);
    assert_eq!(fx.states(&all).await, [TaskState::Pending, TaskState::Processing]);
}

pub async fn reap_of_many_leases_runs_in_steps(fx: &Fixture) {
    fx.submit_all(tasks("a", 130)).await;
    for _ in 0..130 {
        let claimed = fx.store.claim(claim_request("w", &["a"], 1)).await.expect("claim");
        assert_eq!(claimed.len(), 1);
    }
    fx.advance(LEASE_MS);
    let mut expired = 0;
    for _ in 0..10 {
        let reaped = fx.reap().await;
        expired += reaped.expired_attempts;
        if !reaped.has_more {
            break;
        }
    }
    assert_eq!(expired, 130);
    assert_eq!(fx.snapshot().await.leases, []);
}

/// A step takes a bounded number of attempts, and may leave a part of a lease to the next one.
pub async fn many_attempts_of_a_lease_are_reaped_in_steps(fx: &Fixture) {
    let mut all = fx.submit_all(tasks("a", 1250)).await;
    fx.claim(1200).await;
    fx.claim(50).await;
    fx.advance(LEASE_MS);
    let first = fx.reap().await;
    assert_eq!((first.expired_attempts, first.has_more), (1000, true));
    assert_eq!(fx.snapshot().await.leases.len(), 2, "the first lease has attempts left");
    let mut expired = 0;
    for _ in 0..3 {
        expired += fx.reap().await.expired_attempts;
    }
    assert_eq!(expired, 250);
    assert_eq!(fx.snapshot().await.leases, []);
    let mut again = task_ids(&fx.claim(1250).await);
    again.sort_unstable();
    all.sort_unstable();
    assert_eq!(again, all);
}

/// A dead worker's step keeps its workflow: the next does not overtake it.
pub async fn crashed_step_is_not_overtaken_by_next_step(fx: &Fixture) {
    let step = || NewTask { workflow: Some("w".into()), ..task("a") };
    let both = fx.submit_all(vec![step(), step()]).await;
    fx.claim_one().await;
    fx.advance(LEASE_MS);
    fx.reap().await;
    let claimed = fx.claim(9).await;
    assert_eq!(task_ids(&claimed), [both[0]]);
    fx.complete(&claimed).await;
    assert_eq!(task_ids(&fx.claim(9).await), [both[1]]);
}
