//! Slots that go from what ends to the next in line while their worker goes on.

use tidegate_core::bounds::QUEUE_SWITCHES_BEFORE_RESERVING;
use tidegate_core::tables::WaitReason;
use tidegate_core::{Attempt, NewTask, ReleaseOutcome, ReleaseSlot};

use super::fixture::{Fixture, completed_outcome, job, task, task_ids, tasks};

fn slot_numbers(attempts: &[Attempt]) -> Vec<u32> {
    attempts.iter().flat_map(|one| one.slots.iter().map(|slot| slot.number)).collect()
}

async fn held_and_waiting(fx: &Fixture) -> (u32, u32) {
    let limit = fx.limit("group:a").await;
    (limit.held, limit.waiting)
}

/// Each of the next gets the number of one that ended, in the order of the line.
pub async fn hand_off_gives_same_slot_number_to_next_waiter(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    let all = fx.submit_all(tasks("a", 8)).await;
    let running = fx.claim(9).await;
    assert_eq!(slot_numbers(&running), [0, 1, 2]);
    let next = fx.finish_and_claim(&[running[2].clone(), running[0].clone()], 2).await;
    assert_eq!((task_ids(&next), slot_numbers(&next)), (all[3..5].to_vec(), vec![0, 2]));
    assert_eq!(held_and_waiting(fx).await, (3, 3));
    let more = fx.finish_and_claim(&[next.clone(), vec![running[1].clone()]].concat(), 9).await;
    assert_eq!((task_ids(&more), slot_numbers(&more)), (all[5..8].to_vec(), vec![0, 1, 2]));
    assert_eq!(fx.finish_and_claim(&more, 9).await, []);
    assert_eq!(held_and_waiting(fx).await, (0, 0));
    fx.check_at_rest().await;
}

/// What finds nobody in line gives its slot back, and it is the lowest that is taken again.
pub async fn hand_off_without_waiter_frees_slot(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    fx.submit_all(tasks("a", 3)).await;
    let running = fx.claim(9).await;
    assert_eq!(fx.finish_and_claim(&[running[1].clone(), running[0].clone()], 2).await, []);
    assert_eq!(held_and_waiting(fx).await, (1, 0));
    fx.submit_all(tasks("a", 3)).await;
    let next = fx.claim(9).await;
    assert_eq!((slot_numbers(&next), held_and_waiting(fx).await), (vec![0, 1], (3, 1)));
    fx.check_invariants().await;
}

/// As many as end find a next one, and there is more to do beside.
pub async fn hand_off_with_spare_capacity_also_claims_ready_tasks(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let limited = fx.submit_all(tasks("a", 3)).await;
    let running = fx.claim(9).await;
    let free = fx.submit_all(tasks("b", 3)).await;
    let next = fx.finish_and_claim(&running, 3).await;
    assert_eq!(task_ids(&next), [limited[2], free[0], free[1]]);
    let token = next[0].token;
    assert!(next.iter().all(|one| one.token == token), "one claim is one lease");
    assert_eq!(task_ids(&fx.finish_and_claim(&next, 9).await), [free[2]]);
    fx.check_invariants().await;
}

pub async fn hand_off_claims_ready_task_of_higher_rank_first(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let limited = fx.submit_all(tasks("a", 2)).await;
    let running = fx.claim(9).await;
    let urgent = fx.submit(NewTask { priority: 5, ..task("b") }).await;
    fx.admit().await;
    let next = fx.finish_and_claim(&running, 1).await;
    assert_eq!(task_ids(&next), [urgent]);
    assert_eq!(task_ids(&fx.finish_and_claim(&next, 1).await), limited[1..]);
    fx.check_invariants().await;
}

pub async fn hand_off_follows_priority(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let low = fx.submit_all(tasks("a", 3)).await;
    let mut running = fx.claim(9).await;
    running = fx.finish_and_claim(&running, 1).await;
    assert_eq!(task_ids(&running), low[1..2]);
    let high = fx.submit(NewTask { priority: 5, ..task("a") }).await;
    fx.admit().await;
    running = fx.finish_and_claim(&running, 1).await;
    assert_eq!(task_ids(&running), [high], "it came to the line after others had left it");
    assert_eq!(task_ids(&fx.finish_and_claim(&running, 1).await), low[2..]);
    fx.check_invariants().await;
}

pub async fn hand_off_does_not_overtake_heavier_head(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let first = fx.submit_all(tasks("a", 2)).await;
    let heavy = fx.submit(NewTask { weight: 2, ..task("a") }).await;
    let light = fx.submit_all(tasks("a", 2)).await;
    let running = fx.claim(9).await;
    assert_eq!(task_ids(&running), first);
    assert_eq!(fx.finish_and_claim(&running[..1], 1).await, []);
    let next = fx.finish_and_claim(&running[1..], 1).await;
    assert_eq!(task_ids(&next), [heavy]);
    assert_eq!(task_ids(&fx.finish_and_claim(&next, 2).await), light);
    fx.check_invariants().await;
}

/// The task of a job that collects its slots goes before those who only wait.
pub async fn hand_off_does_not_overtake_task_that_reserves_slots(fx: &Fixture) {
    let of_job = |kind: &str| NewTask { job: Some("j".into()), ..task(kind) };
    fx.job(job("j", Some(1))).await;
    fx.set_limit("group:a", Some(1)).await;
    let (in_a, in_j) = (fx.submit(task("a")).await, fx.submit(of_job("b")).await);
    let mut running = fx.claim(9).await;
    assert_eq!(task_ids(&running), [in_a, in_j]);
    let collector = fx.submit(of_job("a")).await;
    for _ in 0..2 * QUEUE_SWITCHES_BEFORE_RESERVING {
        if fx.wait_reason(collector).await == Some(WaitReason::Reserving) {
            break;
        }
        let at = running.iter().position(|one| one.job.is_some()).expect("one of the job");
        fx.submit(of_job("b")).await;
        fx.admit().await;
        let of_the_job = running.remove(at);
        running.extend(fx.finish_and_claim(&[of_the_job], 1).await);
        fx.submit(task("a")).await;
        fx.admit().await;
        let of_the_group = running.remove(0);
        running.extend(fx.finish_and_claim(&[of_the_group], 1).await);
        fx.check_invariants().await;
    }
    assert_eq!(fx.wait_reason(collector).await, Some(WaitReason::Reserving));
    for _ in 0..6 {
        if task_ids(&running).contains(&collector) {
            break;
        }
        let ended = running.remove(0);
        running.extend(fx.finish_and_claim(&[ended], 1).await);
        fx.check_invariants().await;
    }
    assert!(task_ids(&running).contains(&collector), "{running:?}");
}

/// A limit that is lowered hands nothing on until enough have ended, and no number beyond it.
pub async fn hand_off_stops_until_lowered_limit_is_drained(fx: &Fixture) {
    fx.set_limit("group:a", Some(5)).await;
    let all = fx.submit_all(tasks("a", 9)).await;
    let running = fx.claim(9).await;
    fx.set_limit("group:a", Some(2)).await;
    assert_eq!(fx.finish_and_claim(&running[0..3], 3).await, []);
    assert_eq!(held_and_waiting(fx).await, (2, 4));
    let next = fx.finish_and_claim(&running[3..5], 2).await;
    assert_eq!((task_ids(&next), slot_numbers(&next)), (all[5..7].to_vec(), vec![0, 1]));
    fx.set_limit("group:a", Some(4)).await;
    let more = fx.finish_and_claim(&next, 9).await;
    assert_eq!((task_ids(&more), slot_numbers(&more)), (all[7..9].to_vec(), vec![2, 3]));
    fx.check_invariants().await;
}

/// A slot that was handed on is taken away as any other, and nothing is lost of those given back.
pub async fn handed_off_slot_can_be_released_by_operator(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    fx.submit_all(tasks("a", 4)).await;
    let running = fx.claim(9).await;
    let next = fx.finish_and_claim(&running, 3).await;
    assert_eq!(held_and_waiting(fx).await, (1, 0));
    let release = ReleaseSlot { limit: "group:a".into(), slot: next[0].slots[0].number };
    let outcome = fx.store.release_slot(release).await.expect("release");
    assert_eq!(outcome, ReleaseOutcome::Released(next[0].task));
    fx.settle().await;
    let again = fx.claim(9).await;
    assert_eq!((task_ids(&again), held_and_waiting(fx).await), (task_ids(&next), (1, 0)));
    fx.finish_attempt(&again[0], completed_outcome()).await;
    fx.check_at_rest().await;
}

/// Whoever runs on under a slot that was handed on fails, dies and is cancelled as any other.
pub async fn handed_off_task_can_fail_crash_and_be_cancelled(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 4)).await;
    let mut running = fx.claim(1).await;
    running = fx.finish_and_claim(&running, 1).await;
    fx.finish_attempt(&running[0], super::fixture::fatal_failure("no")).await;
    running = fx.claim(1).await;
    assert_eq!(task_ids(&running), all[2..3]);
    assert_eq!(task_ids(&fx.finish_and_claim(&running, 1).await), all[3..]);
    fx.advance(super::fixture::LEASE_MS + 1);
    fx.reap().await;
    running = fx.claim(1).await;
    assert_eq!(task_ids(&running), all[3..]);
    assert_eq!(held_and_waiting(fx).await, (1, 0));
    fx.cancel(all[3]).await;
    fx.finish_attempt(&running[0], completed_outcome()).await;
    fx.check_at_rest().await;
}
