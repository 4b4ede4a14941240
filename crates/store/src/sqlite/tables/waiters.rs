//! The lines at the limits.

use rusqlite::{Row, params};
use tidegate_core::tables::{Lane, WaitReason, WaiterRow};
use tidegate_core::{LaneId, LimitId, Result, TaskId};

use super::Transaction;
use crate::sqlite::statements::Query;

pub(in crate::sqlite) fn read_waiter_row(row: &Row<'_>) -> rusqlite::Result<WaiterRow> {
    let class: usize = row.get::<_, u32>(1)? as usize;
    let class = WaitReason::ALL.get(class).copied();
    Ok(WaiterRow {
        limit: LimitId(row.get(0)?),
        wait_reason: class.ok_or(rusqlite::Error::IntegralValueOutOfRange(1, row.get(1)?))?,
        rank: row.get(2)?,
        tag: row.get(3)?,
        admission_seq: row.get(4)?,
        task: TaskId(row.get(5)?),
        lane: LaneId(row.get(6)?),
        queue_switches: row.get(7)?,
        in_job_window: row.get(8)?,
        due_at: row.get(9)?,
    })
}

pub(super) fn insert_waiter(tx: &mut Transaction<'_, '_>, row: WaiterRow) -> Result<()> {
    if row.wait_reason == WaitReason::NoWorker {
        tx.cache.lanes_without_parked_tasks.remove(&row.lane);
    }
    let values = params![
        row.limit.0,
        row.wait_reason as i64,
        row.rank,
        row.tag,
        row.admission_seq,
        row.task.0,
        row.lane.0,
        row.queue_switches,
        row.in_job_window,
        row.due_at,
    ];
    tx.statements.execute(Query::PutWaiter, values).map(drop)
}

pub(super) fn delete_waiter(tx: &mut Transaction<'_, '_>, row: WaiterRow) -> Result<()> {
    let key =
        [row.limit.0, row.wait_reason as i64, row.rank, row.tag, row.admission_seq, row.task.0];
    tx.statements.execute(Query::DeleteWaiter, key).map(drop)
}

pub(super) fn waiters_without_worker(
    tx: &mut Transaction<'_, '_>,
    lanes: &[Lane],
    rows_max: u32,
) -> Result<Vec<WaiterRow>> {
    let mut found = Vec::new();
    for lane in lanes {
        if tx.cache.lanes_without_parked_tasks.contains(&lane.id) {
            continue;
        }
        let span = params![lane.id.0, rows_max];
        let mut parked =
            tx.statements.query_rows(Query::WaitersWithoutWorker, span, read_waiter_row)?;
        if parked.is_empty() && rows_max > 0 {
            tx.cache.lanes_without_parked_tasks.insert(lane.id);
        }
        found.append(&mut parked);
    }
    if lanes.len() > 1 {
        found.sort_unstable();
        found.truncate(rows_max as usize);
    }
    Ok(found)
}
