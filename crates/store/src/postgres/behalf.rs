//! What a handler submits on behalf of its attempt: it is stored while the attempt runs, and not after.

use tidegate_core::{Result, TaskId, Token, rules};

use super::Inner;
use super::error::Fault;
use super::session::{Params, Tx, once};

const RUNS: &str = include_str!("queries/is_attempt_running.sql");
pub(super) const STILL_RUNS: &str = include_str!("queries/lock_attempt.sql");

/// Refuses where the attempt does not run, by a look without a lock. What has ended never runs again, so
/// a refusal is final; whether it still runs has to be asked again when it counts.
pub(super) async fn refuse_stopped(store: &Inner, (task, token): (TaskId, Token)) -> Result<()> {
    let attempt: Params<'_> = &[&task.0, &token.0];
    let look = once!(store, client, none, tx => tx.one(RUNS, attempt));
    let runs: bool = look?.get("runs");
    if runs { Ok(()) } else { Err(rules::stopped(task, token)) }
}

/// Keeps the attempt, if there is one, running until the transaction ends. It is the last statement before
/// the COMMIT and is sent together with it: a process that stands still holds nothing of its lease.
pub(super) async fn keep_running(
    store: &Inner,
    tx: &Tx<'_>,
    attempt: Option<(TaskId, Token)>,
) -> Result<(), Fault> {
    let Some((task, token)) = attempt else {
        return Ok(());
    };
    // In a box: most submissions have no use for it, and would carry it about.
    let asked: Params<'_> = &[&task.0, &token.0];
    match Box::pin(tx.query(store.options.still_runs_text(), asked)).await {
        Err(fault) if fault.is_division_by_zero() => Err(Fault::Stopped(task, token)),
        answer => answer.map(drop),
    }
}
