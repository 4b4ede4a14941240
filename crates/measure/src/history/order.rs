//! Checks that workflows run one task after another, and counts tasks that ran beside themselves.

use super::attempt_end::AttemptEnd;
use super::collect::History;
use super::violation::{Violation, Violations};

/// One attempt of a task of a workflow. Sorts by workflow first.
#[derive(Debug, Clone, Copy)]
struct Step {
    workflow: usize,
    task: i64,
    enter_ns: u64,
    end_ns: u64,
}

/// Checks every workflow of the history.
pub(super) fn check(history: &History, ends: &[AttemptEnd], violations: &mut Violations) {
    let mut steps = steps(history, ends);
    let names = history.workflows.all();
    steps.sort_unstable_by_key(|step| (step.workflow, step.enter_ns, step.task));
    for workflow in steps.chunk_by(|one, next| one.workflow == next.workflow) {
        check_overlap(&names[workflow[0].workflow], workflow, violations);
    }
    steps.sort_unstable_by_key(|step| (step.workflow, step.task, step.enter_ns));
    for workflow in steps.chunk_by(|one, next| one.workflow == next.workflow) {
        check_order(&names[workflow[0].workflow], workflow, violations);
    }
}

/// How many attempts began while another attempt of the same task still ran. Not a violation: a
/// handler that cannot be stopped outlives its lease. But it should be rare.
pub(super) fn count_overlapping_attempts(history: &History, ends: &[AttemptEnd]) -> u64 {
    let times = history.attempts.iter().zip(ends);
    let mut times: Vec<(i64, u64, u64)> =
        times.map(|(attempt, end)| (attempt.task, attempt.enter_ns, end.end_ns)).collect();
    times.sort_unstable();
    let overlaps = times.chunk_by(|one, next| one.0 == next.0).map(|task| {
        let mut latest_ns = 0;
        let beside = |&(_, enter_ns, end_ns): &(i64, u64, u64)| {
            let beside = enter_ns < latest_ns;
            latest_ns = latest_ns.max(end_ns);
            u64::from(beside)
        };
        task.iter().map(beside).sum::<u64>()
    });
    overlaps.sum()
}

fn steps(history: &History, ends: &[AttemptEnd]) -> Vec<Step> {
    let attempts = history.attempts.iter().zip(ends);
    attempts
        .filter_map(|(attempt, end)| {
            let workflow = attempt.workflow?;
            Some(Step {
                workflow,
                task: attempt.task,
                enter_ns: attempt.enter_ns,
                end_ns: end.end_ns,
            })
        })
        .collect()
}

/// `steps` are those of one workflow in the order of their enters.
fn check_overlap(workflow: &str, steps: &[Step], violations: &mut Violations) {
    let mut latest = steps[0];
    for step in &steps[1..] {
        if step.enter_ns < latest.end_ns {
            violations.add(Violation::WorkflowOverlap {
                workflow: workflow.to_owned(),
                t_ns: step.enter_ns,
                task: step.task,
                running: latest.task,
            });
        }
        if step.end_ns > latest.end_ns {
            latest = *step;
        }
    }
}

/// `steps` are those of one workflow in the order of their tasks. Only the first enter of a task
/// needs a look: its retries come later still.
fn check_order(workflow: &str, steps: &[Step], violations: &mut Violations) {
    let mut latest: Option<Step> = None;
    for task in steps.chunk_by(|one, next| one.task == next.task) {
        if let Some(earlier) = latest.filter(|earlier| task[0].enter_ns < earlier.end_ns) {
            violations.add(Violation::WorkflowOrder {
                workflow: workflow.to_owned(),
                t_ns: task[0].enter_ns,
                task: task[0].task,
                earlier: earlier.task,
            });
        }
        latest = task.iter().copied().chain(latest).max_by_key(|step| step.end_ns);
    }
}
