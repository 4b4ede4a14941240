//! The ready table.

use std::collections::BTreeSet;

use rusqlite::{Row, params};
use tidegate_core::tables::ReadyRow;
use tidegate_core::{LaneId, LimitId, Millis, Result, TaskId};

use super::{Transaction, workers};
use crate::sqlite::statements::Query;

pub(in crate::sqlite) fn read_ready_row(row: &Row<'_>) -> rusqlite::Result<ReadyRow> {
    Ok(ReadyRow {
        lane: LaneId(row.get(0)?),
        rank: row.get(1)?,
        tag: row.get(2)?,
        task: TaskId(row.get(3)?),
        limits_version: row.get(4)?,
        holds_slots: row.get(5)?,
        ready_at: row.get(6)?,
    })
}

pub(super) fn insert_ready(tx: &mut Transaction<'_, '_>, row: ReadyRow) -> Result<()> {
    tx.has_new_work = true;
    let at_submit = tx.last_inserted == Some((row.task, row.rank, row.tag)) && !row.holds_slots;
    let values = params![
        row.lane.0,
        row.rank,
        row.tag,
        row.task.0,
        row.limits_version,
        row.holds_slots,
        at_submit,
        row.ready_at,
    ];
    tx.statements.execute(Query::PutReady, values).map(drop)
}

pub(super) fn delete_ready(tx: &mut Transaction<'_, '_>, row: ReadyRow) -> Result<()> {
    let key = [row.lane.0, row.rank, row.tag, row.task.0];
    tx.statements.execute(Query::DeleteReady, key).map(drop)
}

pub(super) fn ready_page(
    tx: &mut Transaction<'_, '_>,
    lane: LaneId,
    after: Option<ReadyRow>,
    rows_max: u32,
) -> Result<Vec<ReadyRow>> {
    match after {
        None => {
            tx.statements.query_rows(Query::ReadyPage, params![lane.0, rows_max], read_ready_row)
        }
        Some(after) => {
            let span = params![lane.0, rows_max, after.rank, after.tag, after.task.0];
            tx.statements.query_rows(Query::ReadyPageAfter, span, read_ready_row)
        }
    }
}

/// Those that hold slots of a limit, and whether these are all.
pub(super) fn ready_holders_of_limit(
    tx: &mut Transaction<'_, '_>,
    limit: LimitId,
    rows_max: u32,
) -> Result<(Vec<ReadyRow>, bool)> {
    let mut rows = tx.statements.query_rows(
        Query::ReadyHolders,
        params![limit.0, rows_max],
        read_ready_row,
    )?;
    let is_all = rows.len() < rows_max as usize;
    let mut seen = BTreeSet::new();
    rows.retain(|row| seen.insert(row.task));
    Ok((rows, is_all))
}

pub(super) fn ready_in_unserved_lanes(
    tx: &mut Transaction<'_, '_>,
    before: Millis,
    rows_max: u32,
) -> Result<Vec<ReadyRow>> {
    let mut found = Vec::new();
    for lane in workers::load_lanes(tx)?.sorted_ids() {
        let room = rows_max - found.len() as u32;
        if room == 0 {
            break;
        }
        if !workers::is_lane_served(tx, lane)? {
            let span = params![lane.0, before, room];
            found.append(&mut tx.statements.query_rows(
                Query::ReadyAdmittedBefore,
                span,
                read_ready_row,
            )?);
        }
    }
    Ok(found)
}
