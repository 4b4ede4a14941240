//! Where a task stands, and the two places before the gate: the schedule and the arrivals.

use std::collections::HashMap;

use rusqlite::params;
use tidegate_core::tables::Position;
use tidegate_core::{LaneId, LimitId, Millis, RANK_RESERVED, Result, State, TaskId, Token};

use super::{Transaction, limits, read_line, read_ready, running, tasks};
use crate::sqlite::error::unknown;
use crate::sqlite::statements::Query;

struct Whereabouts {
    state: Option<String>,
    lane: LaneId,
    rank: i64,
    tag: i64,
}

pub(super) fn position(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<Option<Position>> {
    tasks::flush(tx)?;
    let read = |row: &rusqlite::Row<'_>| {
        let (state, lane) = (row.get(0)?, LaneId(row.get(1)?));
        Ok(Whereabouts { state, lane, rank: row.get(2)?, tag: row.get(3)? })
    };
    let Some(known) = tx.statements.first(Query::PositionHint, [task.0], read)? else {
        return Ok(None);
    };
    if let Some(word) = known.state {
        let state = State::parse(&word).ok_or_else(|| unknown("state", word))?;
        return Ok(Some(Position::Final(state)));
    }
    // What a task of a lane runs under is looked for last: it may take a scan.
    let key = [known.lane.0, known.rank, known.tag, task.0];
    if let Some(row) = tx.statements.first(Query::ReadyBySubmitKey, key, read_ready)? {
        return Ok(Some(Position::Ready(row)));
    }
    if let Some(row) = tx.statements.first(Query::WaiterByTask, [task.0], read_line)? {
        return Ok(Some(Position::Line(row)));
    }
    if let Some(row) = tx.statements.first(Query::ReadyByTask, [task.0], read_ready)? {
        return Ok(Some(Position::Ready(row)));
    }
    if let Some(run_at) = tx.statements.first(Query::ScheduledRunAt, [task.0], |row| row.get(0))? {
        return Ok(Some(Position::Scheduled(run_at)));
    }
    if tx.statements.first(Query::IsInInbox, [task.0], |_| Ok(()))?.is_some() {
        return Ok(Some(Position::Arrived));
    }
    Ok(token_of(tx, task)?.map(Position::Running))
}

/// The token a task runs under. The whole table is read once and remembered: it has no index by
/// task, and whoever asks for one task often asks for many.
fn token_of(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<Option<Token>> {
    if let Some(run) = tx.cache.known.get(&task).and_then(|known| known.running) {
        return Ok(Some(run.token));
    }
    running::flush(tx)?;
    let tokens = match &mut tx.cache.tokens {
        Some(tokens) => tokens,
        empty => {
            let read = |row: &rusqlite::Row<'_>| Ok((TaskId(row.get(0)?), Token(row.get(1)?)));
            let rows = tx.statements.rows(Query::RunningTokens, [], read)?;
            empty.insert(rows.into_iter().collect::<HashMap<_, _>>())
        }
    };
    Ok(tokens.get(&task).copied())
}

/// The first task of a job that is past its line and does not have the rank of the reserve.
pub(super) fn first_ahead(
    tx: &mut Transaction<'_, '_>,
    job_limit: LimitId,
) -> Result<Option<Position>> {
    tasks::flush(tx)?;
    let Some(limit) = limits::limit(tx, job_limit)? else {
        return Ok(None);
    };
    let job = limit.name.strip_prefix("job:").unwrap_or(&limit.name);
    let of_limit = [job_limit.0, RANK_RESERVED];
    let ready = tx.statements.first(Query::FirstReadyInWindow, of_limit, read_ready)?;
    let of_job = params![job, RANK_RESERVED];
    let line = tx.statements.first(Query::FirstWaiterInWindow, of_job, read_line)?;
    let is_ready_first = match (&ready, &line) {
        (Some(ready), Some(line)) => {
            (ready.rank, ready.tag, ready.task) < (line.rank, line.tag, line.task)
        }
        (ready, _) => ready.is_some(),
    };
    let position = if is_ready_first { None } else { line.map(Position::Line) };
    Ok(position.or(ready.map(Position::Ready)))
}

pub(super) fn put_scheduled(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    run_at: Millis,
) -> Result<()> {
    if let Some(before) = &mut tx.cache.nothing_due_before {
        *before = run_at.min(*before);
    }
    tx.statements.execute(Query::PutScheduled, [task.0, run_at]).map(drop)
}

pub(super) fn take_due(tx: &mut Transaction<'_, '_>, tasks_max: u32) -> Result<Vec<TaskId>> {
    if tx.cache.nothing_due_before.is_some_and(|before| tx.now < before) {
        return Ok(Vec::new());
    }
    let span = params![tx.now, tasks_max];
    let due = tx.statements.rows(Query::DueTasks, span, |row| Ok(TaskId(row.get(0)?)))?;
    for task in &due {
        tx.statements.execute(Query::DeleteScheduled, [task.0])?;
    }
    let next = tx.statements.first(Query::NextRunAt, [], |row| row.get(0))?.flatten();
    tx.cache.nothing_due_before = Some(next.unwrap_or(Millis::MAX));
    Ok(due)
}

pub(super) fn take_arrived(tx: &mut Transaction<'_, '_>, tasks_max: u32) -> Result<Vec<TaskId>> {
    if tx.cache.nothing_arrived {
        return Ok(Vec::new());
    }
    let arrived =
        tx.statements.rows(Query::InboxHead, [tasks_max], |row| Ok(TaskId(row.get(0)?)))?;
    if let Some(last) = arrived.last() {
        tx.statements.execute(Query::DeleteInboxHead, [last.0])?;
    }
    tx.cache.nothing_arrived = (arrived.len() as u64) < u64::from(tasks_max);
    Ok(arrived)
}
