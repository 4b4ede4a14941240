use std::collections::BTreeSet;

use super::admit::{bring, bring_back};
use super::claim::{announce, take};
use super::gate;
use crate::bounds::{BATCH_MAX, DAY_MS, ERROR_BYTES_MAX, PAYLOAD_BYTES_MAX, check_number};
use crate::planted::{Bug, is_planted};
use crate::tables::{Final, Stopped, Tables, Tags};
use crate::{
    Claim, Exit, Finish, Finished, Kind, Ledger, Lost, Millis, Next, Outcome, Result, State,
    TaskId, after_exit,
};

/// Checks what can be checked without a store. A claim that is refused must not take the exits of
/// the same call with it.
pub fn check_finish(finish: &Finish) -> Result<()> {
    check_number("attempts", finish.exits.len(), BATCH_MAX)?;
    finish.claim.as_ref().map_or(Ok(()), Claim::check)
}

/// Ends attempts, hands their slots on, and claims in the same step.
pub fn finish(tables: &mut dyn Tables, finish: Finish) -> Result<Finished> {
    check_finish(&finish)?;
    // A worker that was full for longer than its lease has room again: the slots it gives back
    // may be handed to what it serves.
    let wanted = match finish.claim {
        Some(claim) => Some((announce(tables, &claim)?, claim)),
        None => None,
    };
    let mut finished = Finished::default();
    let mut gated = false;
    let mut tokens = BTreeSet::new();
    for exit in finish.exits {
        match stop(tables, &exit)? {
            Some(stopped) => {
                gated |= stopped.gated;
                tokens.insert(exit.token);
                leave(tables, exit, stopped)?;
            }
            None => finished.lost.push(Lost { task: exit.task, token: exit.token }),
        }
    }
    // A lease ends with its last attempt: nobody renews it any more, and at rest none is left.
    tables.end_leases(&tokens.into_iter().collect::<Vec<_>>())?;
    if gated {
        let mut budget = tables.gate_budget();
        gate::settle(tables, &mut budget)?;
    }
    if let Some((lanes, claim)) = wanted {
        finished.claimed = take(tables, &claim, &lanes)?;
    }
    Ok(finished)
}

fn stop(tables: &mut dyn Tables, exit: &Exit) -> Result<Option<Stopped>> {
    if is_planted(Bug::FinishWithoutToken)
        && let Some(crate::tables::Position::Running(token)) = tables.position(exit.task)?
    {
        return tables.stop(exit.task, token);
    }
    tables.stop(exit.task, exit.token)
}

fn leave(tables: &mut dyn Tables, exit: Exit, stopped: Stopped) -> Result<()> {
    let Exit { task, outcome, .. } = exit;
    let Some(tags) = tables.tags(task)? else {
        return Ok(());
    };
    let kind = kind_of(tables, &tags)?;
    let now = tables.now();
    move_on(tables, &tags, &kind, stopped, |ledger| {
        after_exit(bounded(outcome), ledger, task, kind.backoff, now)
    })
}

/// The kind of a task; one that was removed is treated with the defaults.
pub(super) fn kind_of(tables: &mut dyn Tables, tags: &Tags) -> Result<std::sync::Arc<Kind>> {
    Ok(tables.kind(&tags.kind)?.unwrap_or_else(|| Kind::new(tags.kind.clone()).into()))
}

/// The one way out of running: gives back what the attempt held and puts the task where the
/// decision leads.
///
/// A task whose worker died or gave it back has had its turn and lost it through no doing of its
/// own: it comes back before all others of its rank, and what a kill interrupted goes on at once,
/// however long the line. One that failed or snoozed arrives anew when it is due, also when that
/// is at once: a task that keeps failing does not hold up those behind it.
pub(super) fn move_on(
    tables: &mut dyn Tables,
    tags: &Tags,
    kind: &Kind,
    stopped: Stopped,
    decide: impl FnOnce(&mut Ledger) -> Next,
) -> Result<()> {
    let mut ledger = Ledger {
        spent: tags.spent,
        deaths: tags.deaths,
        max_attempts: tags.max_attempts.unwrap_or(kind.max_attempts),
        max_deaths: kind.max_deaths,
        cancel_requested: stopped.cancel_requested,
    };
    let before = ledger;
    let next = decide(&mut ledger);
    let keeps = is_planted(Bug::BackoffKeepsSlot) && matches!(next, Next::Scheduled { .. });
    if stopped.gated && !keeps {
        gate::release(tables, tags, next.is_final(), false)?;
    }
    match next {
        Next::Final { state, result, error } => {
            if state == State::Failed {
                gate::halt(tables, tags)?;
            }
            let remove_at = remove_at(kind, state, tables.now());
            if ledger != before && remove_at.is_none_or(|at| at > tables.now()) {
                tables.put_ledger(tags.task, ledger, None)?;
            }
            let error = error.map(cut);
            tables.end_task(tags.task, &Final { state, result, error, remove_at })
        }
        Next::Scheduled { run_at, error } => {
            write_ledger(tables, tags, before, ledger, error)?;
            tables.put_arrival(tags.task, run_at.max(tables.now()))?;
            if run_at > tables.now() {
                return tables.put_scheduled(tags.task, run_at);
            }
            bring(tables, tags.task).map(drop)
        }
        Next::Arrived { error } => {
            write_ledger(tables, tags, before, ledger, error)?;
            bring_back(tables, tags.task).map(drop)
        }
    }
}

/// What becomes of a task whose attempt failed or was snoozed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The task is scheduled.
    Scheduled {
        /// When it is due, later than now.
        run_at: Millis,
        /// The error to keep; none leaves the error of an earlier attempt.
        error: Option<String>,
    },
    /// The task has ended.
    Final {
        /// Its state.
        state: State,
        /// The error to keep; none leaves the error of an earlier attempt.
        error: Option<String>,
        /// When it is removed; at once if that is not later than now.
        remove_at: Option<Millis>,
    },
    /// Only [`finish`] can do it: the task returns to the gate at once, or it has a result.
    General,
}

/// Decides what [`finish`] does with a task of no workflow whose attempt failed or was snoozed, and
/// counts the attempt in the ledger. The slots of such an attempt are free in any case.
pub fn decide_failed(
    outcome: Outcome,
    ledger: &mut Ledger,
    task: TaskId,
    kind: &Kind,
    now: Millis,
) -> Decision {
    match after_exit(outcome, ledger, task, kind.backoff, now) {
        Next::Scheduled { run_at, error } if run_at > now => {
            Decision::Scheduled { run_at, error: error.map(cut) }
        }
        Next::Final { state, result: None, error } => {
            let remove_at = remove_at(kind, state, now);
            Decision::Final { state, error: error.map(cut), remove_at }
        }
        _ => Decision::General,
    }
}

fn write_ledger(
    tables: &mut dyn Tables,
    tags: &Tags,
    before: Ledger,
    ledger: Ledger,
    error: Option<String>,
) -> Result<()> {
    if ledger == before && error.is_none() {
        return Ok(());
    }
    tables.put_ledger(tags.task, ledger, error.map(cut).as_deref())
}

/// Until when a finished task is kept: at least for its days, and to the end of the last. So all
/// that goes on one day goes at once.
pub(super) fn remove_at(kind: &Kind, state: State, now: Millis) -> Option<Millis> {
    let days = match state {
        State::Completed => kind.remove_on_completed_days,
        _ => kind.remove_on_failed_days,
    };
    days.map(|days| match days {
        0 => now,
        days => (now + i64::from(days) * DAY_MS + DAY_MS - 1).div_euclid(DAY_MS) * DAY_MS,
    })
}

/// A result that is too large fails the task: it would not come out of every store again.
fn bounded(outcome: Outcome) -> Outcome {
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
fn cut(error: String) -> String {
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
    fn long_errors_are_cut_between_characters() {
        let text = cut("ä".repeat(ERROR_BYTES_MAX));
        assert!(text.len() <= ERROR_BYTES_MAX && text.chars().all(|c| c == 'ä'));
    }
}
