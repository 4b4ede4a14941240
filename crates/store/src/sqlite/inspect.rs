//! The reads, each in one transaction of a reader.

mod explain;
mod snapshot;

pub(super) use snapshot::snapshot;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Row, params};
use tidegate_core::inspect::{
    Explanation, Holder, Inspect, JobLoad, JobView, LOAD_READY_MAX, Load, QueueView, Snapshot,
    TaskFilter, TaskView, WaiterView, WorkerView, WorkflowView,
};
use tidegate_core::requests::RequestStats;
use tidegate_core::tables::{Class, Position, Tables};
use tidegate_core::{
    Halt, Kind, LaneId, Limit, LimitId, Millis, Progress, Result, State, TaskId, Token, WorkerId,
    WorkerReport,
};

use super::Sqlite;
use super::error::unknown;
use super::statements::Query;
use super::tables::{Transaction, lanes, paused, read_kind, read_limit};

#[async_trait]
impl Inspect for Sqlite {
    async fn now(&self) -> Result<Millis> {
        Ok((self.inner.clock)())
    }

    fn requests(&self) -> RequestStats {
        self.inner.requests.read()
    }

    async fn task(&self, task: TaskId) -> Result<Option<TaskView>> {
        self.read(move |tx| {
            let Some(view) = view(tx, task)? else {
                return Ok(None);
            };
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let (payload, result) = tx
                .statements
                .first(Query::TaskPayloadAndResult, [task.0], read)?
                .unwrap_or_default();
            Ok(Some(TaskView { payload, result, ..view }))
        })
        .await
    }

    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>> {
        self.read(move |tx| {
            let ids = ids(tx, &filter)?;
            ids.into_iter().filter_map(|id| view(tx, id).transpose()).collect()
        })
        .await
    }

    async fn explain(&self, task: TaskId) -> Result<Option<Explanation>> {
        self.read(move |tx| explain::explain(tx, task)).await
    }

    async fn counts(&self) -> Result<BTreeMap<State, u64>> {
        self.read(|tx| counts(tx, Query::TaskCountsByState)).await
    }

    async fn limits(&self) -> Result<Vec<Limit>> {
        self.read(|tx| limits(tx, Query::AllLimitsByName)).await
    }

    async fn holders(&self, limit: LimitId) -> Result<Vec<Holder>> {
        self.read(move |tx| explain::holders(tx, limit, i64::MAX)).await
    }

    async fn jobs(&self) -> Result<Vec<JobView>> {
        self.read(jobs).await
    }

    async fn workflows(&self) -> Result<Vec<WorkflowView>> {
        self.read(workflows).await
    }

    async fn queues(&self) -> Result<Vec<QueueView>> {
        self.read(queues).await
    }

    async fn workers(&self) -> Result<Vec<WorkerView>> {
        self.read(workers).await
    }

    async fn waiters(&self, limit: LimitId, waiters_max: u32) -> Result<Vec<WaiterView>> {
        self.read(move |tx| waiters(tx, limit, waiters_max)).await
    }

    async fn kinds(&self) -> Result<Vec<Kind>> {
        self.read(|tx| tx.statements.rows(Query::AllKinds, [], read_kind)).await
    }

    async fn load(&self) -> Result<Load> {
        self.read(load).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.read(snapshot).await
    }
}

/// The tasks a filter lets through, ascending: those of each place, merged.
fn ids(tx: &mut Transaction<'_, '_>, filter: &TaskFilter) -> Result<Vec<TaskId>> {
    let mut places: Vec<(Query, Option<State>)> = Vec::new();
    for state in &filter.states {
        match state {
            State::Scheduled => places.push((Query::ListScheduledTaskIds, None)),
            State::Pending => {
                places.extend([(Query::ListInboxTaskIds, None), (Query::ListReadyTaskIds, None)]);
            }
            State::Blocked => places.push((Query::ListWaitingTaskIds, None)),
            State::Processing => places.push((Query::ListRunningTaskIds, None)),
            ended => places.push((Query::ListFinishedTaskIds, Some(*ended))),
        }
    }
    if filter.states.is_empty() {
        places.push((Query::ListAllTaskIds, None));
    }
    let mut ids = Vec::new();
    for (query, ended) in places {
        ids.append(&mut ids_of(tx, filter, query, ended)?);
    }
    ids.sort_unstable();
    ids.dedup();
    ids.truncate(filter.tasks_max as usize);
    Ok(ids)
}

fn ids_of(
    tx: &mut Transaction<'_, '_>,
    filter: &TaskFilter,
    query: Query,
    ended: Option<State>,
) -> Result<Vec<TaskId>> {
    let TaskFilter { kind, queue, group, job, workflow, tasks_max, .. } = filter;
    let after = filter.after.map_or(i64::MIN, |task| task.0);
    let read = |row: &Row<'_>| Ok(TaskId(row.get(0)?));
    match ended {
        Some(state) => {
            let state = state.as_str();
            let span = params![after, kind, queue, job, workflow, tasks_max, state, group];
            tx.statements.rows(query, span, read)
        }
        None => {
            let span = params![after, kind, queue, job, workflow, tasks_max, group];
            tx.statements.rows(query, span, read)
        }
    }
}

/// A task as a person sees it, without its payload and result.
fn view(tx: &mut Transaction<'_, '_>, task: TaskId) -> Result<Option<TaskView>> {
    let read = |row: &Row<'_>| {
        let lane = LaneId(row.get(0)?);
        let max_attempts: Option<u32> = row.get(8)?;
        let view = TaskView {
            id: task,
            kind: "".into(),
            queue: "".into(),
            state: State::Pending,
            group: row.get(1)?,
            job: row.get(2)?,
            workflow: row.get(3)?,
            unique_key: row.get(4)?,
            weight: row.get(5)?,
            priority: row.get(6)?,
            spent: row.get(7)?,
            max_attempts: max_attempts.unwrap_or_default(),
            deaths: row.get(9)?,
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
    let found = tx.statements.first(Query::TaskView, [task.0], read)?;
    let Some((mut view, lane, is_by_kind)) = found else {
        return Ok(None);
    };
    let lane = lanes(tx)?.get(lane).ok_or_else(|| unknown("lane", lane))?.clone();
    if is_by_kind {
        view.max_attempts = tx.kind(&lane.kind)?.map_or(1, |kind| kind.max_attempts);
    }
    view.kind = lane.kind;
    view.queue = lane.queue;
    let position = tx.position(task)?.unwrap_or(Position::Arrived);
    view.state = position.state();
    match position {
        Position::Scheduled(run_at) => view.run_at = Some(run_at),
        Position::Running(token) => view.progress = progress(tx, task, token)?,
        _ => {}
    }
    Ok(Some(view))
}

fn progress(tx: &mut Transaction<'_, '_>, task: TaskId, token: Token) -> Result<Option<Progress>> {
    let read = |row: &Row<'_>| Ok((row.get::<_, Option<u8>>(0)?, row.get::<_, Option<String>>(1)?));
    let found = tx.statements.first(Query::AttemptProgress, [token.0, task.0], read)?;
    let progress = found.and_then(|(percent, message)| percent.zip(message));
    Ok(progress.map(|(percent, message)| Progress { percent, message }))
}

fn counts(tx: &mut Transaction<'_, '_>, query: Query) -> Result<BTreeMap<State, u64>> {
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
    let mut counts = BTreeMap::new();
    for (word, number) in tx.statements.rows(query, [], read)? {
        let state = State::parse(&word).ok_or_else(|| unknown("state", word))?;
        if number > 0 {
            counts.insert(state, number as u64);
        }
    }
    Ok(counts)
}

fn limits(tx: &mut Transaction<'_, '_>, query: Query) -> Result<Vec<Limit>> {
    let limits = tx.statements.rows(query, [], read_limit)?;
    let known = |limit: Option<Limit>| limit.ok_or_else(|| unknown("source of", "a limit"));
    limits.into_iter().map(known).collect()
}

fn jobs(tx: &mut Transaction<'_, '_>) -> Result<Vec<JobView>> {
    let limits = limits(tx, Query::AllLimitsByName)?;
    let mut counts = named_counts(tx, Query::TaskCountsByJob)?;
    let of_job = |limit: &Limit| {
        let job = JobView::of(limit)?;
        Some(JobView { tasks: counts.remove(&job.name).unwrap_or_default(), ..job })
    };
    let mut jobs: Vec<JobView> = limits.iter().filter_map(of_job).collect();
    jobs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(jobs)
}

fn workflows(tx: &mut Transaction<'_, '_>) -> Result<Vec<WorkflowView>> {
    let counts = named_counts(tx, Query::TaskCountsByWorkflow)?;
    let view =
        |(name, tasks): (Arc<str>, _)| (name.clone(), WorkflowView { name, tasks, halt: None });
    let mut workflows: BTreeMap<Arc<str>, WorkflowView> = counts.into_iter().map(view).collect();
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, Halt::of(row.get(1)?)));
    for (name, halt) in tx.statements.rows(Query::PausedWorkflows, [], read)? {
        let name: Arc<str> = name.strip_prefix("workflow:").unwrap_or(&name).into();
        let none = WorkflowView { name: name.clone(), tasks: BTreeMap::new(), halt: None };
        workflows.entry(name).or_insert(none).halt = Some(halt);
    }
    Ok(workflows.into_values().collect())
}

/// Tasks by state, for every name.
fn named_counts(
    tx: &mut Transaction<'_, '_>,
    query: Query,
) -> Result<BTreeMap<Arc<str>, BTreeMap<State, u64>>> {
    let read = |row: &Row<'_>| {
        Ok((row.get::<_, Arc<str>>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?))
    };
    let mut counts: BTreeMap<Arc<str>, BTreeMap<State, u64>> = BTreeMap::new();
    for (name, word, number) in tx.statements.rows(query, [], read)? {
        let state = State::parse(&word).ok_or_else(|| unknown("state", word))?;
        counts.entry(name).or_default().insert(state, number as u64);
    }
    Ok(counts)
}

fn queues(tx: &mut Transaction<'_, '_>) -> Result<Vec<QueueView>> {
    let mut queues: BTreeMap<Arc<str>, QueueView> = BTreeMap::new();
    let view =
        |name: Arc<str>| QueueView { name, paused_at: None, workers: 0, tasks: BTreeMap::new() };
    for (name, tasks) in named_counts(tx, Query::TaskCountsByQueue)? {
        queues.insert(name.clone(), QueueView { tasks, ..view(name) });
    }
    for name in workers(tx)?.iter().flat_map(|worker| &worker.queues) {
        queues.entry(name.clone()).or_insert_with(|| view(name.clone())).workers += 1;
    }
    for (name, since) in paused(tx)?.iter() {
        queues.entry(name.clone()).or_insert_with(|| view(name.clone())).paused_at = Some(*since);
    }
    Ok(queues.into_values().collect())
}

fn workers(tx: &mut Transaction<'_, '_>) -> Result<Vec<WorkerView>> {
    let read = |row: &Row<'_>| {
        Ok(WorkerView {
            id: WorkerId(row.get(0)?),
            alive_until: row.get(1)?,
            queues: Vec::new(),
            kinds: Vec::new(),
            running: row.get::<_, i64>(2)? as u64,
            report: row.get::<_, Option<String>>(3)?.and_then(|text| WorkerReport::read(&text)),
            registered: BTreeMap::new(),
        })
    };
    let mut workers = tx.statements.rows(Query::LiveWorkers, [tx.now], read)?;
    let read = |row: &Row<'_>| Ok((WorkerId(row.get(0)?), row.get(1)?, row.get(2)?));
    let served: Vec<(WorkerId, Arc<str>, Arc<str>)> =
        tx.statements.rows(Query::LanesOfWorkers, [], read)?;
    for (worker, queue, kind) in served {
        if let Ok(at) = workers.binary_search_by(|known| known.id.cmp(&worker)) {
            workers[at].serve(queue, kind);
        }
    }
    let read = |row: &Row<'_>| Ok((WorkerId(row.get(0)?), row.get(1)?, row.get(2)?));
    let registered: Vec<(WorkerId, Arc<str>, Option<u32>)> =
        tx.statements.rows(Query::LiveRegistrations, [tx.now], read)?;
    for (worker, group, capacity) in registered {
        if let Ok(at) = workers.binary_search_by(|known| known.id.cmp(&worker)) {
            workers[at].registered.insert(group, capacity);
        }
    }
    Ok(workers)
}

fn load(tx: &mut Transaction<'_, '_>) -> Result<Load> {
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let counts =
        tx.statements.first(Query::BacklogCounts, params![tx.now, LOAD_READY_MAX], read)?;
    let (ready, abandoned) = counts.unwrap_or_default();
    let read = |row: &Row<'_>| Ok((LimitId(row.get(0)?), row.get::<_, Option<Millis>>(1)?));
    let first = tx.statements.rows(Query::FirstWaiterDueTimes, [], read)?.into_iter();
    let first_waits = first.filter_map(|(limit, since)| Some((limit, since?))).collect();
    Ok(Load { ready, abandoned, first_waits, jobs: job_loads(tx)?, now: tx.now })
}

fn job_loads(tx: &mut Transaction<'_, '_>) -> Result<BTreeMap<LimitId, JobLoad>> {
    let read = |row: &Row<'_>| Ok((LimitId(row.get(0)?), row.get::<_, i64>(1)?));
    let mut jobs: BTreeMap<LimitId, JobLoad> = BTreeMap::new();
    for (limit, since) in tx.statements.rows(Query::FirstReadyOfJobs, [], read)? {
        jobs.entry(limit).or_default().ready_since = Some(since);
    }
    for (limit, running) in tx.statements.rows(Query::RunningCountsOfJobs, [], read)? {
        jobs.entry(limit).or_default().running = running as u64;
    }
    Ok(jobs)
}

fn waiters(
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
            class: class.and_then(|at| Class::ALL.get(at).copied()).unwrap_or(Class::NoWorker),
            weight: row.get(4)?,
            since: row.get(5)?,
        })
    };
    tx.statements.rows(Query::ListWaiters, params![limit.0, waiters_max], read)
}
