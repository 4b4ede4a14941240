//! A job's own line: who may pass it, with which turn among those of other jobs.

use super::{Waiter, arrive, give_back, leave_line, locked, needs, release, unlocked, unpark};
use crate::order::TAG_OF_RETURN;
use crate::tables::{Class, Position, ReadyRow, Tables};
use crate::{Limit, LimitId, RANK_RESERVED, Result, Share, ready_rank};

/// Notes that a ready task of a job was claimed: the next may pass the job's line.
pub fn claimed(tables: &mut dyn Tables, job_limit: LimitId) -> Result<()> {
    let mut limit = locked(tables, job_limit)?;
    if let Some(share) = &mut limit.share {
        share.start(tables.now());
    }
    limit.disturb();
    tables.put_limit(&limit)
}

/// Whether one more task may pass the line of a job.
pub(super) fn may_pass(tables: &mut dyn Tables, limit: &Limit) -> Result<bool> {
    // Asked for only where it makes a difference.
    let lowest_free = match limit.is_reserved(0) {
        true => tables.lowest_free_slot(limit.id)?,
        false => u32::MAX,
    };
    Ok(limit.may_pass(tables.job_window(), tables.now(), lowest_free))
}

/// Whether the slot that a task of the job would get now is one of the job's reserve.
fn gets_reserve(tables: &mut dyn Tables, limit: &Limit) -> Result<bool> {
    Ok(limit.is_reserved(0) && limit.is_reserved(tables.lowest_free_slot(limit.id)?))
}

/// A task that passed its job's line goes back to it and passes anew, where more are past it than the
/// job's delay allows; or where the task was to get a slot of the job's reserve and others of the job have them
/// all: it is one like any other again.
pub(super) fn fall_back(tables: &mut dyn Tables, waiter: &mut Waiter) -> Result<()> {
    if !waiter.row.passed {
        return Ok(());
    }
    for i in 0..waiter.needs.len() {
        let limit = locked(tables, waiter.needs[i].limit)?;
        let is_refused = waiter.rank == RANK_RESERVED
            && limit.share.is_some()
            && !waiter.needs[i].taken
            && !gets_reserve(tables, &limit)?;
        if !is_refused && !limit.is_hasty(tables.now()) {
            continue;
        }
        // Its place in the line was that of another rank.
        give_back(tables, waiter)?;
        leave_line(tables, waiter)?;
        waiter.at = None;
        waiter.row.class = Class::Waiting;
        return make_way(tables, waiter);
    }
    Ok(())
}

/// Gives a slot of a job's reserve to a task that is past the job's line without the rank for it: one that
/// is ready and has such a slot from before it was of the reserve; or, where one is free and nobody
/// stands in the line who would get it, the next, as the last tasks of a job are as much of its work as the
/// first. It passes anew. Says whether there was one.
pub(super) fn promote(tables: &mut dyn Tables, limit: &Limit) -> Result<bool> {
    if !limit.is_reserved(0) || limit.share.is_none_or(|share| share.ahead == 0) {
        return Ok(false);
    }
    let position = match unranked(tables, limit)? {
        Some(row) => Some(Position::Ready(row)),
        None if limit.waiting > limit.aside => None,
        None if !limit.fits(1) || !gets_reserve(tables, limit)? => None,
        None => tables.first_ahead(limit.id)?,
    };
    let Some(position) = position else {
        return Ok(false);
    };
    let task = match position {
        Position::Ready(row) => row.task,
        Position::Line(row) => row.task,
        _ => return Ok(false),
    };
    let Some(tags) = tables.tags(task)? else {
        return Ok(false);
    };
    let needs = needs(tables, &tags)?;
    if unlocked(tables, &needs)?.is_some() {
        return Ok(false);
    }
    match position {
        Position::Ready(row) => tables.take_ready(row)?,
        Position::Line(row) => unpark(tables, row)?,
        _ => {}
    }
    release(tables, &tags, false, true)?;
    arrive(tables, &tags)?;
    Ok(true)
}

/// A ready task with a slot of its job's reserve and without the rank.
fn unranked(tables: &mut dyn Tables, limit: &Limit) -> Result<Option<ReadyRow>> {
    let (mut rows, _) = tables.ready_holders(limit.id, tables.job_window())?;
    rows.retain(|row| row.rank != RANK_RESERVED);
    let reserve = limit.share.map_or(0, |share| share.min_concurrency);
    for number in (0..reserve).take_while(|_| !rows.is_empty()) {
        let holder = tables.holder(limit.id, number)?;
        if let Some(row) = rows.iter().find(|row| Some(row.task) == holder) {
            return Ok(Some(*row));
        }
    }
    Ok(None)
}

/// Gives a task its fair tag as it passes its job's line.
pub(super) fn pass(tables: &mut dyn Tables, waiter: &mut Waiter, mut limit: Limit) -> Result<()> {
    let Some(share) = &mut limit.share else {
        return Ok(());
    };
    if waiter.row.passed {
        return Ok(());
    }
    let tag = share.pass(tables.counters()?.virtual_time);
    waiter.row.passed = true;
    // Who came back passed before, and keeps the rank and the turn it had.
    if waiter.row.tag != TAG_OF_RETURN {
        waiter.row.tag = tag;
        waiter.rank += ready_rank(tables.now(), 0) - ready_rank(waiter.row.since, 0);
    }
    waiter.rank -= i64::from(share.priority);
    if gets_reserve(tables, &limit)? {
        waiter.rank = RANK_RESERVED;
    }
    // Who reserves behind the last one to pass has slots to give back.
    if limit.is_window_full(tables.job_window()) {
        limit.disturb();
    }
    tables.put_limit(&limit)
}

/// Takes a task that has not started out of its job's window. False where the limit is not a
/// job's.
pub(super) fn leave_window(limit: &mut Limit) -> bool {
    limit.share.as_mut().map(Share::step_back).is_some()
}

/// The task has not passed its job's line any more.
pub(super) fn step_back(waiter: &mut Waiter) {
    waiter.row.passed = false;
    waiter.row.tag = 0;
    waiter.rank = waiter.arrival_rank;
}

/// A task that is set aside until somebody changes a limit gives up its place in its job's
/// window; a window full of them would stop the whole job.
pub(super) fn make_way(tables: &mut dyn Tables, waiter: &mut Waiter) -> Result<()> {
    if !waiter.row.passed {
        return Ok(());
    }
    step_back(waiter);
    for need in &waiter.needs {
        let mut limit = locked(tables, need.limit)?;
        if leave_window(&mut limit) {
            limit.disturb();
            tables.put_limit(&limit)?;
        }
    }
    Ok(())
}
