//! A limit that is changed while it is held and tasks wait in its line, by an operator and by
//! the workers of a new version.

use tidegate_core::rules::KIND_KEPT_MS;
use tidegate_core::{Attempt, Exit, Finish, Kind, Registration, State, TaskId};

use super::fixture::{Fixture, LEASE_MS, asks, done, ids, task, tasks};
use super::registered::{brings, leave, prune, start};

/// More than any capacity here.
const TASKS: usize = 600;

#[derive(Clone, Copy)]
enum By {
    Operator,
    Registration,
}

impl By {
    async fn begin(self, fx: &Fixture, capacity: u32) {
        match self {
            Self::Operator => drop(fx.set_limit("group:a", Some(capacity)).await),
            Self::Registration => drop(start(fx, "old", Some(capacity)).await),
        }
    }

    /// A worker of the new version takes the place of the old one.
    async fn change(self, fx: &Fixture, capacity: Option<u32>) {
        match self {
            Self::Operator => drop(fx.set_limit("group:a", capacity).await),
            Self::Registration => {
                leave(fx, "old").await;
                drop(start(fx, "new", capacity).await);
            }
        }
    }
}

async fn end(fx: &Fixture, attempts: &[Attempt]) {
    let exit = |one: &Attempt| Exit { task: one.task, token: one.token, outcome: done() };
    let finish = Finish { exits: attempts.iter().map(exit).collect(), claim: None };
    let finished = fx.store.finish(finish).await.expect("finish");
    assert_eq!(finished.lost, [], "the exits were not accepted");
    fx.settle().await;
    fx.check().await;
}

async fn blocked(fx: &Fixture, all: &[TaskId], number: usize) {
    let waiting = &all[all.len() - number..];
    assert_eq!(fx.states(waiting).await, vec![State::Blocked; number]);
}

/// What is left is worked off, never more than `most` at once, and nothing stays behind.
async fn work_off(fx: &Fixture, mut running: Vec<Attempt>, most: usize) {
    while !running.is_empty() {
        assert!(running.len() <= most, "{} at once", running.len());
        let ended = running.len().div_ceil(2);
        end(fx, &running[..ended]).await;
        running.drain(..ended);
        running.extend(fx.claim(10_000).await);
    }
    fx.check_at_rest().await;
}

async fn lowered(fx: &Fixture, by: By) {
    by.begin(fx, 500).await;
    let all = fx.submit_all(tasks("a", TASKS)).await;
    let mut running = fx.claim(10_000).await;
    assert_eq!(ids(&running), all[..500]);
    by.change(fx, Some(10)).await;
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.held, limit.waiting), (Some(10), 500, 100));
    for part in [300, 189, 1] {
        end(fx, &running.split_off(running.len() - part)).await;
        assert_eq!(fx.claim(10_000).await, [], "{} still run", running.len());
    }
    blocked(fx, &all, 100).await;
    end(fx, &running.split_off(9)).await;
    let next = fx.claim(10_000).await;
    assert_eq!(ids(&next), all[500..501], "one ended of ten");
    running.extend(next);
    work_off(fx, running, 10).await;
}

async fn raised(fx: &Fixture, by: By) {
    by.begin(fx, 10).await;
    let all = fx.submit_all(tasks("a", TASKS)).await;
    let mut running = fx.claim(10_000).await;
    assert_eq!(ids(&running), all[..10]);
    blocked(fx, &all, TASKS - 10).await;
    by.change(fx, Some(500)).await;
    running.extend(fx.claim(10_000).await);
    assert_eq!(ids(&running), all[..500]);
    blocked(fx, &all, 100).await;
    fx.check().await;
    work_off(fx, running, 500).await;
}

async fn removed(fx: &Fixture, by: By) {
    by.begin(fx, 10).await;
    let all = fx.submit_all(tasks("a", TASKS)).await;
    let mut running = fx.claim(10_000).await;
    by.change(fx, None).await;
    let limit = fx.limit("group:a").await;
    assert_eq!(limit.capacity, None);
    assert!(limit.held >= 10, "what is held stays held");
    assert_eq!(fx.states(&all[..10]).await, [State::Processing; 10]);
    running.extend(fx.claim(10_000).await);
    assert_eq!(ids(&running), all, "all that waited");
    fx.check().await;
    assert_eq!(prune(fx).await.limits, 0, "it is held");
    work_off(fx, running, TASKS).await;
    assert_eq!(prune(fx).await.limits, 1);
    assert!(fx.find_limit("group:a").await.is_none());
}

pub async fn a_limit_is_lowered_by_an_operator(fx: &Fixture) {
    lowered(fx, By::Operator).await;
}

pub async fn a_limit_is_lowered_by_a_registration(fx: &Fixture) {
    lowered(fx, By::Registration).await;
}

pub async fn a_limit_is_raised_by_an_operator(fx: &Fixture) {
    raised(fx, By::Operator).await;
}

pub async fn a_limit_is_raised_by_a_registration(fx: &Fixture) {
    raised(fx, By::Registration).await;
}

pub async fn a_limit_is_removed_by_an_operator(fx: &Fixture) {
    removed(fx, By::Operator).await;
}

pub async fn a_limit_is_removed_by_a_registration(fx: &Fixture) {
    removed(fx, By::Registration).await;
}

/// Nothing of it is touched as long as it has tasks; a worker that knows it works them off under
/// its limit.
pub async fn a_kind_is_removed_while_its_limit_is_held(fx: &Fixture) {
    start(fx, "old", Some(2)).await;
    let all = fx.submit_all(tasks("a", 5)).await;
    let running = fx.claim_as(asks("old", &["a"], 9)).await;
    leave(fx, "old").await;
    let other = Registration { kinds: vec![Kind::new("b")], ..brings("new", None) };
    fx.store.register(other).await.expect("register");
    prune(fx).await;
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.held, limit.waiting), (Some(2), 2, 3));
    fx.submit(task("b")).await;
    assert_eq!(fx.claim_as(asks("new", &["b"], 9)).await.len(), 1, "others go on");
    end(fx, &running[..1]).await;
    assert_eq!(fx.limit("group:a").await.held, 1, "nobody serves who waits");
    fx.advance(KIND_KEPT_MS + 1);
    fx.reap().await;
    assert_eq!(prune(fx).await.kinds, 0, "it has tasks");
    fx.check().await;
    let next = fx.claim_as(asks("late", &["a"], 9)).await;
    assert_eq!(ids(&next), all[1..3], "under its limit still");
    fx.reap().await;
    let mut running = next;
    while !running.is_empty() {
        end(fx, &running).await;
        running = fx.claim_as(asks("late", &["a"], 9)).await;
        assert!(running.len() <= 2);
    }
    fx.advance(KIND_KEPT_MS + LEASE_MS);
    fx.reap().await;
    let pruned = prune(fx).await;
    assert_eq!((pruned.kinds, pruned.limits), (1, 1));
    assert!(fx.find_limit("group:a").await.is_none());
}
