//! The lines at the limits.

use rusqlite::{Row, params};
use tidegate_core::tables::{Class, Lane, LineRow};
use tidegate_core::{LaneId, LimitId, Result, TaskId};

use super::Transaction;
use crate::sqlite::statements::Query;

pub(in crate::sqlite) fn read_line(row: &Row<'_>) -> rusqlite::Result<LineRow> {
    let class: usize = row.get::<_, u32>(1)? as usize;
    let class = Class::ALL.get(class).copied();
    Ok(LineRow {
        limit: LimitId(row.get(0)?),
        class: class.ok_or(rusqlite::Error::IntegralValueOutOfRange(1, row.get(1)?))?,
        rank: row.get(2)?,
        tag: row.get(3)?,
        place: row.get(4)?,
        task: TaskId(row.get(5)?),
        lane: LaneId(row.get(6)?),
        moves: row.get(7)?,
        passed: row.get(8)?,
        since: row.get(9)?,
    })
}

pub(super) fn put(tx: &mut Transaction<'_, '_>, row: LineRow) -> Result<()> {
    if row.class == Class::NoWorker {
        tx.cache.nothing_parked.remove(&row.lane);
    }
    let values = params![
        row.limit.0,
        row.class as i64,
        row.rank,
        row.tag,
        row.place,
        row.task.0,
        row.lane.0,
        row.moves,
        row.passed,
        row.since,
    ];
    tx.statements.execute(Query::PutWaiter, values).map(drop)
}

pub(super) fn take(tx: &mut Transaction<'_, '_>, row: LineRow) -> Result<()> {
    let key = [row.limit.0, row.class as i64, row.rank, row.tag, row.place, row.task.0];
    tx.statements.execute(Query::DeleteWaiter, key).map(drop)
}

pub(super) fn no_worker(
    tx: &mut Transaction<'_, '_>,
    lanes: &[Lane],
    rows_max: u32,
) -> Result<Vec<LineRow>> {
    let mut found = Vec::new();
    for lane in lanes {
        if tx.cache.nothing_parked.contains(&lane.id) {
            continue;
        }
        let span = params![lane.id.0, rows_max];
        let mut parked = tx.statements.rows(Query::WaitersWithoutWorker, span, read_line)?;
        if parked.is_empty() && rows_max > 0 {
            tx.cache.nothing_parked.insert(lane.id);
        }
        found.append(&mut parked);
    }
    if lanes.len() > 1 {
        found.sort_unstable();
        found.truncate(rows_max as usize);
    }
    Ok(found)
}
