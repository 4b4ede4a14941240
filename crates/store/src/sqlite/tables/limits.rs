//! Limits and their slots. A limit is written once per command, however often it changed.

use std::collections::BTreeMap;
use std::ops::Bound;

use rusqlite::{Row, params};
use tidegate_core::{
    CapacitySource, FairShare, Limit, LimitId, Millis, PauseCause, Result, TaskId,
};

use super::Transaction;
use crate::sqlite::error::unknown_value_error;
use crate::sqlite::statements::Query;

/// Reads a limit. An unknown source is read as none, and refused by the caller.
pub(in crate::sqlite) fn read_limit_row(row: &Row<'_>) -> rusqlite::Result<Option<Limit>> {
    let source = |column: usize| -> rusqlite::Result<Option<CapacitySource>> {
        Ok(row.get_ref(column)?.as_str_or_null()?.and_then(CapacitySource::parse))
    };
    let Some(set_by) = source(3)? else {
        return Ok(None);
    };
    let base_capacity: Option<u32> = row.get(4)?;
    let share = match row.get(13)? {
        Some(weight) => Some(FairShare {
            weight,
            last_tag: row.get(14)?,
            in_window: read_count(row, 15)?,
            min_concurrency: row.get(19)?,
            priority: row.get(20)?,
            delay_ms: row.get(21)?,
            next_start_at: row.get(22)?,
        }),
        None => None,
    };
    Ok(Some(Limit {
        id: LimitId(row.get(0)?),
        name: row.get(1)?,
        capacity: row.get(2)?,
        source: set_by,
        capacity_without_override: base_capacity.zip(source(5)?),
        version: row.get(6)?,
        applies_from_version: row.get(7)?,
        held: read_count(row, 8)?,
        parked_total: row.get(16)?,
        waiting: read_count(row, 9)?,
        skipped: read_count(row, 10)?,
        reserving_task: row.get::<_, Option<i64>>(11)?.map(TaskId),
        dirty: row.get(12)?,
        recheck_at: row.get(18)?,
        paused_by: row.get::<_, Option<i64>>(17)?.map(PauseCause::from_code),
        fair_share: share,
    }))
}

/// A number that is kept for speed. One that makes no sense is read as far too many, so that nothing
/// is let through by it and the check finds it.
fn read_count(row: &Row<'_>, column: usize) -> rusqlite::Result<u32> {
    let number: i64 = row.get(column)?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}

pub(super) fn find_limit(tx: &mut Transaction<'_, '_>, id: LimitId) -> Result<Option<Limit>> {
    if let Some(limit) = tx.cache.limits.get(&id) {
        return Ok(Some(limit.clone()));
    }
    match tx.statements.query_first(Query::LimitById, [id.0], read_limit_row)? {
        Some(Some(limit)) => {
            tx.cache.limits.insert(id, limit.clone());
            Ok(Some(limit))
        }
        Some(None) => Err(unknown_value_error("source of limit", id)),
        None => Ok(None),
    }
}

pub(super) fn find_limit_id(tx: &mut Transaction<'_, '_>, name: &str) -> Result<Option<LimitId>> {
    if let Some(id) = tx.cache.limit_ids_by_name.get(name) {
        return Ok(*id);
    }
    let id =
        tx.statements.query_first(Query::LimitIdByName, [name], |row| Ok(LimitId(row.get(0)?)))?;
    tx.cache.limit_ids_by_name.insert(name.into(), id);
    Ok(id)
}

pub(super) fn create_limit(
    tx: &mut Transaction<'_, '_>,
    name: &str,
    capacity: Option<u32>,
    source: CapacitySource,
    applies_from_version: i64,
    share: Option<FairShare>,
) -> Result<LimitId> {
    let (meta, changed) = tx.load_counters_row()?;
    meta.last_limit_id += 1;
    *changed = true;
    let id = LimitId(meta.last_limit_id);
    let limit = Limit::new(id, name, capacity, source, applies_from_version, share);
    insert_limit_row(tx, &limit)?;
    tx.cache.limit_ids_by_name.insert(limit.name.clone(), Some(id));
    tx.cache.limits.insert(id, limit);
    Ok(id)
}

fn insert_limit_row(tx: &mut Transaction<'_, '_>, limit: &Limit) -> Result<()> {
    let row = params![
        limit.id.0,
        limit.name,
        limit.capacity,
        limit.source.as_str(),
        limit.capacity_without_override.map(|base| base.0),
        limit.capacity_without_override.map(|base| base.1.as_str()),
        limit.version,
        limit.applies_from_version,
        limit.held,
        limit.waiting,
        limit.skipped,
        limit.reserving_task.map(|task| task.0),
        limit.dirty,
        limit.fair_share.map(|share| share.weight),
        limit.fair_share.map(|share| share.last_tag),
        limit.fair_share.map(|share| share.in_window),
        limit.parked_total,
        limit.paused_by.map(PauseCause::to_code),
        limit.recheck_at,
        limit.fair_share.map_or(0, |share| share.min_concurrency),
        limit.fair_share.map_or(0, |share| share.priority),
        limit.fair_share.map_or(0, |share| share.delay_ms),
        limit.fair_share.map_or(0, |share| share.next_start_at),
    ];
    tx.statements.execute(Query::InsertLimit, row).map(drop)
}

pub(super) fn put_limit(tx: &mut Transaction<'_, '_>, limit: &Limit) -> Result<()> {
    tx.has_new_work |= limit.needs_recheck(tx.now);
    if let Some(dirty) = &mut tx.cache.limits_to_recheck {
        match next_recheck_at(limit) {
            Some(at) => drop(dirty.insert(limit.id, at)),
            None => drop(dirty.remove(&limit.id)),
        }
    }
    match tx.cache.limits.get_mut(&limit.id) {
        Some(known) if known == limit => return Ok(()),
        Some(known) => known.clone_from(limit),
        None => drop(tx.cache.limits.insert(limit.id, limit.clone())),
    }
    tx.cache.unwritten_limits.insert(limit.id);
    Ok(())
}

/// Writes the limits that changed.
pub(super) fn write_changed_limits(tx: &mut Transaction<'_, '_>) -> Result<()> {
    for id in std::mem::take(&mut tx.cache.unwritten_limits) {
        let Some(limit) = tx.cache.limits.get(&id) else {
            continue;
        };
        let row = params![
            limit.id.0,
            limit.capacity,
            limit.source.as_str(),
            limit.capacity_without_override.map(|base| base.0),
            limit.capacity_without_override.map(|base| base.1.as_str()),
            limit.version,
            limit.held,
            limit.waiting,
            limit.skipped,
            limit.reserving_task.map(|task| task.0),
            limit.dirty,
            limit.fair_share.map(|share| share.weight),
            limit.fair_share.map(|share| share.last_tag),
            limit.fair_share.map(|share| share.in_window),
            limit.parked_total,
            limit.paused_by.map(PauseCause::to_code),
            limit.recheck_at,
            limit.fair_share.map_or(0, |share| share.min_concurrency),
            limit.fair_share.map_or(0, |share| share.priority),
            limit.fair_share.map_or(0, |share| share.delay_ms),
            limit.fair_share.map_or(0, |share| share.next_start_at),
        ];
        tx.statements.execute(Query::UpdateLimit, row)?;
    }
    Ok(())
}

/// When somebody should look at the line of a limit: long ago where it is dirty.
fn next_recheck_at(limit: &Limit) -> Option<Millis> {
    if limit.dirty { Some(Millis::MIN) } else { limit.recheck_at }
}

pub(super) fn next_limit_to_recheck(
    tx: &mut Transaction<'_, '_>,
    after: LimitId,
) -> Result<Option<LimitId>> {
    let dirty = match &mut tx.cache.limits_to_recheck {
        Some(dirty) => dirty,
        empty => {
            // Until here nothing kept them in step: what changed in memory counts.
            let read = |row: &Row<'_>| {
                let at: Option<Millis> = if row.get(1)? { Some(Millis::MIN) } else { row.get(2)? };
                Ok((LimitId(row.get(0)?), at))
            };
            let mut dirty: BTreeMap<LimitId, Option<Millis>> =
                tx.statements.query_rows(Query::LimitsToRecheck, [], read)?.into_iter().collect();
            dirty.extend(tx.cache.limits.values().map(|limit| (limit.id, next_recheck_at(limit))));
            empty.insert(dirty.into_iter().filter_map(|(id, at)| Some((id, at?))).collect())
        }
    };
    let mut later = dirty.range((Bound::Excluded(after), Bound::Unbounded));
    Ok(later.find(|(_, at)| **at <= tx.now).map(|(id, _)| *id))
}

pub(super) fn idle_limits(tx: &mut Transaction<'_, '_>, limits_max: u32) -> Result<Vec<LimitId>> {
    write_changed_limits(tx)?;
    tx.statements.query_rows(Query::IdleLimits, [limits_max], |row| Ok(LimitId(row.get(0)?)))
}

pub(super) fn delete_limit(tx: &mut Transaction<'_, '_>, id: LimitId) -> Result<()> {
    if let Some(limit) = find_limit(tx, id)? {
        tx.cache.limit_ids_by_name.remove(&limit.name);
    }
    tx.cache.limits.remove(&id);
    tx.cache.unwritten_limits.remove(&id);
    if let Some(dirty) = &mut tx.cache.limits_to_recheck {
        dirty.remove(&id);
    }
    tx.statements.execute(Query::DeleteSlots, [id.0])?;
    tx.statements.execute(Query::DeleteLimit, [id.0]).map(drop)
}

pub(super) fn take_slots(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    limit: LimitId,
    weight: u32,
) -> Result<()> {
    let wanted = params![limit.0, weight];
    let free: Vec<i64> =
        tx.statements.query_rows(Query::LowestFreeSlots, wanted, |row| row.get(0))?;
    for number in &free {
        tx.statements.execute(Query::AssignSlot, [limit.0, *number, task.0])?;
    }
    let missing = i64::from(weight) - free.len() as i64;
    if missing > 0 {
        let next = tx.statements.query_first(Query::NextNewSlot, [limit.0], |row| row.get(0))?;
        let next: i64 = next.unwrap_or_default();
        for number in next..next + missing {
            tx.statements.execute(Query::InsertSlot, [limit.0, number, task.0])?;
        }
    }
    Ok(())
}

pub(super) fn lowest_free_slot(tx: &mut Transaction<'_, '_>, limit: LimitId) -> Result<u32> {
    let free = tx.statements.query_first(Query::LowestFreeSlots, [limit.0, 1], |row| row.get(0))?;
    match free {
        Some(number) => Ok(number),
        None => {
            let next =
                tx.statements.query_first(Query::NextNewSlot, [limit.0], |row| row.get(0))?;
            Ok(next.unwrap_or_default())
        }
    }
}

pub(super) fn free_slots(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    limit: LimitId,
) -> Result<u32> {
    Ok(tx.statements.execute(Query::FreeSlotsOfTask, [task.0, limit.0])? as u32)
}

pub(super) fn slot_counts_of_task(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
) -> Result<Vec<(LimitId, u32)>> {
    tx.statements.query_rows(Query::SlotCountsOfTask, [task.0], |row| {
        Ok((LimitId(row.get(0)?), row.get(1)?))
    })
}

pub(super) fn slot_holder(
    tx: &mut Transaction<'_, '_>,
    limit: LimitId,
    number: u32,
) -> Result<Option<TaskId>> {
    let key = params![limit.0, number];
    tx.statements.query_first(Query::SlotHolder, key, |row| Ok(TaskId(row.get(0)?)))
}

pub(super) fn free_slot(tx: &mut Transaction<'_, '_>, limit: LimitId, number: u32) -> Result<()> {
    tx.statements.execute(Query::FreeSlot, params![limit.0, number]).map(drop)
}
