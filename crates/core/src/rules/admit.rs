use super::admission::{self, Admission};
use crate::bounds::{ADMISSION_BATCH_MAX, JOB_WINDOW_SIZE};
use crate::fault_injection::{InjectedBug, is_injected};
use crate::tables::{ReadyRow, Tables, TaskInfo};
use crate::{AdmitReply, LimitId, Result, TaskId, ready_rank};

/// Lets what waits at the gate through, one bounded step.
pub fn admit(tables: &mut dyn Tables) -> Result<AdmitReply> {
    let mut budget = tables.admission_budget();
    admit_pending(tables, &mut budget)
}

/// Looks at lines that may have room, then at what is due and what arrived.
pub(super) fn admit_pending(tables: &mut dyn Tables, budget: &mut u32) -> Result<AdmitReply> {
    let mut admitted = AdmitReply {
        has_more: admission::admit_from_dirty_limits(tables, budget)?,
        ..AdmitReply::default()
    };
    let due = tables.take_due(*budget)?;
    *budget -= (due.len() as u32).min(*budget);
    let mut arrived = tables.take_inbox(*budget)?;
    *budget -= (arrived.len() as u32).min(*budget);
    admitted.has_more |= *budget == 0;
    if *budget == 0 && !arrived.is_empty() {
        arrived.extend(take_inbox_of_jobs(tables)?);
    }
    for task in due.into_iter().chain(arrived) {
        if is_injected(InjectedBug::RetrySkipsAdmission) && skip_admission(tables, task)? {
            continue;
        }
        match admit_or_put_in_inbox(tables, task)? {
            Admission::Ready => admitted.ready += 1,
            Admission::Parked => admitted.parked += 1,
            Admission::LimitNotLocked(_) => admitted.has_more = true,
        }
    }
    admitted.has_more |= tables.next_limit_to_recheck(LimitId(0))?.is_some()
        && admission::admit_from_dirty_limits(tables, budget)?;
    Ok(admitted)
}

/// Takes some tasks of every job away from the gate, where more have arrived than one step looks at: a
/// job's share does not depend on how many tasks of others came before its own. As many as may
/// pass a job's line at once will do. A step of a workflow waits for its turn, as always: it must not
/// overtake the one before it.
fn take_inbox_of_jobs(tables: &mut dyn Tables) -> Result<Vec<TaskId>> {
    let jobs = tables.inbox_jobs(ADMISSION_BATCH_MAX)?;
    let each = (ADMISSION_BATCH_MAX / (jobs.len() as u32).max(1)).min(JOB_WINDOW_SIZE);
    let mut taken = Vec::new();
    for job in jobs {
        taken.extend(tables.inbox_tasks_of_job(&job, each)?);
    }
    taken.sort_unstable();
    taken.iter().try_for_each(|task| tables.remove_inbox(*task))?;
    Ok(taken)
}

/// The bug: what was tried before is ready without asking anybody.
fn skip_admission(tables: &mut dyn Tables, task: TaskId) -> Result<bool> {
    let Some(tags) = tables.task_info(task)?.filter(|tags| tags.attempts_used > 0) else {
        return Ok(false);
    };
    let counters = tables.counters()?;
    let since = tables.now();
    tables.put_ready(ReadyRow {
        lane: tags.lane,
        rank: ready_rank(since, tags.priority),
        tag: counters.virtual_time,
        task,
        limits_version: counters.limits_version,
        holds_slots: false,
        ready_at: since,
    })?;
    Ok(true)
}

/// Brings a task that stands nowhere to the gate, or leaves it there for the next step.
pub(super) fn admit_or_put_in_inbox(tables: &mut dyn Tables, task: TaskId) -> Result<Admission> {
    try_or_put_in_inbox(tables, task, admission::admit_new)
}

/// The same with a task that had its turn and lost it. Left for the next step, it keeps its rank
/// and no more.
pub(super) fn readmit_or_put_in_inbox(tables: &mut dyn Tables, task: TaskId) -> Result<Admission> {
    try_or_put_in_inbox(tables, task, admission::admit_returned)
}

fn try_or_put_in_inbox(
    tables: &mut dyn Tables,
    task: TaskId,
    admit: fn(&mut dyn Tables, &TaskInfo) -> Result<Admission>,
) -> Result<Admission> {
    let Some(tags) = tables.task_info(task)? else {
        return Ok(Admission::Parked);
    };
    let verdict = admit(tables, &tags)?;
    if let Admission::LimitNotLocked(_) = verdict {
        tables.put_inbox(task)?;
    }
    Ok(verdict)
}
