//! A limit that is changed while it is held and tasks wait in its line, by an operator and by
//! the workers of a new version.

use tidegate_core::rules::UNUSED_KIND_RETENTION_MS;
use tidegate_core::{Attempt, Completion, Finish, Kind, Registration, TaskId, TaskState};

use super::fixture::{Fixture, LEASE_MS, claim_request, completed_outcome, task, task_ids, tasks};
use super::registered_limits::{deregister, prune, registration_of, start_worker};

/// More than any capacity here.
const TASKS: usize = 600;

#[derive(Clone, Copy)]
enum ChangedBy {
    Operator,
    Registration,
}

impl ChangedBy {
    async fn set_initial(self, fx: &Fixture, capacity: u32) {
        match self {
            Self::Operator => drop(fx.set_limit("group:a", Some(capacity)).await),
            Self::Registration => drop(start_worker(fx, "old", Some(capacity)).await),
        }
    }

    /// A worker of the new version takes the place of the old one.
    async fn set_capacity(self, fx: &Fixture, capacity: Option<u32>) {
        match self {
            Self::Operator => drop(fx.set_limit("group:a", capacity).await),
            Self::Registration => {
                deregister(fx, "old").await;
                drop(start_worker(fx, "new", capacity).await);
            }
        }
    }
}

async fn complete_all(fx: &Fixture, attempts: &[Attempt]) {
    let exit = |one: &Attempt| Completion {
        task: one.task,
        token: one.token,
        outcome: completed_outcome(),
    };
    let finish = Finish { completions: attempts.iter().map(exit).collect(), claim: None };
    let finished = fx.store.finish(finish).await.expect("finish");
    assert_eq!(finished.lost_attempts, [], "the exits were not accepted");
    fx.settle().await;
    fx.check_invariants().await;
}

async fn assert_blocked(fx: &Fixture, all: &[TaskId], number: usize) {
    let waiting = &all[all.len() - number..];
    assert_eq!(fx.states(waiting).await, vec![TaskState::Blocked; number]);
}

/// What is left is worked off, never more than `most` at once, and nothing stays behind.
async fn work_off(fx: &Fixture, mut running: Vec<Attempt>, most: usize) {
    while !running.is_empty() {
        assert!(running.len() <= most, "{} at once", running.len());
        let ended = running.len().div_ceil(2);
        complete_all(fx, &running[..ended]).await;
        running.drain(..ended);
        running.extend(fx.claim(10_000).await);
    }
    fx.check_at_rest().await;
}

async fn lowered(fx: &Fixture, by: ChangedBy) {
    by.set_initial(fx, 500).await;
    let all = fx.submit_all(tasks("a", TASKS)).await;
    let mut running = fx.claim(10_000).await;
    assert_eq!(task_ids(&running), all[..500]);
    by.set_capacity(fx, Some(10)).await;
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.held, limit.waiting), (Some(10), 500, 100));
    for part in [300, 189, 1] {
        complete_all(fx, &running.split_off(running.len() - part)).await;
        assert_eq!(fx.claim(10_000).await, [], "{} still run", running.len());
    }
    assert_blocked(fx, &all, 100).await;
    complete_all(fx, &running.split_off(9)).await;
    let next = fx.claim(10_000).await;
    assert_eq!(task_ids(&next), all[500..501], "one ended of ten");
    running.extend(next);
    work_off(fx, running, 10).await;
}

async fn raised(fx: &Fixture, by: ChangedBy) {
    by.set_initial(fx, 10).await;
    let all = fx.submit_all(tasks("a", TASKS)).await;
    let mut running = fx.claim(10_000).await;
    assert_eq!(task_ids(&running), all[..10]);
    assert_blocked(fx, &all, TASKS - 10).await;
    by.set_capacity(fx, Some(500)).await;
    running.extend(fx.claim(10_000).await);
    assert_eq!(task_ids(&running), all[..500]);
    assert_blocked(fx, &all, 100).await;
    fx.check_invariants().await;
    work_off(fx, running, 500).await;
}

async fn removed(fx: &Fixture, by: ChangedBy) {
    by.set_initial(fx, 10).await;
    let all = fx.submit_all(tasks("a", TASKS)).await;
    let mut running = fx.claim(10_000).await;
    by.set_capacity(fx, None).await;
    let limit = fx.limit("group:a").await;
    assert_eq!(limit.capacity, None);
    assert!(limit.held >= 10, "what is held stays held");
    assert_eq!(fx.states(&all[..10]).await, [TaskState::Processing; 10]);
    running.extend(fx.claim(10_000).await);
    assert_eq!(task_ids(&running), all, "all that waited");
    fx.check_invariants().await;
    assert_eq!(prune(fx).await.limits, 0, "it is held");
    work_off(fx, running, TASKS).await;
    assert_eq!(prune(fx).await.limits, 1);
    assert!(fx.find_limit("group:a").await.is_none());
}

pub async fn limit_lowered_by_operator_drains_and_admits_in_order(fx: &Fixture) {
    lowered(fx, ChangedBy::Operator).await;
}

pub async fn limit_lowered_by_registration_drains_and_admits_in_order(fx: &Fixture) {
    lowered(fx, ChangedBy::Registration).await;
}

pub async fn limit_raised_by_operator_admits_waiters(fx: &Fixture) {
    raised(fx, ChangedBy::Operator).await;
}

pub async fn limit_raised_by_registration_admits_waiters(fx: &Fixture) {
    raised(fx, ChangedBy::Registration).await;
}

pub async fn limit_removed_by_operator_admits_all_waiters(fx: &Fixture) {
    removed(fx, ChangedBy::Operator).await;
}

pub async fn limit_removed_by_registration_admits_all_waiters(fx: &Fixture) {
    removed(fx, ChangedBy::Registration).await;
}

/// Nothing of it is touched as long as it has tasks; a worker that knows it works them off under
/// its limit.
pub async fn kind_removed_from_code_keeps_its_limit_until_tasks_finish(fx: &Fixture) {
    start_worker(fx, "old", Some(2)).await;
    let all = fx.submit_all(tasks("a", 5)).await;
    let running = fx.claim_as(claim_request("old", &["a"], 9)).await;
    deregister(fx, "old").await;
    let other = Registration { kinds: vec![Kind::new("b")], ..registration_of("new", None) };
    fx.store.register(other).await.expect("register");
    prune(fx).await;
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.held, limit.waiting), (Some(2), 2, 3));
    fx.submit(task("b")).await;
    assert_eq!(fx.claim_as(claim_request("new", &["b"], 9)).await.len(), 1, "others go on");
    complete_all(fx, &running[..1]).await;
    assert_eq!(fx.limit("group:a").await.held, 1, "nobody serves who waits");
    fx.advance(UNUSED_KIND_RETENTION_MS + 1);
    fx.reap().await;
    assert_eq!(prune(fx).await.kinds, 0, "it has tasks");
    fx.check_invariants().await;
    let next = fx.claim_as(claim_request("late", &["a"], 9)).await;
    assert_eq!(task_ids(&next), all[1..3], "under its limit still");
    fx.reap().await;
    let mut running = next;
    while !running.is_empty() {
        complete_all(fx, &running).await;
        running = fx.claim_as(claim_request("late", &["a"], 9)).await;
        assert!(running.len() <= 2);
    }
    fx.advance(UNUSED_KIND_RETENTION_MS + LEASE_MS);
    fx.reap().await;
    let pruned = prune(fx).await;
    assert_eq!((pruned.kinds, pruned.limits), (1, 1));
    assert!(fx.find_limit("group:a").await.is_none());
}
