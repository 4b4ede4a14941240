//! Where a task stands, and the two places before the gate: the schedule and the arrivals.

use std::collections::HashMap;

use rusqlite::params;
use tidegate_core::tables::Position;
use tidegate_core::{
    GUARANTEED_SLOT_RANK, LaneId, LimitId, Millis, Result, TaskId, TaskState, Token,
};

use super::{Transaction, limits, read_ready_row, read_waiter_row, running, tasks};
use crate::sqlite::error::unknown_value_error;
use crate::sqlite::statements::Query;

struct PositionHint {
    state: Option<String>,
    lane: LaneId,
    rank: i64,
    tag: i64,
}

pub(super) fn find_position(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
) -> Result<Option<Position>> {
    tasks::delete_removed_tasks(tx)?;
    let read = |row: &rusqlite::Row<'_>| {
        let (state, lane) = (row.get(0)?, LaneId(row.get(1)?));
        Ok(PositionHint { state, lane, rank: row.get(2)?, tag: row.get(3)? })
    };
    let Some(known) = tx.statements.query_first(Query::PositionHint, [task.0], read)? else {
        return Ok(None);
    };
    if let Some(word) = known.state {
        let state = TaskState::parse(&word).ok_or_else(|| unknown_value_error("state", word))?;
        return Ok(Some(Position::Finished(state)));
    }
    // What a task of a lane runs under is looked for last: it may take a scan.
    let key = [known.lane.0, known.rank, known.tag, task.0];
    if let Some(row) = tx.statements.query_first(Query::ReadyBySubmitKey, key, read_ready_row)? {
        return Ok(Some(Position::Ready(row)));
    }
    if let Some(row) = tx.statements.query_first(Query::WaiterByTask, [task.0], read_waiter_row)? {
        return Ok(Some(Position::Waiting(row)));
    }
    if let Some(row) = tx.statements.query_first(Query::ReadyByTask, [task.0], read_ready_row)? {
        return Ok(Some(Position::Ready(row)));
    }
    if let Some(run_at) =
        tx.statements.query_first(Query::ScheduledRunAt, [task.0], |row| row.get(0))?
    {
        return Ok(Some(Position::Scheduled(run_at)));
    }
    if tx.statements.query_first(Query::IsInInbox, [task.0], |_| Ok(()))?.is_some() {
        return Ok(Some(Position::Inbox));
    }
    Ok(find_running_token(tx, task)?.map(Position::Running))
}

/// The token a task runs under. The whole table is read once and remembered: it has no index by
/// task, and whoever asks for one task often asks for many.
fn find_running_token(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<Option<Token>> {
    if let Some(run) = tx.cache.tasks.get(&task).and_then(|known| known.running) {
        return Ok(Some(run.token));
    }
    running::delete_stopped_attempts(tx)?;
    let tokens = match &mut tx.cache.tokens_by_task {
        Some(tokens) => tokens,
        empty => {
            let read = |row: &rusqlite::Row<'_>| Ok((TaskId(row.get(0)?), Token(row.get(1)?)));
            let rows = tx.statements.query_rows(Query::RunningTokens, [], read)?;
            empty.insert(rows.into_iter().collect::<HashMap<_, _>>())
        }
    };
    Ok(tokens.get(&task).copied())
}

/// The first task of a job that is past its line and does not have the rank of the reserve.
pub(super) fn first_in_window(
    tx: &mut Transaction<'_, '_>,
    job_limit: LimitId,
) -> Result<Option<Position>> {
    tasks::delete_removed_tasks(tx)?;
    let Some(limit) = limits::find_limit(tx, job_limit)? else {
        return Ok(None);
    };
    let job = limit.name.strip_prefix("job:").unwrap_or(&limit.name);
    let of_limit = [job_limit.0, GUARANTEED_SLOT_RANK];
    let ready = tx.statements.query_first(Query::FirstReadyInWindow, of_limit, read_ready_row)?;
    let of_job = params![job, GUARANTEED_SLOT_RANK];
    let line = tx.statements.query_first(Query::FirstWaiterInWindow, of_job, read_waiter_row)?;
    let is_ready_first = match (&ready, &line) {
        (Some(ready), Some(line)) => {
            (ready.rank, ready.tag, ready.task) < (line.rank, line.tag, line.task)
        }
        (ready, _) => ready.is_some(),
    };
    let position = if is_ready_first { None } else { line.map(Position::Waiting) };
    Ok(position.or(ready.map(Position::Ready)))
}

pub(super) fn put_scheduled(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    run_at: Millis,
) -> Result<()> {
    if let Some(before) = &mut tx.cache.no_task_due_before {
        *before = run_at.min(*before);
    }
    tx.statements.execute(Query::PutScheduled, [task.0, run_at]).map(drop)
}

pub(super) fn take_due_tasks(tx: &mut Transaction<'_, '_>, tasks_max: u32) -> Result<Vec<TaskId>> {
    if tx.cache.no_task_due_before.is_some_and(|before| tx.now < before) {
        return Ok(Vec::new());
    }
    let span = params![tx.now, tasks_max];
    let due = tx.statements.query_rows(Query::DueTasks, span, |row| Ok(TaskId(row.get(0)?)))?;
    for task in &due {
        tx.statements.execute(Query::DeleteScheduled, [task.0])?;
    }
    let next = tx.statements.query_first(Query::NextRunAt, [], |row| row.get(0))?.flatten();
    tx.cache.no_task_due_before = Some(next.unwrap_or(Millis::MAX));
    Ok(due)
}

pub(super) fn take_inbox(tx: &mut Transaction<'_, '_>, tasks_max: u32) -> Result<Vec<TaskId>> {
    if tx.cache.is_inbox_empty {
        return Ok(Vec::new());
    }
    let arrived =
        tx.statements.query_rows(Query::InboxHead, [tasks_max], |row| Ok(TaskId(row.get(0)?)))?;
    if let Some(last) = arrived.last() {
        tx.statements.execute(Query::DeleteInboxHead, [last.0])?;
    }
    tx.cache.is_inbox_empty = (arrived.len() as u64) < u64::from(tasks_max);
    Ok(arrived)
}
