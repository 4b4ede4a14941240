//! Kinds, lanes, and the workers that serve them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use rusqlite::{Row, params};
use tidegate_core::tables::Lane;
use tidegate_core::{Backoff, DayWindow, Kind, LaneId, Millis, Result, WorkerId, WorkerReport};

use super::Transaction;
use crate::clock;
use crate::sqlite::row_cache::{CachedWorker, LaneIndex};
use crate::sqlite::statements::Query;

pub(in crate::sqlite) fn read_kind_row(row: &Row<'_>) -> rusqlite::Result<Kind> {
    let start: Option<i64> = row.get(4)?;
    let end: Option<i64> = row.get(5)?;
    Ok(Kind {
        name: row.get(0)?,
        queue: row.get(1)?,
        max_attempts: row.get(2)?,
        timeout_ms: row.get(3)?,
        day_window: start.zip(end).map(|(start_ms, end_ms)| DayWindow { start_ms, end_ms }),
        backoff: Backoff { base_ms: row.get(6)?, cap_ms: row.get(7)? },
        remove_on_completed_days: row.get(8)?,
        remove_on_failed_days: row.get(9)?,
        max_crashes: row.get(10)?,
    })
}

pub(super) fn find_kind(tx: &mut Transaction<'_, '_>, name: &str) -> Result<Option<Arc<Kind>>> {
    if let Some(kind) = tx.cache.kinds.get(name) {
        return Ok(Some(kind.clone()));
    }
    let kind = tx.statements.query_first(Query::KindByName, [name], read_kind_row)?.map(Arc::new);
    if let Some(kind) = &kind {
        tx.cache.kinds.insert(kind.name.clone(), kind.clone());
    }
    Ok(kind)
}

pub(super) fn put_kind(tx: &mut Transaction<'_, '_>, kind: &Kind, by_worker: bool) -> Result<()> {
    let row = params![
        kind.name,
        kind.queue,
        kind.max_attempts,
        kind.timeout_ms,
        kind.day_window.map(|window| window.start_ms),
        kind.day_window.map(|window| window.end_ms),
        kind.backoff.base_ms,
        kind.backoff.cap_ms,
        kind.remove_on_completed_days,
        kind.remove_on_failed_days,
        kind.max_crashes,
        by_worker.then_some(tx.now),
    ];
    tx.statements.execute(Query::PutKind, row)?;
    tx.cache.kinds.insert(kind.name.clone(), Arc::new(kind.clone()));
    Ok(())
}

/// Every lane.
pub(in crate::sqlite) fn load_lanes<'a>(
    tx: &'a mut Transaction<'_, '_>,
) -> Result<&'a mut LaneIndex> {
    match &mut tx.cache.lanes {
        Some(lanes) => Ok(lanes),
        empty => {
            let read = |row: &Row<'_>| {
                Ok(Lane { id: LaneId(row.get(0)?), queue: row.get(1)?, kind: row.get(2)? })
            };
            let mut lanes = LaneIndex::default();
            for lane in tx.statements.query_rows(Query::AllLanes, [], read)? {
                lanes.insert(lane);
            }
            Ok(empty.insert(lanes))
        }
    }
}

pub(super) fn find_or_create_lane(
    tx: &mut Transaction<'_, '_>,
    queue: &str,
    kind: &str,
) -> Result<LaneId> {
    let lanes = load_lanes(tx)?;
    if let Some(id) = lanes.find_id(queue, kind) {
        return Ok(id);
    }
    let id = LaneId(lanes.len() as i64 + 1);
    lanes.insert(Lane { id, queue: queue.into(), kind: kind.into() });
    tx.statements.execute(Query::InsertLane, params![id.0, queue, kind])?;
    Ok(id)
}

/// Notes that a worker lives, and what it serves. Noted for at least three quarters of its lease,
/// it is not noted again: a claim that finds nothing then writes nothing, and makes no commit.
pub(super) fn record_worker(
    tx: &mut Transaction<'_, '_>,
    worker: &WorkerId,
    alive_until: Millis,
    lanes: Option<&[Lane]>,
) -> Result<()> {
    let mut seen = match tx.cache.workers.remove(worker) {
        Some(seen) => seen,
        None => load_cached_worker(tx, worker)?,
    };
    let is_registration = lanes.is_none();
    let lanes = lanes.unwrap_or_default();
    if is_registration
        || !clock::are_expiries_late_enough([seen.alive_until].into_iter(), tx.now, alive_until)
    {
        tx.statements.execute(Query::PutWorker, params![worker.0, alive_until])?;
        seen.alive_until = Some(alive_until);
    }
    for lane in lanes {
        if let Entry::Vacant(unknown) = seen.lanes_served_until.entry(lane.id) {
            let key = params![lane.id.0, worker.0];
            unknown
                .insert(tx.statements.query_first(Query::LaneServedUntil, key, |row| row.get(0))?);
        }
    }
    let notes = lanes.iter().map(|lane| seen.lanes_served_until.get(&lane.id).copied().flatten());
    if !clock::are_expiries_late_enough(notes, tx.now, alive_until) {
        for lane in lanes {
            tx.statements
                .execute(Query::PutWorkerLane, params![lane.id.0, worker.0, alive_until])?;
            seen.lanes_served_until.insert(lane.id, Some(alive_until));
        }
        tx.cache.served_by_lane.clear();
    }
    tx.cache.workers.insert(worker.clone(), seen);
    Ok(())
}

/// Records a heartbeat and its report. Returns the number of other live workers that have room.
pub(super) fn record_heartbeat(
    tx: &mut Transaction<'_, '_>,
    worker: &WorkerId,
    lease_ms: Millis,
    report: Option<&WorkerReport>,
) -> Result<u32> {
    let until = tx.now + lease_ms;
    let row = params![worker.0, until, lease_ms, report.map(WorkerReport::to_json)];
    tx.statements.execute(Query::PutHeartbeat, row)?;
    if let Some(seen) = tx.cache.workers.get_mut(worker) {
        seen.alive_until = Some(until);
    }
    let peers = tx.statements.query_first(
        Query::CountAvailableWorkers,
        params![worker.0, tx.now],
        |row| row.get(0),
    )?;
    Ok(peers.unwrap_or_default())
}

/// Its lanes are read as they are asked for.
fn load_cached_worker(tx: &mut Transaction<'_, '_>, worker: &WorkerId) -> Result<CachedWorker> {
    let alive_until =
        tx.statements.query_first(Query::WorkerAliveUntil, [&worker.0], |row| row.get(0))?;
    Ok(CachedWorker { alive_until, lanes_served_until: HashMap::new() })
}

pub(super) fn is_lane_served(tx: &mut Transaction<'_, '_>, lane: LaneId) -> Result<bool> {
    if let Some(is_served) = tx.cache.served_by_lane.get(&lane) {
        return Ok(*is_served);
    }
    let key = [lane.0, tx.now];
    let is_served = tx.statements.query_first(Query::IsLaneServed, key, |row| row.get(0))?;
    let is_served = is_served.unwrap_or_default();
    tx.cache.served_by_lane.insert(lane, is_served);
    Ok(is_served)
}

/// Paused queues, and since when.
pub(in crate::sqlite) fn load_paused_queues<'a>(
    tx: &'a mut Transaction<'_, '_>,
) -> Result<&'a mut HashMap<Arc<str>, Millis>> {
    match &mut tx.cache.paused_queues {
        Some(paused) => Ok(paused),
        empty => {
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let paused = tx.statements.query_rows(Query::PausedQueues, [], read)?;
            Ok(empty.insert(paused.into_iter().collect()))
        }
    }
}

pub(super) fn set_queue_paused(
    tx: &mut Transaction<'_, '_>,
    queue: &str,
    is_paused: bool,
) -> Result<()> {
    let now = tx.now;
    if is_paused {
        load_paused_queues(tx)?.insert(queue.into(), now);
        tx.statements.execute(Query::PauseQueue, params![queue, now])?;
    } else {
        load_paused_queues(tx)?.remove(queue);
        tx.statements.execute(Query::ResumeQueue, [queue])?;
    }
    Ok(())
}

pub(super) fn delete_worker(tx: &mut Transaction<'_, '_>, worker: &WorkerId) -> Result<()> {
    tx.statements.execute(Query::DeleteWorkerLanes, [&worker.0])?;
    tx.statements.execute(Query::DeleteWorkerRegistrations, [&worker.0])?;
    tx.statements.execute(Query::DeleteWorker, [&worker.0])?;
    tx.cache.workers.remove(worker);
    tx.cache.served_by_lane.clear();
    Ok(())
}

pub(super) fn delete_dead_workers(tx: &mut Transaction<'_, '_>, before: Millis) -> Result<()> {
    tx.statements.execute(Query::DeleteLanesOfDeadWorkers, [before])?;
    tx.statements.execute(Query::DeleteRegistrationsOfDeadWorkers, [before])?;
    if tx.statements.execute(Query::DeleteDeadWorkers, [before])? > 0 {
        tx.cache.workers.clear();
        tx.cache.served_by_lane.clear();
    }
    Ok(())
}
