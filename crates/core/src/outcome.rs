//! The one exit out of running, and where it leads.

use crate::fault_injection::{InjectedBug, is_injected};
use crate::{Backoff, Millis, TaskId, TaskState, Token};

/// How an attempt ended, as its worker reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The handler returned this JSON.
    Completed(Vec<u8>),
    /// The handler failed. Spends the attempt.
    Failed {
        /// What went wrong.
        error: String,
        /// Whether trying again may help.
        retryable: bool,
        /// When to try again, instead of the back-off.
        retry_in_ms: Option<i64>,
    },
    /// The handler asks to be called later. Costs no attempt.
    Snoozed {
        /// When to call again.
        delay_ms: i64,
    },
    /// The worker gives the attempt back unspent.
    Released,
    /// The handler stopped because the task was cancelled.
    Cancelled,
}

/// One attempt's exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The task.
    pub task: TaskId,
    /// The token of the attempt's lease.
    pub token: Token,
    /// How it ended.
    pub outcome: Outcome,
}

/// What the exit rule must know of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptCounts {
    /// Attempts spent so far.
    pub attempts_used: u32,
    /// Deaths of its process so far.
    pub crashes: u32,
    /// Attempts it is given.
    pub max_attempts: u32,
    /// Deaths of its process after which it is quarantined.
    pub max_crashes: u32,
    /// Whether somebody asked for its end.
    pub cancel_requested: bool,
}

/// Where the exit leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transition {
    /// Finished for good.
    Finished {
        /// In which state.
        state: TaskState,
        /// The handler's result.
        result: Option<Vec<u8>>,
        /// What went wrong.
        error: Option<String>,
    },
    /// Not before this time.
    Scheduled {
        /// When it is due.
        run_at: Millis,
        /// What went wrong, if anything.
        error: Option<String>,
    },
    /// Back at the gate.
    Readmitted {
        /// What went wrong, if anything.
        error: Option<String>,
    },
}

impl Transition {
    fn cancelled() -> Self {
        Self::Finished { state: TaskState::Cancelled, result: None, error: None }
    }

    fn failed(error: String) -> Self {
        Self::Finished { state: TaskState::Failed, result: None, error: Some(error) }
    }

    /// Whether the task is finished for good.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Finished { .. })
    }
}

/// Decides where a reported exit leads, and writes the attempt into the ledger.
pub fn transition_after_completion(
    outcome: Outcome,
    counts: &mut AttemptCounts,
    task: TaskId,
    backoff: Backoff,
    now: Millis,
) -> Transition {
    match outcome {
        Outcome::Completed(result) => {
            Transition::Finished { state: TaskState::Completed, result: Some(result), error: None }
        }
        Outcome::Cancelled => Transition::cancelled(),
        Outcome::Failed { error, retryable, retry_in_ms } => {
            counts.attempts_used += 1;
            if !retryable || counts.attempts_used >= counts.max_attempts {
                return Transition::failed(error);
            }
            let delay = retry_in_ms.unwrap_or_else(|| backoff.delay_ms(counts.attempts_used, task));
            schedule_unless_cancelled(counts, now.saturating_add(delay.max(0)), Some(error))
        }
        Outcome::Snoozed { delay_ms: for_ms } => {
            schedule_unless_cancelled(counts, now.saturating_add(for_ms.max(0)), None)
        }
        Outcome::Released if counts.cancel_requested => Transition::cancelled(),
        Outcome::Released => Transition::Readmitted { error: None },
    }
}

/// Decides where a lease that ran out leads: the process is taken for dead. It spends an
/// attempt, and a task whose processes keep dying is quarantined.
pub fn transition_after_crash(counts: &mut AttemptCounts) -> Transition {
    counts.attempts_used += 1;
    if !is_injected(InjectedBug::UncountedCrash) {
        counts.crashes += 1;
    }
    if counts.cancel_requested {
        return Transition::cancelled();
    }
    if counts.crashes >= counts.max_crashes {
        return Transition::failed(format!(
            "quarantined: its worker died {} times while running it",
            counts.crashes
        ));
    }
    let error = "the worker died or lost its lease".to_owned();
    if counts.attempts_used >= counts.max_attempts {
        return Transition::failed(error);
    }
    Transition::Readmitted { error: Some(error) }
}

/// Decides where an attempt leads whose slot an operator took away. It spends the attempt, else
/// a handler that hangs would hang for ever; and it comes to the gate anew, because the slot was
/// to go to somebody else.
pub fn transition_after_slot_release(counts: &mut AttemptCounts, now: Millis) -> Transition {
    counts.attempts_used += 1;
    let error = "an operator took its slot away".to_owned();
    if counts.attempts_used >= counts.max_attempts && !counts.cancel_requested {
        return Transition::failed(error);
    }
    schedule_unless_cancelled(counts, now, Some(error))
}

fn schedule_unless_cancelled(
    counts: &AttemptCounts,
    run_at: Millis,
    error: Option<String>,
) -> Transition {
    if counts.cancel_requested {
        Transition::cancelled()
    } else {
        Transition::Scheduled { run_at, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_attempt_counts() -> AttemptCounts {
        AttemptCounts {
            attempts_used: 0,
            crashes: 0,
            max_attempts: 3,
            max_crashes: 3,
            cancel_requested: false,
        }
    }

    fn failed(retryable: bool) -> Outcome {
        Outcome::Failed { error: "no".into(), retryable, retry_in_ms: Some(10) }
    }

    fn complete(outcome: Outcome, ledger: &mut AttemptCounts) -> Transition {
        transition_after_completion(outcome, ledger, TaskId(1), Backoff::default(), 100)
    }

    #[test]
    fn failed_task_is_retried_until_attempts_are_used() {
        let mut ledger = new_attempt_counts();
        for _ in 0..2 {
            let next = complete(failed(true), &mut ledger);
            assert_eq!(next, Transition::Scheduled { run_at: 110, error: Some("no".into()) });
        }
        assert_eq!(complete(failed(true), &mut ledger), Transition::failed("no".into()));
    }

    #[test]
    fn fatal_error_fails_task_without_retry() {
        assert_eq!(
            complete(failed(false), &mut new_attempt_counts()),
            Transition::failed("no".into())
        );
    }

    #[test]
    fn snooze_and_release_use_no_attempt() {
        let mut ledger = new_attempt_counts();
        complete(Outcome::Snoozed { delay_ms: 5 }, &mut ledger);
        complete(Outcome::Released, &mut ledger);
        assert_eq!(ledger.attempts_used, 0);
    }

    #[test]
    fn cancel_request_cancels_task_instead_of_retry() {
        let mut ledger = AttemptCounts { cancel_requested: true, ..new_attempt_counts() };
        for outcome in [failed(true), Outcome::Snoozed { delay_ms: 5 }, Outcome::Released] {
            assert_eq!(complete(outcome, &mut ledger), Transition::cancelled());
        }
        assert_eq!(transition_after_crash(&mut ledger), Transition::cancelled());
        assert!(matches!(
            complete(Outcome::Completed(vec![]), &mut ledger),
            Transition::Finished { state: TaskState::Completed, .. }
        ));
    }

    #[test]
    fn task_with_repeated_crashes_is_quarantined() {
        let mut ledger = AttemptCounts { max_attempts: 100, ..new_attempt_counts() };
        assert!(matches!(transition_after_crash(&mut ledger), Transition::Readmitted { .. }));
        assert!(matches!(transition_after_crash(&mut ledger), Transition::Readmitted { .. }));
        let Transition::Finished { state: TaskState::Failed, error: Some(error), .. } =
            transition_after_crash(&mut ledger)
        else {
            panic!("not quarantined")
        };
        assert!(error.starts_with("quarantined"), "{error}");
    }
}
