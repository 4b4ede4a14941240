use super::admission;
use crate::tables::Tables;
use crate::{
    CapacitySource, Error, ErrorKind, LimitId, LimitScope, PauseCause, PauseTarget, Result,
    SetPaused, name,
};

/// Checks what can be checked without a store.
pub fn check_set_paused(set: &SetPaused) -> Result<()> {
    match &set.target {
        PauseTarget::Queue(of) => name::check("queue", of),
        PauseTarget::Job(of) => name::check("job", of),
        PauseTarget::Workflow(of) => name::check("workflow", of),
    }
}

/// Pauses something or lets it go on.
pub fn set_paused(tables: &mut dyn Tables, set: &SetPaused) -> Result<bool> {
    check_set_paused(set)?;
    match &set.target {
        PauseTarget::Queue(queue) => set_queue_paused(tables, queue, set.paused),
        PauseTarget::Job(job) => {
            let Some(id) = tables.limit_id(&LimitScope::Job.limit_name(job))? else {
                return Err(job_not_found(job));
            };
            set_limit_paused(tables, id, set.paused)
        }
        PauseTarget::Workflow(workflow) => {
            let name = LimitScope::Workflow.limit_name(workflow);
            let id = match tables.limit_id(&name)? {
                Some(id) => id,
                None if set.paused => {
                    tables.insert_limit(&name, Some(1), CapacitySource::Unset, 0, None)?
                }
                None => return Ok(false),
            };
            set_limit_paused(tables, id, set.paused)
        }
    }
}

/// The error for a job that nobody made known.
pub fn job_not_found(job: &str) -> Error {
    let text = format!("there is no job {job:?}; a job is made by its first submit");
    Error::new(ErrorKind::NotFound, text)
}

/// The lanes of a paused queue are closed to claims, so what it has admitted and not started gives
/// its slots back after a lease, as where no worker serves it.
fn set_queue_paused(tables: &mut dyn Tables, queue: &str, paused: bool) -> Result<bool> {
    let changes = tables.is_queue_paused(queue)? != paused;
    if changes {
        tables.set_queue_paused(queue, paused)?;
        // Who waits for work looks again.
        tables.notify_workers_on_commit();
    }
    Ok(changes)
}

/// A workflow that a failed step has halted stays halted by that step.
fn set_limit_paused(tables: &mut dyn Tables, id: LimitId, paused: bool) -> Result<bool> {
    let Some(mut limit) = tables.locked_limit(id)? else {
        return Ok(false);
    };
    let changes = limit.paused_by.is_some() != paused;
    if changes {
        limit.paused_by = paused.then_some(PauseCause::Operator);
        limit.mark_dirty_after_change();
        tables.put_limit(&limit)?;
        let mut budget = tables.admission_budget();
        admission::admit_from_dirty_limits(tables, &mut budget)?;
    }
    Ok(changes)
}
