//! Cancels tasks: what waits ends at once, what runs is told through its heartbeat.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::tables::{Position, Tables};
use tidegate_core::{CancelOutcome, Error, ErrorKind, LimitId, Result, TaskId, rules};

use super::admission::{ADMISSION_BUDGET, run_follow_ups};
use super::error::TxError;
use super::lease_expansion::expand_tasks;
use super::rows;
use super::transaction::Tx;
use super::working_set::FollowUp;
use super::working_set_load::{LoadRequest, lock_and_load, read_tx_start};
use super::working_set_write::write_changes;
use super::{PostgresInner, in_transaction};

const POSITIONS_OF_TASKS: &str = include_str!("queries/positions_of_tasks.sql");
const LOCK_SCHEDULED: &str = include_str!("queries/lock_scheduled.sql");
const LOCK_INBOX_TASKS: &str = include_str!("queries/lock_inbox_tasks.sql");
const LOCK_READY_TASKS: &str = include_str!("queries/lock_ready_tasks.sql");
const LOCK_RUNNING: &str = include_str!("queries/lock_running.sql");

/// Tasks in one transaction.
const TASKS_MAX: usize = 64;

/// Times that tasks are looked for which move while they are looked for.
const LOCK_ROUNDS_MAX: u32 = 100;

pub(super) async fn cancel(
    store: &PostgresInner,
    tasks: Vec<TaskId>,
) -> Result<Vec<CancelOutcome>> {
    rules::check_cancel(&tasks)?;
    let mut outcomes: BTreeMap<TaskId, CancelOutcome> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let distinct: Vec<TaskId> = tasks.iter().copied().filter(|task| seen.insert(*task)).collect();
    for chunk in distinct.chunks(TASKS_MAX) {
        let mut rest = chunk.to_vec();
        let mut rounds = 0;
        // A task that moved while it was looked for is looked for again.
        while !rest.is_empty() {
            rounds += 1;
            if rounds > LOCK_ROUNDS_MAX {
                return Err(not_locked_error(&rest));
            }
            expand_tasks(store, &rest).await?;
            let (found, follow_up) = in_transaction!(store, tx => cancel_batch(store, &tx, &rest));
            outcomes.extend(found);
            run_follow_ups(store, follow_up).await?;
            rest.retain(|task| !outcomes.contains_key(task));
        }
    }
    let mut seen = BTreeSet::new();
    let outcome = |task: &TaskId| match outcomes.get(task) {
        Some(CancelOutcome::Cancelled) if !seen.insert(*task) => CancelOutcome::Finished,
        Some(outcome) => *outcome,
        None => CancelOutcome::NotFound,
    };
    Ok(tasks.iter().map(outcome).collect())
}

fn not_locked_error(tasks: &[TaskId]) -> Error {
    let ids: Vec<String> = tasks.iter().map(TaskId::to_string).collect();
    let text = format!(
        "the tasks {} could not be locked in {LOCK_ROUNDS_MAX} rounds; try again later, or run \
         `tidegate doctor` if that does not help",
        ids.join(", ")
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// Where tasks stood when they were looked for.
#[derive(Debug, Default)]
struct TaskPositions {
    scheduled: Vec<i64>,
    inbox: Vec<i64>,
    ready: Vec<i64>,
    running: Vec<i64>,
    waiting: Vec<TaskId>,
    waiting_limits: BTreeSet<LimitId>,
}

async fn cancel_batch(
    store: &PostgresInner,
    tx: &Tx<'_>,
    tasks: &[TaskId],
) -> Result<(BTreeMap<TaskId, CancelOutcome>, FollowUp), TxError> {
    let mut outcomes: BTreeMap<TaskId, CancelOutcome> =
        tasks.iter().map(|task| (*task, CancelOutcome::NotFound)).collect();
    let places = find_positions(tx, tasks, &mut outcomes).await?;
    let stands = lock_positions(tx, &places).await?;
    let start = read_tx_start(store, tx).await?;
    // What runs is only told; everything else ends here and gives back what it holds.
    let ending = stands.iter().filter(|(_, position, _)| !matches!(position, Position::Running(_)));
    let ending = ending.map(|(task, _, _)| *task).chain(places.waiting.iter().copied()).collect();
    let wanted = LoadRequest {
        tasks: ending,
        waiting_tasks: places.waiting.len(),
        limits: places.waiting_limits.into_iter().collect(),
        admission_budget: ADMISSION_BUDGET,
        is_finishing: true,
        ..LoadRequest::default()
    };
    let mut working_set = lock_and_load(store, tx, start, wanted).await?;
    for (task, position, running) in stands {
        match (position, running) {
            (Position::Running(token), Some(running)) => {
                working_set.add_task(running_task_stub(task));
                working_set.set_running(task, token, running);
            }
            _ => working_set.set_position(task, position),
        }
    }
    working_set.finish_loading();
    let mut here = Vec::new();
    for task in tasks {
        if working_set.position(*task)?.is_some() {
            here.push(*task);
        }
    }
    let ended = rules::cancel(&mut working_set, &here)?;
    outcomes.extend(here.into_iter().zip(ended));
    write_changes(tx, &working_set).await?;
    Ok((outcomes, working_set.follow_up()))
}

async fn find_positions(
    tx: &Tx<'_>,
    tasks: &[TaskId],
    outcomes: &mut BTreeMap<TaskId, CancelOutcome>,
) -> Result<TaskPositions, TxError> {
    let ids: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    let mut places = TaskPositions::default();
    for row in tx.query(POSITIONS_OF_TASKS, &[&ids]).await? {
        let id: i64 = row.get("id");
        if row.get::<_, Option<i32>>("state").is_some() {
            outcomes.insert(TaskId(id), CancelOutcome::Finished);
            continue;
        }
        let Some(place) = row.get::<_, Option<i32>>("position") else {
            // The task stands in no table, which is a fault that `doctor` reports. There is no row to
            // lock, however often the store looks, so the outcome stays `NotFound`.
            continue;
        };
        // It is somewhere: unless it is found there under the lock, look again.
        outcomes.remove(&TaskId(id));
        match place {
            0 => places.scheduled.push(id),
            1 => places.inbox.push(id),
            2 => places.ready.push(id),
            3 => places.running.push(id),
            4 => {
                places.waiting.push(TaskId(id));
                places.waiting_limits.insert(LimitId(row.get("limit_id")));
            }
            // A lease lists it: the next round unpacks the lease first.
            _ => {}
        }
    }
    Ok(places)
}

type LockedPositions =
    Vec<(TaskId, Position, Option<crate::memory::working_state::RunningAttempt>)>;

/// Locks the places in their order. What is no longer there is left out.
async fn lock_positions(
    tx: &Tx<'_>,
    positions: &TaskPositions,
) -> Result<LockedPositions, TxError> {
    let mut stands: LockedPositions = Vec::new();
    let task = |row: &tokio_postgres::Row| TaskId(row.get("task"));
    if !positions.scheduled.is_empty() {
        for row in tx.query(LOCK_SCHEDULED, &[&positions.scheduled]).await? {
            stands.push((task(&row), Position::Scheduled(row.get("run_at")), None));
        }
    }
    if !positions.inbox.is_empty() {
        for row in tx.query(LOCK_INBOX_TASKS, &[&positions.inbox]).await? {
            stands.push((task(&row), Position::Inbox, None));
        }
    }
    if !positions.ready.is_empty() {
        for row in tx.query(LOCK_READY_TASKS, &[&positions.ready]).await? {
            stands.push((task(&row), Position::Ready(rows::ready_row(&row)), None));
        }
    }
    if !positions.running.is_empty() {
        for row in tx.query(LOCK_RUNNING, &[&positions.running]).await? {
            let (task, token, running) = rows::running_row(&row);
            stands.push((task, Position::Running(token), Some(running)));
        }
    }
    Ok(stands)
}

/// A running task of which nothing but its place matters.
fn running_task_stub(task: TaskId) -> crate::memory::working_state::StoredTask {
    let tags = tidegate_core::tables::TaskInfo {
        task,
        lane: tidegate_core::LaneId(0),
        kind: "".into(),
        group: None,
        job: None,
        workflow: None,
        weight: 1,
        priority: 0,
        max_attempts: None,
        attempts_used: 0,
        crashes: 0,
        on_failure: Default::default(),
        due_at: 0,
    };
    crate::memory::working_state::StoredTask {
        submitted: std::sync::Arc::new(tidegate_core::NewTask::new("", Vec::new())),
        info: tags,
        queue: "".into(),
        position: None,
        created_at: 0,
        finished_at: None,
        error: None,
        result: None,
    }
}
