//! The reads, each in one transaction of a reader.

mod explain;
mod snapshot;

pub(super) use snapshot::read_snapshot;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Row, params};
use tidegate_core::reader::{
    Explanation, JobLoad, JobView, LOAD_READY_TASKS_MAX, QueueView, SlotHolder, Snapshot,
    StoreLoad, StoreReader, TaskFilter, TaskView, WaiterView, WorkerView, WorkflowView,
};
use tidegate_core::request_stats::RequestStats;
use tidegate_core::tables::{Position, Tables, WaitReason};
use tidegate_core::{
    Kind, LaneId, Limit, LimitId, Millis, PauseCause, Progress, Result, TaskId, TaskState, Token,
    WorkerId, WorkerReport,
};

use super::Sqlite;
use super::error::unknown_value_error;
use super::statements::Query;
use super::tables::{Transaction, load_lanes, load_paused_queues, read_kind_row, read_limit_row};

#[async_trait]
impl StoreReader for Sqlite {
    async fn now(&self) -> Result<Millis> {
        Ok((self.inner.clock)())
    }

    fn request_stats(&self) -> RequestStats {
        self.inner.requests.stats()
    }

    async fn task(&self, task: TaskId) -> Result<Option<TaskView>> {
        self.run_read(move |tx| {
            let Some(view) = read_task_view(tx, task)? else {
                return Ok(None);
            };
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let (payload, result) = tx
                .statements
                .query_first(Query::TaskPayloadAndResult, [task.0], read)?
                .unwrap_or_default();
            Ok(Some(TaskView { payload, result, ..view }))
        })
        .await
    }

    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>> {
        self.run_read(move |tx| {
            let ids = filtered_task_ids(tx, &filter)?;
            ids.into_iter().filter_map(|id| read_task_view(tx, id).transpose()).collect()
        })
        .await
    }

    async fn explain(&self, task: TaskId) -> Result<Option<Explanation>> {
        self.run_read(move |tx| explain::explain_task(tx, task)).await
    }

    async fn task_counts(&self) -> Result<BTreeMap<TaskState, u64>> {
        self.run_read(|tx| count_tasks_by_state(tx, Query::TaskCountsByState)).await
    }

    async fn limits(&self) -> Result<Vec<Limit>> {
        self.run_read(|tx| read_all_limits(tx, Query::AllLimitsByName)).await
    }

    async fn slot_holders(&self, limit: LimitId) -> Result<Vec<SlotHolder>> {
        self.run_read(move |tx| explain::list_slot_holders(tx, limit, i64::MAX)).await
    }

    async fn jobs(&self) -> Result<Vec<JobView>> {
        self.run_read(job_views).await
    }

    async fn workflows(&self) -> Result<Vec<WorkflowView>> {
        self.run_read(workflow_views).await
    }

    async fn queues(&self) -> Result<Vec<QueueView>> {
        self.run_read(queue_views).await
    }

    async fn workers(&self) -> Result<Vec<WorkerView>> {
        self.run_read(worker_views).await
    }

    async fn waiters(&self, limit: LimitId, waiters_max: u32) -> Result<Vec<WaiterView>> {
        self.run_read(move |tx| waiter_views(tx, limit, waiters_max)).await
    }

    async fn kinds(&self) -> Result<Vec<Kind>> {
        self.run_read(|tx| tx.statements.query_rows(Query::AllKinds, [], read_kind_row)).await
    }

    async fn store_load(&self) -> Result<StoreLoad> {
        self.run_read(measure_load).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.run_read(read_snapshot).await
    }
}

/// The tasks a filter lets through, ascending: those of each place, merged.
fn filtered_task_ids(tx: &mut Transaction<'_, '_>, filter: &TaskFilter) -> Result<Vec<TaskId>> {
    let mut places: Vec<(Query, Option<TaskState>)> = Vec::new();
    for state in &filter.states {
        match state {
            TaskState::Scheduled => places.push((Query::ListScheduledTaskIds, None)),
            TaskState::Pending => {
                places.extend([(Query::ListInboxTaskIds, None), (Query::ListReadyTaskIds, None)]);
            }
            TaskState::Blocked => places.push((Query::ListWaitingTaskIds, None)),
            TaskState::Processing => places.push((Query::ListRunningTaskIds, None)),
            ended => places.push((Query::ListFinishedTaskIds, Some(*ended))),
        }
    }
    if filter.states.is_empty() {
        places.push((Query::ListAllTaskIds, None));
    }
    let mut ids = Vec::new();
    for (query, ended) in places {
        ids.append(&mut filtered_task_ids_of_query(tx, filter, query, ended)?);
    }
    ids.sort_unstable();
    ids.dedup();
    ids.truncate(filter.tasks_max as usize);
    Ok(ids)
}

fn filtered_task_ids_of_query(
    tx: &mut Transaction<'_, '_>,
    filter: &TaskFilter,
    query: Query,
    final_state: Option<TaskState>,
) -> Result<Vec<TaskId>> {
    let TaskFilter { kind, queue, group, job, workflow, tasks_max, .. } = filter;
    let after = filter.after_task.map_or(i64::MIN, |task| task.0);
    let read = |row: &Row<'_>| Ok(TaskId(row.get(0)?));
    match final_state {
        Some(state) => {
            let state = state.as_str();
            let span = params![after, kind, queue, job, workflow, tasks_max, state, group];
            tx.statements.query_rows(query, span, read)
        }
        None => {
            let span = params![after, kind, queue, job, workflow, tasks_max, group];
            tx.statements.query_rows(query, span, read)
        }
    }
}

/// A task as a person sees it, without its payload and result.
fn read_task_view(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<Option<TaskView>> {
    let read = |row: &Row<'_>| {
        let lane = LaneId(row.get(0)?);
        let max_attempts: Option<u32> = row.get(8)?;
        let view = TaskView {
            id: task,
            kind: "".into(),
            queue: "".into(),
            state: TaskState::Pending,
            group: row.get(1)?,
            job: row.get(2)?,
            workflow: row.get(3)?,
            unique_key: row.get(4)?,
            weight: row.get(5)?,
            priority: row.get(6)?,
            attempts_used: row.get(7)?,
            max_attempts: max_attempts.unwrap_or_default(),
            crashes: row.get(9)?,
            created_at: row.get(10)?,
            run_at: None,
            finished_at: row.get(11)?,
            error: row.get(12)?,
            progress: None,
            payload: None,
            result: None,
        };
        Ok((view, lane, max_attempts.is_none()))
    };
    let found = tx.statements.query_first(Query::TaskView, [task.0], read)?;
    let Some((mut view, lane, is_by_kind)) = found else {
        return Ok(None);
    };
    let lane = load_lanes(tx)?.get(lane).ok_or_else(|| unknown_value_error("lane", lane))?.clone();
    if is_by_kind {
        view.max_attempts = tx.kind(&lane.kind)?.map_or(1, |kind| kind.max_attempts);
    }
    view.kind = lane.kind;
    view.queue = lane.queue;
    let position = tx.position(task)?.unwrap_or(Position::Inbox);
    view.state = position.state();
    match position {
        Position::Scheduled(run_at) => view.run_at = Some(run_at),
        Position::Running(token) => view.progress = read_progress(tx, task, token)?,
        _ => {}
    }
    Ok(Some(view))
}

fn read_progress(
    tx: &mut Transaction<'_, '_>,
    task: TaskId,
    token: Token,
) -> Result<Option<Progress>> {
    let read = |row: &Row<'_>| Ok((row.get::<_, Option<u8>>(0)?, row.get::<_, Option<String>>(1)?));
    let found = tx.statements.query_first(Query::AttemptProgress, [token.0, task.0], read)?;
    let progress = found.and_then(|(percent, message)| percent.zip(message));
    Ok(progress.map(|(percent, message)| Progress { percent, message }))
}

fn count_tasks_by_state(
    tx: &mut Transaction<'_, '_>,
    query: Query,
) -> Result<BTreeMap<TaskState, u64>> {
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
    let mut counts = BTreeMap::new();
    for (word, number) in tx.statements.query_rows(query, [], read)? {
        let state = TaskState::parse(&word).ok_or_else(|| unknown_value_error("state", word))?;
        if number > 0 {
            counts.insert(state, number as u64);
        }
    }
    Ok(counts)
}

fn read_all_limits(tx: &mut Transaction<'_, '_>, query: Query) -> Result<Vec<Limit>> {
    let limits = tx.statements.query_rows(query, [], read_limit_row)?;
    let known =
        |limit: Option<Limit>| limit.ok_or_else(|| unknown_value_error("source of", "a limit"));
    limits.into_iter().map(known).collect()
}

fn job_views(tx: &mut Transaction<'_, '_>) -> Result<Vec<JobView>> {
    let limits = read_all_limits(tx, Query::AllLimitsByName)?;
    let mut counts = count_tasks_by_name_and_state(tx, Query::TaskCountsByJob)?;
    let of_job = |limit: &Limit| {
        let job = JobView::from_limit(limit)?;
        Some(JobView { tasks: counts.remove(&job.name).unwrap_or_default(), ..job })
    };
    let mut jobs: Vec<JobView> = limits.iter().filter_map(of_job).collect();
    jobs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(jobs)
}

fn workflow_views(tx: &mut Transaction<'_, '_>) -> Result<Vec<WorkflowView>> {
    let counts = count_tasks_by_name_and_state(tx, Query::TaskCountsByWorkflow)?;
    let view = |(name, tasks): (Arc<str>, _)| {
        (name.clone(), WorkflowView { name, tasks, paused_by: None })
    };
    let mut workflows: BTreeMap<Arc<str>, WorkflowView> = counts.into_iter().map(view).collect();
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, PauseCause::from_code(row.get(1)?)));
    for (name, halt) in tx.statements.query_rows(Query::PausedWorkflows, [], read)? {
        let name: Arc<str> = name.strip_prefix("workflow:").unwrap_or(&name).into();
        let none = WorkflowView { name: name.clone(), tasks: BTreeMap::new(), paused_by: None };
        workflows.entry(name).or_insert(none).paused_by = Some(halt);
    }
    Ok(workflows.into_values().collect())
}

/// Tasks by state, for every name.
fn count_tasks_by_name_and_state(
    tx: &mut Transaction<'_, '_>,
    query: Query,
) -> Result<BTreeMap<Arc<str>, BTreeMap<TaskState, u64>>> {
    let read = |row: &Row<'_>| {
        Ok((row.get::<_, Arc<str>>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?))
    };
    let mut counts: BTreeMap<Arc<str>, BTreeMap<TaskState, u64>> = BTreeMap::new();
    for (name, word, number) in tx.statements.query_rows(query, [], read)? {
        let state = TaskState::parse(&word).ok_or_else(|| unknown_value_error("state", word))?;
        counts.entry(name).or_default().insert(state, number as u64);
    }
    Ok(counts)
}

fn queue_views(tx: &mut Transaction<'_, '_>) -> Result<Vec<QueueView>> {
    let mut queues: BTreeMap<Arc<str>, QueueView> = BTreeMap::new();
    let view =
        |name: Arc<str>| QueueView { name, paused_at: None, workers: 0, tasks: BTreeMap::new() };
    for (name, tasks) in count_tasks_by_name_and_state(tx, Query::TaskCountsByQueue)? {
        queues.insert(name.clone(), QueueView { tasks, ..view(name) });
    }
    for name in worker_views(tx)?.iter().flat_map(|worker| &worker.queues) {
        queues.entry(name.clone()).or_insert_with(|| view(name.clone())).workers += 1;
    }
    for (name, since) in load_paused_queues(tx)?.iter() {
        queues.entry(name.clone()).or_insert_with(|| view(name.clone())).paused_at = Some(*since);
    }
    Ok(queues.into_values().collect())
}

fn worker_views(tx: &mut Transaction<'_, '_>) -> Result<Vec<WorkerView>> {
    let read = |row: &Row<'_>| {
        Ok(WorkerView {
            id: WorkerId(row.get(0)?),
            alive_until: row.get(1)?,
            queues: Vec::new(),
            kinds: Vec::new(),
            running: row.get::<_, i64>(2)? as u64,
            report: row
                .get::<_, Option<String>>(3)?
                .and_then(|text| WorkerReport::from_json(&text)),
            registered_capacities: BTreeMap::new(),
        })
    };
    let mut workers = tx.statements.query_rows(Query::LiveWorkers, [tx.now], read)?;
    let read = |row: &Row<'_>| Ok((WorkerId(row.get(0)?), row.get(1)?, row.get(2)?));
    let served: Vec<(WorkerId, Arc<str>, Arc<str>)> =
        tx.statements.query_rows(Query::LanesOfWorkers, [], read)?;
    for (worker, queue, kind) in served {
        if let Ok(at) = workers.binary_search_by(|known| known.id.cmp(&worker)) {
            workers[at].add_served_lane(queue, kind);
        }
    }
    let read = |row: &Row<'_>| Ok((WorkerId(row.get(0)?), row.get(1)?, row.get(2)?));
    let registered: Vec<(WorkerId, Arc<str>, Option<u32>)> =
        tx.statements.query_rows(Query::LiveRegistrations, [tx.now], read)?;
    for (worker, group, capacity) in registered {
        if let Ok(at) = workers.binary_search_by(|known| known.id.cmp(&worker)) {
            workers[at].registered_capacities.insert(group, capacity);
        }
    }
    Ok(workers)
}

fn measure_load(tx: &mut Transaction<'_, '_>) -> Result<StoreLoad> {
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let counts = tx.statements.query_first(
        Query::BacklogCounts,
        params![tx.now, LOAD_READY_TASKS_MAX],
        read,
    )?;
    let (ready, abandoned) = counts.unwrap_or_default();
    let read = |row: &Row<'_>| Ok((LimitId(row.get(0)?), row.get::<_, Option<Millis>>(1)?));
    let first = tx.statements.query_rows(Query::FirstWaiterDueTimes, [], read)?.into_iter();
    let first_waits = first.filter_map(|(limit, since)| Some((limit, since?))).collect();
    Ok(StoreLoad {
        ready_tasks: ready,
        abandoned_leases: abandoned,
        first_waiter_due_at: first_waits,
        jobs: measure_job_loads(tx)?,
        now: tx.now,
    })
}

fn measure_job_loads(tx: &mut Transaction<'_, '_>) -> Result<BTreeMap<LimitId, JobLoad>> {
    let read = |row: &Row<'_>| Ok((LimitId(row.get(0)?), row.get::<_, i64>(1)?));
    let mut jobs: BTreeMap<LimitId, JobLoad> = BTreeMap::new();
    for (limit, since) in tx.statements.query_rows(Query::FirstReadyOfJobs, [], read)? {
        jobs.entry(limit).or_default().first_ready_at = Some(since);
    }
    for (limit, running) in tx.statements.query_rows(Query::RunningCountsOfJobs, [], read)? {
        jobs.entry(limit).or_default().running_tasks = running as u64;
    }
    Ok(jobs)
}

fn waiter_views(
    tx: &mut Transaction<'_, '_>,
    limit: LimitId,
    waiters_max: u32,
) -> Result<Vec<WaiterView>> {
    let read = |row: &Row<'_>| {
        let class = usize::try_from(row.get::<_, i64>(3)?).ok();
        Ok(WaiterView {
            task: TaskId(row.get(0)?),
            kind: row.get(1)?,
            queue: row.get(2)?,
            wait_reason: class
                .and_then(|at| WaitReason::ALL.get(at).copied())
                .unwrap_or(WaitReason::NoWorker),
            weight: row.get(4)?,
            due_at: row.get(5)?,
        })
    };
    tx.statements.query_rows(Query::ListWaiters, params![limit.0, waiters_max], read)
}
