use rusqlite::{Row, params};
use tidegate_core::reader::{
    Explanation, NotRunningReason, SlotHolder, TaskView, estimate_wait_ms,
};
use tidegate_core::tables::{Lease, Position, ReadyRow, Tables, WaiterRow};
use tidegate_core::{LaneId, LimitId, Millis, Result, TaskId, Token, WorkerId};

use super::{load_lanes, read_task_view};
use crate::sqlite::error::unknown_value_error;
use crate::sqlite::statements::Query;
use crate::sqlite::tables::{Transaction, load_paused_queues, slot_with_limit_name};

/// Holders listed in an explanation.
const EXPLAINED_HOLDERS_MAX: i64 = 100;

pub(super) fn explain_task(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
) -> Result<Option<Explanation>> {
    let Some(view) = read_task_view(tx, task)? else {
        return Ok(None);
    };
    let position = tx.position(task)?.unwrap_or(Position::Inbox);
    let (reason, since) = match position {
        Position::Scheduled(run_at) => (NotRunningReason::NotDue { run_at }, Some(view.created_at)),
        Position::Inbox => (explain_inbox_task(tx, &view)?, None),
        Position::Waiting(row) => (explain_waiting_task(tx, row)?, Some(row.due_at)),
        Position::Ready(row) => (explain_ready_task(tx, row)?, Some(row.ready_at)),
        Position::Running(token) => explain_running_attempt(tx, task, token)?,
        Position::Finished(_) => (NotRunningReason::Finished, view.finished_at),
    };
    let running = count_running_ahead(tx, position)?;
    let pace = tx.run_time_stats(view.group.as_ref().unwrap_or(&view.kind))?;
    let estimate_ms = reason.tasks_ahead().and_then(|ahead| estimate_wait_ms(ahead, pace, running));
    let paused_at = load_paused_queues(tx)?.get(&view.queue).copied();
    let state = position.state();
    Ok(Some(Explanation {
        task,
        state,
        reason,
        reason_since: since,
        queue_paused_at: paused_at,
        estimated_wait_ms: estimate_ms,
    }))
}

/// Tasks that run and whose ends are waited for: those that hold slots of the limit, or those of
/// the lane.
fn count_running_ahead(tx: &mut Transaction<'_, '_>, position: Position) -> Result<u64> {
    let (query, of) = match position {
        Position::Waiting(row) => (Query::CountRunningOfLimit, row.limit.0),
        Position::Ready(row) => (Query::CountRunningInLane, row.lane.0),
        _ => return Ok(0),
    };
    let running = tx.statements.query_first(query, [of], |row| row.get::<_, i64>(0))?;
    Ok(running.unwrap_or_default() as u64)
}

fn explain_inbox_task(tx: &mut Transaction<'_, '_>, view: &TaskView) -> Result<NotRunningReason> {
    let lane = load_lanes(tx)?.find_id(&view.queue, &view.kind);
    let is_served = lane.map_or(Ok(false), |lane| is_lane_of_live_worker(tx, lane))?;
    Ok(NotRunningReason::InInbox { is_served })
}

fn is_lane_of_live_worker(tx: &mut Transaction<'_, '_>, lane: LaneId) -> Result<bool> {
    let key = [lane.0, tx.now];
    Ok(tx
        .statements
        .query_first(Query::IsLaneOfLiveWorker, key, |row| row.get(0))?
        .unwrap_or_default())
}

fn explain_waiting_task(tx: &mut Transaction<'_, '_>, row: WaiterRow) -> Result<NotRunningReason> {
    let limit = tx.locked_limit(row.limit)?;
    let key = [row.limit.0, row.wait_reason as i64, row.rank, row.tag, row.admission_seq];
    let ahead =
        tx.statements.query_first(Query::CountWaitersBefore, key, |row| row.get::<_, i64>(0))?;
    Ok(NotRunningReason::InWaitQueue {
        limit: limit.as_ref().map_or_else(|| "".into(), |limit| limit.name.clone()),
        capacity: limit.as_ref().and_then(|limit| limit.capacity),
        paused_by: limit.as_ref().and_then(|limit| limit.paused_by),
        delay_ms: limit
            .as_ref()
            .and_then(|limit| limit.fair_share)
            .map_or(0, |share| share.delay_ms),
        held: limit.map_or(0, |limit| limit.held),
        wait_reason: row.wait_reason,
        queue_position: ahead.unwrap_or_default() as u64 + 1,
        holders: list_slot_holders(tx, row.limit, EXPLAINED_HOLDERS_MAX)?,
    })
}

fn explain_ready_task(tx: &mut Transaction<'_, '_>, row: ReadyRow) -> Result<NotRunningReason> {
    let is_served = is_lane_of_live_worker(tx, row.lane)?;
    let key = [row.lane.0, row.rank, row.tag, row.task.0];
    let ahead =
        tx.statements.query_first(Query::CountReadyBefore, key, |row| row.get::<_, i64>(0))?;
    let lane =
        load_lanes(tx)?.get(row.lane).ok_or_else(|| unknown_value_error("lane", row.lane))?.clone();
    let window = tx.kind(&lane.kind)?.and_then(|kind| kind.day_window);
    let is_open = window.is_none_or(|window| window.is_open(tx.now));
    let ahead = ahead.unwrap_or_default() as u64;
    Ok(NotRunningReason::Ready {
        queue: lane.queue,
        kind: lane.kind,
        is_served,
        is_in_day_window: is_open,
        tasks_ahead: ahead,
    })
}

fn explain_running_attempt(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    token: Token,
) -> Result<(NotRunningReason, Option<Millis>)> {
    let since =
        tx.statements.query_first(Query::AttemptStartedAt, [token.0, task.0], |row| row.get(0))?;
    let Some(lease) = find_lease(tx, token)? else {
        return Ok((NotRunningReason::InInbox { is_served: true }, since));
    };
    let read = |row: &Row<'_>| Ok((LimitId(row.get(0)?), row.get(1)?));
    let held: Vec<(LimitId, u32)> =
        tx.statements.query_rows(Query::SlotNumbersOfTask, [task.0], read)?;
    let held = held.into_iter().map(|(limit, number)| slot_with_limit_name(tx, limit, number));
    let slots = held.collect::<Result<_>>()?;
    let reason =
        NotRunningReason::Running { worker: lease.worker, expires_at: lease.expires_at, slots };
    Ok((reason, since))
}

pub(super) fn read_lease_row(row: &Row<'_>) -> rusqlite::Result<Lease> {
    Ok(Lease { token: Token(row.get(0)?), worker: WorkerId(row.get(1)?), expires_at: row.get(2)? })
}

fn find_lease(tx: &mut Transaction<'_, '_>, token: Token) -> Result<Option<Lease>> {
    tx.statements.query_first(Query::LeaseByToken, [token.0], read_lease_row)
}

/// Who holds the slots of a limit, by slot number.
pub(super) fn list_slot_holders(
    tx: &mut Transaction<'_, '_>,
    limit: LimitId,
    holders_max: i64,
) -> Result<Vec<SlotHolder>> {
    let read = |row: &Row<'_>| {
        let kind: Option<_> = row.get(2)?;
        Ok(SlotHolder {
            slot: row.get(0)?,
            task: TaskId(row.get(1)?),
            kind: kind.unwrap_or_else(|| "".into()),
            worker: None,
            expires_at: None,
        })
    };
    let mut holders =
        tx.statements.query_rows(Query::SlotHoldersOfLimit, params![limit.0, holders_max], read)?;
    for holder in &mut holders {
        if let Some(Position::Running(token)) = tx.position(holder.task)?
            && let Some(lease) = find_lease(tx, token)?
        {
            holder.worker = Some(lease.worker);
            holder.expires_at = Some(lease.expires_at);
        }
    }
    Ok(holders)
}
