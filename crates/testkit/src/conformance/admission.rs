//! The gate: all or none, lines, weights, reservation, and slots only where they can run.

use std::collections::VecDeque;

use tidegate_core::bounds::{JOB_WINDOW_SIZE, LEASE_MS_DEFAULT, QUEUE_SWITCHES_BEFORE_RESERVING};
use tidegate_core::tables::WaitReason;
use tidegate_core::{Attempt, Heartbeat, NewTask, Outcome, TaskId, TaskState, WorkerId};

use super::fixture::{
    Fixture, claim_request, completed_outcome, job, retry_in, task, task_ids, tasks,
};

fn task_of_weight(weight: u32) -> NewTask {
    NewTask { weight, ..task("a") }
}

/// Needs a slot of `job:j` and, with kind `a`, of `group:a`.
fn task_of_job(kind: &str) -> NewTask {
    NewTask { job: Some("j".into()), ..task(kind) }
}

async fn held_slots(fx: &Fixture, name: &str) -> Vec<u32> {
    fx.holders(name).await.iter().map(|holder| holder.slot).collect()
}

pub async fn wait_queue_is_fifo(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 6)).await;
    assert_eq!(fx.run_all().await, all);
    fx.check_at_rest().await;
}

pub async fn freed_slot_is_handed_off_without_a_claim(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 2)).await;
    let running = fx.claim(9).await;
    fx.finish_attempt(&running[0], Outcome::Snoozed { delay_ms: 0 }).await;
    assert_eq!(fx.limit("group:a").await.held, 1);
    assert_eq!(fx.holders("group:a").await[0].task, all[1], "a snooze goes to the end");
}

pub async fn every_outcome_frees_the_slot(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let outs = [
        completed_outcome(),
        retry_in(900_000),
        Outcome::Snoozed { delay_ms: 900_000 },
        Outcome::Cancelled,
    ];
    for outcome in outs {
        let id = fx.submit(task("a")).await;
        let attempt = fx.claim_one().await;
        assert_eq!(attempt.task, id);
        fx.finish_attempt(&attempt, outcome.clone()).await;
        assert_eq!(fx.limit("group:a").await.held, 0, "{outcome:?}");
    }
}

pub async fn admission_takes_lowest_free_slot_numbers(fx: &Fixture) {
    fx.set_limit("group:a", Some(4)).await;
    fx.submit_all(tasks("a", 4)).await;
    let running = fx.claim(9).await;
    let numbers: Vec<_> = running.iter().map(|one| one.slots[0].number).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    fx.complete(&[running[2].clone(), running[1].clone()]).await;
    fx.submit_all(vec![task_of_weight(2)]).await;
    let heavy = fx.claim_one().await;
    let numbers: Vec<_> = heavy.slots.iter().map(|slot| slot.number).collect();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(held_slots(fx, "group:a").await, [0, 1, 2, 3]);
}

pub async fn weighted_task_takes_as_many_slots_as_its_weight(fx: &Fixture) {
    fx.set_limit("group:a", Some(5)).await;
    let all = fx.submit_all([2, 3, 1].map(task_of_weight).to_vec()).await;
    let running = fx.claim(9).await;
    assert_eq!(task_ids(&running), all[..2]);
    assert_eq!(fx.limit("group:a").await.held, 5);
    fx.complete(&running[..1]).await;
    assert_eq!(task_ids(&fx.claim(9).await), all[2..]);
    assert_eq!(fx.limit("group:a").await.held, 4);
}

/// Otherwise a steady stream of light tasks would starve a heavy one.
pub async fn lighter_waiters_do_not_overtake_heavier_head(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    let all = fx.submit_all([2, 3, 1, 1].map(task_of_weight).to_vec()).await;
    let running = fx.claim(9).await;
    assert_eq!(task_ids(&running), all[..1], "one slot is free and stays so");
    let late = fx.submit(task_of_weight(1)).await;
    assert_eq!(fx.claim(9).await, [], "{late}");
    fx.complete(&running).await;
    let heavy = fx.claim(9).await;
    assert_eq!(task_ids(&heavy), [all[1]]);
    fx.complete(&heavy).await;
    assert_eq!(task_ids(&fx.claim(9).await), [all[2], all[3], late]);
}

pub async fn waiter_too_heavy_for_lowered_limit_does_not_block_others(fx: &Fixture) {
    fx.set_limit("group:a", Some(4)).await;
    let all = fx.submit_all([4, 3, 1].map(task_of_weight).to_vec()).await;
    let running = fx.claim(9).await;
    fx.set_limit("group:a", Some(2)).await;
    fx.complete(&running).await;
    let light = fx.claim(9).await;
    assert_eq!(task_ids(&light), [all[2]]);
    assert_eq!(fx.wait_reason(all[1]).await, Some(WaitReason::TooHeavy));
    fx.complete(&light).await;
    fx.set_limit("group:a", Some(3)).await;
    assert_eq!(task_ids(&fx.claim(9).await), [all[1]]);
}

/// An arrival that meets a limit lowered since its submit is set aside too.
pub async fn inbox_task_too_heavy_for_lowered_limit_is_parked(fx: &Fixture) {
    fx.set_limit("group:a", Some(4)).await;
    let all = fx.submit_all([3, 4, 2].map(task_of_weight).to_vec()).await;
    fx.set_limit("group:a", Some(2)).await;
    assert_eq!(task_ids(&fx.claim(9).await), [all[2]]);
    assert_eq!(fx.wait_reason(all[0]).await, Some(WaitReason::TooHeavy));
    fx.set_limit("group:a", None).await;
    let mut rest = task_ids(&fx.claim(9).await);
    rest.sort();
    assert_eq!(rest, all[..2]);
}

/// If one of two limits is full the other's slot is not taken.
pub async fn admission_takes_all_slots_or_none(fx: &Fixture) {
    fx.job(job("j", Some(5))).await;
    fx.set_limit("group:a", Some(1)).await;
    let first = fx.submit(task("a")).await;
    assert_eq!(fx.claim_one().await.task, first);
    let both = fx.submit(task_of_job("a")).await;
    let other = fx.submit(task_of_job("b")).await;
    assert_eq!(task_ids(&fx.claim(9).await), [other]);
    assert_eq!(fx.limit("job:j").await.held, 1, "by the other one only");
    let row = fx.waiter_row(both).await.expect("it waits");
    assert_eq!(row.limit, fx.limit("group:a").await.id, "in the line that stopped it");
}

/// The slot that one cannot use goes to the one after it.
pub async fn freed_slot_skips_waiter_blocked_by_another_limit(fx: &Fixture) {
    fx.job(job("j", Some(1))).await;
    fx.set_limit("group:a", Some(1)).await;
    let holds_group = fx.submit(task("a")).await;
    let holds_job = fx.submit(task_of_job("b")).await;
    let running = fx.claim(9).await;
    assert_eq!(task_ids(&running), [holds_group, holds_job]);
    let needs_both = fx.submit(task_of_job("a")).await;
    let needs_group = fx.submit(task("a")).await;
    assert_eq!(fx.claim(9).await, []);
    fx.complete(&running[..1]).await;
    let claimed = fx.claim(9).await;
    assert_eq!(task_ids(&claimed), [needs_group]);
    assert_eq!(fx.state(needs_both).await, TaskState::Blocked);
    fx.complete(&running[1..]).await;
    fx.complete(&claimed).await;
    assert_eq!(task_ids(&fx.claim(9).await), [needs_both]);
}

pub async fn retry_is_admitted_again(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let both = fx.submit_all(tasks("a", 2)).await;
    let first = fx.claim_one().await;
    fx.finish_attempt(&first, retry_in(100)).await;
    assert_eq!(fx.limit("group:a").await.held, 1, "handed on: no slot waits for a retry");
    let second = fx.claim_one().await;
    assert_eq!(second.task, both[1]);
    fx.advance(100);
    assert_eq!(fx.claim(9).await, [], "the retry finds the limit full");
    assert_eq!(fx.state(both[0]).await, TaskState::Blocked);
    fx.complete(&[second]).await;
    assert_eq!(fx.claim_one().await.task, both[0]);
}

pub async fn snoozed_task_holds_no_slot(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, Outcome::Snoozed { delay_ms: 100 }).await;
    assert_eq!(fx.limit("group:a").await.held, 0);
    assert_eq!(fx.snapshot().await.slots, []);
    fx.advance(100);
    assert_eq!(fx.claim_one().await.slots.len(), 1);
}

/// A task admitted and not claimed for one lease, whose workers are gone, gives its slot to
/// somebody who can run, and comes back when such a worker does.
pub async fn unclaimed_task_without_live_worker_is_parked(fx: &Fixture) {
    fx.set_limit("group:g", Some(1)).await;
    let of = |kind| NewTask { effective_group: Some("g".into()), ..task(kind) };
    let gone = fx.submit(of("x")).await;
    fx.claim_as(claim_request("gone", &["x"], 0)).await;
    let able = fx.submit(of("a")).await;
    fx.claim(0).await;
    assert_eq!(fx.holders("group:g").await[0].task, gone);
    fx.advance(LEASE_MS_DEFAULT + 1);
    fx.claim(0).await;
    assert_eq!(fx.state(able).await, TaskState::Blocked);
    assert_eq!(fx.reap().await.unserved_tasks, 1);
    assert_eq!(fx.wait_reason(gone).await, Some(WaitReason::NoWorker));
    let claimed = fx.claim(9).await;
    assert_eq!(task_ids(&claimed), [able]);
    fx.complete(&claimed).await;
    assert_eq!(fx.state(gone).await, TaskState::Blocked);
    let back = fx.claim_as(claim_request("new", &["x"], 9)).await;
    assert_eq!(task_ids(&back), [gone]);
}

/// While a worker asks for such tasks, one that is merely slow to be claimed keeps its slot.
pub async fn unclaimed_task_with_live_worker_stays_admitted(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    for _ in 0..4 {
        fx.claim(0).await;
        fx.advance(LEASE_MS_DEFAULT - 1);
        assert_eq!(fx.reap().await.unserved_tasks, 0);
    }
    assert_eq!(fx.state(id).await, TaskState::Pending);
}

/// A worker whose permits are all taken beats and asks for nothing: another one's tasks get the
/// slot, until it has room again.
pub async fn full_worker_does_not_keep_slot_of_unclaimed_task(fx: &Fixture) {
    fx.set_limit("group:g", Some(1)).await;
    let of = |kind| NewTask { effective_group: Some("g".into()), ..task(kind) };
    let full = |tasks_max| claim_request("full", &["x", "y"], tasks_max);
    let kept = fx.submit(of("x")).await;
    fx.submit(NewTask { priority: 1, ..task("y") }).await;
    let long = fx.claim_as(full(1)).await;
    assert_eq!(&*long[0].kind, "y");
    let able = fx.submit(of("a")).await;
    let beat = || Heartbeat {
        worker: WorkerId("full".into()),
        tokens: vec![long[0].token],
        lease_ms: LEASE_MS_DEFAULT,
        progress: vec![],
        run_times: vec![],
        report: None,
    };
    for _ in 0..3 {
        assert_eq!(fx.claim(1).await, [], "the slot is taken");
        fx.advance(LEASE_MS_DEFAULT / 2);
        fx.store.heartbeat(beat()).await.expect("heartbeat");
    }
    assert_eq!(fx.reap().await.unserved_tasks, 1);
    assert_eq!(fx.wait_reason(kept).await, Some(WaitReason::NoWorker));
    let claimed = fx.claim(1).await;
    assert_eq!(task_ids(&claimed), [able]);
    fx.complete(&claimed).await;
    fx.store.heartbeat(beat()).await.expect("heartbeat");
    fx.claim(1).await;
    fx.admit().await;
    assert_eq!(
        fx.wait_reason(kept).await,
        Some(WaitReason::NoWorker),
        "a heartbeat does not bring it back"
    );
    fx.complete(&long).await;
    assert_eq!(task_ids(&fx.claim_as(full(1)).await), [kept]);
}

/// Two limits kept busy, each with a line of its own, and one task that needs both.
struct BusyWorker<'a> {
    fx: &'a Fixture,
    running: VecDeque<Attempt>,
    finishes: u32,
}

impl BusyWorker<'_> {
    /// Finishes the attempt that runs longest; another of its sort joins the line.
    async fn finish_oldest(&mut self) {
        let oldest = self.running.pop_front().expect("something runs");
        self.fx.submit(if &*oldest.kind == "a" { task("a") } else { task_of_job("b") }).await;
        self.fx.finish_attempt(&oldest, completed_outcome()).await;
        self.finishes += 1;
        self.running.extend(self.fx.claim(9).await);
        self.fx.check_invariants().await;
    }
}

/// The stated bound. Both limits have room for `n`, are always full, and `n` others stand in
/// each line. The task moves at most `MOVES_BEFORE_RESERVING` times, then it collects one slot
/// after the other; before each of these steps it waits at most for the line it joins, while
/// the other limit finishes as many.
pub async fn task_of_two_saturated_limits_is_admitted_within_bound(fx: &Fixture) {
    for n in [1, 3] {
        fx.set_limit("group:a", Some(n)).await;
        fx.job(job("j", Some(n))).await;
        fx.set_limit("job:j", Some(n)).await;
        let pairs = (0..2 * n).flat_map(|_| [task("a"), task_of_job("b")]);
        fx.submit_all(pairs.collect()).await;
        let running = fx.claim(99).await.into();
        let wanted = fx.submit(task_of_job("a")).await;
        let mut busy = BusyWorker { fx, running, finishes: 0 };
        let bound = 2 * (n + 1) * (QUEUE_SWITCHES_BEFORE_RESERVING + 2);
        while fx.state(wanted).await != TaskState::Processing {
            busy.finish_oldest().await;
            assert!(busy.finishes <= bound, "not admitted after {} finishes", busy.finishes);
        }
        for attempt in busy.running {
            fx.finish_attempt(&attempt, completed_outcome()).await;
        }
        fx.run_all().await;
        fx.check_at_rest().await;
    }
}

/// A task that collects its slots loses its worker, and when that comes back the window of its
/// job is full of tasks that wait for the same group. Were it to keep the group's slot while it
/// waits for the window, nobody would ever move again.
pub async fn task_that_reserves_slots_does_not_wait_for_job_window(fx: &Fixture) {
    fx.set_limit("group:g", Some(1)).await;
    fx.job(job("j", Some(1))).await;
    let in_group = || NewTask { effective_group: Some("g".into()), ..task("a") };
    let both = |kind| NewTask { effective_group: Some("g".into()), ..task_of_job(kind) };
    let busy = |tasks_max| claim_request("busy", &["a", "b", "c"], tasks_max);
    let away = |tasks_max| claim_request("away", &["x"], tasks_max);
    fx.submit(in_group()).await;
    let mut in_g = fx.claim_as(busy(1)).await.remove(0);
    fx.submit(task_of_job("b")).await;
    let mut in_j = fx.claim_as(busy(1)).await.remove(0);
    let collector = fx.submit(both("x")).await;
    fx.claim_as(away(0)).await;
    for _ in 0..QUEUE_SWITCHES_BEFORE_RESERVING / 2 {
        fx.submit(task_of_job("b")).await;
        fx.admit().await;
        fx.finish_attempt(&in_j, completed_outcome()).await;
        in_j = fx.claim_as(busy(1)).await.remove(0);
        fx.submit(in_group()).await;
        fx.admit().await;
        fx.finish_attempt(&in_g, completed_outcome()).await;
        in_g = fx.claim_as(busy(1)).await.pop().unwrap_or(in_g);
    }
    assert_eq!(
        (fx.wait_reason(collector).await, slots_held_by(fx, collector).await),
        RESERVING_WITH_ONE_SLOT
    );
    fx.advance(LEASE_MS_DEFAULT / 2);
    let beat = Heartbeat {
        worker: WorkerId("busy".into()),
        tokens: vec![in_j.token],
        lease_ms: LEASE_MS_DEFAULT,
        progress: vec![],
        run_times: vec![],
        report: None,
    };
    fx.store.heartbeat(beat).await.expect("heartbeat");
    fx.advance(LEASE_MS_DEFAULT / 2 + 1);
    fx.finish_attempt(&in_j, completed_outcome()).await;
    assert_eq!(fx.wait_reason(collector).await, Some(WaitReason::NoWorker));
    let in_g = fx.claim_as(busy(1)).await.remove(0);
    let mut all = fx.submit_all(vec![both("c"); JOB_WINDOW_SIZE as usize + 4]).await;
    all.push(collector);
    fx.claim_as(busy(0)).await;
    fx.admit().await;
    fx.claim_as(away(0)).await;
    fx.finish_attempt(&in_g, completed_outcome()).await;
    fx.check_invariants().await;
    for _ in 0..2 * all.len() {
        let mut claimed = fx.claim_as(away(9)).await;
        claimed.extend(fx.claim_as(busy(9)).await);
        fx.complete(&claimed).await;
    }
    assert_eq!(fx.states(&all).await, vec![TaskState::Completed; all.len()]);
}

/// It collects its slots and has one.
const RESERVING_WITH_ONE_SLOT: (Option<WaitReason>, usize) = (Some(WaitReason::Reserving), 1);

/// How many slots a task holds.
async fn slots_held_by(fx: &Fixture, task: TaskId) -> usize {
    fx.snapshot().await.slots.iter().filter(|slot| slot.task == task).count()
}

/// Arrivals beyond one step are taken up by the next; nothing is forgotten.
pub async fn admission_of_large_backlog_runs_in_bounded_steps(fx: &Fixture) {
    fx.set_limit("group:a", Some(0)).await;
    for _ in 0..3 {
        fx.submit_all(tasks("a", 1000)).await;
    }
    fx.admit().await;
    fx.claim(0).await;
    fx.set_limit("group:a", Some(2500)).await;
    for _ in 0..20 {
        fx.claim(0).await;
    }
    fx.admit().await;
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.held, limit.waiting, limit.dirty), (2500, 500, false));
    assert_eq!(fx.claim(10_000).await.len(), 2500);
}
