use super::set_limit::set_limit_without_admission;
use crate::bounds::{BATCH_MAX, SUBMIT_TASKS_MAX, check_batch_size};
use crate::tables::{Position, ReadyRow, Tables};
use crate::{
    CapacitySource, Error, ErrorKind, JobSpec, Kind, LaneId, LimitScope, NewTask, Result, SetLimit,
    Submission, SubmittedTask, TaskId, Token, check_capacity, name, ready_rank,
};

/// Checks what can be checked without a store. Comes before any write.
pub fn check_submission(submission: &Submission, payload_bytes_max: usize) -> Result<()> {
    check_batch_size("tasks", submission.tasks.len(), SUBMIT_TASKS_MAX)?;
    check_batch_size("jobs", submission.jobs.len(), BATCH_MAX)?;
    check_batch_size("limits", submission.limits.len(), BATCH_MAX)?;
    submission.jobs.iter().try_for_each(JobSpec::check)?;
    for (group, capacity) in &submission.limits {
        name::check("group", group)?;
        check_capacity(&LimitScope::Group.limit_name(group), i64::from(*capacity))?;
    }
    submission.tasks.iter().try_for_each(|task| task.check(payload_bytes_max))
}

/// Stores tasks. It only inserts, and locks nothing that claim or finish needs.
pub fn submit(tables: &mut dyn Tables, submission: &Submission) -> Result<Vec<SubmittedTask>> {
    // Refusals come before the first write, so that a refused submission leaves no trace.
    if let Some((task, token)) = submission.submitting_attempt {
        check_attempt_is_running(tables, task, token)?;
    }
    for task in &submission.tasks {
        check_weight_fits_limit(tables, task, &submission.limits)?;
    }
    for (group, capacity) in &submission.limits {
        set_limit_if_unset(tables, group, *capacity)?;
    }
    for job in &submission.jobs {
        create_job_if_missing(tables, job)?;
    }
    submission.tasks.iter().map(|task| submit_task(tables, task)).collect()
}

fn check_attempt_is_running(tables: &mut dyn Tables, task: TaskId, token: Token) -> Result<()> {
    match tables.position(task)? {
        Some(Position::Running(running)) if running == token => Ok(()),
        _ => Err(attempt_not_running(task, token)),
    }
}

/// What an attempt is told that submits and does not run any more.
pub fn attempt_not_running(task: TaskId, token: Token) -> Error {
    let text = format!(
        "nothing was stored: the attempt at task {task} with token {token} has lost its lease and the \
         task runs elsewhere, or it has ended; stop the handler"
    );
    Error::new(ErrorKind::NotFound, text)
}

/// Sets a limit that tasks bring along. Nobody is let through here: what a change may have made
/// room for is marked, and whoever claims next looks.
fn set_limit_if_unset(tables: &mut dyn Tables, group: &str, capacity: u32) -> Result<()> {
    let name = LimitScope::Group.limit_name(group);
    let set = SetLimit { name, capacity: Some(capacity), source: CapacitySource::Submit };
    set_limit_without_admission(tables, &set).map(drop)
}

fn create_job_if_missing(tables: &mut dyn Tables, job: &JobSpec) -> Result<()> {
    let name = LimitScope::Job.limit_name(&job.name);
    if tables.limit_id(&name)?.is_none() {
        tables.insert_limit(
            &name,
            job.concurrency,
            CapacitySource::Submit,
            0,
            Some(job.fair_share()),
        )?;
    }
    Ok(())
}

fn submit_task(tables: &mut dyn Tables, task: &NewTask) -> Result<SubmittedTask> {
    if let Some(key) = &task.unique_key
        && let Some(task) = tables.unique_key_owner(key)?
    {
        return Ok(SubmittedTask { task, is_new: false });
    }
    let lane = lane_of_task(tables, task)?;
    let gated = needs_admission(tables, task)?;
    let id = tables.insert_task(task, lane)?;
    let run_at = task.run_at.filter(|run_at| *run_at > tables.now());
    // A step of a workflow takes its turn at once, whenever it is due: it is not overtaken.
    if let (Some(run_at), None) = (run_at, &task.workflow) {
        tables.put_scheduled(id, run_at)?;
    } else if gated {
        tables.put_inbox(id)?;
    } else {
        put_ready_task(tables, task, id, lane)?;
    }
    Ok(SubmittedTask { task: id, is_new: true })
}

fn lane_of_task(tables: &mut dyn Tables, task: &NewTask) -> Result<LaneId> {
    let queue = match (&task.queue, tables.kind(&task.kind)?) {
        (Some(queue), Some(_)) => queue.as_str().into(),
        (None, Some(kind)) => kind.queue.clone(),
        (queue, None) => {
            let kind = Kind::new(task.kind.as_str());
            tables.put_kind(&kind, false)?;
            queue.as_deref().map_or(kind.queue, Into::into)
        }
    };
    tables.get_or_create_lane(&queue, &task.kind)
}

/// Whether the task has to go through the gate.
fn needs_admission(tables: &mut dyn Tables, task: &NewTask) -> Result<bool> {
    if let Some(job) = &task.job {
        create_job_if_missing(tables, &JobSpec::new(job))?;
    }
    if task.job.is_some() || task.workflow.is_some() {
        return Ok(true);
    }
    Ok(tables.limit_id(&LimitScope::Group.limit_name(task.group()))?.is_some())
}

fn check_weight_fits_limit(
    tables: &mut dyn Tables,
    task: &NewTask,
    brought: &[(String, u32)],
) -> Result<()> {
    if task.weight == 1 {
        return Ok(());
    }
    match capacity_after_submit(tables, task.group(), brought)? {
        // A paused limit is full, not too small.
        Some(capacity) if capacity > 0 && task.weight > capacity => Err(Error::invalid(format!(
            "a task of weight {} can never run under {:?}, whose limit is {capacity}; lower its \
             weight or raise the limit",
            task.weight,
            LimitScope::Group.limit_name(task.group())
        ))),
        _ => Ok(()),
    }
}

/// The capacity of a group once the submission is stored.
fn capacity_after_submit(
    tables: &mut dyn Tables,
    group: &str,
    brought: &[(String, u32)],
) -> Result<Option<u32>> {
    let limit = match tables.limit_id(&LimitScope::Group.limit_name(group))? {
        Some(id) => tables.locked_limit(id)?,
        None => None,
    };
    let brought = brought.iter().find(|(of, _)| of == group).map(|(_, capacity)| *capacity);
    Ok(match limit {
        Some(limit) if !CapacitySource::Submit.may_replace(limit.source) => limit.capacity,
        Some(limit) => brought.or(limit.capacity),
        None => brought,
    })
}

fn put_ready_task(tables: &mut dyn Tables, task: &NewTask, id: TaskId, lane: LaneId) -> Result<()> {
    let counters = tables.counters()?;
    tables.put_ready(ReadyRow {
        lane,
        rank: ready_rank(tables.now(), task.priority),
        tag: counters.virtual_time,
        task: id,
        limits_version: counters.limits_version,
        holds_slots: false,
        ready_at: tables.now(),
    })
}
