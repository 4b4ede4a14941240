use super::gate::{self, Verdict};
use crate::bounds::{GATE_STEP, JOB_WINDOW};
use crate::planted::{Bug, is_planted};
use crate::tables::{ReadyRow, Tables, Tags};
use crate::{Admitted, LimitId, Result, TaskId, ready_rank};

/// Lets what waits at the gate through, one bounded step.
pub fn admit(tables: &mut dyn Tables) -> Result<Admitted> {
    let mut budget = tables.gate_budget();
    step(tables, &mut budget)
}

/// Looks at lines that may have room, then at what is due and what arrived.
pub(super) fn step(tables: &mut dyn Tables, budget: &mut u32) -> Result<Admitted> {
    let mut admitted = Admitted { more: gate::settle(tables, budget)?, ..Admitted::default() };
    let due = tables.take_due(*budget)?;
    *budget -= (due.len() as u32).min(*budget);
    let mut arrived = tables.take_arrived(*budget)?;
    *budget -= (arrived.len() as u32).min(*budget);
    admitted.more |= *budget == 0;
    if *budget == 0 && !arrived.is_empty() {
        arrived.extend(take_of_jobs(tables)?);
    }
    for task in due.into_iter().chain(arrived) {
        if is_planted(Bug::RetryPastGate) && skip_gate(tables, task)? {
            continue;
        }
        match bring(tables, task)? {
            Verdict::Ready => admitted.ready += 1,
            Verdict::Parked => admitted.parked += 1,
            Verdict::Unlocked(_) => admitted.more = true,
        }
    }
    admitted.more |= tables.next_dirty(LimitId(0))?.is_some() && gate::settle(tables, budget)?;
    Ok(admitted)
}

/// Takes some tasks of every job away from the gate, where more have arrived than one step looks at: a
/// job's share does not depend on how many tasks of others came before its own. As many as may
/// pass a job's line at once will do. A step of a workflow waits for its turn, as always: it must not
/// overtake the one before it.
fn take_of_jobs(tables: &mut dyn Tables) -> Result<Vec<TaskId>> {
    let jobs = tables.arrived_jobs(GATE_STEP)?;
    let each = (GATE_STEP / (jobs.len() as u32).max(1)).min(JOB_WINDOW);
    let mut taken = Vec::new();
    for job in jobs {
        taken.extend(tables.arrived_of(&job, each)?);
    }
    taken.sort_unstable();
    taken.iter().try_for_each(|task| tables.take_arrived_one(*task))?;
    Ok(taken)
}

/// The bug: what was tried before is ready without asking anybody.
fn skip_gate(tables: &mut dyn Tables, task: TaskId) -> Result<bool> {
    let Some(tags) = tables.tags(task)?.filter(|tags| tags.spent > 0) else {
        return Ok(false);
    };
    let counters = tables.counters()?;
    let since = tables.now();
    tables.put_ready(ReadyRow {
        lane: tags.lane,
        rank: ready_rank(since, tags.priority),
        tag: counters.virtual_time,
        task,
        stamp: counters.limits_version,
        gated: false,
        since,
    })?;
    Ok(true)
}

/// Brings a task that stands nowhere to the gate, or leaves it there for the next step.
pub(super) fn bring(tables: &mut dyn Tables, task: TaskId) -> Result<Verdict> {
    bring_by(tables, task, gate::arrive)
}

/// The same with a task that had its turn and lost it. Left for the next step, it keeps its rank
/// and no more.
pub(super) fn bring_back(tables: &mut dyn Tables, task: TaskId) -> Result<Verdict> {
    bring_by(tables, task, gate::come_back)
}

fn bring_by(
    tables: &mut dyn Tables,
    task: TaskId,
    enter: fn(&mut dyn Tables, &Tags) -> Result<Verdict>,
) -> Result<Verdict> {
    let Some(tags) = tables.tags(task)? else {
        return Ok(Verdict::Parked);
    };
    let verdict = enter(tables, &tags)?;
    if let Verdict::Unlocked(_) = verdict {
        tables.put_arrived(task)?;
    }
    Ok(verdict)
}
