//! Rows of the server as the nouns of the rules, and back.

use std::fmt;
use std::sync::Arc;

use tidegate_core::tables::{Class, Lease, LineRow, ReadyRow, Tags};
use tidegate_core::{
    Backoff, DayWindow, Error, ErrorKind, Halt, Kind, LaneId, Limit, LimitId, Millis, NewTask,
    OnFailure, Result, Share, Source, State, TaskId, Token, WorkerId,
};
use tokio_postgres::Row;

use crate::memory::state::{Running, Task};

/// A name that may be missing.
pub(super) fn text(row: &Row, column: &str) -> Option<Arc<str>> {
    row.get::<_, Option<&str>>(column).map(Arc::from)
}

/// Returns the error for a stored value that no program of this schema version writes.
///
/// The caller must not continue with a guess: an unknown source would become the strongest override,
/// and a negative count would keep waiting tasks waiting without end.
pub(super) fn corrupt(table: &str, column: &str, value: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "table tidegate.{table}, column {column}: {value} is unknown to this version; run \
             `tidegate doctor`"
        ),
    )
}

/// Converts a stored number that is never negative.
pub(super) fn unsigned(table: &str, column: &str, number: i64) -> Result<u32> {
    u32::try_from(number).map_err(|_| corrupt(table, column, number))
}

/// Reads a number that is never negative.
pub(super) fn number(row: &Row, table: &str, column: &str) -> Result<u32> {
    unsigned(table, column, row.get(column))
}

/// Reads a number that is never negative and may be NULL.
pub(super) fn number_or_none(row: &Row, table: &str, column: &str) -> Result<Option<u32>> {
    let number: Option<i64> = row.get(column);
    number.map(|number| unsigned(table, column, number)).transpose()
}

/// Reads numbers that are never negative.
pub(super) fn numbers(row: &Row, table: &str, column: &str) -> Result<Vec<u32>> {
    let numbers: Vec<i32> = row.get(column);
    numbers.into_iter().map(|number| unsigned(table, column, number.into())).collect()
}

/// A text that is kept as bytes.
pub(super) fn lossy(bytes: Option<&[u8]>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// Returns the value with a stored code, which is its index.
fn of_code<T: Copy>(all: &[T], table: &str, column: &str, code: i32) -> Result<T> {
    let found = usize::try_from(code).ok().and_then(|code| all.get(code).copied());
    found.ok_or_else(|| corrupt(table, column, code))
}

fn source(column: &str, code: i32) -> Result<Source> {
    of_code(&Source::ALL, "limits", column, code)
}

pub(super) fn state_code(state: State) -> i32 {
    State::ALL.iter().position(|s| *s == state).unwrap_or_default() as i32
}

pub(super) fn state(code: i32) -> Result<State> {
    of_code(&State::ALL, "finished", "state", code)
}

fn on_failure(code: i32) -> Result<OnFailure> {
    let known = [OnFailure::Halt, OnFailure::Continue];
    let found = known.into_iter().find(|on_failure| *on_failure as i32 == code);
    found.ok_or_else(|| corrupt("tasks", "on_failure", code))
}

pub(super) fn class(code: i32) -> Result<Class> {
    of_code(&Class::ALL, "waiters", "wait_reason", code)
}

/// Reads one of the counts that `doctor --repair` counts again.
type ReadCount = fn(&Row, &str) -> Result<u32>;

fn count(row: &Row, column: &str) -> Result<u32> {
    number(row, "limits", column)
}

/// Reads a negative count as far too many. The check finds it and repair replaces it, so a wrong
/// count must not keep them from reading the limit.
fn count_to_repair(row: &Row, column: &str) -> Result<u32> {
    Ok(u32::try_from(row.get::<_, i64>(column)).unwrap_or(u32::MAX))
}

/// Reads a limit, without the number of slots that are held.
pub(super) fn limit(row: &Row) -> Result<Limit> {
    read_limit(row, count)
}

/// Reads a limit with the number of slots that are held.
pub(super) fn limit_held(row: &Row) -> Result<Limit> {
    Ok(Limit { held: count(row, "held")?, ..limit(row)? })
}

/// Reads a limit with the number of slots that are held, for the check and for repair.
pub(super) fn limit_to_repair(row: &Row) -> Result<Limit> {
    Ok(Limit { held: count_to_repair(row, "held")?, ..read_limit(row, count_to_repair)? })
}

fn read_limit(row: &Row, count: ReadCount) -> Result<Limit> {
    let base = number_or_none(row, "limits", "base_capacity")?;
    let base_source: Option<i32> = row.get("base_source");
    let base_source = base_source.map(|code| source("base_source", code)).transpose()?;
    Ok(Limit {
        id: LimitId(row.get("id")),
        name: row.get::<_, &str>("name").into(),
        capacity: number_or_none(row, "limits", "capacity")?,
        source: source("source", row.get("source"))?,
        base: base.zip(base_source),
        version: row.get("version"),
        since: row.get("applies_from_version"),
        // Counted where the slots are read.
        held: 0,
        refused: row.get("parked_total"),
        waiting: count(row, "waiting")?,
        aside: count(row, "skipped")?,
        reserver: row.get::<_, Option<i64>>("reserving_task").map(TaskId),
        dirty: row.get("dirty"),
        look_at: row.get("recheck_at"),
        halt: row.get::<_, Option<i64>>("paused_by").map(Halt::of),
        share: share(row, count)?,
    })
}

/// Reads a job's share; other limits have none.
fn share(row: &Row, count: ReadCount) -> Result<Option<Share>> {
    let Some(weight) = number_or_none(row, "limits", "share_weight")? else {
        return Ok(None);
    };
    Ok(Some(Share {
        weight,
        last_tag: row.get("last_tag"),
        ahead: count(row, "in_window")?,
        min_concurrency: number(row, "limits", "min_concurrency")?,
        priority: row.get("priority"),
        delay_ms: row.get("delay_ms"),
        next_at: row.get("next_start_at"),
    }))
}

/// What happened at a limit without its lock.
#[derive(Debug, Clone)]
pub(super) struct Passed {
    /// Tasks of a job that were claimed and left its window.
    pub(super) tasks: u32,
    /// When they were.
    pub(super) started_at: Option<Millis>,
    /// Slots that were given back, by their numbers.
    pub(super) freed: Vec<u32>,
    /// Tasks that left the line with a slot that was handed on.
    pub(super) taken: u32,
    /// Whether somebody should look at the line.
    pub(super) urgent: bool,
}

pub(super) fn passed(row: &Row) -> Result<Passed> {
    Ok(Passed {
        tasks: number(row, "limit_deltas", "claimed_tasks")?,
        started_at: row.get("started_at"),
        freed: numbers(row, "limit_deltas", "freed_slots")?,
        taken: number(row, "limit_deltas", "dequeued")?,
        urgent: row.get("needs_drain"),
    })
}

/// Reads a row of `waiters`; `due_at` is the name of that column in the result.
pub(super) fn line(row: &Row, due_at: &str) -> Result<LineRow> {
    Ok(LineRow {
        limit: LimitId(row.get("limit_id")),
        class: class(row.get("wait_reason"))?,
        rank: row.get("rank"),
        tag: row.get("tag"),
        place: row.get("admission_seq"),
        task: TaskId(row.get("task")),
        lane: LaneId(row.get("lane")),
        moves: number(row, "waiters", "queue_switches")?,
        passed: row.get("in_job_window"),
        since: row.get(due_at),
    })
}

pub(super) fn ready(row: &Row) -> ReadyRow {
    ReadyRow {
        lane: LaneId(row.get("lane")),
        rank: row.get("rank"),
        tag: row.get("tag"),
        task: TaskId(row.get("task")),
        stamp: row.get("limits_version"),
        gated: row.get("holds_slots"),
        since: row.get("ready_at"),
    }
}

pub(super) fn running(row: &Row) -> (TaskId, Token, Running) {
    let running = Running {
        gated: row.get("holds_slots"),
        cancel: row.get("cancel_requested"),
        started_at: row.get("started_at"),
        progress: None,
    };
    (TaskId(row.get("task")), Token(row.get("token")), running)
}

pub(super) fn lease(row: &Row) -> Lease {
    Lease {
        token: Token(row.get("token")),
        worker: WorkerId(row.get::<_, &str>("worker").into()),
        expires_at: row.get("expires_at"),
    }
}

pub(super) fn kind(row: &Row) -> Result<Kind> {
    let window = (row.get::<_, Option<i64>>("window_start_ms"))
        .zip(row.get::<_, Option<i64>>("window_end_ms"))
        .map(|(start_ms, end_ms)| DayWindow { start_ms, end_ms });
    Ok(Kind {
        name: row.get::<_, &str>("name").into(),
        queue: row.get::<_, &str>("queue").into(),
        max_attempts: number(row, "kinds", "max_attempts")?,
        timeout_ms: row.get("timeout_ms"),
        window,
        backoff: Backoff { base_ms: row.get("backoff_base_ms"), cap_ms: row.get("backoff_cap_ms") },
        remove_on_completed_days: number_or_none(row, "kinds", "remove_on_completed_days")?,
        remove_on_failed_days: number_or_none(row, "kinds", "remove_on_failed_days")?,
        max_deaths: number(row, "kinds", "max_crashes")?,
    })
}

/// A task with the limits that apply to it.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) task: Task,
    /// Limits by name.
    pub(super) needs: Vec<(String, LimitId)>,
    /// Its workflow, if that has no limit yet.
    pub(super) homeless: Option<String>,
}

pub(super) fn known(row: &Row) -> Result<Known> {
    let tags = Tags {
        task: TaskId(row.get("id")),
        lane: LaneId(row.get("lane")),
        kind: row.get::<_, &str>("kind").into(),
        group: text(row, "group_name"),
        job: text(row, "job"),
        workflow: text(row, "workflow"),
        weight: number(row, "tasks", "weight")?,
        priority: row.get("priority"),
        max_attempts: number_or_none(row, "tasks", "max_attempts")?,
        spent: number(row, "tasks", "attempts_used")?,
        deaths: number(row, "tasks", "crashes")?,
        on_failure: on_failure(row.get("on_failure"))?,
        arrival: row.get("due_at"),
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
    let task = Task {
        new: Arc::new(new),
        queue: row.get::<_, &str>("queue").into(),
        position: None,
        created_at: row.get("created_at"),
        finished_at: None,
        error: lossy(row.get("error")),
        result: None,
        tags,
    };
    Ok(Known { task, needs, homeless })
}
