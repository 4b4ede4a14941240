//! Limits and their slots. A limit is written once per command, however often it changed.

use std::ops::Bound;

use rusqlite::{Row, params};
use tidegate_core::{Limit, LimitId, Result, Share, Source, TaskId};

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
        Some(weight) => Some(Share { weight, last_tag: row.get(14)?, ahead: counted(row, 15)? }),
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
    match tx.statements.first(Query::Limit, [id.0], read_limit)? {
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
    let id = tx.statements.first(Query::LimitNamed, [name], |row| Ok(LimitId(row.get(0)?)))?;
    tx.cache.limit_names.insert(name.into(), id);
    Ok(id)
}

pub(super) fn make(
    tx: &mut Transaction<'_, '_>,
    name: &str,
    capacity: Option<u32>,
    source: Source,
    since: i64,
    share_weight: Option<u32>,
) -> Result<LimitId> {
    let (meta, changed) = tx.meta()?;
    meta.last_limit += 1;
    *changed = true;
    let id = LimitId(meta.last_limit);
    let limit = Limit::new(id, name, capacity, source, since, share_weight);
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
    ];
    tx.statements.execute(Query::InsertLimit, row).map(drop)
}

pub(super) fn put(tx: &mut Transaction<'_, '_>, limit: &Limit) -> Result<()> {
    tx.wakes |= limit.dirty;
    if let Some(dirty) = &mut tx.cache.dirty {
        if limit.dirty {
            dirty.insert(limit.id);
        } else {
            dirty.remove(&limit.id);
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
        ];
        tx.statements.execute(Query::PutLimit, row)?;
    }
    Ok(())
}

pub(super) fn next_dirty(tx: &mut Transaction<'_, '_>, after: LimitId) -> Result<Option<LimitId>> {
    let dirty = match &mut tx.cache.dirty {
        Some(dirty) => dirty,
        empty => {
            // Until here nothing kept them in step: what changed in memory counts.
            let read = |row: &Row<'_>| Ok(LimitId(row.get(0)?));
            let mut ids = tx.statements.rows(Query::DirtyLimits, [], read)?;
            let limits = &tx.cache.limits;
            ids.retain(|id| limits.get(id).is_none_or(|limit| limit.dirty));
            ids.extend(limits.values().filter(|limit| limit.dirty).map(|limit| limit.id));
            empty.insert(ids.into_iter().collect())
        }
    };
    Ok(dirty.range((Bound::Excluded(after), Bound::Unbounded)).next().copied())
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
    tx.statements.execute(Query::DropSlots, [id.0])?;
    tx.statements.execute(Query::DropLimit, [id.0]).map(drop)
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
        tx.statements.execute(Query::TakeSlot, [limit.0, *number, task.0])?;
    }
    let missing = i64::from(weight) - free.len() as i64;
    if missing > 0 {
        let next = tx.statements.first(Query::NextSlot, [limit.0], |row| row.get(0))?;
        let next: i64 = next.unwrap_or_default();
        for number in next..next + missing {
            tx.statements.execute(Query::InsertSlot, [limit.0, number, task.0])?;
        }
    }
    Ok(())
}

pub(super) fn free_slots(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    limit: LimitId,
) -> Result<u32> {
    Ok(tx.statements.execute(Query::FreeSlots, [task.0, limit.0])? as u32)
}

pub(super) fn slots_of(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<Vec<(LimitId, u32)>> {
    tx.statements.rows(Query::SlotsOf, [task.0], |row| Ok((LimitId(row.get(0)?), row.get(1)?)))
}

pub(super) fn holder(
    tx: &mut Transaction<'_, '_>,
    limit: LimitId,
    number: u32,
) -> Result<Option<TaskId>> {
    let key = params![limit.0, number];
    tx.statements.first(Query::Holder, key, |row| Ok(TaskId(row.get(0)?)))
}

pub(super) fn free_slot(tx: &mut Transaction<'_, '_>, limit: LimitId, number: u32) -> Result<()> {
    tx.statements.execute(Query::FreeSlot, params![limit.0, number]).map(drop)
}
