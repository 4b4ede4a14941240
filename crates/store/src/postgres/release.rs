//! Takes a slot away from the attempt that holds it.

use tidegate_core::tables::Tables;
use tidegate_core::{LimitId, ReleaseOutcome, ReleaseSlot, Result, TaskId, rules};

use super::admission::{ADMISSION_BUDGET, run_follow_ups};
use super::claim::lock_limits_version_shared;
use super::error::TxError;
use super::lease_expansion::expand_tasks;
use super::rows;
use super::transaction::Tx;
use super::working_set::FollowUp;
use super::working_set_load::{LoadRequest, lock_and_load, read_tx_start};
use super::working_set_write::write_changes;
use super::{PostgresInner, in_transaction};

const LIMITS_BY_NAME: &str = include_str!("queries/limits_by_name.sql");
const SLOT_HOLDER: &str = include_str!("queries/slot_holder.sql");
const IS_TASK_RUNNING: &str = include_str!("queries/is_task_running.sql");
const LOCK_RUNNING: &str = include_str!("queries/lock_running.sql");

pub(super) async fn release(store: &PostgresInner, release: ReleaseSlot) -> Result<ReleaseOutcome> {
    // No limit has such a name, and the server cannot be asked for it.
    if release.limit.contains('\0') {
        return Ok(ReleaseOutcome::LimitNotFound);
    }
    loop {
        let released = in_transaction!(store, tx => release_slot(store, &tx, &release));
        match released {
            ReleaseStep::Done(outcome, follow_up) => {
                run_follow_ups(store, follow_up).await?;
                return Ok(outcome);
            }
            ReleaseStep::LeaseNotExpanded(task) => expand_tasks(store, &[task]).await?,
        }
    }
}

enum ReleaseStep {
    Done(ReleaseOutcome, FollowUp),
    /// A lease lists the holder, and has to be unpacked first.
    LeaseNotExpanded(TaskId),
}

/// The holder is looked up without a lock, its attempt is locked, and then the limits.
async fn release_slot(
    store: &PostgresInner,
    tx: &Tx<'_>,
    release: &ReleaseSlot,
) -> Result<ReleaseStep, TxError> {
    lock_limits_version_shared(store, tx).await?;
    let names = std::slice::from_ref(&release.limit);
    let limit = tx
        .query(LIMITS_BY_NAME, &[&names])
        .await?
        .first()
        .map(rows::limit_without_held)
        .transpose()?;
    let Some(limit) = limit else {
        return Ok(ReleaseStep::Done(ReleaseOutcome::LimitNotFound, FollowUp::default()));
    };
    let Some(task) = find_slot_holder(tx, limit.id, release.slot).await? else {
        return Ok(ReleaseStep::Done(ReleaseOutcome::SlotFree, FollowUp::default()));
    };
    let running = tx.query(LOCK_RUNNING, &[&vec![task.0]]).await?;
    if running.is_empty() && is_task_running(tx, task).await? {
        return Ok(ReleaseStep::LeaseNotExpanded(task));
    }
    let start = read_tx_start(store, tx).await?;
    let (tasks, limits) = (vec![task], vec![limit.id]);
    let wanted = LoadRequest {
        tasks,
        limits,
        waiting_tasks: 1,
        admission_budget: ADMISSION_BUDGET,
        ..LoadRequest::default()
    };
    let mut working_set = lock_and_load(store, tx, start, wanted).await?;
    // It may have changed hands before the lock, or begun to run.
    let is_other = working_set.slot_holder(limit.id, release.slot)? != Some(task);
    if is_other || running.is_empty() && is_task_running(tx, task).await? {
        return Err(TxError::Retry);
    }
    for row in &running {
        let (task, token, running) = rows::running_row(row);
        working_set.set_running(task, token, running);
    }
    working_set.finish_loading();
    let outcome = rules::release_slot(&mut working_set, release)?;
    write_changes(tx, &working_set).await?;
    Ok(ReleaseStep::Done(outcome, working_set.follow_up()))
}

async fn is_task_running(tx: &Tx<'_>, task: TaskId) -> Result<bool, TxError> {
    Ok(tx.query_one(IS_TASK_RUNNING, &[&task.0]).await?.get("is_running"))
}

async fn find_slot_holder(
    tx: &Tx<'_>,
    limit: LimitId,
    slot: u32,
) -> Result<Option<TaskId>, TxError> {
    let rows = tx.query(SLOT_HOLDER, &[&limit.0, &i64::from(slot)]).await?;
    Ok(rows.first().map(|row| TaskId(row.get("task"))))
}
