//! What live workers say of a group, and what becomes of it when they are gone.

use tidegate_core::rules::UNUSED_KIND_RETENTION_MS;
use tidegate_core::{
    CapacitySource, Heartbeat, Kind, PruneReply, RegisterReply, RegisteredCapacityChange,
    Registration, Submission, WorkerId,
};

use super::fixture::{Fixture, LEASE_MS, claim_request, task, tasks};

/// What a worker brings: the kind `a`, with a limit or without.
pub(super) fn registration_of(worker: &str, capacity: Option<u32>) -> Registration {
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
pub(super) async fn start_worker(
    fx: &Fixture,
    worker: &str,
    capacity: Option<u32>,
) -> RegisterReply {
    let registered = fx.store.register(registration_of(worker, capacity)).await.expect("register");
    fx.settle().await;
    registered
}

async fn heartbeat(fx: &Fixture, worker: &str, lease_ms: i64) {
    let worker = WorkerId(worker.into());
    let extend = Heartbeat {
        worker,
        tokens: vec![],
        lease_ms,
        progress: vec![],
        run_times: vec![],
        report: None,
    };
    fx.store.heartbeat(extend).await.expect("heartbeat");
}

/// A worker leaves.
pub(super) async fn deregister(fx: &Fixture, worker: &str) {
    heartbeat(fx, worker, 0).await;
}

/// The keeper's pass.
pub(super) async fn prune(fx: &Fixture) -> PruneReply {
    let pruned = fx.store.prune().await.expect("prune");
    fx.settle().await;
    pruned
}

async fn capacity(fx: &Fixture) -> Option<u32> {
    fx.find_limit("group:a").await.and_then(|limit| limit.capacity)
}

fn registered_change(
    before: u32,
    after: Option<u32>,
    other_workers: u32,
) -> Vec<RegisteredCapacityChange> {
    vec![RegisteredCapacityChange { group: "a".into(), before, after, other_workers }]
}

pub async fn limit_follows_latest_registration_of_live_workers(fx: &Fixture) {
    assert_eq!(start_worker(fx, "one", Some(4)).await, RegisterReply::default());
    assert_eq!(start_worker(fx, "same", Some(4)).await, RegisterReply::default());
    assert_eq!(
        start_worker(fx, "two", Some(2)).await.changed_capacities,
        registered_change(4, Some(2), 2)
    );
    assert_eq!(capacity(fx).await, Some(2));
    assert_eq!(
        start_worker(fx, "three", Some(4)).await.changed_capacities,
        registered_change(2, Some(4), 1)
    );
    assert_eq!(capacity(fx).await, Some(4));
    assert_eq!(prune(fx).await, PruneReply::default());
    assert_eq!(capacity(fx).await, Some(4), "nobody is gone");
}

pub async fn worker_list_shows_registered_capacities_of_live_workers(fx: &Fixture) {
    start_worker(fx, "one", Some(4)).await;
    start_worker(fx, "two", None).await;
    let said = async || {
        let workers = fx.reader.workers().await.expect("workers");
        let said = workers.into_iter().map(|worker| (worker.id.0, worker.registered_capacities));
        said.map(|(id, said)| format!("{id} {said:?}")).collect::<Vec<_>>()
    };
    assert_eq!(said().await, ["one {\"a\": Some(4)}", "two {\"a\": None}"]);
    start_worker(fx, "one", Some(5)).await;
    deregister(fx, "two").await;
    assert_eq!(said().await, ["one {\"a\": Some(5)}"], "its last word, and of those that live");
    fx.advance(LEASE_MS);
    assert_eq!(said().await, <[&str; 0]>::default());
}

/// The last to come may be the first to go: what the others say counts again.
pub async fn deregistered_worker_no_longer_determines_limit(fx: &Fixture) {
    start_worker(fx, "one", Some(4)).await;
    start_worker(fx, "two", Some(2)).await;
    fx.submit_all(tasks("a", 6)).await;
    assert_eq!(fx.claim(9).await.len(), 2);
    deregister(fx, "two").await;
    assert_eq!(capacity(fx).await, Some(2), "until the keeper's pass");
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(4));
    assert_eq!(fx.claim(9).await.len(), 2);
}

pub async fn crashed_worker_no_longer_determines_limit(fx: &Fixture) {
    start_worker(fx, "one", Some(4)).await;
    start_worker(fx, "two", Some(2)).await;
    fx.advance(LEASE_MS - 1);
    heartbeat(fx, "one", LEASE_MS).await;
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(2), "it lives");
    fx.advance(1);
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(4));
}

pub async fn worker_without_registered_limit_is_still_bound_by_it(fx: &Fixture) {
    start_worker(fx, "one", Some(1)).await;
    assert_eq!(start_worker(fx, "two", None).await, RegisterReply::default());
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(1));
    fx.submit_all(tasks("a", 3)).await;
    let running = fx.claim_as(claim_request("two", &["a"], 9)).await;
    assert_eq!(running.len(), 1);
    assert_eq!(fx.claim_as(claim_request("unregistered", &["a"], 9)).await, []);
    fx.complete(&running).await;
    assert_eq!(fx.claim_as(claim_request("two", &["a"], 9)).await.len(), 1);
}

/// A new version of the code has no limit any more: once no old worker lives, it is gone.
pub async fn limit_that_no_live_worker_registers_is_unset(fx: &Fixture) {
    start_worker(fx, "old", Some(1)).await;
    start_worker(fx, "new", None).await;
    deregister(fx, "old").await;
    prune(fx).await;
    assert_eq!(capacity(fx).await, None, "by the keeper's pass");
    start_worker(fx, "old again", Some(1)).await;
    deregister(fx, "old again").await;
    assert_eq!(
        start_worker(fx, "newer", None).await.changed_capacities,
        registered_change(1, None, 0),
        "by a registration"
    );
    assert_eq!(capacity(fx).await, None);
}

pub async fn limit_without_live_workers_of_its_kind_is_kept(fx: &Fixture) {
    start_worker(fx, "one", Some(3)).await;
    deregister(fx, "one").await;
    prune(fx).await;
    let other = Registration { kinds: vec![Kind::new("b")], ..registration_of("other", None) };
    fx.store.register(other).await.expect("register");
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(3), "others say nothing about it");
}

/// A kind that a worker has no settings for it says nothing about.
pub async fn default_settings_do_not_change_registered_limit(fx: &Fixture) {
    start_worker(fx, "one", Some(3)).await;
    deregister(fx, "one").await;
    let kinds = registration_of("two", None).kinds;
    let serves =
        Registration { default_kinds: kinds, kinds: vec![], ..registration_of("two", None) };
    fx.store.register(serves).await.expect("register");
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(3));
}

/// What workers say changes below what a stronger source says.
pub async fn registrations_do_not_override_stronger_sources(fx: &Fixture) {
    fx.set_limit("group:a", Some(9)).await;
    let first = start_worker(fx, "one", Some(4)).await;
    assert_eq!(first.overridden_limits, [("a".to_owned(), Some(9), CapacitySource::Operator)]);
    assert_eq!(
        start_worker(fx, "two", Some(2)).await.changed_capacities,
        registered_change(4, Some(2), 1)
    );
    deregister(fx, "two").await;
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(9));
    fx.set_limit("group:a", None).await;
    assert_eq!(capacity(fx).await, Some(4), "the word of those that live");
    fx.set_limit_as("group:a", Some(7), CapacitySource::Configuration).await;
    start_worker(fx, "three", None).await;
    deregister(fx, "one").await;
    prune(fx).await;
    assert_eq!(capacity(fx).await, Some(7));
}

/// What an operator took away stays away until a worker starts that brings it.
pub async fn unset_limit_stays_unset_until_a_worker_registers_it(fx: &Fixture) {
    start_worker(fx, "one", Some(4)).await;
    fx.set_limit("group:a", None).await;
    prune(fx).await;
    start_worker(fx, "two", None).await;
    assert_eq!(capacity(fx).await, None);
    start_worker(fx, "three", Some(4)).await;
    assert_eq!(capacity(fx).await, Some(4));
}

pub async fn registration_without_limit_does_not_unset_submitted_limit(fx: &Fixture) {
    let limits = vec![("a".to_owned(), 3)];
    let submission = Submission { limits, tasks: tasks("a", 1), ..Submission::default() };
    fx.store.submit(submission).await.expect("submit");
    start_worker(fx, "one", None).await;
    prune(fx).await;
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.source), (Some(3), CapacitySource::Submit));
}

async fn is_known(fx: &Fixture) -> bool {
    fx.reader.kinds().await.expect("kinds").iter().any(|kind| &*kind.name == "a")
}

/// The kind is gone from the code: in time it is forgotten, and its limit with it.
pub async fn unregistered_kind_is_removed_with_its_limit_after_retention(fx: &Fixture) {
    start_worker(fx, "one", Some(3)).await;
    deregister(fx, "one").await;
    fx.advance(UNUSED_KIND_RETENTION_MS);
    assert_eq!(prune(fx).await.kinds, 0, "not before its time");
    fx.advance(1);
    assert_eq!(prune(fx).await, PruneReply { kinds: 1, limits: 1, ..PruneReply::default() });
    assert!(!is_known(fx).await && fx.find_limit("group:a").await.is_none());
    start_worker(fx, "two", Some(2)).await;
    fx.submit_all(tasks("a", 3)).await;
    assert_eq!(fx.claim(9).await.len(), 2, "it may come back");
}

pub async fn kind_in_use_is_not_removed(fx: &Fixture) {
    let long = UNUSED_KIND_RETENTION_MS + 1;
    let stays = async |why: &str| {
        fx.advance(long);
        assert_eq!(prune(fx).await.kinds, 0, "{why}");
        assert!(is_known(fx).await, "{why}");
    };
    start_worker(fx, "one", None).await;
    fx.submit(task("a")).await;
    deregister(fx, "one").await;
    stays("it has a task").await;
    fx.run_all().await;
    deregister(fx, "worker").await;
    fx.set_limit("group:a", Some(1)).await;
    stays("an operator set its limit").await;
    fx.set_limit("group:a", None).await;
    fx.advance(long - LEASE_MS);
    start_worker(fx, "two", None).await;
    fx.advance(LEASE_MS - 1);
    assert_eq!(prune(fx).await.kinds, 0, "a live worker registers it");
    deregister(fx, "two").await;
    fx.advance(long);
    fx.claim_as(claim_request("three", &["a"], 1)).await;
    assert_eq!(prune(fx).await.kinds, 0, "a live worker serves it");
    deregister(fx, "three").await;
    fx.advance(long);
    assert_eq!(prune(fx).await.kinds, 1);
}

/// Whoever submits from SQL counts on the kinds that somebody made known.
pub async fn kind_first_known_from_submit_is_not_removed(fx: &Fixture) {
    fx.submit(task("a")).await;
    start_worker(fx, "one", None).await;
    fx.run_all().await;
    fx.advance(UNUSED_KIND_RETENTION_MS + LEASE_MS);
    assert_eq!(prune(fx).await.kinds, 0);
    assert!(is_known(fx).await);
}
