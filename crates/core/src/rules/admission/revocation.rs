//! How tasks that are through the gate and have not begun go back to the line of a limit that was
//! lowered or paused, or of a job that has got a delay.

use super::{Candidate, release_reservation, require_limit, required_limits};
use crate::rules::admit::readmit_or_put_in_inbox;
use crate::rules::claim::revoke_admission;
use crate::tables::{ReadyRow, Tables, WaitReason};
use crate::{Limit, LimitId, Millis, Result, SlotLifetime};

/// Takes admissions back while more slots of a limit are held than may be, or more tasks of a job are about
/// to begin than its delay allows, of those with the highest numbers first, for at most `budget` tasks. They
/// stand before all who had not got as far. False where some may be left: then the limit stays marked.
pub(super) fn revoke_excess_admissions(
    tables: &mut dyn Tables,
    id: LimitId,
    budget: &mut u32,
) -> Result<bool> {
    if !has_excess_admissions(tables, id)? {
        return Ok(true);
    }
    let (rows, is_all) = tables.ready_slot_holders(id, *budget)?;
    let (mut back, number) = (Vec::new(), rows.len());
    for (at, row) in rows.into_iter().enumerate() {
        // The rest has lower numbers, and one of it may stay.
        let left = if is_all { number - at } else { usize::MAX };
        let now = tables.now();
        if !tables.locked_limit(id)?.is_some_and(|limit| must_revoke_one(&limit, left, now)) {
            break;
        }
        *budget = budget.saturating_sub(1);
        revoke_admission(tables, row)?;
        back.push((row.rank, row.tag, row.task));
    }
    // Among each other they keep their order.
    back.sort_unstable();
    for (_, _, task) in back {
        readmit_or_put_in_inbox(tables, task)?;
    }
    Ok(is_all || !has_excess_admissions(tables, id)?)
}

fn has_excess_admissions(tables: &mut dyn Tables, id: LimitId) -> Result<bool> {
    let now = tables.now();
    Ok(tables.locked_limit(id)?.is_some_and(|limit| limit.has_excess_admissions(now)))
}

/// Whether one of so many ready tasks has to go back. Who waits for another limit is not among them, and
/// goes back when its turn comes there.
fn must_revoke_one(limit: &Limit, ready: usize, now: Millis) -> bool {
    let most = limit.ready_tasks_max(now).filter(|_| limit.exceeds_start_delay(now));
    limit.is_over_capacity() || most.is_some_and(|most| ready > most as usize)
}

/// Who collects slots lets go of those it has, where one is of a limit of which more are held than may
/// be: it would begin with the last of them.
pub(super) fn release_reservation_over_capacity(
    tables: &mut dyn Tables,
    candidate: &mut Candidate,
) -> Result<()> {
    if candidate.new_row.wait_reason != WaitReason::Reserving {
        return Ok(());
    }
    for i in 0..candidate.required_limits.len() {
        let need = candidate.required_limits[i];
        if need.slot_lifetime == SlotLifetime::Attempt
            && need.is_held
            && require_limit(tables, need.limit)?.is_over_capacity()
        {
            return release_reservation(tables, candidate);
        }
    }
    Ok(())
}

/// Whether a ready task has to go back to the line of one of its limits, and nobody has come to it yet.
pub fn is_revocation_pending(tables: &mut dyn Tables, row: ReadyRow) -> Result<bool> {
    let Some(tags) = tables.task_info(row.task)?.filter(|_| row.holds_slots) else {
        return Ok(false);
    };
    let now = tables.now();
    for need in required_limits(tables, &tags)? {
        if tables
            .locked_limit(need.limit)?
            .is_some_and(|limit| limit.dirty && limit.has_excess_admissions(now))
        {
            return Ok(true);
        }
    }
    Ok(false)
}
