use rusqlite::{Row, params};
use tidegate_core::inspect::{Explanation, Holder, Reason, TaskView, estimate_ms};
use tidegate_core::tables::{Lease, LineRow, Position, ReadyRow, Tables};
use tidegate_core::{LaneId, LimitId, Millis, Result, TaskId, Token, WorkerId};

use super::{lanes, view};
use crate::sqlite::error::unknown;
use crate::sqlite::statements::Query;
use crate::sqlite::tables::{Transaction, paused, slot_held};

/// Holders listed in an explanation.
const HOLDERS_MAX: i64 = 100;

pub(super) fn explain(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<Option<Explanation>> {
    let Some(view) = view(tx, task)? else {
        return Ok(None);
    };
    let position = tx.position(task)?.unwrap_or(Position::Arrived);
    let (reason, since) = match position {
        Position::Scheduled(run_at) => (Reason::NotDue { run_at }, Some(view.created_at)),
        Position::Arrived => (gate(tx, &view)?, None),
        Position::Line(row) => (line(tx, row)?, Some(row.since)),
        Position::Ready(row) => (ready(tx, row)?, Some(row.since)),
        Position::Running(token) => running(tx, task, token)?,
        Position::Final(_) => (Reason::Ended, view.finished_at),
    };
    let running = running_beside(tx, position)?;
    let pace = tx.pace(view.group.as_ref().unwrap_or(&view.kind))?;
    let estimate_ms = reason.ahead().and_then(|ahead| estimate_ms(ahead, pace, running));
    let paused_at = paused(tx)?.get(&view.queue).copied();
    let state = position.state();
    Ok(Some(Explanation { task, state, reason, since, paused_at, estimate_ms }))
}

/// Tasks that run and whose ends are waited for: those that hold slots of the limit, or those of
/// the lane.
fn running_beside(tx: &mut Transaction<'_, '_>, position: Position) -> Result<u64> {
    let (query, of) = match position {
        Position::Line(row) => (Query::CountRunningOfLimit, row.limit.0),
        Position::Ready(row) => (Query::CountRunningInLane, row.lane.0),
        _ => return Ok(0),
    };
    let running = tx.statements.first(query, [of], |row| row.get::<_, i64>(0))?;
    Ok(running.unwrap_or_default() as u64)
}

fn gate(tx: &mut Transaction<'_, '_>, view: &TaskView) -> Result<Reason> {
    let lane = lanes(tx)?.named(&view.queue, &view.kind);
    let is_served = lane.map_or(Ok(false), |lane| is_asked_for(tx, lane))?;
    Ok(Reason::AtGate { is_served })
}

fn is_asked_for(tx: &mut Transaction<'_, '_>, lane: LaneId) -> Result<bool> {
    let key = [lane.0, tx.now];
    Ok(tx.statements.first(Query::IsLaneOfLiveWorker, key, |row| row.get(0))?.unwrap_or_default())
}

fn line(tx: &mut Transaction<'_, '_>, row: LineRow) -> Result<Reason> {
    let limit = tx.limit(row.limit)?;
    let key = [row.limit.0, row.class as i64, row.rank, row.tag, row.place];
    let ahead = tx.statements.first(Query::CountWaitersBefore, key, |row| row.get::<_, i64>(0))?;
    Ok(Reason::InLine {
        limit: limit.as_ref().map_or_else(|| "".into(), |limit| limit.name.clone()),
        capacity: limit.as_ref().and_then(|limit| limit.capacity),
        halt: limit.as_ref().and_then(|limit| limit.halt),
        delay_ms: limit.as_ref().and_then(|limit| limit.share).map_or(0, |share| share.delay_ms),
        held: limit.map_or(0, |limit| limit.held),
        class: row.class,
        place: ahead.unwrap_or_default() as u64 + 1,
        holders: holders(tx, row.limit, HOLDERS_MAX)?,
    })
}

fn ready(tx: &mut Transaction<'_, '_>, row: ReadyRow) -> Result<Reason> {
    let is_served = is_asked_for(tx, row.lane)?;
    let key = [row.lane.0, row.rank, row.tag, row.task.0];
    let ahead = tx.statements.first(Query::CountReadyBefore, key, |row| row.get::<_, i64>(0))?;
    let lane = lanes(tx)?.get(row.lane).ok_or_else(|| unknown("lane", row.lane))?.clone();
    let window = tx.kind(&lane.kind)?.and_then(|kind| kind.window);
    let is_open = window.is_none_or(|window| window.is_open(tx.now));
    let ahead = ahead.unwrap_or_default() as u64;
    Ok(Reason::Ready { queue: lane.queue, kind: lane.kind, is_served, is_open, ahead })
}

fn running(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    token: Token,
) -> Result<(Reason, Option<Millis>)> {
    let since =
        tx.statements.first(Query::AttemptStartedAt, [token.0, task.0], |row| row.get(0))?;
    let Some(lease) = lease(tx, token)? else {
        return Ok((Reason::AtGate { is_served: true }, since));
    };
    let read = |row: &Row<'_>| Ok((LimitId(row.get(0)?), row.get(1)?));
    let held: Vec<(LimitId, u32)> = tx.statements.rows(Query::SlotNumbersOfTask, [task.0], read)?;
    let held = held.into_iter().map(|(limit, number)| slot_held(tx, limit, number));
    let slots = held.collect::<Result<_>>()?;
    let reason = Reason::Running { worker: lease.worker, expires_at: lease.expires_at, slots };
    Ok((reason, since))
}

pub(super) fn read_lease(row: &Row<'_>) -> rusqlite::Result<Lease> {
    Ok(Lease { token: Token(row.get(0)?), worker: WorkerId(row.get(1)?), expires_at: row.get(2)? })
}

fn lease(tx: &mut Transaction<'_, '_>, token: Token) -> Result<Option<Lease>> {
    tx.statements.first(Query::LeaseByToken, [token.0], read_lease)
}

/// Who holds the slots of a limit, by slot number.
pub(super) fn holders(
    tx: &mut Transaction<'_, '_>,
    limit: LimitId,
    holders_max: i64,
) -> Result<Vec<Holder>> {
    let read = |row: &Row<'_>| {
        let kind: Option<_> = row.get(2)?;
        Ok(Holder {
            slot: row.get(0)?,
            task: TaskId(row.get(1)?),
            kind: kind.unwrap_or_else(|| "".into()),
            worker: None,
            expires_at: None,
        })
    };
    let mut holders =
        tx.statements.rows(Query::SlotHoldersOfLimit, params![limit.0, holders_max], read)?;
    for holder in &mut holders {
        if let Some(Position::Running(token)) = tx.position(holder.task)?
            && let Some(lease) = lease(tx, token)?
        {
            holder.worker = Some(lease.worker);
            holder.expires_at = Some(lease.expires_at);
        }
    }
    Ok(holders)
}
