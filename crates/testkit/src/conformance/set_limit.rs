//! Limits, changed live.

use tidegate_core::bounds::{ADMISSION_BATCH_MAX, CAPACITY_MAX};
use tidegate_core::{CapacitySource, ErrorKind, NewTask, SetLimit, TaskState};

use super::fixture::{Fixture, job, task, task_ids, tasks};

pub async fn limit_of_zero_pauses_and_raising_resumes(fx: &Fixture) {
    fx.set_limit("group:a", Some(0)).await;
    let all = fx.submit_all(tasks("a", 2)).await;
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(fx.states(&all).await, [TaskState::Blocked; 2]);
    fx.set_limit("group:a", Some(1)).await;
    assert_eq!(task_ids(&fx.claim(9).await), [all[0]]);
}

pub async fn limit_of_zero_does_not_stop_running_tasks(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    let running = fx.claim(9).await;
    fx.set_limit("group:a", Some(0)).await;
    assert_eq!(fx.states(&all[..2]).await, [TaskState::Processing; 2]);
    fx.complete(&running).await;
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(fx.state(all[2]).await, TaskState::Blocked);
}

pub async fn unset_limit_is_unlimited(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    fx.submit_all(tasks("a", 5)).await;
    assert_eq!(fx.claim(9).await.len(), 1);
    fx.set_limit("group:a", None).await;
    assert_eq!(fx.claim(9).await.len(), 4);
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.source), (None, CapacitySource::Unset));
}

/// No slot is taken or handed over while more than the new capacity would be held.
pub async fn lowered_limit_drains_before_it_admits(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    fx.submit_all(tasks("a", 6)).await;
    let mut running = fx.claim(9).await;
    fx.set_limit("group:a", Some(1)).await;
    assert_eq!(fx.limit("group:a").await.held, 3, "what runs is not touched");
    for _ in 0..2 {
        fx.complete(&running.split_off(running.len() - 1)).await;
        assert_eq!(fx.claim(9).await, []);
        fx.check_invariants().await;
    }
    fx.complete(&running).await;
    assert_eq!(fx.claim(9).await.len(), 1);
}

/// Holders in high slots count as long as they run.
pub async fn lowered_limit_still_counts_holders_of_high_slots(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    fx.submit_all(tasks("a", 5)).await;
    let running = fx.claim(9).await;
    fx.set_limit("group:a", Some(2)).await;
    // The holders of slots 0 and 1 go; slot 2 is above the new capacity and still held.
    fx.complete(&running[..2]).await;
    assert_eq!(fx.claim(9).await.len(), 1);
    assert_eq!(fx.limit("group:a").await.held, 2);
}

pub async fn raised_limit_admits_parked_tasks(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 5)).await;
    fx.claim(9).await;
    fx.set_limit("group:a", Some(4)).await;
    assert_eq!(fx.limit("group:a").await.held, 4, "without anybody asking");
    assert_eq!(task_ids(&fx.claim(9).await), all[1..4]);
}

pub async fn new_limit_applies_to_ready_backlog(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 6)).await;
    fx.set_limit("group:a", Some(2)).await;
    assert_eq!(task_ids(&fx.claim(9).await), all[..2]);
    assert_eq!(fx.states(&all[2..]).await, [TaskState::Blocked; 4]);
    fx.check_invariants().await;
}

/// However much of a backlog has to go back to the gate, a claim finds what it can run.
pub async fn new_limit_on_large_backlog_does_not_delay_other_kinds(fx: &Fixture) {
    fx.submit_all(tasks("a", 2 * ADMISSION_BATCH_MAX as usize)).await;
    let other = fx.submit(task("b")).await;
    fx.set_limit("group:a", Some(0)).await;
    assert_eq!(task_ids(&fx.claim(1).await), [other]);
    fx.check_invariants().await;
}

/// Nor does it hold up those of its own that the limit has room for.
pub async fn new_limit_on_large_backlog_admits_up_to_capacity(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2 * ADMISSION_BATCH_MAX as usize)).await;
    fx.set_limit("group:a", Some(2)).await;
    assert_eq!(task_ids(&fx.claim(9).await), all[..2]);
    fx.check_invariants().await;
}

pub async fn new_limit_counts_running_tasks(fx: &Fixture) {
    fx.submit_all(tasks("a", 6)).await;
    let running = fx.claim(3).await;
    fx.set_limit("group:a", Some(2)).await;
    assert_eq!(fx.limit("group:a").await.held, 3);
    assert_eq!(fx.claim(9).await, []);
    fx.complete(&running[..1]).await;
    assert_eq!(fx.claim(9).await, []);
    fx.complete(&running[1..2]).await;
    assert_eq!(fx.claim(9).await.len(), 1);
    assert_eq!(fx.limit("group:a").await.held, 2);
}

pub async fn new_limit_counts_weight_of_running_tasks(fx: &Fixture) {
    fx.submit(NewTask { weight: 3, ..task("a") }).await;
    let running = fx.claim(1).await;
    fx.set_limit("group:a", Some(4)).await;
    fx.submit_all(tasks("a", 3)).await;
    assert_eq!(fx.claim(9).await.len(), 1);
    fx.complete(&running).await;
    assert_eq!(fx.claim(9).await.len(), 2);
}

/// A task that waits for its retry when the limit comes passes its gate like any other.
pub async fn new_limit_applies_to_scheduled_tasks(fx: &Fixture) {
    let late = NewTask { run_at: Some(fx.now() + 10), ..task("a") };
    fx.submit_all(vec![late.clone(), late]).await;
    fx.set_limit("group:a", Some(1)).await;
    fx.advance(10);
    assert_eq!(fx.claim(9).await.len(), 1);
}

pub async fn stronger_source_overrides_weaker_ones(fx: &Fixture) {
    use CapacitySource::{Configuration, Operator, Registration, Submit};
    let strongest = [Submit, Registration, Configuration, Operator];
    for (i, source) in strongest.into_iter().enumerate() {
        let capacity = Some(i as u32 + 1);
        assert!(fx.set_limit_as("group:a", capacity, source).await.is_some());
        for weaker in &strongest[..i] {
            assert_eq!(fx.set_limit_as("group:a", Some(99), *weaker).await, None);
        }
        let limit = fx.limit("group:a").await;
        assert_eq!((limit.capacity, limit.source), (capacity, source));
    }
}

pub async fn operator_unset_restores_earlier_registration(fx: &Fixture) {
    fx.set_limit_as("group:a", Some(2), CapacitySource::Registration).await;
    fx.set_limit("group:a", Some(5)).await;
    fx.set_limit("group:a", None).await;
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.source), (Some(2), CapacitySource::Registration));
    fx.submit_all(tasks("a", 5)).await;
    assert_eq!(fx.claim(9).await.len(), 2);
}

/// A deploy under an operator's limit is not lost: it counts once the operator lets go.
pub async fn operator_unset_applies_registration_made_under_override(fx: &Fixture) {
    fx.set_limit("group:a", Some(5)).await;
    assert_eq!(fx.set_limit_as("group:a", Some(3), CapacitySource::Registration).await, None);
    fx.set_limit("group:a", None).await;
    assert_eq!(fx.limit("group:a").await.capacity, Some(3));
}

/// Where no operator has set anything, the setting in force goes: a submit's would otherwise stay
/// for ever, and so would that of a worker that is gone.
pub async fn operator_unset_without_override_removes_setting(fx: &Fixture) {
    for source in
        [CapacitySource::Submit, CapacitySource::Registration, CapacitySource::Configuration]
    {
        fx.set_limit_as("group:a", Some(2), source).await;
        assert!(fx.set_limit("group:a", None).await.is_some());
        let left = fx.find_limit("group:a").await;
        assert_eq!(left.and_then(|limit| limit.capacity), None, "{source}");
        assert!(fx.set_limit_as("group:a", Some(3), source).await.is_some(), "{source} again");
        assert_eq!(fx.limit("group:a").await.capacity, Some(3));
        fx.set_limit("group:a", None).await;
    }
}

pub async fn weaker_source_cannot_unset_limit(fx: &Fixture) {
    fx.set_limit("group:a", Some(5)).await;
    assert_eq!(fx.set_limit_as("group:a", None, CapacitySource::Registration).await, None);
    assert_eq!(fx.limit("group:a").await.capacity, Some(5));
}

pub async fn limit_change_increments_version(fx: &Fixture) {
    assert_eq!(fx.set_limit("group:a", Some(1)).await, Some(1));
    assert_eq!(fx.set_limit("group:a", Some(2)).await, Some(2));
    assert_eq!(fx.set_limit("group:a", Some(2)).await, Some(2), "the same is no change");
    assert_eq!(fx.set_limit("group:a", None).await, Some(3));
    assert_eq!(fx.limit("group:a").await.version, 3);
}

pub async fn unset_of_unknown_limit_creates_nothing(fx: &Fixture) {
    assert!(fx.set_limit("group:a", None).await.is_some());
    assert!(fx.find_limit("group:a").await.is_none());
}

pub async fn invalid_limit_name_or_capacity_is_rejected(fx: &Fixture) {
    let long = format!("group:{}", "x".repeat(201));
    for (name, capacity) in [
        ("group:a", CAPACITY_MAX as u32 + 1),
        ("group:a", u32::MAX),
        ("group:", 1),
        ("a", 1),
        ("", 1),
        ("queue:a", 1),
        ("workflow:a", 2),
        ("job:unknown", 2),
        ("group:a\0b", 1),
        (&*long, 1),
    ] {
        let set = SetLimit {
            name: name.into(),
            capacity: Some(capacity),
            source: CapacitySource::Operator,
        };
        let error = fx.store.set_limit(set).await.expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?} {capacity}");
    }
    assert_eq!(fx.reader.limits().await.expect("limits"), []);
}

/// Capacity is a number, not so many rows: the largest one costs nothing.
pub async fn limit_of_largest_capacity_admits_tasks(fx: &Fixture) {
    let largest = CAPACITY_MAX as u32;
    fx.set_limit("group:a", Some(largest)).await;
    fx.submit_all(tasks("a", 3)).await;
    assert_eq!(fx.claim(9).await.len(), 3);
    fx.set_limit("group:a", Some(largest - 1)).await;
    assert_eq!(fx.limit("group:a").await.capacity, Some(largest - 1));
}

/// 51, 101 and 501 do not divide into equal groups of rows; the limit is exact all the same.
pub async fn limit_is_exact_for_capacities_that_do_not_divide_evenly(fx: &Fixture) {
    for capacity in [51, 101, 501] {
        fx.set_limit("group:a", Some(capacity)).await;
        fx.submit_all(tasks("a", 520)).await;
        let claimed = fx.claim(10_000).await;
        assert_eq!(claimed.len(), capacity as usize);
        let exits = claimed.iter().map(|one| tidegate_core::Completion {
            task: one.task,
            token: one.token,
            outcome: tidegate_core::Outcome::Cancelled,
        });
        let waiting = fx.reader.tasks(blocked()).await.expect("tasks");
        fx.store.cancel(waiting.iter().map(|view| view.id).collect()).await.expect("cancel");
        let finish = tidegate_core::Finish { completions: exits.collect(), claim: None };
        fx.store.finish(finish).await.expect("finish");
        fx.settle().await;
        fx.check_at_rest().await;
    }
}

fn blocked() -> tidegate_core::reader::TaskFilter {
    tidegate_core::reader::TaskFilter {
        states: vec![TaskState::Blocked],
        tasks_max: 10_000,
        ..Default::default()
    }
}

pub async fn limit_of_job_is_changed_live(fx: &Fixture) {
    fx.job(job("j", Some(1))).await;
    let of = || NewTask { job: Some("j".into()), ..task("a") };
    fx.submit_all((0..6).map(|_| of()).collect()).await;
    assert_eq!(fx.claim(9).await.len(), 1);
    fx.set_limit("job:j", Some(3)).await;
    assert_eq!(fx.claim(9).await.len(), 2);
    fx.set_limit("job:j", None).await;
    assert_eq!(fx.limit("job:j").await.capacity, Some(1), "the job's own quota is back");
}

/// The group is the kind unless the task says otherwise, and one limit serves several kinds.
pub async fn group_limit_is_shared_between_kinds(fx: &Fixture) {
    fx.set_limit("group:api", Some(2)).await;
    let of = |kind| NewTask { effective_group: Some("api".into()), ..task(kind) };
    let all = fx.submit_all(vec![of("a"), of("b"), of("c"), task("a")]).await;
    assert_eq!(task_ids(&fx.claim(9).await), [all[0], all[1], all[3]]);
}
