//! Cancels tasks: what waits ends at once, what runs is told through its heartbeat.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::tables::{Position, Tables};
use tidegate_core::{CancelOutcome, Error, ErrorKind, LimitId, Result, TaskId, rules};

use super::draft::Left;
use super::error::Fault;
use super::flush::flush;
use super::gate::{BUDGET, follow};
use super::load::{Wanted, gather, moment};
use super::rows;
use super::session::Tx;
use super::unpack::unpack_tasks;
use super::{Inner, transact};

const PLACES_OF: &str = include_str!("queries/positions_of_tasks.sql");
const LOCK_SCHEDULED: &str = include_str!("queries/lock_scheduled.sql");
const LOCK_ARRIVED: &str = include_str!("queries/lock_inbox_tasks.sql");
const LOCK_READY_OF: &str = include_str!("queries/lock_ready_tasks.sql");
const LOCK_RUNNING: &str = include_str!("queries/lock_running.sql");

/// Tasks in one transaction.
const TASKS_MAX: usize = 64;

/// Times that tasks are looked for which move while they are looked for.
const ROUNDS_MAX: u32 = 100;

pub(super) async fn cancel(store: &Inner, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>> {
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
            if rounds > ROUNDS_MAX {
                return Err(not_locked(&rest));
            }
            unpack_tasks(store, &rest).await?;
            let (found, left) = transact!(store, tx => cancel_some(store, &tx, &rest));
            outcomes.extend(found);
            follow(store, left).await?;
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

fn not_locked(tasks: &[TaskId]) -> Error {
    let ids: Vec<String> = tasks.iter().map(TaskId::to_string).collect();
    let text = format!(
        "the tasks {} could not be locked in {ROUNDS_MAX} rounds; try again later, or run \
         `tidegate doctor` if that does not help",
        ids.join(", ")
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// Where tasks stood when they were looked for.
#[derive(Debug, Default)]
struct Places {
    scheduled: Vec<i64>,
    arrived: Vec<i64>,
    ready: Vec<i64>,
    running: Vec<i64>,
    line: Vec<TaskId>,
    lines: BTreeSet<LimitId>,
}

async fn cancel_some(
    store: &Inner,
    tx: &Tx<'_>,
    tasks: &[TaskId],
) -> Result<(BTreeMap<TaskId, CancelOutcome>, Left), Fault> {
    let mut outcomes: BTreeMap<TaskId, CancelOutcome> =
        tasks.iter().map(|task| (*task, CancelOutcome::NotFound)).collect();
    let places = look(tx, tasks, &mut outcomes).await?;
    let stands = lock(tx, &places).await?;
    let moment = moment(store, tx).await?;
    // What runs is only told; everything else ends here and gives back what it holds.
    let ending = stands.iter().filter(|(_, position, _)| !matches!(position, Position::Running(_)));
    let ending = ending.map(|(task, _, _)| *task).chain(places.line.iter().copied()).collect();
    let wanted = Wanted {
        tasks: ending,
        in_line: places.line.len(),
        limits: places.lines.into_iter().collect(),
        budget: BUDGET,
        is_ending: true,
        ..Wanted::default()
    };
    let mut draft = gather(store, tx, moment, wanted).await?;
    for (task, position, running) in stands {
        match (position, running) {
            (Position::Running(token), Some(running)) => {
                draft.add_task(told(task));
                draft.run(task, token, running);
            }
            _ => draft.stand(task, position),
        }
    }
    draft.seal();
    let mut here = Vec::new();
    for task in tasks {
        if draft.position(*task)?.is_some() {
            here.push(*task);
        }
    }
    let ended = rules::cancel(&mut draft, &here)?;
    outcomes.extend(here.into_iter().zip(ended));
    flush(tx, &draft).await?;
    Ok((outcomes, draft.left()))
}

async fn look(
    tx: &Tx<'_>,
    tasks: &[TaskId],
    outcomes: &mut BTreeMap<TaskId, CancelOutcome>,
) -> Result<Places, Fault> {
    let ids: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    let mut places = Places::default();
    for row in tx.query(PLACES_OF, &[&ids]).await? {
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
            1 => places.arrived.push(id),
            2 => places.ready.push(id),
            3 => places.running.push(id),
            4 => {
                places.line.push(TaskId(id));
                places.lines.insert(LimitId(row.get("limit_id")));
            }
            // A lease lists it: the next round unpacks the lease first.
            _ => {}
        }
    }
    Ok(places)
}

type Stands = Vec<(TaskId, Position, Option<crate::memory::state::Running>)>;

/// Locks the places in their order. What is no longer there is left out.
async fn lock(tx: &Tx<'_>, places: &Places) -> Result<Stands, Fault> {
    let mut stands: Stands = Vec::new();
    let task = |row: &tokio_postgres::Row| TaskId(row.get("task"));
    if !places.scheduled.is_empty() {
        for row in tx.query(LOCK_SCHEDULED, &[&places.scheduled]).await? {
            stands.push((task(&row), Position::Scheduled(row.get("run_at")), None));
        }
    }
    if !places.arrived.is_empty() {
        for row in tx.query(LOCK_ARRIVED, &[&places.arrived]).await? {
            stands.push((task(&row), Position::Arrived, None));
        }
    }
    if !places.ready.is_empty() {
        for row in tx.query(LOCK_READY_OF, &[&places.ready]).await? {
            stands.push((task(&row), Position::Ready(rows::ready(&row)), None));
        }
    }
    if !places.running.is_empty() {
        for row in tx.query(LOCK_RUNNING, &[&places.running]).await? {
            let (task, token, running) = rows::running(&row);
            stands.push((task, Position::Running(token), Some(running)));
        }
    }
    Ok(stands)
}

/// A running task of which nothing but its place matters.
fn told(task: TaskId) -> crate::memory::state::Task {
    let tags = tidegate_core::tables::Tags {
        task,
        lane: tidegate_core::LaneId(0),
        kind: "".into(),
        group: None,
        job: None,
        workflow: None,
        weight: 1,
        priority: 0,
        max_attempts: None,
        spent: 0,
        deaths: 0,
        on_failure: Default::default(),
        arrival: 0,
    };
    crate::memory::state::Task {
        new: std::sync::Arc::new(tidegate_core::NewTask::new("", Vec::new())),
        tags,
        queue: "".into(),
        position: None,
        created_at: 0,
        finished_at: None,
        error: None,
        result: None,
    }
}
