use super::admission;
use super::finish::{apply_transition, kind_of_task};
use crate::tables::{Position, Tables};
use crate::{ReleaseOutcome, ReleaseSlot, Result, SlotLifetime, transition_after_slot_release};

/// Takes a slot away from the attempt that holds it. The way out is the one of every attempt, so
/// all its slots are handed on.
pub fn release_slot(tables: &mut dyn Tables, release: &ReleaseSlot) -> Result<ReleaseOutcome> {
    let Some(id) = tables.limit_id(&release.limit)? else {
        return Ok(ReleaseOutcome::LimitNotFound);
    };
    let (Some(limit), Some(task)) =
        (tables.locked_limit(id)?, tables.slot_holder(id, release.slot)?)
    else {
        return Ok(ReleaseOutcome::SlotFree);
    };
    if limit.scope().slot_lifetime() == SlotLifetime::Task {
        return Ok(ReleaseOutcome::HeldByTask(task));
    }
    let Some(Position::Running(token)) = tables.position(task)? else {
        return Ok(ReleaseOutcome::NotRunning(task));
    };
    let (Some(stopped), Some(tags)) =
        (tables.remove_running(task, token)?, tables.task_info(task)?)
    else {
        return Ok(ReleaseOutcome::SlotFree);
    };
    tables.insert_fenced_attempt(task, token)?;
    let (kind, now) = (kind_of_task(tables, &tags)?, tables.now());
    apply_transition(tables, &tags, &kind, stopped, |ledger| {
        transition_after_slot_release(ledger, now)
    })?;
    tables.delete_empty_leases(&[token])?;
    let mut budget = tables.admission_budget();
    admission::admit_from_dirty_limits(tables, &mut budget)?;
    Ok(ReleaseOutcome::Released(task))
}
