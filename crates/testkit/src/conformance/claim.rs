//! Handing out ready tasks.

use tidegate_core::bounds::{BATCH_MAX, DURATION_MS_MAX, LEASE_MS_MIN};
use tidegate_core::{Claim, ErrorKind, NewTask, TaskState};

use super::fixture::{Fixture, LEASE_MS, claim_request, task, task_ids, tasks};

pub async fn claim_returns_only_served_kinds_and_queues(fx: &Fixture) {
    let elsewhere = NewTask { queue: Some("other".into()), ..task("a") };
    let all = fx.submit_all(vec![task("a"), task("b"), elsewhere]).await;
    assert_eq!(task_ids(&fx.claim_as(claim_request("w", &["a"], 9)).await), [all[0]]);
    assert_eq!(fx.claim_as(claim_request("w", &["x"], 9)).await, []);
    assert_eq!(fx.claim_as(claim_request("w", &[], 9)).await, []);
    let none = Claim { queues: [].into(), ..claim_request("w", &["b"], 9) };
    assert_eq!(fx.claim_as(none).await, []);
    let both = Claim {
        queues: ["other".into(), "default".into()].into(),
        ..claim_request("w", &["a", "b"], 9)
    };
    assert_eq!(task_ids(&fx.claim_as(both).await), [all[1], all[2]]);
}

/// A limited task of a kind nobody serves takes no slot away from one that could run.
pub async fn task_of_unserved_kind_takes_no_slot(fx: &Fixture) {
    fx.set_limit("group:shared", Some(1)).await;
    let of = |kind| NewTask { effective_group: Some("shared".into()), ..task(kind) };
    let both = fx.submit_all(vec![of("nobody"), of("a")]).await;
    assert_eq!(task_ids(&fx.claim(9).await), [both[1]]);
}

pub async fn claim_returns_at_most_the_requested_number(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 5)).await;
    assert_eq!(fx.claim(0).await, []);
    assert_eq!(task_ids(&fx.claim(2).await), all[..2]);
    assert_eq!(task_ids(&fx.claim(9).await), all[2..]);
    assert_eq!(fx.claim(9).await, []);
}

pub async fn claimed_batch_shares_one_token_and_tokens_ascend(fx: &Fixture) {
    fx.submit_all(tasks("a", 4)).await;
    let (first, second) = (fx.claim(2).await, fx.claim(2).await);
    assert_eq!(first[0].token, first[1].token);
    assert!(first[0].token < second[0].token);
}

pub async fn claimed_task_is_not_claimed_again(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    let other = fx.second_handle().await;
    assert_eq!(other.store.claim(claim_request("other", &["a"], 9)).await.expect("claim"), []);
    assert_eq!(fx.state(id).await, TaskState::Processing);
}

pub async fn claim_with_repeated_kind_returns_task_once(fx: &Fixture) {
    fx.submit(task("a")).await;
    let twice = Claim {
        queues: ["default".into(), "default".into()].into(),
        ..claim_request("w", &["a", "a"], 9)
    };
    assert_eq!(fx.claim_as(twice).await.len(), 1);
}

pub async fn claimed_attempt_has_every_field_of_its_task(fx: &Fixture) {
    fx.set_limit("group:g", Some(5)).await;
    let new = NewTask {
        effective_group: Some("g".into()),
        job: Some("j".into()),
        workflow: Some("w".into()),
        weight: 2,
        max_attempts: Some(3),
        timeout_ms: Some(77),
        ..NewTask::new("a", "{\"x\": 1}")
    };
    let id = fx.submit(new).await;
    let attempt = fx.claim_one().await;
    assert_eq!((attempt.task, attempt.number, attempt.max_attempts), (id, 1, 3));
    assert_eq!((&*attempt.kind, &*attempt.queue), ("a", "default"));
    assert_eq!(attempt.payload, b"{\"x\": 1}");
    assert_eq!(attempt.timeout_ms, Some(77));
    assert_eq!((attempt.job.as_deref(), attempt.workflow.as_deref()), (Some("j"), Some("w")));
    assert_eq!(attempt.expires_at, fx.now() + LEASE_MS);
    let mut slots: Vec<_> =
        attempt.slots.iter().map(|slot| (slot.name.to_string(), slot.number)).collect();
    slots.sort();
    let named = |name: &str, number| (name.to_owned(), number);
    let wanted =
        [named("group:g", 0), named("group:g", 1), named("job:j", 0), named("workflow:w", 0)];
    assert_eq!(slots, wanted);
    // What the task says of itself is what it holds.
    assert_eq!((&*attempt.group, attempt.weight), ("g", 2));
    let needs: Vec<_> = attempt.required_limits();
    assert_eq!(needs, [named("workflow:w", 1), named("job:j", 1), named("group:g", 2)]);
    assert!(needs.iter().all(|(name, weight)| attempt.held_slots_of(name) == *weight));
    for slot in &attempt.slots {
        assert_eq!(fx.limit(&slot.name).await.id, slot.limit);
    }
}

/// A task that names no group is in that of its kind.
pub async fn attempt_without_group_uses_group_of_its_kind(fx: &Fixture) {
    fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    assert_eq!((&*attempt.group, attempt.weight), ("a", 1));
}

pub async fn claim_with_lease_out_of_bounds_is_rejected(fx: &Fixture) {
    fx.submit(task("a")).await;
    for lease_ms in [i64::MIN, -1, 0, LEASE_MS_MIN - 1, DURATION_MS_MAX + 1, i64::MAX] {
        let claim = Claim { lease_ms, ..claim_request("w", &["a"], 1) };
        let error = fx.store.claim(claim).await.expect_err("lease");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{lease_ms}");
    }
    let shortest = Claim { lease_ms: LEASE_MS_MIN, ..claim_request("w", &["a"], 1) };
    assert_eq!(fx.claim_as(shortest).await.len(), 1);
}

pub async fn claim_above_batch_bound_is_rejected(fx: &Fixture) {
    let claim = claim_request("w", &["a"], BATCH_MAX as u32 + 1);
    assert_eq!(fx.store.claim(claim).await.expect_err("too many").kind(), ErrorKind::Invalid);
}

pub async fn empty_claim_creates_no_lease(fx: &Fixture) {
    fx.submit(task("b")).await;
    fx.claim_as(claim_request("w", &["a"], 9)).await;
    assert_eq!(fx.snapshot().await.leases, []);
}

/// A store may skip the note that a worker is alive while at least three quarters of the lease are
/// left, and no longer.
pub async fn claim_renews_worker_row_below_three_quarters_of_lease(fx: &Fixture) {
    let alive_until = async || fx.reader.workers().await.expect("workers")[0].alive_until;
    let begin = fx.now();
    let claim_another = async || {
        fx.submit(task("a")).await;
        fx.claim_one().await;
    };
    claim_another().await;
    assert_eq!(alive_until().await, begin + LEASE_MS);
    fx.advance(LEASE_MS / 4 + 1000);
    claim_another().await;
    assert_eq!(alive_until().await, fx.now() + LEASE_MS);
}

/// An idle worker has no lease to renew: it lives by asking.
pub async fn empty_claim_keeps_worker_alive(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    fx.submit(task("a")).await;
    let claimed = fx.claim_as(claim_request("idle", &["a"], 1)).await;
    fx.complete(&claimed).await;
    for _ in 0..3 {
        assert_eq!(fx.claim_as(claim_request("idle", &["a"], 1)).await, []);
        fx.advance(LEASE_MS - 1);
    }
    let id = fx.submit(task("a")).await;
    fx.admit().await;
    assert_eq!(fx.state(id).await, TaskState::Pending, "a live worker serves it");
    assert_eq!(fx.limit("group:a").await.held, 1);
}

/// The claim's cost and its result do not depend on what is blocked before it.
pub async fn blocked_backlog_does_not_delay_claim_of_other_kind(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let blocked = fx.submit_all(tasks("a", 300)).await;
    let free = fx.submit(task("b")).await;
    assert_eq!(task_ids(&fx.claim(9).await), [blocked[0], free]);
}

/// Over several lanes the order is that of the tasks, not of the lanes.
pub async fn claim_merges_kinds_in_task_order(fx: &Fixture) {
    let kinds = ["a", "b", "c", "a", "c", "b", "b", "a"];
    let all = fx.submit_all(kinds.map(task).to_vec()).await;
    assert_eq!(task_ids(&fx.claim(3).await), all[..3]);
    assert_eq!(task_ids(&fx.claim(9).await), all[3..]);
}

/// However many kinds a worker serves, the tasks of each are found.
pub async fn claim_for_many_kinds_returns_tasks_of_each(fx: &Fixture) {
    let kinds: Vec<String> = (0..600).map(|number| format!("kind-{number}")).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let all = fx.submit_all(kinds.iter().map(|kind| task(kind)).collect()).await;
    let mut found = Vec::new();
    for _ in 0..20 {
        found.extend(task_ids(&fx.claim_as(claim_request("w", &kinds, 100)).await));
    }
    found.sort_unstable();
    assert_eq!(found, all);
}
