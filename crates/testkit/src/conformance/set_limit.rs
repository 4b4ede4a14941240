//! Limits, changed live.

use tidegate_core::bounds::{CAPACITY_MAX, GATE_STEP};
use tidegate_core::{ErrorKind, NewTask, SetLimit, Source, State};

use super::fixture::{Fixture, ids, job, task, tasks};

pub async fn zero_pauses_and_raising_resumes(fx: &Fixture) {
    fx.set_limit("group:a", Some(0)).await;
    let all = fx.submit_all(tasks("a", 2)).await;
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(fx.states(&all).await, [State::Blocked; 2]);
    fx.set_limit("group:a", Some(1)).await;
    assert_eq!(ids(&fx.claim(9).await), [all[0]]);
}

pub async fn a_pause_does_not_touch_what_runs(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    let running = fx.claim(9).await;
    fx.set_limit("group:a", Some(0)).await;
    assert_eq!(fx.states(&all[..2]).await, [State::Processing; 2]);
    fx.complete(&running).await;
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(fx.state(all[2]).await, State::Blocked);
}

pub async fn unset_means_unlimited(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    fx.submit_all(tasks("a", 5)).await;
    assert_eq!(fx.claim(9).await.len(), 1);
    fx.set_limit("group:a", None).await;
    assert_eq!(fx.claim(9).await.len(), 4);
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.source), (None, Source::Unset));
}

/// No slot is taken or handed over while more than the new capacity would be held.
pub async fn lowering_drains(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    fx.submit_all(tasks("a", 6)).await;
    let mut running = fx.claim(9).await;
    fx.set_limit("group:a", Some(1)).await;
    assert_eq!(fx.limit("group:a").await.held, 3, "what runs is not touched");
    for _ in 0..2 {
        fx.complete(&running.split_off(running.len() - 1)).await;
        assert_eq!(fx.claim(9).await, []);
        fx.check().await;
    }
    fx.complete(&running).await;
    assert_eq!(fx.claim(9).await.len(), 1);
}

/// Holders in high slots count as long as they run.
pub async fn lowering_does_not_forget_holders(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    fx.submit_all(tasks("a", 5)).await;
    let running = fx.claim(9).await;
    fx.set_limit("group:a", Some(2)).await;
    // The holders of slots 0 and 1 go; slot 2 is above the new capacity and still held.
    fx.complete(&running[..2]).await;
    assert_eq!(fx.claim(9).await.len(), 1);
    assert_eq!(fx.limit("group:a").await.held, 2);
}

pub async fn raising_admits_the_parked(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 5)).await;
    fx.claim(9).await;
    fx.set_limit("group:a", Some(4)).await;
    assert_eq!(fx.limit("group:a").await.held, 4, "without anybody asking");
    assert_eq!(ids(&fx.claim(9).await), all[1..4]);
}

pub async fn a_new_limit_applies_to_the_backlog(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 6)).await;
    fx.set_limit("group:a", Some(2)).await;
    assert_eq!(ids(&fx.claim(9).await), all[..2]);
    assert_eq!(fx.states(&all[2..]).await, [State::Blocked; 4]);
    fx.check().await;
}

/// However much of a backlog has to go back to the gate, a claim finds what it can run.
pub async fn a_new_limit_on_a_backlog_does_not_hold_up_others(fx: &Fixture) {
    fx.submit_all(tasks("a", 2 * GATE_STEP as usize)).await;
    let other = fx.submit(task("b")).await;
    fx.set_limit("group:a", Some(0)).await;
    assert_eq!(ids(&fx.claim(1).await), [other]);
    fx.check().await;
}

/// Nor does it hold up those of its own that the limit has room for.
pub async fn a_new_limit_on_a_backlog_lets_through_what_it_can(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2 * GATE_STEP as usize)).await;
    fx.set_limit("group:a", Some(2)).await;
    assert_eq!(ids(&fx.claim(9).await), all[..2]);
    fx.check().await;
}

pub async fn a_new_limit_counts_what_runs(fx: &Fixture) {
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

pub async fn a_new_limit_counts_the_weight_of_what_runs(fx: &Fixture) {
    fx.submit(NewTask { weight: 3, ..task("a") }).await;
    let running = fx.claim(1).await;
    fx.set_limit("group:a", Some(4)).await;
    fx.submit_all(tasks("a", 3)).await;
    assert_eq!(fx.claim(9).await.len(), 1);
    fx.complete(&running).await;
    assert_eq!(fx.claim(9).await.len(), 2);
}

/// A task that waits for its retry when the limit comes passes its gate like any other.
pub async fn a_new_limit_applies_to_what_is_scheduled(fx: &Fixture) {
    let late = NewTask { run_at: Some(fx.now() + 10), ..task("a") };
    fx.submit_all(vec![late.clone(), late]).await;
    fx.set_limit("group:a", Some(1)).await;
    fx.advance(10);
    assert_eq!(fx.claim(9).await.len(), 1);
}

pub async fn sources_have_an_order(fx: &Fixture) {
    use Source::{Configuration, Operator, Registration, Submit};
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

pub async fn an_operators_unset_brings_back_what_was_before(fx: &Fixture) {
    fx.set_limit_as("group:a", Some(2), Source::Registration).await;
    fx.set_limit("group:a", Some(5)).await;
    fx.set_limit("group:a", None).await;
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.source), (Some(2), Source::Registration));
    fx.submit_all(tasks("a", 5)).await;
    assert_eq!(fx.claim(9).await.len(), 2);
}

/// A deploy under an operator's limit is not lost: it counts once the operator lets go.
pub async fn what_was_overruled_is_remembered(fx: &Fixture) {
    fx.set_limit("group:a", Some(5)).await;
    assert_eq!(fx.set_limit_as("group:a", Some(3), Source::Registration).await, None);
    fx.set_limit("group:a", None).await;
    assert_eq!(fx.limit("group:a").await.capacity, Some(3));
}

/// Where no operator has set anything, the setting in force goes: a submit's would otherwise stay
/// for ever, and so would that of a worker that is gone.
pub async fn an_operators_unset_removes_what_nobody_overruled(fx: &Fixture) {
    for source in [Source::Submit, Source::Registration, Source::Configuration] {
        fx.set_limit_as("group:a", Some(2), source).await;
        assert!(fx.set_limit("group:a", None).await.is_some());
        let left = fx.find_limit("group:a").await;
        assert_eq!(left.and_then(|limit| limit.capacity), None, "{source}");
        assert!(fx.set_limit_as("group:a", Some(3), source).await.is_some(), "{source} again");
        assert_eq!(fx.limit("group:a").await.capacity, Some(3));
        fx.set_limit("group:a", None).await;
    }
}

pub async fn a_weaker_source_cannot_unset(fx: &Fixture) {
    fx.set_limit("group:a", Some(5)).await;
    assert_eq!(fx.set_limit_as("group:a", None, Source::Registration).await, None);
    assert_eq!(fx.limit("group:a").await.capacity, Some(5));
}

pub async fn every_change_raises_the_version(fx: &Fixture) {
    assert_eq!(fx.set_limit("group:a", Some(1)).await, Some(1));
    assert_eq!(fx.set_limit("group:a", Some(2)).await, Some(2));
    assert_eq!(fx.set_limit("group:a", Some(2)).await, Some(2), "the same is no change");
    assert_eq!(fx.set_limit("group:a", None).await, Some(3));
    assert_eq!(fx.limit("group:a").await.version, 3);
}

pub async fn an_unknown_limit_can_be_unset(fx: &Fixture) {
    assert!(fx.set_limit("group:a", None).await.is_some());
    assert!(fx.find_limit("group:a").await.is_none());
}

pub async fn bad_names_and_capacities_are_refused(fx: &Fixture) {
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
        let set =
            SetLimit { name: name.into(), capacity: Some(capacity), source: Source::Operator };
        let error = fx.store.set_limit(set).await.expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?} {capacity}");
    }
    assert_eq!(fx.inspect.limits().await.expect("limits"), []);
}

/// Capacity is a number, not so many rows: the largest one costs nothing.
pub async fn the_largest_capacity_works(fx: &Fixture) {
    let largest = CAPACITY_MAX as u32;
    fx.set_limit("group:a", Some(largest)).await;
    fx.submit_all(tasks("a", 3)).await;
    assert_eq!(fx.claim(9).await.len(), 3);
    fx.set_limit("group:a", Some(largest - 1)).await;
    assert_eq!(fx.limit("group:a").await.capacity, Some(largest - 1));
}

/// 51, 101 and 501 do not divide into equal groups of rows; the limit is exact all the same.
pub async fn a_limit_is_exact_whatever_its_size(fx: &Fixture) {
    for capacity in [51, 101, 501] {
        fx.set_limit("group:a", Some(capacity)).await;
        fx.submit_all(tasks("a", 520)).await;
        let claimed = fx.claim(10_000).await;
        assert_eq!(claimed.len(), capacity as usize);
        let exits = claimed.iter().map(|one| tidegate_core::Exit {
            task: one.task,
            token: one.token,
            outcome: tidegate_core::Outcome::Cancelled,
        });
        let waiting = fx.inspect.tasks(blocked()).await.expect("tasks");
        fx.store.cancel(waiting.iter().map(|view| view.id).collect()).await.expect("cancel");
        let finish = tidegate_core::Finish { exits: exits.collect(), claim: None };
        fx.store.finish(finish).await.expect("finish");
        fx.settle().await;
        fx.check_at_rest().await;
    }
}

fn blocked() -> tidegate_core::inspect::TaskFilter {
    tidegate_core::inspect::TaskFilter {
        states: vec![State::Blocked],
        tasks_max: 10_000,
        ..Default::default()
    }
}

pub async fn a_jobs_quota_is_changed_live(fx: &Fixture) {
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
pub async fn a_group_is_shared_between_kinds(fx: &Fixture) {
    fx.set_limit("group:api", Some(2)).await;
    let of = |kind| NewTask { group: Some("api".into()), ..task(kind) };
    let all = fx.submit_all(vec![of("a"), of("b"), of("c"), task("a")]).await;
    assert_eq!(ids(&fx.claim(9).await), [all[0], all[1], all[3]]);
}
