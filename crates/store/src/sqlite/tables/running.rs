//! The running table and its leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Row, params};
use tidegate_core::tables::{Lease, ReadyRow, Stopped, Tags};
use tidegate_core::{Attempt, LaneId, LimitId, Millis, Result, SlotHeld, TaskId, Token};

use super::tasks::read_tags;
use super::{Transaction, limits, workers};
use crate::sqlite::cache::{Known, Run};
use crate::sqlite::error::unknown;
use crate::sqlite::statements::Query;

pub(super) fn start(
    tx: &mut Transaction<'_, '_>,
    rows: &[ReadyRow],
    lease: &Lease,
) -> Result<Vec<Attempt>> {
    let row = params![lease.token.0, lease.worker.0, lease.expires_at];
    tx.statements.execute(Query::InsertLease, row)?;
    tx.cache.tokens = None;
    for (last, number) in furthest_by_lane(rows) {
        if !start_first(tx, last, number, lease.token)? {
            let of_lane = rows.iter().filter(|row| row.lane == last.lane);
            for row in of_lane {
                start_one(tx, *row, lease.token)?;
            }
        }
    }
    let mut attempts = attempts(tx, lease)?;
    if attempts.len() == rows.len() {
        tx.cache.leases.insert(lease.token, rows.len());
    }
    if rows.iter().any(|row| row.gated) {
        add_slots(tx, &mut attempts, lease.token)?;
    }
    Ok(in_order_of(rows, attempts))
}

/// The last of the rows of every lane, and how many there are.
fn furthest_by_lane(rows: &[ReadyRow]) -> Vec<(ReadyRow, usize)> {
    let mut lanes: BTreeMap<LaneId, (ReadyRow, usize)> = BTreeMap::new();
    for row in rows {
        let (last, number) = lanes.entry(row.lane).or_insert((*row, 0));
        *last = row.max(last).to_owned();
        *number += 1;
    }
    lanes.into_values().collect()
}

/// Starts the first rows of a lane with one statement. False, and nothing is done, where there
/// are others among them than those that were picked.
fn start_first(
    tx: &mut Transaction<'_, '_>,
    last: ReadyRow,
    number: usize,
    token: Token,
) -> Result<bool> {
    let ReadyRow { lane, rank, tag, task, .. } = last;
    let rows = [token.0, tx.now, lane.0, rank, tag, task.0];
    let started = tx.statements.execute(Query::StartLanePrefix, rows)?;
    if started == number {
        tx.statements.execute(Query::DeleteReadyPrefix, [lane.0, rank, tag, task.0])?;
        return Ok(true);
    }
    tx.statements.execute(Query::UndoLanePrefix, [token.0, lane.0, rank, tag, task.0])?;
    Ok(false)
}

fn start_one(tx: &mut Transaction<'_, '_>, row: ReadyRow, token: Token) -> Result<()> {
    super::ready::take(tx, row)?;
    let values = params![token.0, row.task.0, row.gated, tx.now, row.since];
    tx.statements.execute(Query::StartAttempt, values).map(drop)
}

struct Started {
    tags: Tags,
    gated: bool,
    timeout_ms: Option<i64>,
    payload: Vec<u8>,
    ready_at: Millis,
    trace: Option<Arc<str>>,
}

/// The attempts of a lease, ascending by task.
fn attempts(tx: &mut Transaction<'_, '_>, lease: &Lease) -> Result<Vec<Attempt>> {
    let read = |row: &Row<'_>| {
        Ok(Started {
            tags: read_tags(row)?,
            timeout_ms: row.get(12)?,
            payload: row.get(13)?,
            gated: row.get(14)?,
            ready_at: row.get(15)?,
            trace: row.get(16)?,
        })
    };
    let started = tx.statements.rows(Query::AttemptsOfLease, [lease.token.0], read)?;
    started.into_iter().map(|started| attempt(tx, started, lease)).collect()
}

fn attempt(tx: &mut Transaction<'_, '_>, started: Started, lease: &Lease) -> Result<Attempt> {
    let Started { mut tags, gated, timeout_ms, payload, ready_at, trace } = started;
    let lane = workers::lanes(tx)?.get(tags.lane);
    let lane = lane.ok_or_else(|| unknown("lane", tags.lane))?;
    tags.kind = lane.kind.clone();
    let queue = lane.queue.clone();
    let kind = workers::kind(tx, &tags.kind)?;
    let attempt = Attempt {
        task: tags.task,
        token: lease.token,
        kind: tags.kind.clone(),
        queue,
        group: tags.group.as_ref().unwrap_or(&tags.kind).clone(),
        weight: tags.weight,
        payload,
        number: tags.spent.saturating_add(1),
        max_attempts: tags
            .max_attempts
            .unwrap_or_else(|| kind.as_ref().map_or(1, |kind| kind.max_attempts)),
        timeout_ms: timeout_ms.or_else(|| kind.and_then(|kind| kind.timeout_ms)),
        job: tags.job.clone(),
        workflow: tags.workflow.clone(),
        slots: Vec::new(),
        expires_at: lease.expires_at,
        arrived_at: tags.arrival,
        ready_at,
        trace,
    };
    let running = Some(Run { token: lease.token, gated, cancel: false });
    tx.cache.known.insert(tags.task, Known { tags, running });
    Ok(attempt)
}

fn add_slots(tx: &mut Transaction<'_, '_>, attempts: &mut [Attempt], token: Token) -> Result<()> {
    let read =
        |row: &Row<'_>| Ok((TaskId(row.get(0)?), LimitId(row.get(1)?), row.get::<_, u32>(2)?));
    for (task, limit, number) in tx.statements.rows(Query::SlotsOfLease, [token.0], read)? {
        let held = slot_held(tx, limit, number)?;
        if let Ok(at) = attempts.binary_search_by_key(&task, |attempt| attempt.task) {
            attempts[at].slots.push(held);
        }
    }
    Ok(())
}

/// A slot with the name of its limit.
pub(in crate::sqlite) fn slot_held(
    tx: &mut Transaction<'_, '_>,
    limit: LimitId,
    number: u32,
) -> Result<SlotHeld> {
    let name = limits::limit(tx, limit)?.map_or_else(|| "".into(), |limit| limit.name);
    Ok(SlotHeld { limit, name, number })
}

/// Puts attempts in the order in which they were picked.
fn in_order_of(rows: &[ReadyRow], attempts: Vec<Attempt>) -> Vec<Attempt> {
    if rows.is_sorted_by_key(|row| row.task) {
        return attempts;
    }
    let mut by_task: Vec<Option<Attempt>> = attempts.into_iter().map(Some).collect();
    let tasks: Vec<Option<TaskId>> =
        by_task.iter().map(|attempt| attempt.as_ref().map(|attempt| attempt.task)).collect();
    let next = |row: &ReadyRow| {
        let at = tasks.binary_search(&Some(row.task)).ok()?;
        by_task[at].take()
    };
    rows.iter().filter_map(next).collect()
}

pub(super) fn stop(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    token: Token,
) -> Result<Option<Stopped>> {
    tx.cache.tokens = None;
    let run = tx
        .cache
        .known
        .get_mut(&task)
        .and_then(|known| known.running.take_if(|run| run.token == token));
    if let Some(run) = run {
        tx.stopped.push((token, task));
        return Ok(Some(Stopped { cancel_requested: run.cancel, gated: run.gated }));
    }
    flush(tx)?;
    tx.statements.first(Query::StopAttempt, [token.0, task.0], |row| {
        Ok(Stopped { cancel_requested: row.get(0)?, gated: row.get(1)? })
    })
}

/// Removes the rows of attempts that were stopped, all of a lease together where all were.
pub(super) fn flush(tx: &mut Transaction<'_, '_>) -> Result<()> {
    if tx.stopped.is_empty() {
        return Ok(());
    }
    let mut stopped = std::mem::take(&mut tx.stopped);
    stopped.sort_unstable();
    for of_lease in stopped.chunk_by(|(token, _), (next, _)| token == next) {
        let removed = remove_stopped(tx, of_lease)?;
        if removed != of_lease.len() {
            return Err(unknown("number of running attempts", removed));
        }
    }
    Ok(())
}

/// Removes the rows of attempts of one lease; returns how many there were.
fn remove_stopped(tx: &mut Transaction<'_, '_>, stopped: &[(Token, TaskId)]) -> Result<usize> {
    let token = stopped[0].0;
    if tx.cache.leases.get(&token) == Some(&stopped.len()) {
        tx.cache.leases.remove(&token);
        return tx.statements.execute(Query::DeleteAttemptsOfLease, [token.0]);
    }
    if let Some(running) = tx.cache.leases.get_mut(&token) {
        *running = running.saturating_sub(stopped.len());
    }
    let mut removed = 0;
    for (_, task) in stopped {
        removed += tx.statements.execute(Query::DeleteCachedAttempt, [token.0, task.0])?;
    }
    Ok(removed)
}

pub(super) fn end_leases(tx: &mut Transaction<'_, '_>, tokens: &[Token]) -> Result<()> {
    flush(tx)?;
    for token in tokens {
        // A lease is remembered for as long as one of its attempts runs.
        if !tx.cache.leases.contains_key(token) {
            tx.statements.execute(Query::DeleteLeaseIfEmpty, [token.0])?;
        }
    }
    Ok(())
}

/// What is remembered of a running attempt.
fn known_run<'a>(
    tx: &'a mut Transaction<'_, '_>,
    task: TaskId,
    token: Token,
) -> Option<&'a mut Run> {
    let run = tx.cache.known.get_mut(&task)?.running.as_mut()?;
    (run.token == token).then_some(run)
}

pub(super) fn request_cancel(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    token: Token,
) -> Result<()> {
    flush(tx)?;
    if let Some(run) = known_run(tx, task, token) {
        run.cancel = true;
    }
    tx.statements.execute(Query::RequestCancel, [token.0, task.0]).map(drop)
}

pub(super) fn set_gated(tx: &mut Transaction<'_, '_>, task: TaskId, token: Token) -> Result<()> {
    flush(tx)?;
    if let Some(run) = known_run(tx, task, token) {
        run.gated = true;
    }
    tx.statements.execute(Query::SetHoldsSlots, [token.0, task.0]).map(drop)
}

pub(super) fn cancel_requests(
    tx: &mut Transaction<'_, '_>,
    tokens: &[Token],
) -> Result<Vec<(TaskId, Token)>> {
    flush(tx)?;
    let mut requests = Vec::new();
    for token in tokens {
        let read = |row: &Row<'_>| Ok((TaskId(row.get(0)?), *token));
        requests.append(&mut tx.statements.rows(Query::CancelRequests, [token.0], read)?);
    }
    Ok(requests)
}
