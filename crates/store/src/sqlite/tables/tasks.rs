//! The tasks themselves: what they were submitted as, what they have spent, how they ended.

use std::sync::Arc;

use rusqlite::{Row, params};
use tidegate_core::tables::{Final, Tags};
use tidegate_core::{LaneId, Ledger, Millis, NewTask, OnFailure, Result, TaskId, ready_rank};

use super::{Transaction, workers};
use crate::sqlite::error::unknown;
use crate::sqlite::statements::Query;

pub(super) fn unique(tx: &mut Transaction<'_, '_>, key: &str) -> Result<Option<TaskId>> {
    flush(tx)?;
    tx.statements.first(Query::TaskByUniqueKey, [key], |row| Ok(TaskId(row.get(0)?)))
}

pub(super) fn insert(tx: &mut Transaction<'_, '_>, task: &NewTask, lane: LaneId) -> Result<TaskId> {
    if task.unique_key.is_some() {
        flush(tx)?;
    }
    let now = tx.now;
    let (meta, changed) = tx.meta()?;
    meta.last_task += 1;
    *changed = true;
    let (id, tag) = (TaskId(meta.last_task), meta.counters.virtual_time);
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
        task.arrival(now),
        now,
        task.group,
        task.job,
        task.workflow,
        task.unique_key,
        task.payload,
        task.on_failure.as_str(),
        task.trace,
    ];
    tx.statements.execute(Query::InsertTask, row)?;
    tx.inserted = Some((id, rank, tag));
    Ok(id)
}

/// Reads the first columns of a row as what the rules must know of a task. Its kind is that of
/// its lane, and for the caller to fill in.
pub(super) fn read_tags(row: &Row<'_>) -> rusqlite::Result<Tags> {
    Ok(Tags {
        task: TaskId(row.get(0)?),
        lane: LaneId(row.get(1)?),
        kind: Arc::default(),
        group: row.get(2)?,
        job: row.get(3)?,
        workflow: row.get(4)?,
        weight: row.get(5)?,
        priority: row.get(6)?,
        max_attempts: row.get(7)?,
        spent: row.get(8)?,
        deaths: row.get(9)?,
        arrival: row.get(10)?,
        // A word that nobody knows is the careful one.
        on_failure: OnFailure::parse(row.get_ref(11)?.as_str()?).unwrap_or_default(),
    })
}

pub(super) fn tags(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<Option<Tags>> {
    if let Some(known) = tx.cache.known.get(&task) {
        return Ok(Some(known.tags.clone()));
    }
    flush(tx)?;
    let Some(mut tags) = tx.statements.first(Query::TaskInfo, [task.0], read_tags)? else {
        return Ok(None);
    };
    let lanes = workers::lanes(tx)?;
    let lane = lanes.get(tags.lane).ok_or_else(|| unknown("lane", tags.lane))?;
    tags.kind = lane.kind.clone();
    Ok(Some(tags))
}

pub(super) fn put_ledger(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    ledger: Ledger,
    error: Option<&str>,
) -> Result<()> {
    if let Some(known) = tx.cache.known.get_mut(&task) {
        known.tags.spent = ledger.spent;
        known.tags.deaths = ledger.deaths;
    }
    let row = params![task.0, ledger.spent, ledger.deaths, error];
    tx.statements.execute(Query::SetAttemptCounts, row).map(drop)
}

pub(super) fn put_arrival(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    arrival: Millis,
) -> Result<()> {
    if let Some(known) = tx.cache.known.get_mut(&task) {
        known.tags.arrival = arrival;
    }
    tx.statements.execute(Query::SetDueAt, [task.0, arrival]).map(drop)
}

pub(super) fn end(tx: &mut Transaction<'_, '_>, task: TaskId, end: &Final) -> Result<()> {
    tx.cache.known.remove(&task);
    if end.remove_at.is_some_and(|at| at <= tx.now) {
        tx.removed.push(task);
        return Ok(());
    }
    let state = end.state.as_str();
    let row = params![task.0, state, end.result, end.error, tx.now, end.remove_at];
    tx.statements.execute(Query::FinishTask, row).map(drop)
}

pub(super) fn revive(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<bool> {
    flush(tx)?;
    Ok(tx.statements.execute(Query::ReviveTask, [task.0, tx.now])? > 0)
}

/// Removes what is to be removed, neighbours together.
pub(super) fn flush(tx: &mut Transaction<'_, '_>) -> Result<()> {
    if tx.removed.is_empty() {
        return Ok(());
    }
    let mut removed = std::mem::take(&mut tx.removed);
    removed.sort_unstable();
    for neighbours in removed.chunk_by(|task, next| next.0 - task.0 <= 1) {
        let last = neighbours[neighbours.len() - 1];
        tx.statements.execute(Query::DeleteTaskRange, [neighbours[0].0, last.0])?;
    }
    Ok(())
}

pub(super) fn remove_ended(tx: &mut Transaction<'_, '_>, tasks_max: u32) -> Result<u32> {
    let span = params![tx.now, tasks_max];
    Ok(tx.statements.execute(Query::DeleteExpiredTasks, span)? as u32)
}
