//! The order of starts: priority, raised by waiting; then age.

use tidegate_core::bounds::AGEING_INTERVAL_MS;
use tidegate_core::{Attempt, NewTask, Outcome, TaskId};

use super::fixture::{Fixture, LEASE_MS, claim_request, job, retry_in, task, task_ids, tasks};

async fn submit_with_priority(fx: &Fixture, kind: &str, priority: i32) -> TaskId {
    fx.submit(NewTask { priority, ..task(kind) }).await
}

/// From the beginning of an ageing interval, so that a case knows where the next one starts.
fn align_clock(fx: &Fixture) {
    fx.advance(AGEING_INTERVAL_MS - fx.now().rem_euclid(AGEING_INTERVAL_MS));
}

pub async fn higher_priority_is_claimed_first(fx: &Fixture) {
    let low = submit_with_priority(fx, "a", -3).await;
    let middle = submit_with_priority(fx, "a", 0).await;
    let high = submit_with_priority(fx, "a", 8).await;
    assert_eq!(task_ids(&fx.claim(9).await), [high, middle, low]);
}

pub async fn priority_applies_across_kinds(fx: &Fixture) {
    let low = submit_with_priority(fx, "a", 0).await;
    let high = submit_with_priority(fx, "b", 1).await;
    let middle = submit_with_priority(fx, "a", 1).await;
    assert_eq!(task_ids(&fx.claim(9).await), [high, middle, low]);
}

pub async fn same_priority_is_fifo(fx: &Fixture) {
    align_clock(fx);
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(submit_with_priority(fx, "a", 2).await);
        all.push(submit_with_priority(fx, "b", 2).await);
        fx.advance(10);
    }
    assert_eq!(task_ids(&fx.claim(9).await), all);
}

/// Nothing starves: waiting is worth one step of priority per interval.
pub async fn waiting_time_raises_priority(fx: &Fixture) {
    let old = submit_with_priority(fx, "a", 0).await;
    fx.advance(2 * AGEING_INTERVAL_MS);
    let urgent = submit_with_priority(fx, "a", 3).await;
    fx.advance(2 * AGEING_INTERVAL_MS);
    let late = submit_with_priority(fx, "a", 3).await;
    assert_eq!(task_ids(&fx.claim(9).await), [urgent, old, late]);
}

pub async fn wait_queue_is_ordered_by_priority(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let first = submit_with_priority(fx, "a", 0).await;
    let running = fx.claim(1).await;
    assert_eq!(task_ids(&running), [first]);
    let low = submit_with_priority(fx, "a", -1).await;
    fx.claim(0).await;
    let high = submit_with_priority(fx, "a", 5).await;
    fx.claim(0).await;
    fx.complete(&running).await;
    assert_eq!(fx.run_all().await, [high, low]);
}

pub async fn waiting_time_raises_priority_in_wait_queue(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    submit_with_priority(fx, "a", 0).await;
    let running = fx.claim(1).await;
    let old = submit_with_priority(fx, "a", 0).await;
    fx.claim(0).await;
    fx.advance(4 * AGEING_INTERVAL_MS);
    let urgent = submit_with_priority(fx, "a", 3).await;
    fx.claim(0).await;
    fx.complete(&running).await;
    assert_eq!(fx.run_all().await, [old, urgent]);
}

/// An arrival of higher priority does not overtake the head of a line it ranks behind, and one
/// it ranks before it does overtake.
pub async fn parked_task_joins_wait_queue_at_its_rank(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    submit_with_priority(fx, "a", 0).await;
    let running = fx.claim(1).await;
    let mut placed = Vec::new();
    for priority in [0, 4, 2, -2] {
        placed.push(submit_with_priority(fx, "a", priority).await);
        fx.claim(0).await;
    }
    fx.complete(&running).await;
    assert_eq!(fx.run_all().await, [placed[1], placed[2], placed[0], placed[3]]);
}

/// Nobody looked at the gate for a while: that does not make everybody equally old.
pub async fn waiting_time_counts_from_due_time(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    submit_with_priority(fx, "a", 0).await;
    let running = fx.claim(1).await;
    let run_at = Some(fx.now() + AGEING_INTERVAL_MS);
    let due = fx.submit(NewTask { run_at, ..task("a") }).await;
    let first = submit_with_priority(fx, "a", 0).await;
    fx.advance(6 * AGEING_INTERVAL_MS);
    let urgent = submit_with_priority(fx, "a", 3).await;
    fx.claim(0).await;
    fx.complete(&running).await;
    assert_eq!(fx.run_all().await, [first, due, urgent]);
}

/// The two ways to lose one's turn without having done anything.
#[derive(Debug, Clone, Copy)]
enum AttemptLoss {
    Death,
    Release,
}

const ATTEMPT_LOSSES: [AttemptLoss; 2] = [AttemptLoss::Death, AttemptLoss::Release];

impl AttemptLoss {
    async fn apply(self, fx: &Fixture, attempt: &Attempt) {
        match self {
            Self::Release => fx.finish_attempt(attempt, Outcome::Released).await,
            Self::Death => {
                fx.advance(LEASE_MS);
                // Somebody is alive to whom the task can go.
                fx.claim_as(claim_request("heir", &["a", "b", "c", "d"], 0)).await;
                assert_eq!(fx.reap().await.expired_attempts, 1);
            }
        }
    }
}

pub async fn returned_task_is_first_among_ready_tasks(fx: &Fixture) {
    for loss in ATTEMPT_LOSSES {
        let all = fx.submit_all(tasks("a", 3)).await;
        let attempt = fx.claim_one().await;
        fx.advance(2 * AGEING_INTERVAL_MS);
        loss.apply(fx, &attempt).await;
        assert_eq!(fx.run_all().await, all, "{loss:?}");
    }
}

pub async fn returned_task_is_first_in_wait_queue(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    for loss in ATTEMPT_LOSSES {
        for waited_ms in [0, 2 * AGEING_INTERVAL_MS] {
            let all = fx.submit_all(tasks("a", 6)).await;
            let stays = fx.claim_as(claim_request("stays", &["a"], 1)).await;
            let attempt = fx.claim_one().await;
            fx.advance(waited_ms);
            match loss {
                // The other one dies too, and they come back in the order they had.
                AttemptLoss::Death => {
                    fx.advance(LEASE_MS);
                    fx.claim(0).await;
                    assert_eq!(fx.reap().await.expired_attempts, 2);
                    assert_eq!(fx.run_all().await, all, "{waited_ms}");
                }
                AttemptLoss::Release => {
                    loss.apply(fx, &attempt).await;
                    assert_eq!(fx.run_all().await, all[1..], "{waited_ms}");
                    fx.complete(&stays).await;
                }
            }
            fx.check_at_rest().await;
        }
    }
}

pub async fn returned_task_is_first_in_wait_queue_of_its_job(fx: &Fixture) {
    fx.job(job("j", Some(1))).await;
    for loss in ATTEMPT_LOSSES {
        let of_job = NewTask { job: Some("j".into()), ..task("a") };
        let all = fx.submit_all(vec![of_job; 5]).await;
        let attempt = fx.claim_one().await;
        loss.apply(fx, &attempt).await;
        assert_eq!(fx.run_all().await, all, "{loss:?}");
    }
}

/// Past its job's line it stands before those who wait for its group.
pub async fn returned_task_of_job_is_first_in_wait_queue_of_its_group(fx: &Fixture) {
    fx.job(job("j", Some(2))).await;
    fx.set_limit("group:a", Some(1)).await;
    for loss in ATTEMPT_LOSSES {
        let mut all = vec![fx.submit(NewTask { job: Some("j".into()), ..task("a") }).await];
        let attempt = fx.claim_one().await;
        all.extend(fx.submit_all(tasks("a", 3)).await);
        fx.claim(0).await;
        fx.advance(2 * AGEING_INTERVAL_MS);
        loss.apply(fx, &attempt).await;
        assert_eq!(fx.run_all().await, all, "{loss:?}");
    }
}

/// The fair tags of jobs move on while a task without a job runs.
pub async fn returned_task_is_first_after_fair_tags_advanced(fx: &Fixture) {
    align_clock(fx);
    fx.set_limit("group:b", Some(1)).await;
    for kind in ["a", "b"] {
        let all = fx.submit_all(tasks(kind, 3)).await;
        let attempt = fx.claim_as(claim_request("worker", &[kind], 1)).await.remove(0);
        let of_job = NewTask { job: Some("j".into()), ..task("c") };
        fx.submit_all(vec![of_job; 9]).await;
        let jobs = fx.claim_as(claim_request("worker", &["c"], 9)).await;
        assert!(fx.snapshot().await.counters.virtual_time > 0, "the tags have moved on");
        fx.complete(&jobs).await;
        fx.finish_attempt(&attempt, Outcome::Released).await;
        assert_eq!(fx.run_all().await, all);
    }
}

/// It keeps the rank it had. Those of a higher priority that came meanwhile go before it.
pub async fn returned_task_does_not_overtake_higher_priority(fx: &Fixture) {
    fx.set_limit("group:b", Some(1)).await;
    for kind in ["a", "b"] {
        let first = submit_with_priority(fx, kind, 0).await;
        let attempt = fx.claim_one().await;
        let low = submit_with_priority(fx, kind, -1).await;
        let equal = submit_with_priority(fx, kind, 0).await;
        let urgent = submit_with_priority(fx, kind, 5).await;
        fx.claim(0).await;
        fx.finish_attempt(&attempt, Outcome::Released).await;
        assert_eq!(fx.run_all().await, [urgent, first, equal, low]);
    }
}

/// The only worker dies. Whoever comes next finds things in the order they had.
pub async fn task_returned_without_live_worker_is_first(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 4)).await;
    fx.claim_one().await;
    fx.advance(LEASE_MS + 2 * AGEING_INTERVAL_MS);
    assert_eq!(fx.reap().await.expired_attempts, 1);
    assert_eq!(fx.run_all().await, all);
}

/// A task that fails arrives anew when it is due, so it does not hold up those behind it.
pub async fn failed_or_snoozed_task_is_last_when_due_again(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    for wait_ms in [0, 1000] {
        for again in [retry_in(wait_ms), Outcome::Snoozed { delay_ms: wait_ms }] {
            let mut all = fx.submit_all(tasks("a", 4)).await;
            let attempt = fx.claim_one().await;
            fx.finish_attempt(&attempt, again).await;
            fx.advance(wait_ms);
            all.rotate_left(1);
            assert_eq!(fx.run_all().await, all, "{wait_ms}");
        }
    }
}
