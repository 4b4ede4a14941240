//! Rows of the server as the nouns of the rules, and back.

use std::sync::Arc;

use tidegate_core::tables::{Class, Lease, LineRow, ReadyRow, Tags};
use tidegate_core::{
    Backoff, DayWindow, Halt, Kind, LaneId, Limit, LimitId, Millis, NewTask, OnFailure, Share,
    Source, State, TaskId, Token, WorkerId,
};
use tokio_postgres::Row;

use crate::memory::state::{Running, Task};

/// A name that may be missing.
pub(super) fn text(row: &Row, column: &str) -> Option<Arc<str>> {
    row.get::<_, Option<&str>>(column).map(Arc::from)
}

/// A number that is never negative.
pub(super) fn number(row: &Row, column: &str) -> u32 {
    u32::try_from(row.get::<_, i64>(column)).unwrap_or_default()
}

pub(super) fn number_or_none(row: &Row, column: &str) -> Option<u32> {
    row.get::<_, Option<i64>>(column).map(|n| u32::try_from(n).unwrap_or_default())
}

/// Numbers that are never negative.
pub(super) fn numbers(row: &Row, column: &str) -> Vec<u32> {
    let unsigned = |number: i32| u32::try_from(number).unwrap_or_default();
    row.get::<_, Vec<i32>>(column).into_iter().map(unsigned).collect()
}

/// A text that is kept as bytes.
pub(super) fn lossy(bytes: Option<&[u8]>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

pub(super) fn source(code: i32) -> Source {
    usize::try_from(code).ok().and_then(|i| Source::ALL.get(i).copied()).unwrap_or(Source::Operator)
}

pub(super) fn state_code(state: State) -> i32 {
    State::ALL.iter().position(|s| *s == state).unwrap_or_default() as i32
}

pub(super) fn state(code: i32) -> State {
    let found = usize::try_from(code).ok().and_then(|i| State::ALL.get(i).copied());
    found.unwrap_or(State::Failed)
}

pub(super) fn on_failure(code: i32) -> OnFailure {
    if code == OnFailure::Continue as i32 { OnFailure::Continue } else { OnFailure::Halt }
}

pub(super) fn class(code: i32) -> Class {
    let found = usize::try_from(code).ok().and_then(|i| Class::ALL.get(i).copied());
    found.unwrap_or(Class::NoWorker)
}

pub(super) fn limit(row: &Row) -> Limit {
    let base = number_or_none(row, "base_capacity");
    let base_source = row.get::<_, Option<i32>>("base_source").map(source);
    Limit {
        id: LimitId(row.get("id")),
        name: row.get::<_, &str>("name").into(),
        capacity: number_or_none(row, "capacity"),
        source: source(row.get("source")),
        base: base.zip(base_source),
        version: row.get("version"),
        since: row.get("since"),
        // Counted where the slots are read.
        held: 0,
        refused: row.get("refused"),
        waiting: number(row, "waiting"),
        aside: number(row, "aside"),
        reserver: row.get::<_, Option<i64>>("reserver").map(TaskId),
        dirty: row.get("dirty"),
        look_at: row.get("look_at"),
        halt: row.get::<_, Option<i64>>("halt").map(Halt::of),
        share: number_or_none(row, "share_weight").map(|weight| Share {
            weight,
            last_tag: row.get("last_tag"),
            // Fewer than none would be a fault, and is to be seen as one.
            ahead: u32::try_from(row.get::<_, i64>("ahead")).unwrap_or(u32::MAX),
            min_concurrency: number(row, "min_concurrency"),
            priority: row.get("priority"),
            delay_ms: row.get("delay_ms"),
            next_at: row.get("next_at"),
        }),
    }
}

/// A limit with what is held of it.
pub(super) fn limit_held(row: &Row) -> Limit {
    Limit { held: number(row, "held"), ..limit(row) }
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

pub(super) fn passed(row: &Row) -> Passed {
    Passed {
        tasks: number(row, "tasks"),
        started_at: row.get("started_at"),
        freed: numbers(row, "freed"),
        taken: number(row, "taken"),
        urgent: row.get("urgent"),
    }
}

pub(super) fn line(row: &Row) -> LineRow {
    LineRow {
        limit: LimitId(row.get("limit_id")),
        class: class(row.get("class")),
        rank: row.get("rank"),
        tag: row.get("tag"),
        place: row.get("place"),
        task: TaskId(row.get("task")),
        lane: LaneId(row.get("lane")),
        moves: number(row, "moves"),
        passed: row.get("passed"),
        since: row.get("since"),
    }
}

pub(super) fn ready(row: &Row) -> ReadyRow {
    ReadyRow {
        lane: LaneId(row.get("lane")),
        rank: row.get("rank"),
        tag: row.get("tag"),
        task: TaskId(row.get("task")),
        stamp: row.get("stamp"),
        gated: row.get("gated"),
        since: row.get("since"),
    }
}

pub(super) fn running(row: &Row) -> (TaskId, Token, Running) {
    let running = Running {
        gated: row.get("gated"),
        cancel: row.get("cancel"),
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

pub(super) fn kind(row: &Row) -> Kind {
    let window = (row.get::<_, Option<i64>>("window_start_ms"))
        .zip(row.get::<_, Option<i64>>("window_end_ms"))
        .map(|(start_ms, end_ms)| DayWindow { start_ms, end_ms });
    Kind {
        name: row.get::<_, &str>("name").into(),
        queue: row.get::<_, &str>("queue").into(),
        max_attempts: number(row, "max_attempts"),
        timeout_ms: row.get("timeout_ms"),
        window,
        backoff: Backoff { base_ms: row.get("backoff_base_ms"), cap_ms: row.get("backoff_cap_ms") },
        remove_on_completed_days: number_or_none(row, "remove_on_completed_days"),
        remove_on_failed_days: number_or_none(row, "remove_on_failed_days"),
        max_deaths: number(row, "max_deaths"),
    }
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

pub(super) fn known(row: &Row) -> Known {
    let tags = Tags {
        task: TaskId(row.get("id")),
        lane: LaneId(row.get("lane")),
        kind: row.get::<_, &str>("kind").into(),
        group: text(row, "group_name"),
        job: text(row, "job"),
        workflow: text(row, "workflow"),
        weight: number(row, "weight"),
        priority: row.get("priority"),
        max_attempts: number_or_none(row, "max_attempts"),
        spent: number(row, "spent"),
        deaths: number(row, "deaths"),
        on_failure: on_failure(row.get("on_failure")),
        arrival: row.get("arrival"),
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
    Known { task, needs, homeless }
}
