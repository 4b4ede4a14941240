//! Brings tasks back to the gate.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::{Result, RetryOutcome, TaskId, TaskState, rules};

use super::error::TxError;
use super::rows;
use super::transaction::Tx;
use super::working_set_load::read_tx_start;
use super::{PostgresInner, in_transaction};

const FINISHED_UNIQUE_KEYS: &str = include_str!("queries/finished_unique_keys.sql");
const LOCK_FINISHED_TASKS: &str = include_str!("queries/lock_finished_tasks.sql");
const LOCK_SCHEDULED: &str = include_str!("queries/lock_scheduled.sql");
const EXISTING_TASK_IDS: &str = include_str!("queries/existing_task_ids.sql");
const REVIVE_UNIQUE_KEYS: &str = include_str!("queries/revive_unique_keys.sql");
const REVIVE_TASKS: &str = include_str!("queries/revive_tasks.sql");
const MAKE_TASKS_DUE: &str = include_str!("queries/make_tasks_due.sql");
const PUT_INBOX: &str = include_str!("queries/put_inbox.sql");
const NOTIFY: &str = include_str!("queries/notify.sql");

type Outcomes = BTreeMap<i64, RetryOutcome>;

pub(super) async fn retry(store: &PostgresInner, tasks: Vec<TaskId>) -> Result<Vec<RetryOutcome>> {
    rules::check_retry(&tasks)?;
    let distinct: BTreeSet<i64> = tasks.iter().map(|task| task.0).collect();
    let distinct: Vec<i64> = distinct.into_iter().collect();
    let outcomes = in_transaction!(store, tx => retry_in_tx(store, &tx, &distinct));
    store.notifier.notify_local();
    let mut seen = BTreeSet::new();
    let outcome = |task: &TaskId| match outcomes.get(&task.0) {
        Some(RetryOutcome::Retried | RetryOutcome::MadeDue) if !seen.insert(*task) => {
            RetryOutcome::Unfinished
        }
        Some(outcome) => *outcome,
        None => RetryOutcome::NotFound,
    };
    Ok(tasks.iter().map(outcome).collect())
}

/// The unique keys come first: another transaction may hold one for long (`submit_in`), and while this
/// one waits for it, it must not hold a row that a cancel or a prune needs. Then the schedule and the
/// finished tasks, as in the lock order. It locks no limit: the next claim admits the tasks.
async fn retry_in_tx(
    store: &PostgresInner,
    tx: &Tx<'_>,
    tasks: &[i64],
) -> Result<Outcomes, TxError> {
    let keyed = retake_unique_keys(tx, tasks).await?;
    let mut outcomes: Outcomes = BTreeMap::new();
    for row in tx.query(EXISTING_TASK_IDS, &[&tasks]).await? {
        outcomes.insert(row.get("id"), RetryOutcome::Unfinished);
    }
    let scheduled = tx.query(LOCK_SCHEDULED, &[&tasks]).await?;
    let scheduled: Vec<i64> = scheduled.iter().map(|row| row.get("task")).collect();
    let now = read_tx_start(store, tx).await?.now;
    if !scheduled.is_empty() {
        tx.execute(MAKE_TASKS_DUE, &[&scheduled, &now]).await?;
        outcomes.extend(scheduled.iter().map(|task| (*task, RetryOutcome::MadeDue)));
    }
    let mut back = lock_retryable(tx, tasks, keyed, &mut outcomes).await?;
    if !back.is_empty() {
        tx.execute(REVIVE_TASKS, &[&back, &now]).await?;
    }
    back.extend(scheduled);
    if !back.is_empty() {
        tx.execute(PUT_INBOX, &[&back]).await?;
        tx.query(NOTIFY, &[]).await?;
    }
    Ok(outcomes)
}

/// Takes the unique keys of finished tasks that may be retried, where they are free. Returns these tasks,
/// and whether each got its key.
async fn retake_unique_keys(tx: &Tx<'_>, tasks: &[i64]) -> Result<BTreeMap<i64, bool>, TxError> {
    let finished =
        tx.query(FINISHED_UNIQUE_KEYS, &[&tasks, &rows::state_code(TaskState::Completed)]).await?;
    if finished.is_empty() {
        return Ok(BTreeMap::new());
    }
    let keys: Vec<&str> = finished.iter().map(|row| row.get("unique_key")).collect();
    let ids: Vec<i64> = finished.iter().map(|row| row.get("id")).collect();
    let taken = tx.query(REVIVE_UNIQUE_KEYS, &[&keys, &ids]).await?;
    let taken: BTreeSet<i64> = taken.iter().map(|row| row.get("task")).collect();
    Ok(ids.into_iter().map(|id| (id, taken.contains(&id))).collect())
}

/// Locks the finished tasks and returns those that are retried. `keyed` are the tasks that have a unique
/// key, and whether they got it.
async fn lock_retryable(
    tx: &Tx<'_>,
    tasks: &[i64],
    mut keyed: BTreeMap<i64, bool>,
    outcomes: &mut Outcomes,
) -> Result<Vec<i64>, TxError> {
    let mut back = Vec::new();
    for row in tx.query(LOCK_FINISHED_TASKS, &[&tasks]).await? {
        let id: i64 = row.get("id");
        if rows::state_from_code(row.get("state"))? == TaskState::Completed {
            outcomes.insert(id, RetryOutcome::Completed);
            continue;
        }
        let has_key = match row.get::<_, Option<&str>>("unique_key") {
            // It finished after the keys were looked up.
            Some(_) => keyed.remove(&id).ok_or(TxError::Retry)?,
            None => true,
        };
        if has_key {
            back.push(id);
        }
        let outcome = if has_key { RetryOutcome::Retried } else { RetryOutcome::UniqueKeyTaken };
        outcomes.insert(id, outcome);
    }
    // A task that is no longer finished must not keep the key that was taken for it.
    if keyed.values().any(|has_key| *has_key) { Err(TxError::Retry) } else { Ok(back) }
}
