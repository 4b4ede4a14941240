//! Tasks that collect their slots one after another, and how somebody gives way.

use super::{
    Admission, Candidate, acquire_slots, enter_window, free_held_slots, is_first_in_queue,
    make_ready, may_enter_window, park, require_limit,
};
use crate::tables::{Tables, WaitReason};
use crate::{LimitId, Result, SlotLifetime};

/// Collects the attempt slots in ascending order of limit and keeps each while waiting for
/// the next. Only the holder of the seat of the lowest limit may do so, and slots are always
/// collected upwards, so no two reservers wait for each other.
pub(super) fn reserve_slots(
    tables: &mut dyn Tables,
    mut candidate: Candidate,
) -> Result<Admission> {
    if let Some(paused) = paused_required_limit(tables, &candidate)? {
        // It would keep the slots it has for as long as the pause lasts.
        release_reservation(tables, &mut candidate)?;
        candidate.new_row.wait_reason = WaitReason::Queued;
        return park(tables, candidate, paused, WaitReason::Queued);
    }
    if let Some(job) = closed_job_window(tables, &candidate)? {
        // Those in the window may wait for the very slots it would keep.
        release_reservation(tables, &mut candidate)?;
        candidate.new_row.wait_reason = WaitReason::Queued;
        return park(tables, candidate, job, WaitReason::Queued);
    }
    let mut ascending: Vec<usize> = (0..candidate.required_limits.len())
        .filter(|i| candidate.required_limits[*i].slot_lifetime == SlotLifetime::Attempt)
        .collect();
    ascending.sort_by_key(|i| candidate.required_limits[*i].limit);
    let seat = candidate.required_limits[ascending[0]].limit;
    let mut limit = require_limit(tables, seat)?;
    if limit.reserving_task.is_some_and(|task| task != candidate.task) {
        return park(tables, candidate, seat, WaitReason::WaitingToReserve);
    }
    if limit.reserving_task.is_none() {
        limit.reserving_task = Some(candidate.task);
        tables.put_limit(&limit)?;
    }
    candidate.new_row.wait_reason = WaitReason::Reserving;
    for i in ascending {
        let need = candidate.required_limits[i];
        if need.is_held {
            continue;
        }
        let limit = require_limit(tables, need.limit)?;
        if !limit.has_free_slots(need.weight)
            || !is_first_in_queue(tables, &candidate, need, &limit)?
        {
            return park(tables, candidate, need.limit, WaitReason::Reserving);
        }
        enter_window(tables, &mut candidate, limit)?;
        acquire_slots(tables, &mut candidate, i)?;
    }
    make_ready(tables, candidate)
}

/// An attempt limit the task still needs that lets nobody through.
fn paused_required_limit(
    tables: &mut dyn Tables,
    candidate: &Candidate,
) -> Result<Option<LimitId>> {
    for need in &candidate.required_limits {
        if need.slot_lifetime == SlotLifetime::Attempt
            && !need.is_held
            && require_limit(tables, need.limit)?.is_paused()
        {
            return Ok(Some(need.limit));
        }
    }
    Ok(None)
}

/// The job whose line the task has not passed and may not pass now.
fn closed_job_window(tables: &mut dyn Tables, candidate: &Candidate) -> Result<Option<LimitId>> {
    if candidate.new_row.in_job_window {
        return Ok(None);
    }
    for need in candidate.required_limits.iter().filter(|need| !need.is_held) {
        let limit = require_limit(tables, need.limit)?;
        if !may_enter_window(tables, &limit)? {
            return Ok(Some(need.limit));
        }
    }
    Ok(None)
}

/// A reserver that cannot go on lets go of its slots and its seat.
pub(super) fn release_reservation(
    tables: &mut dyn Tables,
    candidate: &mut Candidate,
) -> Result<()> {
    for i in 0..candidate.required_limits.len() {
        let need = candidate.required_limits[i];
        let mut limit = require_limit(tables, need.limit)?;
        if need.slot_lifetime == SlotLifetime::Attempt && need.is_held {
            free_held_slots(tables, candidate.task, &mut limit)?;
            candidate.required_limits[i].is_held = false;
        }
        if limit.reserving_task == Some(candidate.task) {
            limit.reserving_task = None;
            limit.mark_dirty_if_waiting();
        }
        tables.put_limit(&limit)?;
    }
    Ok(())
}
