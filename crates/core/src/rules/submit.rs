use super::set_limit::set_without_settling;
use crate::bounds::{BATCH_MAX, SUBMIT_TASKS_MAX, check_number};
use crate::tables::{Position, ReadyRow, Tables};
use crate::{
    Error, ErrorKind, JobSpec, Kind, LaneId, NewTask, Result, Scope, SetLimit, Source, Submission,
    Submitted, TaskId, Token, check_capacity, name, ready_rank,
};

/// Checks what can be checked without a store. Comes before any write.
pub fn check_submission(submission: &Submission, payload_bytes_max: usize) -> Result<()> {
    check_number("tasks", submission.tasks.len(), SUBMIT_TASKS_MAX)?;
    check_number("jobs", submission.jobs.len(), BATCH_MAX)?;
    check_number("limits", submission.limits.len(), BATCH_MAX)?;
    submission.jobs.iter().try_for_each(JobSpec::check)?;
    for (group, capacity) in &submission.limits {
        name::check("group", group)?;
        check_capacity(&Scope::Group.name(group), i64::from(*capacity))?;
    }
    submission.tasks.iter().try_for_each(|task| task.check(payload_bytes_max))
}

/// Stores tasks. It only inserts, and locks nothing that claim or finish needs.
pub fn submit(tables: &mut dyn Tables, submission: &Submission) -> Result<Vec<Submitted>> {
    // Refusals come before the first write, so that a refused submission leaves no trace.
    if let Some((task, token)) = submission.on_behalf_of {
        refuse_stopped(tables, task, token)?;
    }
    for task in &submission.tasks {
        refuse_too_heavy(tables, task, &submission.limits)?;
    }
    for (group, capacity) in &submission.limits {
        set_if_unset(tables, group, *capacity)?;
    }
    for job in &submission.jobs {
        make_job(tables, job)?;
    }
    submission.tasks.iter().map(|task| submit_one(tables, task)).collect()
}

fn refuse_stopped(tables: &mut dyn Tables, task: TaskId, token: Token) -> Result<()> {
    match tables.position(task)? {
        Some(Position::Running(running)) if running == token => Ok(()),
        _ => Err(stopped(task, token)),
    }
}

/// What an attempt is told that submits and does not run any more.
pub fn stopped(task: TaskId, token: Token) -> Error {
    let text = format!(
        "nothing was stored: the attempt at task {task} with token {token} has lost its lease and the \
         task runs elsewhere, or it has ended; stop the handler"
    );
    Error::new(ErrorKind::NotFound, text)
}

/// Sets a limit that tasks bring along. Nobody is let through here: what a change may have made
/// room for is marked, and whoever claims next looks.
fn set_if_unset(tables: &mut dyn Tables, group: &str, capacity: u32) -> Result<()> {
    let name = Scope::Group.name(group);
    let set = SetLimit { name, capacity: Some(capacity), source: Source::Submit };
    set_without_settling(tables, &set).map(drop)
}

fn make_job(tables: &mut dyn Tables, job: &JobSpec) -> Result<()> {
    let name = Scope::Job.name(&job.name);
    if tables.limit_named(&name)?.is_none() {
        tables.make_limit(&name, job.concurrency, Source::Submit, 0, Some(job.share()))?;
    }
    Ok(())
}

fn submit_one(tables: &mut dyn Tables, task: &NewTask) -> Result<Submitted> {
    if let Some(key) = &task.unique_key
        && let Some(task) = tables.unique(key)?
    {
        return Ok(Submitted { task, is_new: false });
    }
    let lane = lane_of(tables, task)?;
    let gated = is_gated(tables, task)?;
    let id = tables.insert_task(task, lane)?;
    let run_at = task.run_at.filter(|run_at| *run_at > tables.now());
    // A step of a workflow takes its turn at once, whenever it is due: it is not overtaken.
    if let (Some(run_at), None) = (run_at, &task.workflow) {
        tables.put_scheduled(id, run_at)?;
    } else if gated {
        tables.put_arrived(id)?;
    } else {
        put_ready(tables, task, id, lane)?;
    }
    Ok(Submitted { task: id, is_new: true })
}

fn lane_of(tables: &mut dyn Tables, task: &NewTask) -> Result<LaneId> {
    let queue = match (&task.queue, tables.kind(&task.kind)?) {
        (Some(queue), Some(_)) => queue.as_str().into(),
        (None, Some(kind)) => kind.queue.clone(),
        (queue, None) => {
            let kind = Kind::new(task.kind.as_str());
            tables.put_kind(&kind, false)?;
            queue.as_deref().map_or(kind.queue, Into::into)
        }
    };
    tables.lane(&queue, &task.kind)
}

/// Whether the task has to go through the gate.
fn is_gated(tables: &mut dyn Tables, task: &NewTask) -> Result<bool> {
    if let Some(job) = &task.job {
        make_job(tables, &JobSpec::new(job))?;
    }
    if task.job.is_some() || task.workflow.is_some() {
        return Ok(true);
    }
    Ok(tables.limit_named(&Scope::Group.name(task.group()))?.is_some())
}

fn refuse_too_heavy(
    tables: &mut dyn Tables,
    task: &NewTask,
    brought: &[(String, u32)],
) -> Result<()> {
    if task.weight == 1 {
        return Ok(());
    }
    match capacity_after(tables, task.group(), brought)? {
        // A paused limit is full, not too small.
        Some(capacity) if capacity > 0 && task.weight > capacity => Err(Error::invalid(format!(
            "a task of weight {} can never run under {:?}, whose limit is {capacity}; lower its \
             weight or raise the limit",
            task.weight,
            Scope::Group.name(task.group())
        ))),
        _ => Ok(()),
    }
}

/// The capacity of a group once the submission is stored.
fn capacity_after(
    tables: &mut dyn Tables,
    group: &str,
    brought: &[(String, u32)],
) -> Result<Option<u32>> {
    let limit = match tables.limit_named(&Scope::Group.name(group))? {
        Some(id) => tables.limit(id)?,
        None => None,
    };
    let brought = brought.iter().find(|(of, _)| of == group).map(|(_, capacity)| *capacity);
    Ok(match limit {
        Some(limit) if !Source::Submit.replaces(limit.source) => limit.capacity,
        Some(limit) => brought.or(limit.capacity),
        None => brought,
    })
}

fn put_ready(tables: &mut dyn Tables, task: &NewTask, id: TaskId, lane: LaneId) -> Result<()> {
    let counters = tables.counters()?;
    tables.put_ready(ReadyRow {
        lane,
        rank: ready_rank(tables.now(), task.priority),
        tag: counters.virtual_time,
        task: id,
        stamp: counters.limits_version,
        gated: false,
        since: tables.now(),
    })
}
