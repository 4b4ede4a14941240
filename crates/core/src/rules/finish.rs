use std::collections::BTreeSet;

use super::admission;
use super::admit::{admit_or_put_in_inbox, readmit_or_put_in_inbox};
use super::claim::{claim_from_lanes, record_demand};
use crate::bounds::{BATCH_MAX, DAY_MS, ERROR_BYTES_MAX, PAYLOAD_BYTES_MAX, check_batch_size};
use crate::fault_injection::{InjectedBug, is_injected};
use crate::tables::{FinishedTask, RemovedAttempt, Tables, TaskInfo};
use crate::{
    AttemptCounts, Claim, Completion, Finish, FinishReply, Kind, LostAttempt, Millis, Outcome,
    Result, TaskId, TaskState, Transition, transition_after_completion,
};

/// Checks what can be checked without a store. A claim that is refused must not take the exits of
/// the same call with it.
pub fn check_finish(finish: &Finish) -> Result<()> {
    check_batch_size("attempts", finish.completions.len(), BATCH_MAX)?;
    finish.claim.as_ref().map_or(Ok(()), Claim::check)
}

/// Ends attempts, hands their slots on, and claims in the same step.
pub fn finish(tables: &mut dyn Tables, finish: Finish) -> Result<FinishReply> {
    check_finish(&finish)?;
    // A worker that was full for longer than its lease has room again: the slots it gives back
    // may be handed to what it serves.
    let wanted = match finish.claim {
        Some(claim) => Some((record_demand(tables, &claim)?, claim)),
        None => None,
    };
    let mut finished = FinishReply::default();
    let mut gated = false;
    let mut tokens = BTreeSet::new();
    for exit in finish.completions {
        match remove_completed_attempt(tables, &exit)? {
            Some(stopped) => {
                gated |= stopped.holds_slots;
                tokens.insert(exit.token);
                finish_attempt(tables, exit, stopped)?;
            }
            None => finished.lost_attempts.push(LostAttempt { task: exit.task, token: exit.token }),
        }
    }
    // A lease ends with its last attempt: nobody renews it any more, and at rest none is left.
    tables.delete_empty_leases(&tokens.into_iter().collect::<Vec<_>>())?;
    if gated {
        let mut budget = tables.admission_budget();
        admission::admit_from_dirty_limits(tables, &mut budget)?;
    }
    if let Some((lanes, claim)) = wanted {
        finished.claimed = claim_from_lanes(tables, &claim, &lanes)?;
    }
    Ok(finished)
}

fn remove_completed_attempt(
    tables: &mut dyn Tables,
    completion: &Completion,
) -> Result<Option<RemovedAttempt>> {
    if is_injected(InjectedBug::FinishIgnoresToken)
        && let Some(crate::tables::Position::Running(token)) = tables.position(completion.task)?
    {
        return tables.remove_running(completion.task, token);
    }
    tables.remove_running(completion.task, completion.token)
}

fn finish_attempt(
    tables: &mut dyn Tables,
    completion: Completion,
    stopped: RemovedAttempt,
) -> Result<()> {
    let Completion { task, outcome, .. } = completion;
    let Some(tags) = tables.task_info(task)? else {
        return Ok(());
    };
    let kind = kind_of_task(tables, &tags)?;
    let now = tables.now();
    apply_transition(tables, &tags, &kind, stopped, |ledger| {
        transition_after_completion(fail_oversized_result(outcome), ledger, task, kind.backoff, now)
    })
}

/// The kind of a task; one that was removed is treated with the defaults.
pub(super) fn kind_of_task(
    tables: &mut dyn Tables,
    info: &TaskInfo,
) -> Result<std::sync::Arc<Kind>> {
    Ok(tables.kind(&info.kind)?.unwrap_or_else(|| Kind::new(info.kind.clone()).into()))
}

/// The one way out of running: gives back what the attempt held and puts the task where the
/// decision leads.
///
/// A task whose worker died or gave it back has had its turn and lost it through no doing of its
/// own: it comes back before all others of its rank, and what a kill interrupted goes on at once,
/// however long the line. One that failed or snoozed arrives anew when it is due, also when that
/// is at once: a task that keeps failing does not hold up those behind it.
pub(super) fn apply_transition(
    tables: &mut dyn Tables,
    tags: &TaskInfo,
    kind: &Kind,
    removed: RemovedAttempt,
    decide: impl FnOnce(&mut AttemptCounts) -> Transition,
) -> Result<()> {
    let mut ledger = AttemptCounts {
        attempts_used: tags.attempts_used,
        crashes: tags.crashes,
        max_attempts: tags.max_attempts.unwrap_or(kind.max_attempts),
        max_crashes: kind.max_crashes,
        cancel_requested: removed.cancel_requested,
    };
    let before = ledger;
    let next = decide(&mut ledger);
    let keeps =
        is_injected(InjectedBug::BackoffKeepsSlot) && matches!(next, Transition::Scheduled { .. });
    if removed.holds_slots && !keeps {
        admission::release_task_slots(tables, tags, next.is_final(), false)?;
    }
    match next {
        Transition::Finished { state, result, error } => {
            if state == TaskState::Failed {
                admission::pause_workflow_after_failure(tables, tags)?;
            }
            let remove_at = removal_time(kind, state, tables.now());
            if ledger != before && remove_at.is_none_or(|at| at > tables.now()) {
                tables.put_attempt_counts(tags.task, ledger, None)?;
            }
            let error = error.map(sanitize_error);
            tables.finish_task(tags.task, &FinishedTask { state, result, error, remove_at })
        }
        Transition::Scheduled { run_at, error } => {
            put_changed_counts(tables, tags, before, ledger, error)?;
            tables.set_due_at(tags.task, run_at.max(tables.now()))?;
            if run_at > tables.now() {
                return tables.put_scheduled(tags.task, run_at);
            }
            admit_or_put_in_inbox(tables, tags.task).map(drop)
        }
        Transition::Readmitted { error } => {
            put_changed_counts(tables, tags, before, ledger, error)?;
            readmit_or_put_in_inbox(tables, tags.task).map(drop)
        }
    }
}

/// What becomes of a task whose attempt failed or was snoozed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureDecision {
    /// The task is scheduled.
    Scheduled {
        /// When it is due, later than now.
        run_at: Millis,
        /// The error to keep; none leaves the error of an earlier attempt.
        error: Option<String>,
    },
    /// The task has ended.
    Finished {
        /// Its state.
        state: TaskState,
        /// The error to keep; none leaves the error of an earlier attempt.
        error: Option<String>,
        /// When it is removed; at once if that is not later than now.
        remove_at: Option<Millis>,
    },
    /// Only [`finish`] can do it: the task returns to the gate at once, or it has a result.
    NeedsGeneralPath,
}

/// Decides what [`finish`] does with a task of no workflow whose attempt failed or was snoozed, and
/// counts the attempt in the ledger. The slots of such an attempt are free in any case.
pub fn decide_after_failure(
    outcome: Outcome,
    counts: &mut AttemptCounts,
    task: TaskId,
    kind: &Kind,
    now: Millis,
) -> FailureDecision {
    match transition_after_completion(outcome, counts, task, kind.backoff, now) {
        Transition::Scheduled { run_at, error } if run_at > now => {
            FailureDecision::Scheduled { run_at, error: error.map(sanitize_error) }
        }
        Transition::Finished { state, result: None, error } => {
            let remove_at = removal_time(kind, state, now);
            FailureDecision::Finished { state, error: error.map(sanitize_error), remove_at }
        }
        _ => FailureDecision::NeedsGeneralPath,
    }
}

fn put_changed_counts(
    tables: &mut dyn Tables,
    tags: &TaskInfo,
    before: AttemptCounts,
    counts: AttemptCounts,
    error: Option<String>,
) -> Result<()> {
    if counts == before && error.is_none() {
        return Ok(());
    }
    tables.put_attempt_counts(tags.task, counts, error.map(sanitize_error).as_deref())
}

/// Until when a finished task is kept: at least for its days, and to the end of the last. So all
/// that goes on one day goes at once.
pub(super) fn removal_time(kind: &Kind, state: TaskState, now: Millis) -> Option<Millis> {
    let days = match state {
        TaskState::Completed => kind.remove_on_completed_days,
        _ => kind.remove_on_failed_days,
    };
    days.map(|days| match days {
        0 => now,
        days => (now + i64::from(days) * DAY_MS + DAY_MS - 1).div_euclid(DAY_MS) * DAY_MS,
    })
}

/// A result that is too large fails the task: it would not come out of every store again.
fn fail_oversized_result(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Completed(result) if result.len() > PAYLOAD_BYTES_MAX => Outcome::Failed {
            error: format!(
                "the result has {} bytes; at most {PAYLOAD_BYTES_MAX} are kept",
                result.len()
            ),
            retryable: false,
            retry_in_ms: None,
        },
        outcome => outcome,
    }
}

/// Makes an error text one that every store keeps: bounded, and without the one character
/// that PostgreSQL's text has no place for.
fn sanitize_error(error: String) -> String {
    let mut error = if error.contains('\0') { error.replace('\0', "\u{fffd}") } else { error };
    if error.len() > ERROR_BYTES_MAX {
        let end = (0..=ERROR_BYTES_MAX).rev().find(|at| error.is_char_boundary(*at));
        error.truncate(end.unwrap_or(0));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_error_is_truncated_between_characters() {
        let text = sanitize_error("ä".repeat(ERROR_BYTES_MAX));
        assert!(text.len() <= ERROR_BYTES_MAX && text.chars().all(|c| c == 'ä'));
    }
}
