//! Rows of the server as the nouns of the rules, and back.

use std::fmt;
use std::sync::Arc;

use tidegate_core::tables::{Lease, ReadyRow, TaskInfo, WaitReason, WaiterRow};
use tidegate_core::{
    Backoff, CapacitySource, DayWindow, Error, ErrorKind, FairShare, Kind, LaneId, Limit, LimitId,
    Millis, NewTask, OnFailure, PauseCause, Result, TaskId, TaskState, Token, WorkerId,
};
use tokio_postgres::Row;

use crate::memory::working_state::{RunningAttempt, StoredTask};

/// A name that may be missing.
pub(super) fn optional_name(row: &Row, column: &str) -> Option<Arc<str>> {
    row.get::<_, Option<&str>>(column).map(Arc::from)
}

/// Returns the error for a stored value that no program of this schema version writes.
///
/// The caller must not continue with a guess: an unknown source would become the strongest override,
/// and a negative count would keep waiting tasks waiting without end.
pub(super) fn corrupt_value_error(table: &str, column: &str, value: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "table tidegate.{table}, column {column}: {value} is unknown to this version; run \
             `tidegate doctor`"
        ),
    )
}

/// Converts a stored number that is never negative.
pub(super) fn to_unsigned(table: &str, column: &str, number: i64) -> Result<u32> {
    u32::try_from(number).map_err(|_| corrupt_value_error(table, column, number))
}

/// Reads a number that is never negative.
pub(super) fn read_unsigned(row: &Row, table: &str, column: &str) -> Result<u32> {
    to_unsigned(table, column, row.get(column))
}

/// Reads a number that is never negative and may be NULL.
pub(super) fn read_optional_unsigned(row: &Row, table: &str, column: &str) -> Result<Option<u32>> {
    let number: Option<i64> = row.get(column);
    number.map(|number| to_unsigned(table, column, number)).transpose()
}

/// Reads numbers that are never negative.
pub(super) fn read_unsigned_list(row: &Row, table: &str, column: &str) -> Result<Vec<u32>> {
    let numbers: Vec<i32> = row.get(column);
    numbers.into_iter().map(|number| to_unsigned(table, column, number.into())).collect()
}

/// A text that is kept as bytes.
pub(super) fn lossy_text(bytes: Option<&[u8]>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// Returns the value with a stored code, which is its index.
fn from_code<T: Copy>(all: &[T], table: &str, column: &str, code: i32) -> Result<T> {
    let found = usize::try_from(code).ok().and_then(|code| all.get(code).copied());
    found.ok_or_else(|| corrupt_value_error(table, column, code))
}

fn source_from_code(column: &str, code: i32) -> Result<CapacitySource> {
    from_code(&CapacitySource::ALL, "limits", column, code)
}

pub(super) fn state_code(state: TaskState) -> i32 {
    TaskState::ALL.iter().position(|s| *s == state).unwrap_or_default() as i32
}

pub(super) fn state_from_code(code: i32) -> Result<TaskState> {
    from_code(&TaskState::ALL, "finished", "state", code)
}

fn on_failure_from_code(code: i32) -> Result<OnFailure> {
    let known = [OnFailure::Halt, OnFailure::Continue];
    let found = known.into_iter().find(|on_failure| *on_failure as i32 == code);
    found.ok_or_else(|| corrupt_value_error("tasks", "on_failure", code))
}

pub(super) fn wait_reason_from_code(code: i32) -> Result<WaitReason> {
    from_code(&WaitReason::ALL, "waiters", "wait_reason", code)
}

/// Reads one of the counts that `doctor --repair` counts again.
type ReadCount = fn(&Row, &str) -> Result<u32>;

fn read_count(row: &Row, column: &str) -> Result<u32> {
    read_unsigned(row, "limits", column)
}

/// Reads a negative count as far too many. The check finds it and repair replaces it, so a wrong
/// count must not keep them from reading the limit.
fn read_count_for_repair(row: &Row, column: &str) -> Result<u32> {
    Ok(u32::try_from(row.get::<_, i64>(column)).unwrap_or(u32::MAX))
}

/// Reads a limit, without the number of slots that are held.
pub(super) fn limit_without_held(row: &Row) -> Result<Limit> {
    limit_with_counts(row, read_count)
}

/// Reads a limit with the number of slots that are held.
pub(super) fn limit_with_held(row: &Row) -> Result<Limit> {
    Ok(Limit { held: read_count(row, "held")?, ..limit_without_held(row)? })
}

/// Reads a limit with the number of slots that are held, for the check and for repair.
pub(super) fn limit_for_repair(row: &Row) -> Result<Limit> {
    Ok(Limit {
        held: read_count_for_repair(row, "held")?,
        ..limit_with_counts(row, read_count_for_repair)?
    })
}

fn limit_with_counts(row: &Row, count: ReadCount) -> Result<Limit> {
    let base = read_optional_unsigned(row, "limits", "base_capacity")?;
    let base_source: Option<i32> = row.get("base_source");
    let base_source = base_source.map(|code| source_from_code("base_source", code)).transpose()?;
    Ok(Limit {
        id: LimitId(row.get("id")),
        name: row.get::<_, &str>("name").into(),
        capacity: read_optional_unsigned(row, "limits", "capacity")?,
        source: source_from_code("source", row.get("source"))?,
        capacity_without_override: base.zip(base_source),
        version: row.get("version"),
        applies_from_version: row.get("applies_from_version"),
        // Counted where the slots are read.
        held: 0,
        parked_total: row.get("parked_total"),
        waiting: count(row, "waiting")?,
        skipped: count(row, "skipped")?,
        reserving_task: row.get::<_, Option<i64>>("reserving_task").map(TaskId),
        dirty: row.get("dirty"),
        recheck_at: row.get("recheck_at"),
        paused_by: row.get::<_, Option<i64>>("paused_by").map(PauseCause::from_code),
        fair_share: job_share(row, count)?,
    })
}

/// Reads a job's share; other limits have none.
fn job_share(row: &Row, count: ReadCount) -> Result<Option<FairShare>> {
    let Some(weight) = read_optional_unsigned(row, "limits", "share_weight")? else {
        return Ok(None);
    };
    Ok(Some(FairShare {
        weight,
        last_tag: row.get("last_tag"),
        in_window: count(row, "in_window")?,
        min_concurrency: read_unsigned(row, "limits", "min_concurrency")?,
        priority: row.get("priority"),
        delay_ms: row.get("delay_ms"),
        next_start_at: row.get("next_start_at"),
    }))
}

/// What happened at a limit without its lock.
#[derive(Debug, Clone)]
pub(super) struct LimitDelta {
    /// Tasks of a job that were claimed and left its window.
    pub(super) claimed_tasks: u32,
    /// When they were.
    pub(super) started_at: Option<Millis>,
    /// Slots that were given back, by their numbers.
    pub(super) freed_slots: Vec<u32>,
    /// Tasks that left the line with a slot that was handed on.
    pub(super) dequeued: u32,
    /// Whether somebody should look at the line.
    pub(super) needs_drain: bool,
}

pub(super) fn limit_delta(row: &Row) -> Result<LimitDelta> {
    Ok(LimitDelta {
        claimed_tasks: read_unsigned(row, "limit_deltas", "claimed_tasks")?,
        started_at: row.get("started_at"),
        freed_slots: read_unsigned_list(row, "limit_deltas", "freed_slots")?,
        dequeued: read_unsigned(row, "limit_deltas", "dequeued")?,
        needs_drain: row.get("needs_drain"),
    })
}

/// Reads a row of `waiters`; `due_at` is the name of that column in the result.
pub(super) fn waiter_row(row: &Row, due_at: &str) -> Result<WaiterRow> {
    Ok(WaiterRow {
        limit: LimitId(row.get("limit_id")),
        wait_reason: wait_reason_from_code(row.get("wait_reason"))?,
        rank: row.get("rank"),
        tag: row.get("tag"),
        admission_seq: row.get("admission_seq"),
        task: TaskId(row.get("task")),
        lane: LaneId(row.get("lane")),
        queue_switches: read_unsigned(row, "waiters", "queue_switches")?,
        in_job_window: row.get("in_job_window"),
        due_at: row.get(due_at),
    })
}

pub(super) fn ready_row(row: &Row) -> ReadyRow {
    ReadyRow {
        lane: LaneId(row.get("lane")),
        rank: row.get("rank"),
        tag: row.get("tag"),
        task: TaskId(row.get("task")),
        limits_version: row.get("limits_version"),
        holds_slots: row.get("holds_slots"),
        ready_at: row.get("ready_at"),
    }
}

pub(super) fn running_row(row: &Row) -> (TaskId, Token, RunningAttempt) {
    let running = RunningAttempt {
        holds_slots: row.get("holds_slots"),
        cancel_requested: row.get("cancel_requested"),
        started_at: row.get("started_at"),
        progress: None,
    };
    (TaskId(row.get("task")), Token(row.get("token")), running)
}

pub(super) fn lease_row(row: &Row) -> Lease {
    Lease {
        token: Token(row.get("token")),
        worker: WorkerId(row.get::<_, &str>("worker").into()),
        expires_at: row.get("expires_at"),
    }
}

pub(super) fn kind_row(row: &Row) -> Result<Kind> {
    let window = (row.get::<_, Option<i64>>("window_start_ms"))
        .zip(row.get::<_, Option<i64>>("window_end_ms"))
        .map(|(start_ms, end_ms)| DayWindow { start_ms, end_ms });
    Ok(Kind {
        name: row.get::<_, &str>("name").into(),
        queue: row.get::<_, &str>("queue").into(),
        max_attempts: read_unsigned(row, "kinds", "max_attempts")?,
        timeout_ms: row.get("timeout_ms"),
        day_window: window,
        backoff: Backoff { base_ms: row.get("backoff_base_ms"), cap_ms: row.get("backoff_cap_ms") },
        remove_on_completed_days: read_optional_unsigned(row, "kinds", "remove_on_completed_days")?,
        remove_on_failed_days: read_optional_unsigned(row, "kinds", "remove_on_failed_days")?,
        max_crashes: read_unsigned(row, "kinds", "max_crashes")?,
    })
}

/// A task with the limits that apply to it.
#[derive(Debug, Clone)]
pub(super) struct TaskWithLimits {
    pub(super) task: StoredTask,
    /// Limits by name.
    pub(super) required_limits: Vec<(String, LimitId)>,
    /// Its workflow, if that has no limit yet.
    pub(super) missing_workflow_limit: Option<String>,
}

pub(super) fn task_with_limits(row: &Row) -> Result<TaskWithLimits> {
    let tags = TaskInfo {
        task: TaskId(row.get("id")),
        lane: LaneId(row.get("lane")),
        kind: row.get::<_, &str>("kind").into(),
        group: optional_name(row, "group_name"),
        job: optional_name(row, "job"),
        workflow: optional_name(row, "workflow"),
        weight: read_unsigned(row, "tasks", "weight")?,
        priority: row.get("priority"),
        max_attempts: read_optional_unsigned(row, "tasks", "max_attempts")?,
        attempts_used: read_unsigned(row, "tasks", "attempts_used")?,
        crashes: read_unsigned(row, "tasks", "crashes")?,
        on_failure: on_failure_from_code(row.get("on_failure"))?,
        due_at: row.get("due_at"),
    };
    let id = |column: &str| row.get::<_, Option<i64>>(column).map(LimitId);
    let group = tags.group.as_ref().unwrap_or(&tags.kind);
    let names = [
        (tags.workflow.as_ref().map(|of| format!("workflow:{of}")), id("workflow_limit")),
        (tags.job.as_ref().map(|of| format!("job:{of}")), id("job_limit")),
        (Some(format!("group:{group}")), id("group_limit")),
    ];
    let homeless = match &names[0] {
        (Some(name), None) => Some(name.clone()),
        _ => None,
    };
    let needs = names.into_iter().filter_map(|(name, id)| name.zip(id)).collect();
    let mut new = NewTask::new(&*tags.kind, Vec::new());
    new.unique_key = row.get("unique_key");
    new.timeout_ms = row.get("timeout_ms");
    let task = StoredTask {
        submitted: Arc::new(new),
        queue: row.get::<_, &str>("queue").into(),
        position: None,
        created_at: row.get("created_at"),
        finished_at: None,
        error: lossy_text(row.get("error")),
        result: None,
        info: tags,
    };
    Ok(TaskWithLimits { task, required_limits: needs, missing_workflow_limit: homeless })
}
