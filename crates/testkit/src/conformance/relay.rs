//! Slots that go from what ends to the next in line while their worker goes on.

use tidegate_core::bounds::MOVES_BEFORE_RESERVING;
use tidegate_core::tables::Class;
use tidegate_core::{Attempt, NewTask, Release, ReleaseOutcome};

use super::fixture::{Fixture, done, ids, job, task, tasks};

fn numbers(attempts: &[Attempt]) -> Vec<u32> {
    attempts.iter().flat_map(|one| one.slots.iter().map(|slot| slot.number)).collect()
}

async fn held_and_waiting(fx: &Fixture) -> (u32, u32) {
    let limit = fx.limit("group:a").await;
    (limit.held, limit.waiting)
}

/// Each of the next gets the number of one that ended, in the order of the line.
pub async fn the_next_in_line_gets_the_same_slot(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    let all = fx.submit_all(tasks("a", 8)).await;
    let running = fx.claim(9).await;
    assert_eq!(numbers(&running), [0, 1, 2]);
    let next = fx.go_on(&[running[2].clone(), running[0].clone()], 2).await;
    assert_eq!((ids(&next), numbers(&next)), (all[3..5].to_vec(), vec![0, 2]));
    assert_eq!(held_and_waiting(fx).await, (3, 3));
    let more = fx.go_on(&[next.clone(), vec![running[1].clone()]].concat(), 9).await;
    assert_eq!((ids(&more), numbers(&more)), (all[5..8].to_vec(), vec![0, 1, 2]));
    assert_eq!(fx.go_on(&more, 9).await, []);
    assert_eq!(held_and_waiting(fx).await, (0, 0));
    fx.check_at_rest().await;
}

/// What finds nobody in line gives its slot back, and it is the lowest that is taken again.
pub async fn slots_without_a_next_are_free(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    fx.submit_all(tasks("a", 3)).await;
    let running = fx.claim(9).await;
    assert_eq!(fx.go_on(&[running[1].clone(), running[0].clone()], 2).await, []);
    assert_eq!(held_and_waiting(fx).await, (1, 0));
    fx.submit_all(tasks("a", 3)).await;
    let next = fx.claim(9).await;
    assert_eq!((numbers(&next), held_and_waiting(fx).await), (vec![0, 1], (3, 1)));
    fx.check().await;
}

/// As many as end find a next one, and there is more to do beside.
pub async fn who_goes_on_also_takes_what_is_ready(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let limited = fx.submit_all(tasks("a", 3)).await;
    let running = fx.claim(9).await;
    let free = fx.submit_all(tasks("b", 3)).await;
    let next = fx.go_on(&running, 3).await;
    assert_eq!(ids(&next), [limited[2], free[0], free[1]]);
    let token = next[0].token;
    assert!(next.iter().all(|one| one.token == token), "one claim is one lease");
    assert_eq!(ids(&fx.go_on(&next, 9).await), [free[2]]);
    fx.check().await;
}

pub async fn what_is_ready_and_comes_first_goes_first(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let limited = fx.submit_all(tasks("a", 2)).await;
    let running = fx.claim(9).await;
    let urgent = fx.submit(NewTask { priority: 5, ..task("b") }).await;
    fx.admit().await;
    let next = fx.go_on(&running, 1).await;
    assert_eq!(ids(&next), [urgent]);
    assert_eq!(ids(&fx.go_on(&next, 1).await), limited[1..]);
    fx.check().await;
}

pub async fn slots_are_handed_on_by_priority(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let low = fx.submit_all(tasks("a", 3)).await;
    let mut running = fx.claim(9).await;
    running = fx.go_on(&running, 1).await;
    assert_eq!(ids(&running), low[1..2]);
    let high = fx.submit(NewTask { priority: 5, ..task("a") }).await;
    fx.admit().await;
    running = fx.go_on(&running, 1).await;
    assert_eq!(ids(&running), [high], "it came to the line after others had left it");
    assert_eq!(ids(&fx.go_on(&running, 1).await), low[2..]);
    fx.check().await;
}

pub async fn a_heavier_head_is_not_passed(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let first = fx.submit_all(tasks("a", 2)).await;
    let heavy = fx.submit(NewTask { weight: 2, ..task("a") }).await;
    let light = fx.submit_all(tasks("a", 2)).await;
    let running = fx.claim(9).await;
    assert_eq!(ids(&running), first);
    assert_eq!(fx.go_on(&running[..1], 1).await, []);
    let next = fx.go_on(&running[1..], 1).await;
    assert_eq!(ids(&next), [heavy]);
    assert_eq!(ids(&fx.go_on(&next, 2).await), light);
    fx.check().await;
}

/// The task of a job that collects its slots goes before those who only wait.
pub async fn who_collects_slots_is_not_passed(fx: &Fixture) {
    let of_job = |kind: &str| NewTask { job: Some("j".into()), ..task(kind) };
    fx.job(job("j", Some(1))).await;
    fx.set_limit("group:a", Some(1)).await;
    let (in_a, in_j) = (fx.submit(task("a")).await, fx.submit(of_job("b")).await);
    let mut running = fx.claim(9).await;
    assert_eq!(ids(&running), [in_a, in_j]);
    let collector = fx.submit(of_job("a")).await;
    for _ in 0..2 * MOVES_BEFORE_RESERVING {
        if fx.class(collector).await == Some(Class::Reserving) {
            break;
        }
        let at = running.iter().position(|one| one.job.is_some()).expect("one of the job");
        fx.submit(of_job("b")).await;
        fx.admit().await;
        let of_the_job = running.remove(at);
        running.extend(fx.go_on(&[of_the_job], 1).await);
        fx.submit(task("a")).await;
        fx.admit().await;
        let of_the_group = running.remove(0);
        running.extend(fx.go_on(&[of_the_group], 1).await);
        fx.check().await;
    }
    assert_eq!(fx.class(collector).await, Some(Class::Reserving));
    for _ in 0..6 {
        if ids(&running).contains(&collector) {
            break;
        }
        let ended = running.remove(0);
        running.extend(fx.go_on(&[ended], 1).await);
        fx.check().await;
    }
    assert!(ids(&running).contains(&collector), "{running:?}");
}

/// A limit that is lowered hands nothing on until enough have ended, and no number beyond it.
pub async fn a_lowered_limit_is_drained(fx: &Fixture) {
    fx.set_limit("group:a", Some(5)).await;
    let all = fx.submit_all(tasks("a", 9)).await;
    let running = fx.claim(9).await;
    fx.set_limit("group:a", Some(2)).await;
    assert_eq!(fx.go_on(&running[0..3], 3).await, []);
    assert_eq!(held_and_waiting(fx).await, (2, 4));
    let next = fx.go_on(&running[3..5], 2).await;
    assert_eq!((ids(&next), numbers(&next)), (all[5..7].to_vec(), vec![0, 1]));
    fx.set_limit("group:a", Some(4)).await;
    let more = fx.go_on(&next, 9).await;
    assert_eq!((ids(&more), numbers(&more)), (all[7..9].to_vec(), vec![2, 3]));
    fx.check().await;
}

/// A slot that was handed on is taken away as any other, and nothing is lost of those given back.
pub async fn a_slot_that_was_handed_on_can_be_taken_away(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    fx.submit_all(tasks("a", 4)).await;
    let running = fx.claim(9).await;
    let next = fx.go_on(&running, 3).await;
    assert_eq!(held_and_waiting(fx).await, (1, 0));
    let release = Release { limit: "group:a".into(), slot: next[0].slots[0].number };
    let outcome = fx.store.release(release).await.expect("release");
    assert_eq!(outcome, ReleaseOutcome::Released(next[0].task));
    fx.settle().await;
    let again = fx.claim(9).await;
    assert_eq!((ids(&again), held_and_waiting(fx).await), (ids(&next), (1, 0)));
    fx.exit(&again[0], done()).await;
    fx.check_at_rest().await;
}

/// Whoever runs on under a slot that was handed on fails, dies and is cancelled as any other.
pub async fn what_was_handed_a_slot_ends_as_any_other(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 4)).await;
    let mut running = fx.claim(1).await;
    running = fx.go_on(&running, 1).await;
    fx.exit(&running[0], super::fixture::fatal("no")).await;
    running = fx.claim(1).await;
    assert_eq!(ids(&running), all[2..3]);
    assert_eq!(ids(&fx.go_on(&running, 1).await), all[3..]);
    fx.advance(super::fixture::LEASE_MS + 1);
    fx.reap().await;
    running = fx.claim(1).await;
    assert_eq!(ids(&running), all[3..]);
    assert_eq!(held_and_waiting(fx).await, (1, 0));
    fx.cancel(all[3]).await;
    fx.exit(&running[0], done()).await;
    fx.check_at_rest().await;
}
