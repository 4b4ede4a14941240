//! What a fleet of worker processes promises, on every store that processes can share: the order of
//! workflows, as many at once as there are permits, bounded memory, even shares, and that the work of
//! a worker that is killed goes on elsewhere.

use std::collections::BTreeMap;

use crate::fleet::barrier::Barrier;
use crate::fleet::{Fleet, is_completion, start_records};
use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::{NewTask, TaskId};
use tidegate_measure::history::{Outcome, Record, peak_concurrency};

fn sleep(ms: u64) -> NewTask {
    NewTask::new("sleep", format!("{{\"ms\":{ms}}}"))
}

fn step(workflow: &str, task: NewTask) -> NewTask {
    NewTask { workflow: Some(workflow.to_owned()), ..task }
}

#[test]
fn workflow_order_holds_when_worker_is_killed() {
    for mut fleet in Fleet::on_each_store() {
        for _ in 0..3 {
            fleet.start(&["--lease", "1s", "--concurrency", "4"]);
        }
        let steps = fleet.submit(&[], &vec![step("order", sleep(50)); 10]);
        let fifth = loop {
            let enter = fleet.wait_for_start();
            if TaskId(enter.task) == steps[4] {
                break enter;
            }
        };
        fleet.kill(fleet.worker_of(&fifth.process));
        fleet.wait_for_outcomes(10, Outcome::Completed);
        fleet.end_all();
        let mut order: Vec<TaskId> =
            start_records(&fleet.records).map(|enter| TaskId(enter.task)).collect();
        assert_eq!(order.iter().filter(|task| **task == steps[4]).count(), 2, "it ran again");
        order.dedup();
        assert_eq!(order, steps, "one after another, whoever runs them");
        assert_eq!(fleet.assert_clean().killed, 1);
    }
}

/// Nobody is answered before as many call as may, so that the peak is reached; nobody is let in
/// beside them, so that it is not exceeded.
#[test]
fn workflows_run_in_parallel_up_to_worker_concurrency() {
    for permits in [10, 50] {
        for mut fleet in Fleet::on_each_store() {
            let peak = (3 * permits).min(100);
            let server = Barrier::new(peak);
            let workflows = (0..100).map(|number| format!("order-{number}"));
            let steps: Vec<NewTask> =
                workflows.flat_map(|workflow| vec![step(&workflow, server.task()); 3]).collect();
            fleet.submit(&[], &steps);
            let (address, permits) = (server.address(), permits.to_string());
            for _ in 0..3 {
                fleet.start(&["--concurrency", &permits, "--http-allow", &address]);
            }
            fleet.wait_for_outcomes(steps.len(), Outcome::Completed);
            fleet.end_all();
            assert_eq!(
                peak_concurrency(&fleet.records, |_| true),
                peak,
                "of {permits} permits each"
            );
            let report = fleet.assert_clean();
            assert_eq!((report.workflows, report.attempts), (100, 300));
        }
    }
}

/// A backlog is several times larger than what a worker may hold of it.
#[test]
fn backlog_does_not_increase_worker_memory() {
    const TASKS: usize = 10_000;
    const IN_FLIGHT: u64 = 16;
    for mut fleet in Fleet::on_each_store() {
        let permits = IN_FLIGHT.to_string();
        let worker = fleet.start(&["--concurrency", &permits]);
        let base = fleet.memory(worker, "VmRSS");
        let payload = format!("\"{}\"", "x".repeat(16 << 10));
        let task = NewTask::new("noop", payload);
        fleet.submit(&[], &vec![task; TASKS]);
        fleet.wait_for_outcomes(TASKS, Outcome::Completed);
        let most = fleet.memory(worker, "VmHWM");
        let bound = base + IN_FLIGHT * PAYLOAD_BYTES_MAX as u64 + (64 << 20);
        assert!(most <= bound, "{most} bytes at most, {base} at the start, {bound} allowed");
        fleet.end_all();
        fleet.assert_clean();
    }
}

/// Long tasks in flight are cheap too. A million in the queue is measured by hand, see docs/records.
#[test]
fn ten_thousand_tasks_in_flight_use_bounded_memory() {
    const IN_FLIGHT: usize = 10_000;
    const BYTES_MAX: u64 = 300 << 20;
    for mut fleet in Fleet::on_each_store() {
        fleet.submit(&[], &vec![sleep(600_000); 5 * IN_FLIGHT]);
        let worker = fleet.start(&["--concurrency", &IN_FLIGHT.to_string()]);
        fleet.wait_for_starts(IN_FLIGHT);
        let most = fleet.memory(worker, "VmHWM");
        assert!(most <= BYTES_MAX, "{most} bytes");
    }
}

/// How many tasks each process has started.
fn shares(records: &[Record]) -> Vec<usize> {
    let mut started: BTreeMap<u32, usize> = BTreeMap::new();
    for enter in start_records(records) {
        *started.entry(enter.process.pid).or_default() += 1;
    }
    started.into_values().collect()
}

/// Whether three processes have started as many each, within 20 % of each other.
fn are_even(shares: &[usize]) -> bool {
    let (least, most) = (shares.iter().min(), shares.iter().max());
    shares.len() == 3 && least.zip(most).is_some_and(|(least, most)| 5 * most <= 6 * least)
}

/// More work than all of them may have at once.
#[test]
fn workers_share_a_backlog_evenly() {
    const TASKS: usize = 1_500;
    for mut fleet in Fleet::on_each_store() {
        for _ in 0..3 {
            fleet.start(&["--concurrency", "20"]);
        }
        fleet.submit(&[], &vec![sleep(100); TASKS]);
        fleet.wait_for_outcomes(TASKS, Outcome::Completed);
        fleet.end_all();
        let shares = shares(&fleet.records);
        assert!(are_even(&shares), "not within 20 %: {shares:?}");
        fleet.assert_clean();
    }
}

/// Any of them could have all of it at once. On a machine with two cores that does other things as well one may
/// come to a burst when it is gone, so several are looked at. No other test runs beside it.
#[test]
fn idle_workers_share_a_burst_evenly() {
    const TASKS: usize = 300;
    const BURSTS_MAX: usize = 8;
    const EVEN: usize = 3;
    for mut fleet in Fleet::on_each_store() {
        for _ in 0..3 {
            fleet.start(&["--concurrency", "1000"]);
        }
        let (mut all, mut even) = (Vec::new(), 0);
        while even < EVEN && all.len() < BURSTS_MAX {
            let before = fleet.records.len();
            fleet.submit(&[], &vec![sleep(100); TASKS]);
            fleet.wait_for_outcomes((all.len() + 1) * TASKS, Outcome::Completed);
            let shares = shares(&fleet.records[before..]);
            even += usize::from(are_even(&shares));
            all.push(shares);
        }
        fleet.end_all();
        assert_eq!(even, EVEN, "within 20 % of {all:?}");
        fleet.assert_clean();
    }
}

#[test]
fn task_of_killed_worker_completes_on_another_worker() {
    const LEASE_AND_TWO_SECONDS_NS: u64 = 3_000_000_000;
    for mut fleet in Fleet::on_each_store() {
        for _ in 0..2 {
            fleet.start(&["--lease", "1s"]);
        }
        let task = fleet.submit(&[], &[sleep(500)])[0];
        let first = fleet.wait_for_start();
        let killed_ns = fleet.kill(fleet.worker_of(&first.process));
        let second = fleet.wait_for_start();
        assert_eq!((second.task, second.attempt), (task.0, 2));
        assert_ne!(second.process, first.process);
        let exit = fleet.wait_for("its end", |record| is_completion(record, Outcome::Completed));
        let Record::Exit(exit) = exit else { unreachable!("it is an exit") };
        let took_ns = exit.t_ns - killed_ns;
        assert!(took_ns <= LEASE_AND_TWO_SECONDS_NS, "completed after {took_ns} ns");
        fleet.end_all();
        assert_eq!(fleet.assert_clean().killed, 1);
    }
}
