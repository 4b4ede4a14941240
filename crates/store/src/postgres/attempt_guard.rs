//! What a handler submits on behalf of its attempt: it is stored while the attempt runs, and not after.

use tidegate_core::{Result, TaskId, Token, rules};

use super::PostgresInner;
use super::error::TxError;
use super::transaction::{Params, Tx, run_once};

const IS_ATTEMPT_RUNNING: &str = include_str!("queries/is_attempt_running.sql");
pub(super) const LOCK_ATTEMPT: &str = include_str!("queries/lock_attempt.sql");

/// Refuses where the attempt does not run, by a look without a lock. What has ended never runs again, so
/// a refusal is final; whether it still runs has to be asked again when it counts.
pub(super) async fn check_attempt_runs(
    store: &PostgresInner,
    (task, token): (TaskId, Token),
) -> Result<()> {
    let attempt: Params<'_> = &[&task.0, &token.0];
    let look = run_once!(store, request_connection, autocommit, tx => tx.query_one(IS_ATTEMPT_RUNNING, attempt));
    let runs: bool = look?.get("runs");
    if runs { Ok(()) } else { Err(rules::attempt_not_running(task, token)) }
}

/// Keeps the attempt, if there is one, running until the transaction ends. It is the last statement before
/// the COMMIT and is sent together with it: a process that stands still holds nothing of its lease.
pub(super) async fn lock_running_attempt(
    store: &PostgresInner,
    tx: &Tx<'_>,
    attempt: Option<(TaskId, Token)>,
) -> Result<(), TxError> {
    let Some((task, token)) = attempt else {
        return Ok(());
    };
    // In a box: most submissions have no use for it, and would carry it about.
    let asked: Params<'_> = &[&task.0, &token.0];
    match Box::pin(tx.query(store.options.lock_attempt_sql(), asked)).await {
        Err(fault) if fault.is_division_by_zero() => Err(TxError::AttemptNotRunning(task, token)),
        answer => answer.map(drop),
    }
}
