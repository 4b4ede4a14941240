//! The running table and its leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Row, params};
use tidegate_core::tables::{Lease, ReadyRow, RemovedAttempt, TaskInfo};
use tidegate_core::{Attempt, HeldSlot, LaneId, LimitId, Millis, Result, TaskId, Token};

use super::tasks::read_task_info_row;
use super::{Transaction, limits, workers};
use crate::sqlite::error::unknown_value_error;
use crate::sqlite::row_cache::{CachedRun, CachedTask};
use crate::sqlite::statements::Query;

pub(super) fn start_attempts(
    tx: &mut Transaction<'_, '_>,
    rows: &[ReadyRow],
    lease: &Lease,
) -> Result<Vec<Attempt>> {
    let row = params![lease.token.0, lease.worker.0, lease.expires_at];
    tx.statements.execute(Query::InsertLease, row)?;
    tx.cache.tokens_by_task = None;
    for (last, number) in last_row_and_count_by_lane(rows) {
        if !start_lane_prefix(tx, last, number, lease.token)? {
            let of_lane = rows.iter().filter(|row| row.lane == last.lane);
            for row in of_lane {
                start_attempt(tx, *row, lease.token)?;
            }
        }
    }
    let mut attempts = read_attempts_of_lease(tx, lease)?;
    if attempts.len() == rows.len() {
        tx.cache.running_by_lease.insert(lease.token, rows.len());
    }
    if rows.iter().any(|row| row.holds_slots) {
        add_slots_to_attempts(tx, &mut attempts, lease.token)?;
    }
    Ok(attempts_in_claim_order(rows, attempts))
}

/// The last of the rows of every lane, and how many there are.
fn last_row_and_count_by_lane(rows: &[ReadyRow]) -> Vec<(ReadyRow, usize)> {
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
fn start_lane_prefix(
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

fn start_attempt(tx: &mut Transaction<'_, '_>, row: ReadyRow, token: Token) -> Result<()> {
    super::ready::delete_ready(tx, row)?;
    let values = params![token.0, row.task.0, row.holds_slots, tx.now, row.ready_at];
    tx.statements.execute(Query::StartAttempt, values).map(drop)
}

struct StartedTaskRow {
    info: TaskInfo,
    holds_slots: bool,
    timeout_ms: Option<i64>,
    payload: Vec<u8>,
    ready_at: Millis,
    trace: Option<Arc<str>>,
}

/// The attempts of a lease, ascending by task.
fn read_attempts_of_lease(tx: &mut Transaction<'_, '_>, lease: &Lease) -> Result<Vec<Attempt>> {
    let read = |row: &Row<'_>| {
        Ok(StartedTaskRow {
            info: read_task_info_row(row)?,
            timeout_ms: row.get(12)?,
            payload: row.get(13)?,
            holds_slots: row.get(14)?,
            ready_at: row.get(15)?,
            trace: row.get(16)?,
        })
    };
    let started = tx.statements.query_rows(Query::AttemptsOfLease, [lease.token.0], read)?;
    started.into_iter().map(|started| build_attempt(tx, started, lease)).collect()
}

fn build_attempt(
    tx: &mut Transaction<'_, '_>,
    started: StartedTaskRow,
    lease: &Lease,
) -> Result<Attempt> {
    let StartedTaskRow { info: mut tags, holds_slots: gated, timeout_ms, payload, ready_at, trace } =
        started;
    let lane = workers::load_lanes(tx)?.get(tags.lane);
    let lane = lane.ok_or_else(|| unknown_value_error("lane", tags.lane))?;
    tags.kind = lane.kind.clone();
    let queue = lane.queue.clone();
    let kind = workers::find_kind(tx, &tags.kind)?;
    let attempt = Attempt {
        task: tags.task,
        token: lease.token,
        kind: tags.kind.clone(),
        queue,
        group: tags.group.as_ref().unwrap_or(&tags.kind).clone(),
        weight: tags.weight,
        payload,
        number: tags.attempts_used.saturating_add(1),
        max_attempts: tags
            .max_attempts
            .unwrap_or_else(|| kind.as_ref().map_or(1, |kind| kind.max_attempts)),
        timeout_ms: timeout_ms.or_else(|| kind.and_then(|kind| kind.timeout_ms)),
        job: tags.job.clone(),
        workflow: tags.workflow.clone(),
        slots: Vec::new(),
        expires_at: lease.expires_at,
        due_at: tags.due_at,
        ready_at,
        trace,
    };
    let running =
        Some(CachedRun { token: lease.token, holds_slots: gated, cancel_requested: false });
    tx.cache.tasks.insert(tags.task, CachedTask { info: tags, running });
    Ok(attempt)
}

fn add_slots_to_attempts(
    tx: &mut Transaction<'_, '_>,
    attempts: &mut [Attempt],
    token: Token,
) -> Result<()> {
    let read =
        |row: &Row<'_>| Ok((TaskId(row.get(0)?), LimitId(row.get(1)?), row.get::<_, u32>(2)?));
    for (task, limit, number) in tx.statements.query_rows(Query::SlotsOfLease, [token.0], read)? {
        let held = slot_with_limit_name(tx, limit, number)?;
        if let Ok(at) = attempts.binary_search_by_key(&task, |attempt| attempt.task) {
            attempts[at].slots.push(held);
        }
    }
    Ok(())
}

/// A slot with the name of its limit.
pub(in crate::sqlite) fn slot_with_limit_name(
    tx: &mut Transaction<'_, '_>,
    limit: LimitId,
    number: u32,
) -> Result<HeldSlot> {
    let name = limits::find_limit(tx, limit)?.map_or_else(|| "".into(), |limit| limit.name);
    Ok(HeldSlot { limit, name, number })
}

/// Puts attempts in the order in which they were picked.
fn attempts_in_claim_order(rows: &[ReadyRow], attempts: Vec<Attempt>) -> Vec<Attempt> {
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

pub(super) fn stop_attempt(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    token: Token,
) -> Result<Option<RemovedAttempt>> {
    tx.cache.tokens_by_task = None;
    let run = tx
        .cache
        .tasks
        .get_mut(&task)
        .and_then(|known| known.running.take_if(|run| run.token == token));
    if let Some(run) = run {
        tx.unwritten_stops.push((token, task));
        return Ok(Some(RemovedAttempt {
            cancel_requested: run.cancel_requested,
            holds_slots: run.holds_slots,
        }));
    }
    delete_stopped_attempts(tx)?;
    tx.statements.query_first(Query::StopAttempt, [token.0, task.0], |row| {
        Ok(RemovedAttempt { cancel_requested: row.get(0)?, holds_slots: row.get(1)? })
    })
}

/// Removes the rows of attempts that were stopped, all of a lease together where all were.
pub(super) fn delete_stopped_attempts(tx: &mut Transaction<'_, '_>) -> Result<()> {
    if tx.unwritten_stops.is_empty() {
        return Ok(());
    }
    let mut stopped = std::mem::take(&mut tx.unwritten_stops);
    stopped.sort_unstable();
    for of_lease in stopped.chunk_by(|(token, _), (next, _)| token == next) {
        let removed = delete_stopped_of_lease(tx, of_lease)?;
        if removed != of_lease.len() {
            return Err(unknown_value_error("number of running attempts", removed));
        }
    }
    Ok(())
}

/// Removes the rows of attempts of one lease; returns how many there were.
fn delete_stopped_of_lease(
    tx: &mut Transaction<'_, '_>,
    stopped: &[(Token, TaskId)],
) -> Result<usize> {
    let token = stopped[0].0;
    if tx.cache.running_by_lease.get(&token) == Some(&stopped.len()) {
        tx.cache.running_by_lease.remove(&token);
        return tx.statements.execute(Query::DeleteAttemptsOfLease, [token.0]);
    }
    if let Some(running) = tx.cache.running_by_lease.get_mut(&token) {
        *running = running.saturating_sub(stopped.len());
    }
    let mut removed = 0;
    for (_, task) in stopped {
        removed += tx.statements.execute(Query::DeleteCachedAttempt, [token.0, task.0])?;
    }
    Ok(removed)
}

pub(super) fn delete_finished_leases(tx: &mut Transaction<'_, '_>, tokens: &[Token]) -> Result<()> {
    delete_stopped_attempts(tx)?;
    for token in tokens {
        // A lease is remembered for as long as one of its attempts runs.
        if !tx.cache.running_by_lease.contains_key(token) {
            tx.statements.execute(Query::DeleteLeaseIfEmpty, [token.0])?;
        }
    }
    Ok(())
}

/// What is remembered of a running attempt.
fn find_cached_run<'a>(
    tx: &'a mut Transaction<'_, '_>,
    task: TaskId,
    token: Token,
) -> Option<&'a mut CachedRun> {
    let run = tx.cache.tasks.get_mut(&task)?.running.as_mut()?;
    (run.token == token).then_some(run)
}

pub(super) fn request_cancel(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    token: Token,
) -> Result<()> {
    delete_stopped_attempts(tx)?;
    if let Some(run) = find_cached_run(tx, task, token) {
        run.cancel_requested = true;
    }
    tx.statements.execute(Query::RequestCancel, [token.0, task.0]).map(drop)
}

pub(super) fn set_holds_slots(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    token: Token,
) -> Result<()> {
    delete_stopped_attempts(tx)?;
    if let Some(run) = find_cached_run(tx, task, token) {
        run.holds_slots = true;
    }
    tx.statements.execute(Query::SetHoldsSlots, [token.0, task.0]).map(drop)
}

pub(super) fn read_cancel_requests(
    tx: &mut Transaction<'_, '_>,
    tokens: &[Token],
) -> Result<Vec<(TaskId, Token)>> {
    delete_stopped_attempts(tx)?;
    let mut requests = Vec::new();
    for token in tokens {
        let read = |row: &Row<'_>| Ok((TaskId(row.get(0)?), *token));
        requests.append(&mut tx.statements.query_rows(Query::CancelRequests, [token.0], read)?);
    }
    Ok(requests)
}
