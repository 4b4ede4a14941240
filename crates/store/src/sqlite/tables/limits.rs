//! Limits and their slots. A limit is written once per command, however often it changed.

use std::collections::BTreeMap;
use std::ops::Bound;

use rusqlite::{Row, params};
use tidegate_core::{Halt, Limit, LimitId, Millis, Result, Share, Source, TaskId};

use super::Transaction;
use crate::sqlite::error::unknown;
use crate::sqlite::statements::Query;

/// Reads a limit. An unknown source is read as none, and refused by the caller.
pub(in crate::sqlite) fn read_limit(row: &Row<'_>) -> rusqlite::Result<Option<Limit>> {
    let source = |column: usize| -> rusqlite::Result<Option<Source>> {
        Ok(row.get_ref(column)?.as_str_or_null()?.and_then(Source::parse))
    };
    let Some(set_by) = source(3)? else {
        return Ok(None);
    };
    let base_capacity: Option<u32> = row.get(4)?;
    let share = match row.get(13)? {
        Some(weight) => Some(Share {
            weight,
            last_tag: row.get(14)?,
            ahead: counted(row, 15)?,
            min_concurrency: row.get(19)?,
            priority: row.get(20)?,
            delay_ms: row.get(21)?,
            next_at: row.get(22)?,
        }),
        None => None,
    };
    Ok(Some(Limit {
        id: LimitId(row.get(0)?),
        name: row.get(1)?,
        capacity: row.get(2)?,
        source: set_by,
        base: base_capacity.zip(source(5)?),
        version: row.get(6)?,
        since: row.get(7)?,
        held: counted(row, 8)?,
        refused: row.get(16)?,
        waiting: counted(row, 9)?,
        aside: counted(row, 10)?,
        reserver: row.get::<_, Option<i64>>(11)?.map(TaskId),
        dirty: row.get(12)?,
        look_at: row.get(18)?,
        halt: row.get::<_, Option<i64>>(17)?.map(Halt::of),
        share,
    }))
}

/// A number that is kept for speed. One that makes no sense is read as far too many, so that nothing
/// is let through by it and the check finds it.
fn counted(row: &Row<'_>, column: usize) -> rusqlite::Result<u32> {
    let number: i64 = row.get(column)?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}

pub(super) fn limit(tx: &mut Transaction<'_, '_>, id: LimitId) -> Result<Option<Limit>> {
    if let Some(limit) = tx.cache.limits.get(&id) {
        return Ok(Some(limit.clone()));
    }
    match tx.statements.first(Query::LimitById, [id.0], read_limit)? {
        Some(Some(limit)) => {
            tx.cache.limits.insert(id, limit.clone());
            Ok(Some(limit))
        }
        Some(None) => Err(unknown("source of limit", id)),
        None => Ok(None),
    }
}

pub(super) fn named(tx: &mut Transaction<'_, '_>, name: &str) -> Result<Option<LimitId>> {
    if let Some(id) = tx.cache.limit_names.get(name) {
        return Ok(*id);
    }
    let id = tx.statements.first(Query::LimitIdByName, [name], |row| Ok(LimitId(row.get(0)?)))?;
    tx.cache.limit_names.insert(name.into(), id);
    Ok(id)
}

pub(super) fn make(
    tx: &mut Transaction<'_, '_>,
    name: &str,
    capacity: Option<u32>,
    source: Source,
    since: i64,
    share: Option<Share>,
) -> Result<LimitId> {
    let (meta, changed) = tx.meta()?;
    meta.last_limit += 1;
    *changed = true;
    let id = LimitId(meta.last_limit);
    let limit = Limit::new(id, name, capacity, source, since, share);
    insert(tx, &limit)?;
    tx.cache.limit_names.insert(limit.name.clone(), Some(id));
    tx.cache.limits.insert(id, limit);
    Ok(id)
}

fn insert(tx: &mut Transaction<'_, '_>, limit: &Limit) -> Result<()> {
    let row = params![
        limit.id.0,
        limit.name,
        limit.capacity,
        limit.source.as_str(),
        limit.base.map(|base| base.0),
        limit.base.map(|base| base.1.as_str()),
        limit.version,
        limit.since,
        limit.held,
        limit.waiting,
        limit.aside,
        limit.reserver.map(|task| task.0),
        limit.dirty,
        limit.share.map(|share| share.weight),
        limit.share.map(|share| share.last_tag),
        limit.share.map(|share| share.ahead),
        limit.refused,
        limit.halt.map(Halt::code),
        limit.look_at,
        limit.share.map_or(0, |share| share.min_concurrency),
        limit.share.map_or(0, |share| share.priority),
        limit.share.map_or(0, |share| share.delay_ms),
        limit.share.map_or(0, |share| share.next_at),
    ];
    tx.statements.execute(Query::InsertLimit, row).map(drop)
}

pub(super) fn put(tx: &mut Transaction<'_, '_>, limit: &Limit) -> Result<()> {
    tx.wakes |= limit.is_due(tx.now);
    if let Some(dirty) = &mut tx.cache.dirty {
        match look_at(limit) {
            Some(at) => drop(dirty.insert(limit.id, at)),
            None => drop(dirty.remove(&limit.id)),
        }
    }
    match tx.cache.limits.get_mut(&limit.id) {
        Some(known) if known == limit => return Ok(()),
        Some(known) => known.clone_from(limit),
        None => drop(tx.cache.limits.insert(limit.id, limit.clone())),
    }
    tx.cache.changed_limits.insert(limit.id);
    Ok(())
}

/// Writes the limits that changed.
pub(super) fn flush(tx: &mut Transaction<'_, '_>) -> Result<()> {
    for id in std::mem::take(&mut tx.cache.changed_limits) {
        let Some(limit) = tx.cache.limits.get(&id) else {
            continue;
        };
        let row = params![
            limit.id.0,
            limit.capacity,
            limit.source.as_str(),
            limit.base.map(|base| base.0),
            limit.base.map(|base| base.1.as_str()),
            limit.version,
            limit.held,
            limit.waiting,
            limit.aside,
            limit.reserver.map(|task| task.0),
            limit.dirty,
            limit.share.map(|share| share.weight),
            limit.share.map(|share| share.last_tag),
            limit.share.map(|share| share.ahead),
            limit.refused,
            limit.halt.map(Halt::code),
            limit.look_at,
            limit.share.map_or(0, |share| share.min_concurrency),
            limit.share.map_or(0, |share| share.priority),
            limit.share.map_or(0, |share| share.delay_ms),
            limit.share.map_or(0, |share| share.next_at),
        ];
        tx.statements.execute(Query::UpdateLimit, row)?;
    }
    Ok(())
}

/// When somebody should look at the line of a limit: long ago where it is dirty.
fn look_at(limit: &Limit) -> Option<Millis> {
    if limit.dirty { Some(Millis::MIN) } else { limit.look_at }
}

pub(super) fn next_dirty(tx: &mut Transaction<'_, '_>, after: LimitId) -> Result<Option<LimitId>> {
    let dirty = match &mut tx.cache.dirty {
        Some(dirty) => dirty,
        empty => {
            // Until here nothing kept them in step: what changed in memory counts.
            let read = |row: &Row<'_>| {
                let at: Option<Millis> = if row.get(1)? { Some(Millis::MIN) } else { row.get(2)? };
                Ok((LimitId(row.get(0)?), at))
            };
            let mut dirty: BTreeMap<LimitId, Option<Millis>> =
                tx.statements.rows(Query::LimitsToRecheck, [], read)?.into_iter().collect();
            dirty.extend(tx.cache.limits.values().map(|limit| (limit.id, look_at(limit))));
            empty.insert(dirty.into_iter().filter_map(|(id, at)| Some((id, at?))).collect())
        }
    };
    let mut later = dirty.range((Bound::Excluded(after), Bound::Unbounded));
    Ok(later.find(|(_, at)| **at <= tx.now).map(|(id, _)| *id))
}

pub(super) fn idle(tx: &mut Transaction<'_, '_>, limits_max: u32) -> Result<Vec<LimitId>> {
    flush(tx)?;
    tx.statements.rows(Query::IdleLimits, [limits_max], |row| Ok(LimitId(row.get(0)?)))
}

pub(super) fn drop_limit(tx: &mut Transaction<'_, '_>, id: LimitId) -> Result<()> {
    if let Some(limit) = limit(tx, id)? {
        tx.cache.limit_names.remove(&limit.name);
    }
    tx.cache.limits.remove(&id);
    tx.cache.changed_limits.remove(&id);
    if let Some(dirty) = &mut tx.cache.dirty {
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
    let free: Vec<i64> = tx.statements.rows(Query::LowestFreeSlots, wanted, |row| row.get(0))?;
    for number in &free {
        tx.statements.execute(Query::AssignSlot, [limit.0, *number, task.0])?;
    }
    let missing = i64::from(weight) - free.len() as i64;
    if missing > 0 {
        let next = tx.statements.first(Query::NextNewSlot, [limit.0], |row| row.get(0))?;
        let next: i64 = next.unwrap_or_default();
        for number in next..next + missing {
            tx.statements.execute(Query::InsertSlot, [limit.0, number, task.0])?;
        }
    }
    Ok(())
}

pub(super) fn lowest_free(tx: &mut Transaction<'_, '_>, limit: LimitId) -> Result<u32> {
    let free = tx.statements.first(Query::LowestFreeSlots, [limit.0, 1], |row| row.get(0))?;
    match free {
        Some(number) => Ok(number),
        None => {
            let next = tx.statements.first(Query::NextNewSlot, [limit.0], |row| row.get(0))?;
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

pub(super) fn slots_of(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<Vec<(LimitId, u32)>> {
    tx.statements
        .rows(Query::SlotCountsOfTask, [task.0], |row| Ok((LimitId(row.get(0)?), row.get(1)?)))
}

pub(super) fn holder(
    tx: &mut Transaction<'_, '_>,
    limit: LimitId,
    number: u32,
) -> Result<Option<TaskId>> {
    let key = params![limit.0, number];
    tx.statements.first(Query::SlotHolder, key, |row| Ok(TaskId(row.get(0)?)))
}

pub(super) fn free_slot(tx: &mut Transaction<'_, '_>, limit: LimitId, number: u32) -> Result<()> {
    tx.statements.execute(Query::FreeSlot, params![limit.0, number]).map(drop)
}
