//! The one exit out of running, and where it leads.

use crate::planted::{Bug, is_planted};
use crate::{Backoff, Millis, State, TaskId, Token};

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
        for_ms: i64,
    },
    /// The worker gives the attempt back unspent.
    Released,
    /// The handler stopped because the task was cancelled.
    Cancelled,
}

/// One attempt's exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The task.
    pub task: TaskId,
    /// The token of the attempt's lease.
    pub token: Token,
    /// How it ended.
    pub outcome: Outcome,
}

/// What the exit rule must know of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ledger {
    /// Attempts spent so far.
    pub spent: u32,
    /// Deaths of its process so far.
    pub deaths: u32,
    /// Attempts it is given.
    pub max_attempts: u32,
    /// Deaths of its process after which it is quarantined.
    pub max_deaths: u32,
    /// Whether somebody asked for its end.
    pub cancel_requested: bool,
}

/// Where the exit leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Finished for good.
    Final {
        /// In which state.
        state: State,
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
    Arrived {
        /// What went wrong, if anything.
        error: Option<String>,
    },
}

impl Next {
    fn cancelled() -> Self {
        Self::Final { state: State::Cancelled, result: None, error: None }
    }

    fn failed(error: String) -> Self {
        Self::Final { state: State::Failed, result: None, error: Some(error) }
    }

    /// Whether the task is finished for good.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Final { .. })
    }
}

/// Decides where a reported exit leads, and writes the attempt into the ledger.
pub fn after_exit(
    outcome: Outcome,
    ledger: &mut Ledger,
    task: TaskId,
    backoff: Backoff,
    now: Millis,
) -> Next {
    match outcome {
        Outcome::Completed(result) => {
            Next::Final { state: State::Completed, result: Some(result), error: None }
        }
        Outcome::Cancelled => Next::cancelled(),
        Outcome::Failed { error, retryable, retry_in_ms } => {
            ledger.spent += 1;
            if !retryable || ledger.spent >= ledger.max_attempts {
                return Next::failed(error);
            }
            let delay = retry_in_ms.unwrap_or_else(|| backoff.delay_ms(ledger.spent, task));
            later(ledger, now.saturating_add(delay.max(0)), Some(error))
        }
        Outcome::Snoozed { for_ms } => later(ledger, now.saturating_add(for_ms.max(0)), None),
        Outcome::Released if ledger.cancel_requested => Next::cancelled(),
        Outcome::Released => Next::Arrived { error: None },
    }
}

/// Decides where a lease that ran out leads: the process is taken for dead. It spends an
/// attempt, and a task whose processes keep dying is quarantined.
pub fn after_death(ledger: &mut Ledger) -> Next {
    ledger.spent += 1;
    if !is_planted(Bug::UncountedDeath) {
        ledger.deaths += 1;
    }
    if ledger.cancel_requested {
        return Next::cancelled();
    }
    if ledger.deaths >= ledger.max_deaths {
        return Next::failed(format!(
            "quarantined: its worker died {} times while running it",
            ledger.deaths
        ));
    }
    let error = "the worker died or lost its lease".to_owned();
    if ledger.spent >= ledger.max_attempts {
        return Next::failed(error);
    }
    Next::Arrived { error: Some(error) }
}

/// Decides where an attempt leads whose slot an operator took away. It spends the attempt, else
/// a handler that hangs would hang for ever; and it comes to the gate anew, because the slot was
/// to go to somebody else.
pub fn after_fence(ledger: &mut Ledger, now: Millis) -> Next {
    ledger.spent += 1;
    let error = "an operator took its slot away".to_owned();
    if ledger.spent >= ledger.max_attempts && !ledger.cancel_requested {
        return Next::failed(error);
    }
    later(ledger, now, Some(error))
}

fn later(ledger: &Ledger, run_at: Millis, error: Option<String>) -> Next {
    if ledger.cancel_requested { Next::cancelled() } else { Next::Scheduled { run_at, error } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        Ledger { spent: 0, deaths: 0, max_attempts: 3, max_deaths: 3, cancel_requested: false }
    }

    fn failed(retryable: bool) -> Outcome {
        Outcome::Failed { error: "no".into(), retryable, retry_in_ms: Some(10) }
    }

    fn exit(outcome: Outcome, ledger: &mut Ledger) -> Next {
        after_exit(outcome, ledger, TaskId(1), Backoff::default(), 100)
    }

    #[test]
    fn a_failure_spends_attempts_until_none_is_left() {
        let mut ledger = ledger();
        for _ in 0..2 {
            let next = exit(failed(true), &mut ledger);
            assert_eq!(next, Next::Scheduled { run_at: 110, error: Some("no".into()) });
        }
        assert_eq!(exit(failed(true), &mut ledger), Next::failed("no".into()));
    }

    #[test]
    fn a_fatal_error_is_final_at_once() {
        assert_eq!(exit(failed(false), &mut ledger()), Next::failed("no".into()));
    }

    #[test]
    fn snooze_and_release_cost_nothing() {
        let mut ledger = ledger();
        exit(Outcome::Snoozed { for_ms: 5 }, &mut ledger);
        exit(Outcome::Released, &mut ledger);
        assert_eq!(ledger.spent, 0);
    }

    #[test]
    fn a_cancel_request_ends_what_would_run_again() {
        let mut ledger = Ledger { cancel_requested: true, ..ledger() };
        for outcome in [failed(true), Outcome::Snoozed { for_ms: 5 }, Outcome::Released] {
            assert_eq!(exit(outcome, &mut ledger), Next::cancelled());
        }
        assert_eq!(after_death(&mut ledger), Next::cancelled());
        assert!(matches!(
            exit(Outcome::Completed(vec![]), &mut ledger),
            Next::Final { state: State::Completed, .. }
        ));
    }

    #[test]
    fn deaths_lead_to_quarantine() {
        let mut ledger = Ledger { max_attempts: 100, ..ledger() };
        assert!(matches!(after_death(&mut ledger), Next::Arrived { .. }));
        assert!(matches!(after_death(&mut ledger), Next::Arrived { .. }));
        let Next::Final { state: State::Failed, error: Some(error), .. } = after_death(&mut ledger)
        else {
            panic!("not quarantined")
        };
        assert!(error.starts_with("quarantined"), "{error}");
    }
}
