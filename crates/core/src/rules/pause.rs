use super::gate;
use crate::tables::Tables;
use crate::{Error, ErrorKind, Halt, LimitId, Pausable, Pause, Result, Scope, Source, name};

/// Checks what can be checked without a store.
pub fn check_pause(pause: &Pause) -> Result<()> {
    match &pause.what {
        Pausable::Queue(of) => name::check("queue", of),
        Pausable::Job(of) => name::check("job", of),
        Pausable::Workflow(of) => name::check("workflow", of),
    }
}

/// Pauses something or lets it go on.
pub fn pause(tables: &mut dyn Tables, pause: &Pause) -> Result<bool> {
    check_pause(pause)?;
    match &pause.what {
        Pausable::Queue(queue) => pause_queue(tables, queue, pause.paused),
        Pausable::Job(job) => {
            let Some(id) = tables.limit_named(&Scope::Job.name(job))? else {
                return Err(no_job(job));
            };
            halt(tables, id, pause.paused)
        }
        Pausable::Workflow(workflow) => {
            let name = Scope::Workflow.name(workflow);
            let id = match tables.limit_named(&name)? {
                Some(id) => id,
                None if pause.paused => {
                    tables.make_limit(&name, Some(1), Source::Unset, 0, None)?
                }
                None => return Ok(false),
            };
            halt(tables, id, pause.paused)
        }
    }
}

/// The error for a job that nobody made known.
pub fn no_job(job: &str) -> Error {
    let text = format!("there is no job {job:?}; a job is made by its first submit");
    Error::new(ErrorKind::NotFound, text)
}

/// The lanes of a paused queue are closed to claims, so what it has admitted and not started gives
/// its slots back after a lease, as where no worker serves it.
fn pause_queue(tables: &mut dyn Tables, queue: &str, paused: bool) -> Result<bool> {
    let changes = tables.is_paused(queue)? != paused;
    if changes {
        tables.set_paused(queue, paused)?;
        // Who waits for work looks again.
        tables.leave_more();
    }
    Ok(changes)
}

/// A workflow that a failed step has halted stays halted by that step.
fn halt(tables: &mut dyn Tables, id: LimitId, paused: bool) -> Result<bool> {
    let Some(mut limit) = tables.limit(id)? else {
        return Ok(false);
    };
    let changes = limit.halt.is_some() != paused;
    if changes {
        limit.halt = paused.then_some(Halt::Operator);
        limit.changed();
        tables.put_limit(&limit)?;
        let mut budget = tables.gate_budget();
        gate::settle(tables, &mut budget)?;
    }
    Ok(changes)
}
