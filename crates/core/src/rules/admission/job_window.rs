//! A job's own line: who may pass it, with which turn among those of other jobs.

use super::{
    Candidate, admit_new, first_unlocked_limit, leave_queue, release_reservation,
    release_task_slots, require_limit, required_limits, unpark,
};
use crate::ranking::RETURNED_TASK_TAG;
use crate::tables::{Position, ReadyRow, Tables, WaitReason};
use crate::{FairShare, GUARANTEED_SLOT_RANK, Limit, LimitId, Result, ready_rank};

/// Notes that a ready task of a job was claimed: the next may pass the job's line.
pub fn record_job_claim(tables: &mut dyn Tables, job_limit: LimitId) -> Result<()> {
    let mut limit = require_limit(tables, job_limit)?;
    if let Some(share) = &mut limit.fair_share {
        share.record_claim(tables.now());
    }
    limit.mark_dirty_if_waiting();
    tables.put_limit(&limit)
}

/// Whether one more task may pass the line of a job.
pub(super) fn may_enter_window(tables: &mut dyn Tables, limit: &Limit) -> Result<bool> {
    // Asked for only where it makes a difference.
    let lowest_free = match limit.is_guaranteed_slot(0) {
        true => tables.lowest_free_slot(limit.id)?,
        false => u32::MAX,
    };
    Ok(limit.may_enter_window(tables.job_window_size(), tables.now(), lowest_free))
}

/// Whether the slot that a task of the job would get now is one of the job's reserve.
fn gets_guaranteed_slot(tables: &mut dyn Tables, limit: &Limit) -> Result<bool> {
    Ok(limit.is_guaranteed_slot(0) && limit.is_guaranteed_slot(tables.lowest_free_slot(limit.id)?))
}

/// A task that passed its job's line goes back to it and passes anew, where more are past it than the
/// job's delay allows; or where the task was to get a slot of the job's reserve and others of the job have them
/// all: it is one like any other again.
pub(super) fn requeue_in_job(tables: &mut dyn Tables, candidate: &mut Candidate) -> Result<()> {
    if !candidate.new_row.in_job_window {
        return Ok(());
    }
    for i in 0..candidate.required_limits.len() {
        let limit = require_limit(tables, candidate.required_limits[i].limit)?;
        let is_refused = candidate.rank == GUARANTEED_SLOT_RANK
            && limit.fair_share.is_some()
            && !candidate.required_limits[i].is_held
            && !gets_guaranteed_slot(tables, &limit)?;
        if !is_refused && !limit.exceeds_start_delay(tables.now()) {
            continue;
        }
        // Its place in the line was that of another rank.
        release_reservation(tables, candidate)?;
        leave_queue(tables, candidate)?;
        candidate.current_row = None;
        candidate.new_row.wait_reason = WaitReason::Queued;
        return leave_job_window(tables, candidate);
    }
    Ok(())
}

/// Gives a slot of a job's reserve to a task that is past the job's line without the rank for it: one that
/// is ready and has such a slot from before it was of the reserve; or, where one is free and nobody
/// stands in the line who would get it, the next, as the last tasks of a job are as much of its work as the
/// first. It passes anew. Says whether there was one.
pub(super) fn promote_to_guaranteed_slot(tables: &mut dyn Tables, limit: &Limit) -> Result<bool> {
    if !limit.is_guaranteed_slot(0) || limit.fair_share.is_none_or(|share| share.in_window == 0) {
        return Ok(false);
    }
    let position = match ready_without_guaranteed_rank(tables, limit)? {
        Some(row) => Some(Position::Ready(row)),
        None if limit.waiting > limit.skipped => None,
        None if !limit.has_free_slots(1) || !gets_guaranteed_slot(tables, limit)? => None,
        None => tables.first_unguaranteed_in_window(limit.id)?,
    };
    let Some(position) = position else {
        return Ok(false);
    };
    let task = match position {
        Position::Ready(row) => row.task,
        Position::Waiting(row) => row.task,
        _ => return Ok(false),
    };
    let Some(tags) = tables.task_info(task)? else {
        return Ok(false);
    };
    let needs = required_limits(tables, &tags)?;
    if first_unlocked_limit(tables, &needs)?.is_some() {
        return Ok(false);
    }
    match position {
        Position::Ready(row) => tables.remove_ready(row)?,
        Position::Waiting(row) => unpark(tables, row)?,
        _ => {}
    }
    release_task_slots(tables, &tags, false, true)?;
    admit_new(tables, &tags)?;
    Ok(true)
}

/// A ready task with a slot of its job's reserve and without the rank.
fn ready_without_guaranteed_rank(
    tables: &mut dyn Tables,
    limit: &Limit,
) -> Result<Option<ReadyRow>> {
    let (mut rows, _) = tables.ready_slot_holders(limit.id, tables.job_window_size())?;
    rows.retain(|row| row.rank != GUARANTEED_SLOT_RANK);
    let reserve = limit.fair_share.map_or(0, |share| share.min_concurrency);
    for number in (0..reserve).take_while(|_| !rows.is_empty()) {
        let holder = tables.slot_holder(limit.id, number)?;
        if let Some(row) = rows.iter().find(|row| Some(row.task) == holder) {
            return Ok(Some(*row));
        }
    }
    Ok(None)
}

/// Gives a task its fair tag as it passes its job's line.
pub(super) fn enter_window(
    tables: &mut dyn Tables,
    candidate: &mut Candidate,
    mut limit: Limit,
) -> Result<()> {
    let Some(share) = &mut limit.fair_share else {
        return Ok(());
    };
    if candidate.new_row.in_job_window {
        return Ok(());
    }
    let tag = share.enter_window(tables.counters()?.virtual_time);
    candidate.new_row.in_job_window = true;
    // Who came back passed before, and keeps the rank and the turn it had.
    if candidate.new_row.tag != RETURNED_TASK_TAG {
        candidate.new_row.tag = tag;
        candidate.rank += ready_rank(tables.now(), 0) - ready_rank(candidate.new_row.due_at, 0);
    }
    candidate.rank -= i64::from(share.priority);
    if gets_guaranteed_slot(tables, &limit)? {
        candidate.rank = GUARANTEED_SLOT_RANK;
    }
    // Who reserves behind the last one to pass has slots to give back.
    if limit.is_window_full(tables.job_window_size()) {
        limit.mark_dirty_if_waiting();
    }
    tables.put_limit(&limit)
}

/// Takes a task that has not started out of its job's window. False where the limit is not a
/// job's.
pub(super) fn remove_from_job_window(limit: &mut Limit) -> bool {
    limit.fair_share.as_mut().map(FairShare::leave_window_unclaimed).is_some()
}

/// The task has not passed its job's line any more.
pub(super) fn clear_window_entry(candidate: &mut Candidate) {
    candidate.new_row.in_job_window = false;
    candidate.new_row.tag = 0;
    candidate.rank = candidate.due_rank;
}

/// A task that is set aside until somebody changes a limit gives up its place in its job's
/// window; a window full of them would stop the whole job.
pub(super) fn leave_job_window(tables: &mut dyn Tables, candidate: &mut Candidate) -> Result<()> {
    if !candidate.new_row.in_job_window {
        return Ok(());
    }
    clear_window_entry(candidate);
    for need in &candidate.required_limits {
        let mut limit = require_limit(tables, need.limit)?;
        if remove_from_job_window(&mut limit) {
            limit.mark_dirty_if_waiting();
            tables.put_limit(&limit)?;
        }
    }
    Ok(())
}
