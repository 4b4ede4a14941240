//! The order of starts: priority, raised by waiting; then age.

use tidegate_core::bounds::AGEING_INTERVAL_MS;
use tidegate_core::{Attempt, NewTask, Outcome, TaskId};

use super::fixture::{Fixture, LEASE_MS, asks, ids, job, retry_in, task, tasks};

async fn with(fx: &Fixture, kind: &str, priority: i32) -> TaskId {
    fx.submit(NewTask { priority, ..task(kind) }).await
}

/// From the beginning of an ageing interval, so that a case knows where the next one starts.
fn align(fx: &Fixture) {
    fx.advance(AGEING_INTERVAL_MS - fx.now().rem_euclid(AGEING_INTERVAL_MS));
}

pub async fn a_higher_priority_goes_first(fx: &Fixture) {
    let low = with(fx, "a", -3).await;
    let middle = with(fx, "a", 0).await;
    let high = with(fx, "a", 8).await;
    assert_eq!(ids(&fx.claim(9).await), [high, middle, low]);
}

pub async fn a_priority_counts_across_kinds_and_queues(fx: &Fixture) {
    let low = with(fx, "a", 0).await;
    let high = with(fx, "b", 1).await;
    let middle = with(fx, "a", 1).await;
    assert_eq!(ids(&fx.claim(9).await), [high, middle, low]);
}

pub async fn equals_go_by_age(fx: &Fixture) {
    align(fx);
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(with(fx, "a", 2).await);
        all.push(with(fx, "b", 2).await);
        fx.advance(10);
    }
    assert_eq!(ids(&fx.claim(9).await), all);
}

/// Nothing starves: waiting is worth one step of priority per interval.
pub async fn waiting_raises_the_priority(fx: &Fixture) {
    let old = with(fx, "a", 0).await;
    fx.advance(2 * AGEING_INTERVAL_MS);
    let urgent = with(fx, "a", 3).await;
    fx.advance(2 * AGEING_INTERVAL_MS);
    let late = with(fx, "a", 3).await;
    assert_eq!(ids(&fx.claim(9).await), [urgent, old, late]);
}

pub async fn lines_go_by_priority_too(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let first = with(fx, "a", 0).await;
    let running = fx.claim(1).await;
    assert_eq!(ids(&running), [first]);
    let low = with(fx, "a", -1).await;
    fx.claim(0).await;
    let high = with(fx, "a", 5).await;
    fx.claim(0).await;
    fx.complete(&running).await;
    assert_eq!(fx.work_off().await, [high, low]);
}

pub async fn waiting_counts_in_lines_too(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    with(fx, "a", 0).await;
    let running = fx.claim(1).await;
    let old = with(fx, "a", 0).await;
    fx.claim(0).await;
    fx.advance(4 * AGEING_INTERVAL_MS);
    let urgent = with(fx, "a", 3).await;
    fx.claim(0).await;
    fx.complete(&running).await;
    assert_eq!(fx.work_off().await, [old, urgent]);
}

/// An arrival of higher priority does not overtake the head of a line it ranks behind, and one
/// it ranks before it does overtake.
pub async fn an_arrival_joins_the_line_at_its_place(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    with(fx, "a", 0).await;
    let running = fx.claim(1).await;
    let mut placed = Vec::new();
    for priority in [0, 4, 2, -2] {
        placed.push(with(fx, "a", priority).await);
        fx.claim(0).await;
    }
    fx.complete(&running).await;
    assert_eq!(fx.work_off().await, [placed[1], placed[2], placed[0], placed[3]]);
}

/// Nobody looked at the gate for a while: that does not make everybody equally old.
pub async fn waiting_counts_from_when_a_task_is_due(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    with(fx, "a", 0).await;
    let running = fx.claim(1).await;
    let run_at = Some(fx.now() + AGEING_INTERVAL_MS);
    let due = fx.submit(NewTask { run_at, ..task("a") }).await;
    let first = with(fx, "a", 0).await;
    fx.advance(6 * AGEING_INTERVAL_MS);
    let urgent = with(fx, "a", 3).await;
    fx.claim(0).await;
    fx.complete(&running).await;
    assert_eq!(fx.work_off().await, [first, due, urgent]);
}

/// The two ways to lose one's turn without having done anything.
#[derive(Debug, Clone, Copy)]
enum Loss {
    Death,
    Release,
}

const LOSSES: [Loss; 2] = [Loss::Death, Loss::Release];

impl Loss {
    async fn of(self, fx: &Fixture, attempt: &Attempt) {
        match self {
            Self::Release => fx.exit(attempt, Outcome::Released).await,
            Self::Death => {
                fx.advance(LEASE_MS);
                // Somebody is alive to whom the task can go.
                fx.claim_as(asks("heir", &["a", "b", "c", "d"], 0)).await;
                assert_eq!(fx.reap().await.expired, 1);
            }
        }
    }
}

pub async fn what_comes_back_goes_first_among_the_ready(fx: &Fixture) {
    for loss in LOSSES {
        let all = fx.submit_all(tasks("a", 3)).await;
        let attempt = fx.claim_one().await;
        fx.advance(2 * AGEING_INTERVAL_MS);
        loss.of(fx, &attempt).await;
        assert_eq!(fx.work_off().await, all, "{loss:?}");
    }
}

pub async fn what_comes_back_goes_first_in_its_line(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    for loss in LOSSES {
        for waited_ms in [0, 2 * AGEING_INTERVAL_MS] {
            let all = fx.submit_all(tasks("a", 6)).await;
            let stays = fx.claim_as(asks("stays", &["a"], 1)).await;
            let attempt = fx.claim_one().await;
            fx.advance(waited_ms);
            match loss {
                // The other one dies too, and they come back in the order they had.
                Loss::Death => {
                    fx.advance(LEASE_MS);
                    fx.claim(0).await;
                    assert_eq!(fx.reap().await.expired, 2);
                    assert_eq!(fx.work_off().await, all, "{waited_ms}");
                }
                Loss::Release => {
                    loss.of(fx, &attempt).await;
                    assert_eq!(fx.work_off().await, all[1..], "{waited_ms}");
                    fx.complete(&stays).await;
                }
            }
            fx.check_at_rest().await;
        }
    }
}

pub async fn what_comes_back_goes_first_in_its_jobs_line(fx: &Fixture) {
    fx.job(job("j", Some(1))).await;
    for loss in LOSSES {
        let of_job = NewTask { job: Some("j".into()), ..task("a") };
        let all = fx.submit_all(vec![of_job; 5]).await;
        let attempt = fx.claim_one().await;
        loss.of(fx, &attempt).await;
        assert_eq!(fx.work_off().await, all, "{loss:?}");
    }
}

/// Past its job's line it stands before those who wait for its group.
pub async fn what_comes_back_to_its_job_goes_first_in_its_group(fx: &Fixture) {
    fx.job(job("j", Some(2))).await;
    fx.set_limit("group:a", Some(1)).await;
    for loss in LOSSES {
        let mut all = vec![fx.submit(NewTask { job: Some("j".into()), ..task("a") }).await];
        let attempt = fx.claim_one().await;
        all.extend(fx.submit_all(tasks("a", 3)).await);
        fx.claim(0).await;
        fx.advance(2 * AGEING_INTERVAL_MS);
        loss.of(fx, &attempt).await;
        assert_eq!(fx.work_off().await, all, "{loss:?}");
    }
}

/// The fair tags of jobs move on while a task without a job runs.
pub async fn what_comes_back_goes_first_whatever_jobs_did_meanwhile(fx: &Fixture) {
    align(fx);
    fx.set_limit("group:b", Some(1)).await;
    for kind in ["a", "b"] {
        let all = fx.submit_all(tasks(kind, 3)).await;
        let attempt = fx.claim_as(asks("worker", &[kind], 1)).await.remove(0);
        let of_job = NewTask { job: Some("j".into()), ..task("c") };
        fx.submit_all(vec![of_job; 9]).await;
        let jobs = fx.claim_as(asks("worker", &["c"], 9)).await;
        assert!(fx.snapshot().await.counters.virtual_time > 0, "the tags have moved on");
        fx.complete(&jobs).await;
        fx.exit(&attempt, Outcome::Released).await;
        assert_eq!(fx.work_off().await, all);
    }
}

/// It keeps the rank it had. Those of a higher priority that came meanwhile go before it.
pub async fn what_comes_back_has_no_more_than_its_rank(fx: &Fixture) {
    fx.set_limit("group:b", Some(1)).await;
    for kind in ["a", "b"] {
        let first = with(fx, kind, 0).await;
        let attempt = fx.claim_one().await;
        let low = with(fx, kind, -1).await;
        let equal = with(fx, kind, 0).await;
        let urgent = with(fx, kind, 5).await;
        fx.claim(0).await;
        fx.exit(&attempt, Outcome::Released).await;
        assert_eq!(fx.work_off().await, [urgent, first, equal, low]);
    }
}

/// The only worker dies. Whoever comes next finds things in the order they had.
pub async fn what_came_back_without_a_worker_goes_first(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 4)).await;
    fx.claim_one().await;
    fx.advance(LEASE_MS + 2 * AGEING_INTERVAL_MS);
    assert_eq!(fx.reap().await.expired, 1);
    assert_eq!(fx.work_off().await, all);
}

/// A task that fails arrives anew when it is due, so it does not hold up those behind it.
pub async fn a_failure_and_a_snooze_go_to_the_end(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    for wait_ms in [0, 1000] {
        for again in [retry_in(wait_ms), Outcome::Snoozed { for_ms: wait_ms }] {
            let mut all = fx.submit_all(tasks("a", 4)).await;
            let attempt = fx.claim_one().await;
            fx.exit(&attempt, again).await;
            fx.advance(wait_ms);
            all.rotate_left(1);
            assert_eq!(fx.work_off().await, all, "{wait_ms}");
        }
    }
}
