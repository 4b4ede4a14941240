use super::gate::{self, Verdict};
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
    let arrived = tables.take_arrived(*budget)?;
    *budget -= (arrived.len() as u32).min(*budget);
    admitted.more |= *budget == 0;
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
