use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::Row;
use tidegate_core::reader::{Snapshot, SnapshotSlot, SnapshotTask};
use tidegate_core::tables::{Position, Tables};
use tidegate_core::{LaneId, LimitId, Result, TaskId, Token};

use super::explain::read_lease_row;
use super::{count_tasks_by_state, load_lanes, read_all_limits};
use crate::sqlite::error::unknown_value_error;
use crate::sqlite::statements::Query;
use crate::sqlite::tables::{Transaction, read_ready_row, read_waiter_row};

/// Every table is read once from end to end, and what stands where is put together in memory.
pub(in crate::sqlite) fn read_snapshot(tx: &mut Transaction<'_, '_>) -> Result<Snapshot> {
    let mut tasks = unfinished_tasks(tx)?;
    add_positions(tx, &mut tasks)?;
    let read = |row: &Row<'_>| {
        let (limit, task) = (LimitId(row.get(0)?), TaskId(row.get(2)?));
        Ok(SnapshotSlot { limit, number: row.get(1)?, task })
    };
    let highest =
        tx.statements.query_first(Query::HighestTaskId, [], |row| Ok(TaskId(row.get(0)?)))?;
    let keys = tasks.iter().filter_map(|task| Some((task.unique_key.clone()?, task.id))).collect();
    Ok(Snapshot {
        store_faults: Vec::new(),
        now: tx.now,
        counters: tx.counters()?,
        last_task_id: tx.last_task_id()?,
        highest_task_id: highest.unwrap_or_default(),
        tasks,
        limits: read_all_limits(tx, Query::AllLimitsById)?,
        slots: tx.statements.query_rows(Query::SnapshotSlots, [], read)?,
        leases: tx.statements.query_rows(Query::SnapshotLeases, [], read_lease_row)?,
        unique_keys: keys,
        finished: count_tasks_by_state(tx, Query::FinishedCountsByState)?,
    })
}

/// The unfinished tasks, ascending, not yet standing anywhere.
fn unfinished_tasks(tx: &mut Transaction<'_, '_>) -> Result<Vec<SnapshotTask>> {
    let mut names = NameInterner::default();
    let nameless: Arc<str> = "".into();
    let read = |row: &Row<'_>| {
        let task = SnapshotTask {
            id: TaskId(row.get(0)?),
            kind: nameless.clone(),
            group: names.intern_column(row, 2)?,
            job: names.intern_column(row, 3)?,
            workflow: names.intern_column(row, 4)?,
            unique_key: row.get(5)?,
            weight: row.get(6)?,
            attempts_used: row.get(7)?,
            crashes: row.get(8)?,
            positions: Vec::new(),
            holds_slots: false,
        };
        Ok((task, LaneId(row.get(1)?)))
    };
    let found = tx.statements.query_rows(Query::SnapshotTasks, [], read)?;
    let lanes = load_lanes(tx)?;
    let named = |(mut task, lane): (SnapshotTask, LaneId)| {
        task.kind = lanes.get(lane).ok_or_else(|| unknown_value_error("lane", lane))?.kind.clone();
        Ok(task)
    };
    found.into_iter().map(named).collect()
}

/// Writes down every place each task stands in. A row whose task is gone shows as a task of
/// its own without a name, so that the check finds it.
fn add_positions(tx: &mut Transaction<'_, '_>, tasks: &mut Vec<SnapshotTask>) -> Result<()> {
    let mut found: Vec<(TaskId, Position, bool)> = Vec::new();
    found.append(&mut tx.statements.query_rows(Query::SnapshotScheduled, [], |row| {
        Ok((TaskId(row.get(0)?), Position::Scheduled(row.get(1)?), false))
    })?);
    found.append(&mut tx.statements.query_rows(Query::SnapshotInbox, [], |row| {
        Ok((TaskId(row.get(0)?), Position::Inbox, false))
    })?);
    found.append(&mut tx.statements.query_rows(Query::SnapshotReady, [], |row| {
        let row = read_ready_row(row)?;
        Ok((row.task, Position::Ready(row), false))
    })?);
    found.append(&mut tx.statements.query_rows(Query::SnapshotWaiters, [], |row| {
        let row = read_waiter_row(row)?;
        Ok((row.task, Position::Waiting(row), false))
    })?);
    found.append(&mut tx.statements.query_rows(Query::SnapshotRunning, [], |row| {
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
                row.holds_slots |= gated;
            }
            None => {
                let mut orphan = SnapshotTask::orphan(task);
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
struct NameInterner(HashSet<Arc<str>>);

impl NameInterner {
    fn intern_column(
        &mut self,
        row: &Row<'_>,
        column: usize,
    ) -> rusqlite::Result<Option<Arc<str>>> {
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
