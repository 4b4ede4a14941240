//! Leases that ran out.

use tidegate_core::{Claim, Extend, Kind, NewTask, Registration, State, WorkerId};

use super::fixture::{Fixture, LEASE_MS, asks, done, ids, task, tasks};

pub async fn a_lease_that_ran_out_gives_its_tasks_back(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 3)).await;
    let claimed = fx.claim(3).await;
    fx.complete(&claimed[..1]).await;
    fx.advance(LEASE_MS - 1);
    assert_eq!(fx.reap().await.expired, 0, "one millisecond is left");
    fx.advance(1);
    assert_eq!(fx.reap().await.expired, 2, "what was finished is not touched");
    let again = fx.claim(9).await;
    assert_eq!(ids(&again), all[1..]);
    assert_eq!((again[0].number, again[0].token > claimed[0].token), (2, true));
    let view = fx.view(all[1]).await;
    assert_eq!((view.spent, view.deaths), (1, 1));
    assert!(view.error.is_some(), "it says what happened");
}

pub async fn a_death_frees_the_slots_for_the_next(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let once = NewTask { weight: 2, max_attempts: Some(1), ..task("a") };
    let all = fx.submit_all(vec![once.clone(), once]).await;
    fx.claim(9).await;
    fx.advance(LEASE_MS);
    // Somebody must be alive for a slot to be handed to.
    fx.claim(0).await;
    assert_eq!(fx.reap().await.expired, 1);
    assert_eq!(ids(&fx.claim(9).await), [all[1]], "the first had one attempt");
}

pub async fn deaths_lead_to_quarantine(fx: &Fixture) {
    let max_deaths = Kind::new("a").max_deaths;
    assert_eq!(die_for_good(fx).await, max_deaths, "a kind that nobody registered");
}

/// A kind whose tasks are to outlive many processes says so.
pub async fn a_kind_says_how_many_deaths_are_too_many(fx: &Fixture) {
    for max_deaths in [1, 5] {
        let kinds = vec![Kind { max_deaths, ..Kind::new("a") }];
        let registration = Registration { kinds, ..Registration::default() };
        fx.store.register(registration).await.expect("register");
        assert_eq!(die_for_good(fx).await, max_deaths);
    }
}

/// A task whose worker dies until it is quarantined; returns after how many deaths it was.
async fn die_for_good(fx: &Fixture) -> u32 {
    let id = fx.submit(NewTask { max_attempts: Some(100), ..task("a") }).await;
    while fx.state(id).await == State::Pending {
        assert_eq!(fx.claim_one().await.task, id);
        fx.advance(LEASE_MS);
        assert_eq!(fx.reap().await.expired, 1);
    }
    let view = fx.view(id).await;
    assert_eq!(view.state, State::Failed);
    assert!(view.error.expect("an error").starts_with("quarantined"));
    fx.check_at_rest().await;
    view.deaths
}

pub async fn the_last_attempt_dies_for_good(fx: &Fixture) {
    let id = fx.submit(NewTask { max_attempts: Some(1), ..task("a") }).await;
    fx.claim_one().await;
    fx.advance(LEASE_MS);
    fx.reap().await;
    let view = fx.view(id).await;
    assert_eq!((view.state, view.spent, view.deaths), (State::Failed, 1, 1));
}

/// Invariant 2: whoever lost its lease can do no harm.
pub async fn a_reaped_attempt_changes_nothing_any_more(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    let stale = fx.claim_one().await;
    fx.advance(LEASE_MS);
    fx.reap().await;
    let attempt = fx.claim_one().await;
    let before = fx.snapshot().await;
    assert_eq!(fx.finish(id, stale.token, done()).await.lost.len(), 1);
    assert_eq!(fx.snapshot().await, before, "the slot is the new attempt's");
    let beat = Extend {
        worker: WorkerId("worker".into()),
        tokens: vec![stale.token],
        lease_ms: LEASE_MS,
        progress: vec![],
        ran: vec![],
        report: None,
    };
    assert_eq!(fx.store.extend(beat).await.expect("extend").lost, [stale.token]);
    fx.exit(&attempt, done()).await;
    fx.check_at_rest().await;
}

/// Until somebody reaps it, a lease that ran out still fences the task, and its own worker may
/// still report: nobody else has it.
pub async fn an_exit_before_the_reaper_counts(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.advance(LEASE_MS + 1);
    fx.exit(&attempt, done()).await;
    assert_eq!(fx.reap().await.expired, 0);
    assert_eq!(fx.state(id).await, State::Completed);
    assert_eq!(fx.snapshot().await.leases, [], "the empty lease is gone");
}

pub async fn each_lease_has_its_own_end(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let short = Claim { lease_ms: 1000, ..asks("short", &["a"], 1) };
    fx.claim_as(short).await;
    fx.claim_as(asks("long", &["a"], 1)).await;
    fx.advance(1000);
    assert_eq!(fx.reap().await.expired, 1);
    assert_eq!(fx.states(&all).await, [State::Pending, State::Processing]);
}

pub async fn many_leases_are_reaped_in_steps(fx: &Fixture) {
    fx.submit_all(tasks("a", 130)).await;
    for _ in 0..130 {
        let claimed = fx.store.claim(asks("w", &["a"], 1)).await.expect("claim");
        assert_eq!(claimed.len(), 1);
    }
    fx.advance(LEASE_MS);
    let mut expired = 0;
    for _ in 0..10 {
        let reaped = fx.reap().await;
        expired += reaped.expired;
        if !reaped.more {
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
    assert_eq!((first.expired, first.more), (1000, true));
    assert_eq!(fx.snapshot().await.leases.len(), 2, "the first lease has attempts left");
    let mut expired = 0;
    for _ in 0..3 {
        expired += fx.reap().await.expired;
    }
    assert_eq!(expired, 250);
    assert_eq!(fx.snapshot().await.leases, []);
    let mut again = ids(&fx.claim(1250).await);
    again.sort_unstable();
    all.sort_unstable();
    assert_eq!(again, all);
}

/// A dead worker's step keeps its workflow: the next does not overtake it.
pub async fn a_death_keeps_the_workflow(fx: &Fixture) {
    let step = || NewTask { workflow: Some("w".into()), ..task("a") };
    let both = fx.submit_all(vec![step(), step()]).await;
    fx.claim_one().await;
    fx.advance(LEASE_MS);
    fx.reap().await;
    let claimed = fx.claim(9).await;
    assert_eq!(ids(&claimed), [both[0]]);
    fx.complete(&claimed).await;
    assert_eq!(ids(&fx.claim(9).await), [both[1]]);
}
