//! The reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::inspect::{
    Connections, Encryption, Explanation, Holder, Inspect, JobLoad, JobView, LOAD_READY_MAX, Load,
    QueueView, Reason, Snapshot, TaskFilter, TaskView, WaiterView, WorkerView, WorkflowView,
    estimate_ms,
};
use tidegate_core::requests::RequestStats;
use tidegate_core::tables::{Pace, Position};
use tidegate_core::{
    Halt, Kind, Limit, LimitId, Millis, Progress, Result, SlotHeld, State, TaskId, WorkerId,
    WorkerReport,
};
use tokio_postgres::Row;

use super::call::Verb;
use super::error::Fault;
use super::load::{kinds_named, moment, slots_of};
use super::paged::Paged;
use super::session::Tx;
use super::{Inner, Postgres, rows, snapshot, transact};

const SNAPSHOT_BEGIN: &str = include_str!("queries/snapshot_begin.sql");
static TASKS: Paged = Paged::new(include_str!("queries/list_tasks.sql"));
const TASK_BODIES: &str = include_str!("queries/task_payload_and_result.sql");
const COUNTS: &str = include_str!("queries/task_counts_by_state.sql");
const LIMITS_ALL: &str = include_str!("queries/all_limits_by_name.sql");
const HOLDERS: &str = include_str!("queries/slot_holders_of_limit.sql");
const JOBS: &str = include_str!("queries/list_jobs.sql");
const WORKFLOWS: &str = include_str!("queries/list_workflows.sql");
const QUEUES: &str = include_str!("queries/task_counts_by_queue.sql");
const PAUSED: &str = include_str!("queries/paused_queues.sql");
const WORKERS: &str = include_str!("queries/live_workers.sql");
const WAITERS: &str = include_str!("queries/list_waiters.sql");
const REGISTERED_BY: &str = include_str!("queries/live_registrations.sql");
const KINDS_ALL: &str = include_str!("queries/all_kinds.sql");
const LOAD: &str = include_str!("queries/backlog_counts.sql");
const FIRST_WAITS: &str = include_str!("queries/first_waiter_due_times.sql");
const JOB_LOADS: &str = include_str!("queries/job_loads.sql");
const EXPLAIN_TASK: &str = include_str!("queries/explain_task.sql");
const EXPLAIN_LINE: &str = include_str!("queries/explain_waiting.sql");
const EXPLAIN_READY: &str = include_str!("queries/explain_ready.sql");

/// Holders listed in an explanation.
const HOLDERS_MAX: i64 = 100;

#[async_trait]
impl Inspect for Postgres {
    async fn now(&self) -> Result<Millis> {
        self.detached(Verb::Read, |store| async move {
            let store = &*store;
            Ok(transact!(reading store, tx => moment(store, &tx)).now)
        })
        .await
    }

    async fn task(&self, task: TaskId) -> Result<Option<TaskView>> {
        let read = move |store: std::sync::Arc<Inner>| async move {
            let store = &*store;
            Ok(transact!(store, tx => one_task(&tx, task)))
        };
        self.detached(Verb::ReadTasks, read).await
    }

    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>> {
        let read = move |store: std::sync::Arc<Inner>| async move {
            let store = &*store;
            Ok(transact!(store, tx => tasks(&tx, &filter)))
        };
        self.detached(Verb::ReadTasks, read).await
    }

    async fn explain(&self, task: TaskId) -> Result<Option<Explanation>> {
        let read = move |store: std::sync::Arc<Inner>| async move {
            let store = &*store;
            Ok(transact!(reading store, tx => explain(store, &tx, task)))
        };
        self.detached(Verb::Read, read).await
    }

    async fn counts(&self) -> Result<BTreeMap<State, u64>> {
        let rows = self.read(COUNTS).await?;
        rows.iter().map(state_count).collect()
    }

    async fn limits(&self) -> Result<Vec<Limit>> {
        self.read(LIMITS_ALL).await?.iter().map(rows::limit_held).collect()
    }

    async fn holders(&self, limit: LimitId) -> Result<Vec<Holder>> {
        let read = move |store: std::sync::Arc<Inner>| async move {
            let store = &*store;
            Ok(transact!(reading store, tx => holders(&tx, limit, i64::MAX)))
        };
        self.detached(Verb::Read, read).await
    }

    async fn jobs(&self) -> Result<Vec<JobView>> {
        let mut jobs: Vec<JobView> = Vec::new();
        for row in self.read(JOBS).await? {
            let name: &str = row.get("name");
            if jobs.last().is_none_or(|job| &*job.name != name) {
                jobs.push(JobView {
                    name: name.into(),
                    concurrency: rows::number_or_none(&row, "limits", "capacity")?,
                    min_concurrency: rows::number(&row, "limits", "min_concurrency")?,
                    weight: rows::number_or_none(&row, "limits", "share_weight")?.unwrap_or(1),
                    priority: row.get("priority"),
                    delay_ms: row.get("delay_ms"),
                    paused: row.get("paused"),
                    tasks: BTreeMap::new(),
                });
            }
            if let (Some(job), Some(state)) = (jobs.last_mut(), row.get::<_, Option<i32>>("state"))
            {
                job.tasks.insert(rows::state(state)?, row.get::<_, i64>("tasks") as u64);
            }
        }
        Ok(jobs)
    }

    async fn workflows(&self) -> Result<Vec<WorkflowView>> {
        let mut workflows: Vec<WorkflowView> = Vec::new();
        for row in self.read(WORKFLOWS).await? {
            let name: &str = row.get("name");
            if workflows.last().is_none_or(|workflow| &*workflow.name != name) {
                let halt = row.get::<_, Option<i64>>("paused_by").map(Halt::of);
                workflows.push(WorkflowView { name: name.into(), halt, tasks: BTreeMap::new() });
            }
            if let (Some(workflow), Some(state)) =
                (workflows.last_mut(), row.get::<_, Option<i32>>("state"))
            {
                workflow.tasks.insert(rows::state(state)?, row.get::<_, i64>("tasks") as u64);
            }
        }
        Ok(workflows)
    }

    async fn queues(&self) -> Result<Vec<QueueView>> {
        let read = move |store: std::sync::Arc<Inner>| async move {
            let store = &*store;
            Ok(transact!(reading store, tx => queues(store, &tx)))
        };
        self.detached(Verb::Read, read).await
    }

    async fn workers(&self) -> Result<Vec<WorkerView>> {
        let read = move |store: std::sync::Arc<Inner>| async move {
            let store = &*store;
            Ok(transact!(reading store, tx => workers(store, &tx)))
        };
        self.detached(Verb::Read, read).await
    }

    async fn waiters(&self, limit: LimitId, waiters_max: u32) -> Result<Vec<WaiterView>> {
        let read = move |store: std::sync::Arc<Inner>| async move {
            let store = &*store;
            Ok(transact!(reading store, tx => waiters(&tx, limit, waiters_max)))
        };
        self.detached(Verb::Read, read).await
    }

    async fn kinds(&self) -> Result<Vec<Kind>> {
        self.read(KINDS_ALL).await?.iter().map(rows::kind).collect()
    }

    async fn load(&self) -> Result<Load> {
        let read = move |store: std::sync::Arc<Inner>| async move {
            let store = &*store;
            Ok(transact!(reading store, tx => load(store, &tx)))
        };
        self.detached(Verb::Read, read).await
    }

    fn connections(&self) -> Option<Connections> {
        let status = self.inner.pool.status();
        let in_use = status.size.saturating_sub(status.available);
        Some(Connections { in_use, max: status.max_size, waiting: status.waiting })
    }

    fn requests(&self) -> RequestStats {
        self.inner.requests.read()
    }

    fn encryption(&self) -> Option<Encryption> {
        self.inner.connector.encryption()
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.detached(Verb::Read, |store| async move { snapshot::snapshot(&store).await }).await
    }
}

impl Postgres {
    async fn read(&self, sql: &'static str) -> Result<Vec<Row>> {
        let read = move |store: std::sync::Arc<Inner>| async move {
            let store = &*store;
            Ok(transact!(reading store, tx => tx.query(sql, &[])))
        };
        self.detached(Verb::Read, read).await
    }
}

async fn one_task(tx: &Tx<'_>, task: TaskId) -> Result<Option<TaskView>, Fault> {
    tx.execute(SNAPSHOT_BEGIN, &[]).await?;
    let filter =
        TaskFilter { after: Some(TaskId(task.0 - 1)), tasks_max: 1, ..TaskFilter::default() };
    let Some(view) = tasks(tx, &filter).await?.pop().filter(|view| view.id == task) else {
        return Ok(None);
    };
    let bodies = tx.one_or_retry(TASK_BODIES, &[&task.0]).await?;
    Ok(Some(TaskView { payload: bodies.get("payload"), result: bodies.get("result"), ..view }))
}

async fn tasks(tx: &Tx<'_>, filter: &TaskFilter) -> Result<Vec<TaskView>, Fault> {
    let names = [&filter.kind, &filter.queue, &filter.group, &filter.job, &filter.workflow];
    // A name with a NUL cannot exist, and the server cannot be asked for it.
    if names.into_iter().flatten().any(|name| name.contains('\0')) {
        return Ok(Vec::new());
    }
    let after = filter.after.map_or(i64::MIN, |task| task.0);
    let states: Vec<i32> = filter.states.iter().map(|state| rows::state_code(*state)).collect();
    let TaskFilter { kind, queue, group, job, workflow, .. } = filter;
    let tasks_max = i64::from(filter.tasks_max);
    let finished = filter.states.is_empty() || filter.states.iter().any(|state| state.is_final());
    let finished = if finished { after } else { i64::MAX };
    let (sql, _) = TASKS.of(filter.tasks_max as usize);
    let found = tx
        .query(sql, &[&after, kind, queue, job, workflow, &states, &tasks_max, &finished, group])
        .await?;
    Ok(found.iter().map(view).collect::<Result<_>>()?)
}

fn view(row: &Row) -> Result<TaskView> {
    let percent: Option<i32> = row.get("progress_percent");
    let unknown = |percent| rows::corrupt("running", "progress_percent", percent);
    let percent = percent.map(|n| u8::try_from(n).map_err(|_| unknown(n))).transpose()?;
    let message = rows::lossy(row.get("progress_message"));
    Ok(TaskView {
        id: TaskId(row.get("id")),
        kind: row.get::<_, &str>("kind").into(),
        queue: row.get::<_, &str>("queue").into(),
        state: rows::state(row.get("state"))?,
        group: rows::text(row, "group_name"),
        job: rows::text(row, "job"),
        workflow: rows::text(row, "workflow"),
        unique_key: rows::text(row, "unique_key"),
        weight: rows::number(row, "tasks", "weight")?,
        priority: row.get("priority"),
        spent: rows::number(row, "tasks", "attempts_used")?,
        max_attempts: rows::number(row, "tasks", "max_attempts")?,
        deaths: rows::number(row, "tasks", "crashes")?,
        created_at: row.get("created_at"),
        run_at: row.get("run_at"),
        finished_at: row.get("finished_at"),
        error: rows::lossy(row.get("error")),
        progress: percent.map(|percent| Progress { percent, message: message.unwrap_or_default() }),
        payload: None,
        result: None,
    })
}

/// Reads the number of tasks in a state.
fn state_count(row: &Row) -> Result<(State, u64)> {
    Ok((rows::state(row.get("state"))?, row.get::<_, i64>("tasks") as u64))
}

async fn explain(store: &Inner, tx: &Tx<'_>, task: TaskId) -> Result<Option<Explanation>, Fault> {
    tx.execute(SNAPSHOT_BEGIN, &[]).await?;
    let now = moment(store, tx).await?.now;
    let rows = tx.query(EXPLAIN_TASK, &[&task.0, &now]).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let final_state = row.get::<_, Option<i32>>("state").map(rows::state).transpose()?;
    let run_at: Option<Millis> = row.get("run_at");
    let (state, reason, since) = if let Some(state) = final_state {
        (state, Reason::Ended, row.get("finished_at"))
    } else if let Some(run_at) = run_at {
        let state = Position::Scheduled(run_at).state();
        (state, Reason::NotDue { run_at }, Some(row.get("created_at")))
    } else if row.get("is_blocked") {
        let (reason, since) = explain_line(tx, task).await?;
        (State::Blocked, reason, Some(since))
    } else if row.get("is_ready") {
        let (reason, since) = explain_ready(tx, task, now).await?;
        (State::Pending, reason, Some(since))
    } else if let Some(started_at) = row.get::<_, Option<Millis>>("started_at") {
        (State::Processing, explain_running(tx, row, task).await?, Some(started_at))
    } else {
        (State::Pending, Reason::AtGate { is_served: row.get("is_served") }, None)
    };
    let pace = (row.get::<_, Option<i64>>("pace_tasks"))
        .zip(row.get("pace_total_ms"))
        .map(|(tasks, total_ms)| Pace { tasks, total_ms });
    let running = row.get::<_, i64>("running") as u64;
    let estimate_ms = reason.ahead().and_then(|ahead| estimate_ms(ahead, pace, running));
    let paused_at = row.get("paused_at");
    Ok(Some(Explanation { task, state, reason, since, paused_at, estimate_ms }))
}

/// Tasks by state, for every name.
fn named_counts(rows: &[Row]) -> Result<BTreeMap<Arc<str>, BTreeMap<State, u64>>> {
    let mut counts: BTreeMap<Arc<str>, BTreeMap<State, u64>> = BTreeMap::new();
    for row in rows {
        let of_name = counts.entry(row.get::<_, &str>("name").into()).or_default();
        of_name.extend([state_count(row)?]);
    }
    Ok(counts)
}

async fn queues(store: &Inner, tx: &Tx<'_>) -> Result<Vec<QueueView>, Fault> {
    tx.execute(SNAPSHOT_BEGIN, &[]).await?;
    let mut queues: BTreeMap<Arc<str>, QueueView> = BTreeMap::new();
    let view =
        |name: Arc<str>| QueueView { name, paused_at: None, workers: 0, tasks: BTreeMap::new() };
    for (name, tasks) in named_counts(&tx.query(QUEUES, &[]).await?)? {
        queues.insert(name.clone(), QueueView { tasks, ..view(name) });
    }
    for name in workers_alive(store, tx).await?.iter().flat_map(|worker| &worker.queues) {
        queues.entry(name.clone()).or_insert_with(|| view(name.clone())).workers += 1;
    }
    for row in tx.query(PAUSED, &[]).await? {
        let name: Arc<str> = row.get::<_, &str>("name").into();
        let queue = queues.entry(name.clone()).or_insert_with(|| view(name));
        queue.paused_at = Some(row.get("paused_at"));
    }
    Ok(queues.into_values().collect())
}

async fn workers(store: &Inner, tx: &Tx<'_>) -> Result<Vec<WorkerView>, Fault> {
    tx.execute(SNAPSHOT_BEGIN, &[]).await?;
    workers_alive(store, tx).await
}

async fn workers_alive(store: &Inner, tx: &Tx<'_>) -> Result<Vec<WorkerView>, Fault> {
    let now = moment(store, tx).await?.now;
    let mut workers: Vec<WorkerView> = Vec::new();
    for row in tx.query(WORKERS, &[&now]).await? {
        let id = WorkerId(row.get::<_, &str>("id").into());
        if workers.last().is_none_or(|worker| worker.id != id) {
            workers.push(WorkerView {
                id,
                alive_until: row.get("alive_until"),
                queues: Vec::new(),
                kinds: Vec::new(),
                running: row.get::<_, i64>("running") as u64,
                report: rows::text(&row, "report").and_then(|text| WorkerReport::read(&text)),
                registered: BTreeMap::new(),
            });
        }
        let lane = rows::text(&row, "queue").zip(rows::text(&row, "kind"));
        if let (Some(worker), Some((queue, kind))) = (workers.last_mut(), lane) {
            worker.serve(queue, kind);
        }
    }
    for row in tx.query(REGISTERED_BY, &[&now]).await? {
        let id = WorkerId(row.get::<_, &str>("worker").into());
        if let Ok(at) = workers.binary_search_by(|worker| worker.id.cmp(&id)) {
            let brings = rows::number_or_none(&row, "registrations", "capacity")?;
            workers[at].registered.insert(row.get::<_, &str>("group_name").into(), brings);
        }
    }
    Ok(workers)
}

async fn load(store: &Inner, tx: &Tx<'_>) -> Result<Load, Fault> {
    tx.execute(SNAPSHOT_BEGIN, &[]).await?;
    let now = moment(store, tx).await?.now;
    let row = tx.one(LOAD, &[&now, &i64::from(LOAD_READY_MAX)]).await?;
    let first = |row: &Row| (LimitId(row.get("limit_id")), row.get("due_at"));
    let of_job = |row: &Row| {
        let running = row.get::<_, i64>("running") as u64;
        let load = JobLoad { ready_since: row.get("ready_since"), running };
        (LimitId(row.get("limit_id")), load)
    };
    let is_any = |load: &JobLoad| load.ready_since.is_some() || load.running > 0;
    let jobs = tx.query(JOB_LOADS, &[]).await?;
    Ok(Load {
        ready: rows::number(&row, "ready", "ready")?,
        abandoned: rows::number(&row, "leases", "abandoned")?,
        first_waits: tx.query(FIRST_WAITS, &[]).await?.iter().map(first).collect(),
        jobs: jobs.iter().map(of_job).filter(|(_, load)| is_any(load)).collect(),
        now,
    })
}

async fn waiters(tx: &Tx<'_>, limit: LimitId, most: u32) -> Result<Vec<WaiterView>, Fault> {
    let waiter = |row: &Row| {
        Ok(WaiterView {
            task: TaskId(row.get("task")),
            kind: row.get::<_, &str>("kind").into(),
            queue: row.get::<_, &str>("queue").into(),
            class: rows::class(row.get("wait_reason"))?,
            weight: rows::number(row, "tasks", "weight")?,
            since: row.get("due_at"),
        })
    };
    tx.query(WAITERS, &[&limit.0, &i64::from(most)]).await?.iter().map(waiter).collect()
}

async fn explain_line(tx: &Tx<'_>, task: TaskId) -> Result<(Reason, Millis), Fault> {
    let row = tx.one_or_retry(EXPLAIN_LINE, &[&task.0]).await?;
    let holders = holders(tx, LimitId(row.get("limit_id")), HOLDERS_MAX).await?;
    let reason = Reason::InLine {
        limit: row.get::<_, &str>("name").into(),
        capacity: rows::number_or_none(&row, "limits", "capacity")?,
        held: rows::number(&row, "limits", "held")?,
        halt: row.get::<_, Option<i64>>("paused_by").map(Halt::of),
        delay_ms: row.get("delay_ms"),
        class: rows::class(row.get("wait_reason"))?,
        place: row.get::<_, i64>("tasks_before") as u64 + 1,
        holders,
    };
    Ok((reason, row.get("due_at")))
}

async fn explain_ready(tx: &Tx<'_>, task: TaskId, now: Millis) -> Result<(Reason, Millis), Fault> {
    let row = tx.one_or_retry(EXPLAIN_READY, &[&task.0, &now]).await?;
    let kind: &str = row.get("kind");
    let kinds = kinds_named(tx, &[kind]).await?;
    let window = kinds.first().and_then(|kind| kind.window);
    let reason = Reason::Ready {
        queue: row.get::<_, &str>("queue").into(),
        kind: kind.into(),
        is_served: row.get("is_served"),
        is_open: window.is_none_or(|window| window.is_open(now)),
        ahead: row.get::<_, i64>("tasks_before") as u64,
    };
    Ok((reason, row.get("ready_at")))
}

async fn explain_running(tx: &Tx<'_>, row: &Row, task: TaskId) -> Result<Reason, Fault> {
    let Some(worker) = row.get::<_, Option<&str>>("worker") else {
        return Ok(Reason::AtGate { is_served: true });
    };
    let slot = |row: &Row| {
        Ok(SlotHeld {
            limit: LimitId(row.get("limit_id")),
            name: row.get::<_, &str>("name").into(),
            number: rows::number(row, "slots", "number")?,
        })
    };
    let slots = slots_of(tx, &[task.0]).await?;
    let mut slots = slots.iter().map(slot).collect::<Result<Vec<SlotHeld>>>()?;
    slots.sort_by_key(|slot| (slot.limit, slot.number));
    Ok(Reason::Running {
        worker: WorkerId(worker.into()),
        expires_at: row.get("expires_at"),
        slots,
    })
}

async fn holders(tx: &Tx<'_>, limit: LimitId, holders_max: i64) -> Result<Vec<Holder>, Fault> {
    let rows = tx.query(HOLDERS, &[&limit.0, &holders_max]).await?;
    let holder = |row: &Row| {
        Ok(Holder {
            slot: rows::number(row, "slots", "number")?,
            task: TaskId(row.get("task")),
            kind: row.get::<_, &str>("kind").into(),
            worker: row.get::<_, Option<&str>>("worker").map(|worker| WorkerId(worker.into())),
            expires_at: row.get("expires_at"),
        })
    };
    rows.iter().map(holder).collect()
}
