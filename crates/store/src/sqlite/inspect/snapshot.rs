use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::Row;
use tidegate_core::inspect::{SlotRow, Snapshot, TaskRow};
use tidegate_core::tables::{Position, Tables};
use tidegate_core::{LaneId, LimitId, Result, TaskId, Token};

use super::explain::read_lease;
use super::{counts, lanes, limits};
use crate::sqlite::error::unknown;
use crate::sqlite::statements::Query;
use crate::sqlite::tables::{Transaction, read_line, read_ready};

/// Every table is read once from end to end, and what stands where is put together in memory.
pub(in crate::sqlite) fn snapshot(tx: &mut Transaction<'_, '_>) -> Result<Snapshot> {
    let mut tasks = tasks(tx)?;
    stand(tx, &mut tasks)?;
    let read = |row: &Row<'_>| {
        let (limit, task) = (LimitId(row.get(0)?), TaskId(row.get(2)?));
        Ok(SlotRow { limit, number: row.get(1)?, task })
    };
    let highest = tx.statements.first(Query::HighestTaskId, [], |row| Ok(TaskId(row.get(0)?)))?;
    let keys = tasks.iter().filter_map(|task| Some((task.unique_key.clone()?, task.id))).collect();
    Ok(Snapshot {
        faults: Vec::new(),
        now: tx.now,
        counters: tx.counters()?,
        last_task: tx.last_task()?,
        highest_task: highest.unwrap_or_default(),
        tasks,
        limits: limits(tx, Query::AllLimitsById)?,
        slots: tx.statements.rows(Query::SnapshotSlots, [], read)?,
        leases: tx.statements.rows(Query::SnapshotLeases, [], read_lease)?,
        keys,
        finished: counts(tx, Query::FinishedCountsByState)?,
    })
}

/// The unfinished tasks, ascending, not yet standing anywhere.
fn tasks(tx: &mut Transaction<'_, '_>) -> Result<Vec<TaskRow>> {
    let mut names = Names::default();
    let nameless: Arc<str> = "".into();
    let read = |row: &Row<'_>| {
        let task = TaskRow {
            id: TaskId(row.get(0)?),
            kind: nameless.clone(),
            group: names.shared(row, 2)?,
            job: names.shared(row, 3)?,
            workflow: names.shared(row, 4)?,
            unique_key: row.get(5)?,
            weight: row.get(6)?,
            spent: row.get(7)?,
            deaths: row.get(8)?,
            positions: Vec::new(),
            gated: false,
        };
        Ok((task, LaneId(row.get(1)?)))
    };
    let found = tx.statements.rows(Query::SnapshotTasks, [], read)?;
    let lanes = lanes(tx)?;
    let named = |(mut task, lane): (TaskRow, LaneId)| {
        task.kind = lanes.get(lane).ok_or_else(|| unknown("lane", lane))?.kind.clone();
        Ok(task)
    };
    found.into_iter().map(named).collect()
}

/// Writes down every place each task stands in. A row whose task is gone shows as a task of
/// its own without a name, so that the check finds it.
fn stand(tx: &mut Transaction<'_, '_>, tasks: &mut Vec<TaskRow>) -> Result<()> {
    let mut found: Vec<(TaskId, Position, bool)> = Vec::new();
    found.append(&mut tx.statements.rows(Query::SnapshotScheduled, [], |row| {
        Ok((TaskId(row.get(0)?), Position::Scheduled(row.get(1)?), false))
    })?);
    found.append(&mut tx.statements.rows(Query::SnapshotInbox, [], |row| {
        Ok((TaskId(row.get(0)?), Position::Arrived, false))
    })?);
    found.append(&mut tx.statements.rows(Query::SnapshotReady, [], |row| {
        let row = read_ready(row)?;
        Ok((row.task, Position::Ready(row), false))
    })?);
    found.append(&mut tx.statements.rows(Query::SnapshotWaiters, [], |row| {
        let row = read_line(row)?;
        Ok((row.task, Position::Line(row), false))
    })?);
    found.append(&mut tx.statements.rows(Query::SnapshotRunning, [], |row| {
        Ok((TaskId(row.get(0)?), Position::Running(Token(row.get(1)?)), row.get(2)?))
    })?);
    // A stable sort: a task in two places keeps them in the order they were read.
    found.sort_by_key(|(task, ..)| *task);
    let mut at = 0;
    let mut orphans = Vec::new();
    for (task, position, gated) in found {
        while tasks.get(at).is_some_and(|row| row.id < task) {
            at += 1;
        }
        match tasks.get_mut(at).filter(|row| row.id == task) {
            Some(row) => {
                row.positions.push(position);
                row.gated |= gated;
            }
            None => {
                let mut orphan = TaskRow::orphan(task);
                orphan.positions.push(position);
                orphans.push(orphan);
            }
        }
    }
    tasks.append(&mut orphans);
    tasks.sort_by_key(|task| task.id);
    Ok(())
}

/// Names that many tasks share are kept once.
#[derive(Default)]
struct Names(HashSet<Arc<str>>);

impl Names {
    fn shared(&mut self, row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Arc<str>>> {
        let Some(name) = row.get_ref(column)?.as_str_or_null()? else {
            return Ok(None);
        };
        if let Some(known) = self.0.get(name) {
            return Ok(Some(known.clone()));
        }
        let name: Arc<str> = name.into();
        self.0.insert(name.clone());
        Ok(Some(name))
    }
}
