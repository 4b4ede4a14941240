//! The tasks themselves: what they were submitted as, what they have spent, how they ended.

use std::sync::Arc;

use rusqlite::{Row, params};
use tidegate_core::tables::{FinishedTask, TaskInfo};
use tidegate_core::{
    AttemptCounts, LaneId, Millis, NewTask, OnFailure, Result, TaskId, ready_rank,
};

use super::{Transaction, workers};
use crate::sqlite::error::unknown_value_error;
use crate::sqlite::statements::Query;

pub(super) fn find_task_by_unique_key(
    tx: &mut Transaction<'_, '_>,
    key: &str,
) -> Result<Option<TaskId>> {
    delete_removed_tasks(tx)?;
    tx.statements.query_first(Query::TaskByUniqueKey, [key], |row| Ok(TaskId(row.get(0)?)))
}

pub(super) fn insert_task(
    tx: &mut Transaction<'_, '_>,
    task: &NewTask,
    lane: LaneId,
) -> Result<TaskId> {
    if task.unique_key.is_some() {
        delete_removed_tasks(tx)?;
    }
    let now = tx.now;
    let (meta, changed) = tx.load_counters_row()?;
    meta.last_task_id += 1;
    *changed = true;
    let (id, tag) = (TaskId(meta.last_task_id), meta.counters.virtual_time);
    let rank = ready_rank(now, task.priority);
    let row = params![
        id.0,
        lane.0,
        task.priority,
        task.weight,
        task.max_attempts,
        task.timeout_ms,
        rank,
        tag,
        task.due_at(now),
        now,
        task.effective_group,
        task.job,
        task.workflow,
        task.unique_key,
        task.payload,
        task.on_failure.as_str(),
        task.trace,
    ];
    tx.statements.execute(Query::InsertTask, row)?;
    tx.last_inserted = Some((id, rank, tag));
    Ok(id)
}

/// Reads the first columns of a row as what the rules must know of a task. Its kind is that of
/// its lane, and for the caller to fill in.
pub(super) fn read_task_info_row(row: &Row<'_>) -> rusqlite::Result<TaskInfo> {
    Ok(TaskInfo {
        task: TaskId(row.get(0)?),
        lane: LaneId(row.get(1)?),
        kind: Arc::default(),
        group: row.get(2)?,
        job: row.get(3)?,
        workflow: row.get(4)?,
        weight: row.get(5)?,
        priority: row.get(6)?,
        max_attempts: row.get(7)?,
        attempts_used: row.get(8)?,
        crashes: row.get(9)?,
        due_at: row.get(10)?,
        // A word that nobody knows is the careful one.
        on_failure: OnFailure::parse(row.get_ref(11)?.as_str()?).unwrap_or_default(),
    })
}

pub(super) fn find_task_info(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
) -> Result<Option<TaskInfo>> {
    if let Some(known) = tx.cache.tasks.get(&task) {
        return Ok(Some(known.info.clone()));
    }
    delete_removed_tasks(tx)?;
    let Some(mut tags) =
        tx.statements.query_first(Query::TaskInfo, [task.0], read_task_info_row)?
    else {
        return Ok(None);
    };
    let lanes = workers::load_lanes(tx)?;
    let lane = lanes.get(tags.lane).ok_or_else(|| unknown_value_error("lane", tags.lane))?;
    tags.kind = lane.kind.clone();
    Ok(Some(tags))
}

pub(super) fn set_attempt_counts(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    counts: AttemptCounts,
    error: Option<&str>,
) -> Result<()> {
    if let Some(known) = tx.cache.tasks.get_mut(&task) {
        known.info.attempts_used = counts.attempts_used;
        known.info.crashes = counts.crashes;
    }
    let row = params![task.0, counts.attempts_used, counts.crashes, error];
    tx.statements.execute(Query::SetAttemptCounts, row).map(drop)
}

pub(super) fn set_due_at(tx: &mut Transaction<'_, '_>, task: TaskId, due_at: Millis) -> Result<()> {
    if let Some(known) = tx.cache.tasks.get_mut(&task) {
        known.info.due_at = due_at;
    }
    tx.statements.execute(Query::SetDueAt, [task.0, due_at]).map(drop)
}

pub(super) fn finish_task(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    finished: &FinishedTask,
) -> Result<()> {
    tx.cache.tasks.remove(&task);
    if finished.remove_at.is_some_and(|at| at <= tx.now) {
        tx.unwritten_removals.push(task);
        return Ok(());
    }
    let state = finished.state.as_str();
    let row = params![task.0, state, finished.result, finished.error, tx.now, finished.remove_at];
    tx.statements.execute(Query::FinishTask, row).map(drop)
}

pub(super) fn revive_task(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<bool> {
    delete_removed_tasks(tx)?;
    Ok(tx.statements.execute(Query::ReviveTask, [task.0, tx.now])? > 0)
}

/// Removes what is to be removed, neighbours together.
pub(super) fn delete_removed_tasks(tx: &mut Transaction<'_, '_>) -> Result<()> {
    if tx.unwritten_removals.is_empty() {
        return Ok(());
    }
    let mut removed = std::mem::take(&mut tx.unwritten_removals);
    removed.sort_unstable();
    for neighbours in removed.chunk_by(|task, next| next.0 - task.0 <= 1) {
        let last = neighbours[neighbours.len() - 1];
        tx.statements.execute(Query::DeleteTaskRange, [neighbours[0].0, last.0])?;
    }
    Ok(())
}

pub(super) fn delete_expired_tasks(tx: &mut Transaction<'_, '_>, tasks_max: u32) -> Result<u32> {
    let span = params![tx.now, tasks_max];
    Ok(tx.statements.execute(Query::DeleteExpiredTasks, span)? as u32)
}
