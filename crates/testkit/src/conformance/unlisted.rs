//! Expired leases that a heartbeat of their worker does not list.

use tidegate_core::{CancelOutcome, Extend, Kind, NewTask, State, Token, WorkerId};

use super::fixture::{Fixture, LEASE_MS, asks, done, ids, task, tasks};

/// Sends a heartbeat, and returns the number of attempts that it released.
async fn beat(fx: &Fixture, worker: &str, tokens: &[Token]) -> u32 {
    send(fx, worker, tokens, LEASE_MS).await
}

async fn send(fx: &Fixture, worker: &str, tokens: &[Token], lease_ms: i64) -> u32 {
    let extend = Extend {
        worker: WorkerId(worker.into()),
        tokens: tokens.to_vec(),
        lease_ms,
        progress: vec![],
        ran: vec![],
        report: None,
    };
    let extended = fx.store.extend(extend).await.expect("a heartbeat");
    fx.settle().await;
    extended.released
}

/// The answer to the claim was lost: the worker does not know the lease.
pub async fn expired_lease_that_is_not_listed_is_released_unspent(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 3)).await;
    let claimed = fx.claim(3).await;
    fx.complete(&claimed[..1]).await;
    fx.advance(LEASE_MS);
    assert_eq!(beat(fx, "worker", &[]).await, 2, "the finished attempt is not touched");
    assert_eq!(fx.snapshot().await.leases, []);
    assert_eq!(fx.reap().await.expired, 0, "nothing is left for the reaper");
    let again = fx.claim(9).await;
    assert_eq!(ids(&again), all[1..]);
    assert_eq!((again[0].number, again[0].token > claimed[0].token), (1, true));
    let view = fx.view(all[1]).await;
    assert_eq!((view.spent, view.deaths, view.error), (0, 0, None));
}

/// The answer to the claim may still be on its way.
pub async fn unexpired_lease_that_is_not_listed_stays(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.advance(LEASE_MS - 1);
    assert_eq!(beat(fx, "worker", &[]).await, 0);
    assert_eq!(fx.state(id).await, State::Processing);
    fx.exit(&attempt, done()).await;
    assert_eq!(fx.state(id).await, State::Completed);
}

/// The worker still has a completion to report, and it is accepted until another process ends the lease.
pub async fn expired_lease_that_is_listed_is_left_to_its_worker(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let (listed, unlisted) = (fx.claim_one().await, fx.claim_one().await);
    fx.advance(LEASE_MS);
    assert_eq!(beat(fx, "worker", &[listed.token]).await, 1);
    assert_eq!(fx.states(&all).await, [State::Processing, State::Pending]);
    assert_eq!(fx.finish(unlisted.task, unlisted.token, done()).await.lost.len(), 1);
    fx.exit(&listed, done()).await;
    assert_eq!(fx.state(all[0]).await, State::Completed);
}

pub async fn expired_lease_of_another_worker_is_left_to_the_reaper(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    fx.advance(LEASE_MS);
    assert_eq!(beat(fx, "other", &[]).await, 0);
    assert_eq!(fx.reap().await.expired, 1);
    assert_eq!(fx.view(id).await.deaths, 1);
}

pub async fn released_lease_hands_its_slots_on(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let heavy = NewTask { weight: 2, priority: -1, ..task("a") };
    let first = fx.submit(heavy).await;
    assert_eq!(ids(&fx.claim(9).await), [first]);
    let next = fx.submit_all(tasks("a", 2)).await;
    fx.admit().await;
    assert_eq!(fx.limit("group:a").await.held, 2);
    fx.advance(LEASE_MS);
    // A worker must have asked for a slot to be handed to a task of its kind.
    fx.claim(0).await;
    assert_eq!(beat(fx, "worker", &[]).await, 1);
    let claimed = fx.claim(9).await;
    assert_eq!(ids(&claimed), next, "the limit was full, and these have precedence");
    fx.complete(&claimed).await;
    assert_eq!(fx.work_off().await, [first]);
    fx.check_at_rest().await;
}

pub async fn released_task_comes_back_before_its_rank(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    assert_eq!(fx.claim_one().await.task, all[0]);
    fx.advance(LEASE_MS);
    fx.claim(0).await;
    assert_eq!(beat(fx, "worker", &[]).await, 1);
    assert_eq!(fx.work_off().await, all);
}

pub async fn released_lease_rejects_a_late_completion(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let stale = fx.claim_one().await;
    fx.advance(LEASE_MS);
    assert_eq!(beat(fx, "worker", &[]).await, 1);
    let attempt = fx.claim_one().await;
    let before = fx.snapshot().await;
    assert_eq!(fx.finish(id, stale.token, done()).await.lost.len(), 1);
    assert_eq!(fx.snapshot().await, before);
    fx.exit(&attempt, done()).await;
    fx.check_at_rest().await;
}

pub async fn cancel_request_ends_a_released_task(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    assert_eq!(fx.cancel(id).await, CancelOutcome::Requested);
    fx.advance(LEASE_MS);
    assert_eq!(beat(fx, "worker", &[]).await, 1);
    assert_eq!(fx.state(id).await, State::Cancelled);
    fx.check_at_rest().await;
}

pub async fn release_counts_no_crash_however_often(fx: &Fixture) {
    let id = fx.submit(NewTask { max_attempts: Some(1), ..task("a") }).await;
    for _ in 0..=Kind::new("a").max_deaths {
        assert_eq!(fx.claim_one().await.number, 1);
        fx.advance(LEASE_MS);
        assert_eq!(beat(fx, "worker", &[]).await, 1);
    }
    let view = fx.view(id).await;
    assert_eq!((view.state, view.spent, view.deaths), (State::Pending, 0, 0));
}

pub async fn goodbye_releases_expired_leases(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    fx.advance(LEASE_MS);
    assert_eq!(send(fx, "worker", &[], 0).await, 1);
    let view = fx.view(id).await;
    assert_eq!((view.state, view.deaths), (State::Pending, 0));
}

pub async fn heartbeat_releases_leases_in_steps(fx: &Fixture) {
    fx.submit_all(tasks("a", 130)).await;
    let mut listed = Vec::new();
    for number in 0..130 {
        let claimed = fx.store.claim(asks("worker", &["a"], 1)).await.expect("claim");
        if number < 10 {
            listed.push(claimed[0].token);
        }
    }
    fx.advance(LEASE_MS);
    assert_eq!(beat(fx, "worker", &listed).await, 100, "as many as one heartbeat releases");
    assert_eq!(beat(fx, "worker", &listed).await, 20);
    assert_eq!(beat(fx, "worker", &listed).await, 0);
    assert_eq!(fx.snapshot().await.leases.len(), 10);
}
