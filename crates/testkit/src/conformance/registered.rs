//! What live workers say of a group, and what becomes of it when they are gone.

use tidegate_core::rules::KIND_KEPT_MS;
use tidegate_core::{
    Extend, Kind, Pruned, Registered, RegisteredChange, Registration, Source, Submission, WorkerId,
};

use super::fixture::{Fixture, LEASE_MS, asks, task, tasks};

/// What a worker brings: the kind `a`, with a limit or without.
pub(super) fn brings(worker: &str, capacity: Option<u32>) -> Registration {
    let kind = Kind { remove_on_completed_days: Some(0), ..Kind::new("a") };
    Registration {
        kinds: vec![kind],
        limits: capacity.map(|capacity| ("a".to_owned(), capacity)).into_iter().collect(),
        worker: Some(WorkerId(worker.into())),
        lease_ms: LEASE_MS,
        ..Registration::default()
    }
}

/// A worker starts.
pub(super) async fn start(fx: &Fixture, worker: &str, capacity: Option<u32>) -> Registered {
    let registered = fx.store.register(brings(worker, capacity)).await.expect("register");
    fx.settle().await;
    registered
}

async fn beat(fx: &Fixture, worker: &str, lease_ms: i64) {
    let worker = WorkerId(worker.into());
    let extend =
        Extend { worker, tokens: vec![], lease_ms, progress: vec![], ran: vec![], report: None };
    fx.store.extend(extend).await.expect("extend");
}

/// A worker leaves.
pub(super) async fn leave(fx: &Fixture, worker: &str) {
    beat(fx, worker, 0).await;
}

/// The keeper's pass.
pub(super) async fn prune(fx: &Fixture) -> Pruned {
    let pruned = fx.store.prune().await.expect("prune");
    fx.settle().await;
    pruned
}

async fn capacity(fx: &Fixture) -> Option<u32> {
    fx.find_limit("group:a").await.and_then(|limit| limit.capacity)
}

fn changed(before: u32, after: Option<u32>, others: u32) -> Vec<RegisteredChange> {
    vec![RegisteredChange { group: "a".into(), before, after, others }]
}

pub async fn the_latest_word_of_live_workers_counts(fx: &Fixture) {
    assert_eq!(start(fx, "one", Some(4)).await, Registered::default());
    assert_eq!(start(fx, "same", Some(4)).await, Registered::default());
    assert_eq!(start(fx, "two", Some(2)).await.changed, changed(4, Some(2), 2));
    assert_eq!(capacity(fx).await, Some(2));
    assert_eq!(start(fx, "three", Some(4)).await.changed, changed(2, Some(4), 1));
    assert_eq!(capacity(fx).await, Some(4));
    assert_eq!(prune(fx).await, Pruned::default());
    assert_eq!(capacity(fx).await, Some(4), "nobody is gone");
}

pub async fn what_workers_registered_is_shown(fx: &Fixture) {
    start(fx, "one", Some(4)).await;
    start(fx, "two", None).await;
    let said = async || {
        let workers = fx.inspect.workers().await.expect("workers");
        let said = workers.into_iter().map(|worker| (worker.id.0, worker.registered));
        said.map(|(id, said)| format!("{id} {said:?}")).collect::<Vec<_>>()
    };
    assert_eq!(said().await, ["one {\"a\": Some(4)}", "two {\"a\": None}"]);
    start(fx, "one", Some(5)).await;
    leave(fx, "two").await;
    assert_eq!(said().await, ["one {\"a\": Some(5)}"], "its last word, and of those that live");
    fx.advance(LEASE_MS);
    assert_eq!(said().await, <[&str; 0]>::default());
}

/// The last to come may be the first to go: what the others say counts again.
pub async fn a_worker_takes_its_word_along(fx: &Fixture) {
    start(fx, "one", Some(4)).await;
    start(fx, "two", Some(2)).await;
    fx.submit_all(tasks("a", 6)).await;
    assert_eq!(fx.claim(9).await.len(), 2);
    leave(fx, "two").await;
    assert_eq!(capacity(fx).await, Some(2), "until the keeper's pass");
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(4));
    assert_eq!(fx.claim(9).await.len(), 2);
}

pub async fn a_worker_that_died_has_no_say(fx: &Fixture) {
    start(fx, "one", Some(4)).await;
    start(fx, "two", Some(2)).await;
    fx.advance(LEASE_MS - 1);
    beat(fx, "one", LEASE_MS).await;
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(2), "it lives");
    fx.advance(1);
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(4));
}

pub async fn who_does_not_know_a_limit_cannot_bypass_it(fx: &Fixture) {
    start(fx, "one", Some(1)).await;
    assert_eq!(start(fx, "two", None).await, Registered::default());
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(1));
    fx.submit_all(tasks("a", 3)).await;
    let running = fx.claim_as(asks("two", &["a"], 9)).await;
    assert_eq!(running.len(), 1);
    assert_eq!(fx.claim_as(asks("unregistered", &["a"], 9)).await, []);
    fx.complete(&running).await;
    assert_eq!(fx.claim_as(asks("two", &["a"], 9)).await.len(), 1);
}

/// A new version of the code has no limit any more: once no old worker lives, it is gone.
pub async fn a_limit_that_no_live_worker_brings_is_unset(fx: &Fixture) {
    start(fx, "old", Some(1)).await;
    start(fx, "new", None).await;
    leave(fx, "old").await;
    prune(fx).await;
    assert_eq!(capacity(fx).await, None, "by the keeper's pass");
    start(fx, "old again", Some(1)).await;
    leave(fx, "old again").await;
    assert_eq!(start(fx, "newer", None).await.changed, changed(1, None, 0), "by a registration");
    assert_eq!(capacity(fx).await, None);
}

pub async fn a_fleet_that_is_down_keeps_its_limits(fx: &Fixture) {
    start(fx, "one", Some(3)).await;
    leave(fx, "one").await;
    prune(fx).await;
    let other = Registration { kinds: vec![Kind::new("b")], ..brings("other", None) };
    fx.store.register(other).await.expect("register");
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(3), "others say nothing about it");
}

/// A kind that a worker has no settings for it says nothing about.
pub async fn a_default_says_nothing_about_a_limit(fx: &Fixture) {
    start(fx, "one", Some(3)).await;
    leave(fx, "one").await;
    let kinds = brings("two", None).kinds;
    let serves = Registration { defaults: kinds, kinds: vec![], ..brings("two", None) };
    fx.store.register(serves).await.expect("register");
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(3));
}

/// What workers say changes below what a stronger source says.
pub async fn workers_do_not_overrule_anybody(fx: &Fixture) {
    fx.set_limit("group:a", Some(9)).await;
    let first = start(fx, "one", Some(4)).await;
    assert_eq!(first.overruled, [("a".to_owned(), Some(9), Source::Operator)]);
    assert_eq!(start(fx, "two", Some(2)).await.changed, changed(4, Some(2), 1));
    leave(fx, "two").await;
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(9));
    fx.set_limit("group:a", None).await;
    assert_eq!(capacity(fx).await, Some(4), "the word of those that live");
    fx.set_limit_as("group:a", Some(7), Source::Configuration).await;
    start(fx, "three", None).await;
    leave(fx, "one").await;
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(7));
}

/// What an operator took away stays away until a worker starts that brings it.
pub async fn what_was_unset_does_not_come_back_by_itself(fx: &Fixture) {
    start(fx, "one", Some(4)).await;
    fx.set_limit("group:a", None).await;
    prune(fx).await;
    start(fx, "two", None).await;
    assert_eq!(capacity(fx).await, None);
    start(fx, "three", Some(4)).await;
    assert_eq!(capacity(fx).await, Some(4));
}

pub async fn workers_do_not_unset_what_a_submit_brought(fx: &Fixture) {
    let limits = vec![("a".to_owned(), 3)];
    let submission = Submission { limits, tasks: tasks("a", 1), ..Submission::default() };
    fx.store.submit(submission).await.expect("submit");
    start(fx, "one", None).await;
    prune(fx).await;
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.source), (Some(3), Source::Submit));
}

async fn is_known(fx: &Fixture) -> bool {
    fx.inspect.kinds().await.expect("kinds").iter().any(|kind| &*kind.name == "a")
}

/// The kind is gone from the code: in time it is forgotten, and its limit with it.
pub async fn a_kind_that_nobody_registers_is_forgotten(fx: &Fixture) {
    start(fx, "one", Some(3)).await;
    leave(fx, "one").await;
    fx.advance(KIND_KEPT_MS);
    assert_eq!(prune(fx).await.kinds, 0, "not before its time");
    fx.advance(1);
    assert_eq!(prune(fx).await, Pruned { kinds: 1, limits: 1, ..Pruned::default() });
    assert!(!is_known(fx).await && fx.find_limit("group:a").await.is_none());
    start(fx, "two", Some(2)).await;
    fx.submit_all(tasks("a", 3)).await;
    assert_eq!(fx.claim(9).await.len(), 2, "it may come back");
}

pub async fn a_kind_in_use_is_not_forgotten(fx: &Fixture) {
    let long = KIND_KEPT_MS + 1;
    let stays = async |why: &str| {
        fx.advance(long);
        assert_eq!(prune(fx).await.kinds, 0, "{why}");
        assert!(is_known(fx).await, "{why}");
    };
    start(fx, "one", None).await;
    fx.submit(task("a")).await;
    leave(fx, "one").await;
    stays("it has a task").await;
    fx.work_off().await;
    leave(fx, "worker").await;
    fx.set_limit("group:a", Some(1)).await;
    stays("an operator set its limit").await;
    fx.set_limit("group:a", None).await;
    fx.advance(long - LEASE_MS);
    start(fx, "two", None).await;
    fx.advance(LEASE_MS - 1);
    assert_eq!(prune(fx).await.kinds, 0, "a live worker registers it");
    leave(fx, "two").await;
    fx.advance(long);
    fx.claim_as(asks("three", &["a"], 1)).await;
    assert_eq!(prune(fx).await.kinds, 0, "a live worker serves it");
    leave(fx, "three").await;
    fx.advance(long);
    assert_eq!(prune(fx).await.kinds, 1);
}

/// Whoever submits from SQL counts on the kinds that somebody made known.
pub async fn a_kind_that_others_made_known_is_not_forgotten(fx: &Fixture) {
    fx.submit(task("a")).await;
    start(fx, "one", None).await;
    fx.work_off().await;
    fx.advance(KIND_KEPT_MS + LEASE_MS);
    assert_eq!(prune(fx).await.kinds, 0);
    assert!(is_known(fx).await);
}
