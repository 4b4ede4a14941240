//! The reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::reader::{
    ConnectionEncryption, ConnectionPoolStats, Explanation, JobLoad, JobView, LOAD_READY_TASKS_MAX,
    NotRunningReason, QueueView, SlotHolder, Snapshot, StoreLoad, StoreReader, TaskFilter,
    TaskView, WaiterView, WorkerView, WorkflowView, estimate_wait_ms,
};
use tidegate_core::request_stats::RequestStats;
use tidegate_core::tables::{Position, RunTimeStats};
use tidegate_core::{
    HeldSlot, Kind, Limit, LimitId, Millis, PauseCause, Progress, Result, TaskId, TaskState,
    WorkerId, WorkerReport,
};
use tokio_postgres::Row;

use super::call::Verb;
use super::error::TxError;
use super::sized_sql::SizedSql;
use super::transaction::Tx;
use super::working_set_load::{read_kinds, read_slots, read_tx_start};
use super::{Postgres, PostgresInner, in_transaction, rows, snapshot};

const SNAPSHOT_BEGIN: &str = include_str!("queries/snapshot_begin.sql");
static LIST_TASKS: SizedSql = SizedSql::new(include_str!("queries/list_tasks.sql"));
const TASK_PAYLOAD_AND_RESULT: &str = include_str!("queries/task_payload_and_result.sql");
const TASK_COUNTS_BY_STATE: &str = include_str!("queries/task_counts_by_state.sql");
const ALL_LIMITS_BY_NAME: &str = include_str!("queries/all_limits_by_name.sql");
const SLOT_HOLDERS_OF_LIMIT: &str = include_str!("queries/slot_holders_of_limit.sql");
const LIST_JOBS: &str = include_str!("queries/list_jobs.sql");
const LIST_WORKFLOWS: &str = include_str!("queries/list_workflows.sql");
const TASK_COUNTS_BY_QUEUE: &str = include_str!("queries/task_counts_by_queue.sql");
const PAUSED_QUEUES: &str = include_str!("queries/paused_queues.sql");
const LIVE_WORKERS: &str = include_str!("queries/live_workers.sql");
const LIST_WAITERS: &str = include_str!("queries/list_waiters.sql");
const LIVE_REGISTRATIONS: &str = include_str!("queries/live_registrations.sql");
const ALL_KINDS: &str = include_str!("queries/all_kinds.sql");
const BACKLOG_COUNTS: &str = include_str!("queries/backlog_counts.sql");
const FIRST_WAITER_DUE_TIMES: &str = include_str!("queries/first_waiter_due_times.sql");
const JOB_LOADS: &str = include_str!("queries/job_loads.sql");
const EXPLAIN_TASK: &str = include_str!("queries/explain_task.sql");
const EXPLAIN_WAITING: &str = include_str!("queries/explain_waiting.sql");
const EXPLAIN_READY: &str = include_str!("queries/explain_ready.sql");

/// Holders listed in an explanation.
const HOLDERS_MAX: i64 = 100;

#[async_trait]
impl StoreReader for Postgres {
    async fn now(&self) -> Result<Millis> {
        self.run_detached(Verb::Read, |store| async move {
            let store = &*store;
            Ok(in_transaction!(reader store, tx => read_tx_start(store, &tx)).now)
        })
        .await
    }

    async fn task(&self, task: TaskId) -> Result<Option<TaskView>> {
        let read = move |store: std::sync::Arc<PostgresInner>| async move {
            let store = &*store;
            Ok(in_transaction!(store, tx => read_task(&tx, task)))
        };
        self.run_detached(Verb::ReadTasks, read).await
    }

    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>> {
        let read = move |store: std::sync::Arc<PostgresInner>| async move {
            let store = &*store;
            Ok(in_transaction!(store, tx => read_tasks(&tx, &filter)))
        };
        self.run_detached(Verb::ReadTasks, read).await
    }

    async fn explain(&self, task: TaskId) -> Result<Option<Explanation>> {
        let read = move |store: std::sync::Arc<PostgresInner>| async move {
            let store = &*store;
            Ok(in_transaction!(reader store, tx => explain_task(store, &tx, task)))
        };
        self.run_detached(Verb::Read, read).await
    }

    async fn task_counts(&self) -> Result<BTreeMap<TaskState, u64>> {
        let rows = self.read_rows(TASK_COUNTS_BY_STATE).await?;
        rows.iter().map(state_count).collect()
    }

    async fn limits(&self) -> Result<Vec<Limit>> {
        self.read_rows(ALL_LIMITS_BY_NAME).await?.iter().map(rows::limit_with_held).collect()
    }

    async fn slot_holders(&self, limit: LimitId) -> Result<Vec<SlotHolder>> {
        let read = move |store: std::sync::Arc<PostgresInner>| async move {
            let store = &*store;
            Ok(in_transaction!(reader store, tx => read_holders(&tx, limit, i64::MAX)))
        };
        self.run_detached(Verb::Read, read).await
    }

    async fn jobs(&self) -> Result<Vec<JobView>> {
        let mut jobs: Vec<JobView> = Vec::new();
        for row in self.read_rows(LIST_JOBS).await? {
            let name: &str = row.get("name");
            if jobs.last().is_none_or(|job| &*job.name != name) {
                jobs.push(JobView {
                    name: name.into(),
                    concurrency: rows::read_optional_unsigned(&row, "limits", "capacity")?,
                    min_concurrency: rows::read_unsigned(&row, "limits", "min_concurrency")?,
                    weight: rows::read_optional_unsigned(&row, "limits", "share_weight")?
                        .unwrap_or(1),
                    priority: row.get("priority"),
                    delay_ms: row.get("delay_ms"),
                    paused: row.get("paused"),
                    tasks: BTreeMap::new(),
                });
            }
            if let (Some(job), Some(state)) = (jobs.last_mut(), row.get::<_, Option<i32>>("state"))
            {
                job.tasks.insert(rows::state_from_code(state)?, row.get::<_, i64>("tasks") as u64);
            }
        }
        Ok(jobs)
    }

    async fn workflows(&self) -> Result<Vec<WorkflowView>> {
        let mut workflows: Vec<WorkflowView> = Vec::new();
        for row in self.read_rows(LIST_WORKFLOWS).await? {
            let name: &str = row.get("name");
            if workflows.last().is_none_or(|workflow| &*workflow.name != name) {
                let halt = row.get::<_, Option<i64>>("paused_by").map(PauseCause::from_code);
                workflows.push(WorkflowView {
                    name: name.into(),
                    paused_by: halt,
                    tasks: BTreeMap::new(),
                });
            }
            if let (Some(workflow), Some(state)) =
                (workflows.last_mut(), row.get::<_, Option<i32>>("state"))
            {
                workflow
                    .tasks
                    .insert(rows::state_from_code(state)?, row.get::<_, i64>("tasks") as u64);
            }
        }
        Ok(workflows)
    }

    async fn queues(&self) -> Result<Vec<QueueView>> {
        let read = move |store: std::sync::Arc<PostgresInner>| async move {
            let store = &*store;
            Ok(in_transaction!(reader store, tx => read_queues(store, &tx)))
        };
        self.run_detached(Verb::Read, read).await
    }

    async fn workers(&self) -> Result<Vec<WorkerView>> {
        let read = move |store: std::sync::Arc<PostgresInner>| async move {
            let store = &*store;
            Ok(in_transaction!(reader store, tx => read_workers(store, &tx)))
        };
        self.run_detached(Verb::Read, read).await
    }

    async fn waiters(&self, limit: LimitId, waiters_max: u32) -> Result<Vec<WaiterView>> {
        let read = move |store: std::sync::Arc<PostgresInner>| async move {
            let store = &*store;
            Ok(in_transaction!(reader store, tx => read_waiters(&tx, limit, waiters_max)))
        };
        self.run_detached(Verb::Read, read).await
    }

    async fn kinds(&self) -> Result<Vec<Kind>> {
        self.read_rows(ALL_KINDS).await?.iter().map(rows::kind_row).collect()
    }

    async fn store_load(&self) -> Result<StoreLoad> {
        let read = move |store: std::sync::Arc<PostgresInner>| async move {
            let store = &*store;
            Ok(in_transaction!(reader store, tx => read_load(store, &tx)))
        };
        self.run_detached(Verb::Read, read).await
    }

    fn connection_pool_stats(&self) -> Option<ConnectionPoolStats> {
        let status = self.inner.pool.status();
        let in_use = status.size.saturating_sub(status.available);
        Some(ConnectionPoolStats { in_use, max: status.max_size, waiting: status.waiting })
    }

    fn request_stats(&self) -> RequestStats {
        self.inner.requests.stats()
    }

    fn connection_encryption(&self) -> Option<ConnectionEncryption> {
        self.inner.connector.encryption()
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.run_detached(Verb::Read, |store| async move { snapshot::snapshot(&store).await }).await
    }
}

impl Postgres {
    async fn read_rows(&self, sql: &'static str) -> Result<Vec<Row>> {
        let read = move |store: std::sync::Arc<PostgresInner>| async move {
            let store = &*store;
            Ok(in_transaction!(reader store, tx => tx.query(sql, &[])))
        };
        self.run_detached(Verb::Read, read).await
    }
}

async fn read_task(tx: &Tx<'_>, task: TaskId) -> Result<Option<TaskView>, TxError> {
    tx.execute(SNAPSHOT_BEGIN, &[]).await?;
    let filter =
        TaskFilter { after_task: Some(TaskId(task.0 - 1)), tasks_max: 1, ..TaskFilter::default() };
    let Some(view) = read_tasks(tx, &filter).await?.pop().filter(|view| view.id == task) else {
        return Ok(None);
    };
    let bodies = tx.query_one_or_retry(TASK_PAYLOAD_AND_RESULT, &[&task.0]).await?;
    Ok(Some(TaskView { payload: bodies.get("payload"), result: bodies.get("result"), ..view }))
}

async fn read_tasks(tx: &Tx<'_>, filter: &TaskFilter) -> Result<Vec<TaskView>, TxError> {
    let names = [&filter.kind, &filter.queue, &filter.group, &filter.job, &filter.workflow];
    // A name with a NUL cannot exist, and the server cannot be asked for it.
    if names.into_iter().flatten().any(|name| name.contains('\0')) {
        return Ok(Vec::new());
    }
    let after = filter.after_task.map_or(i64::MIN, |task| task.0);
    let states: Vec<i32> = filter.states.iter().map(|state| rows::state_code(*state)).collect();
    let TaskFilter { kind, queue, group, job, workflow, .. } = filter;
    let tasks_max = i64::from(filter.tasks_max);
    let finished = filter.states.is_empty() || filter.states.iter().any(|state| state.is_final());
    let finished = if finished { after } else { i64::MAX };
    let (sql, _) = LIST_TASKS.for_size(filter.tasks_max as usize);
    let found = tx
        .query(sql, &[&after, kind, queue, job, workflow, &states, &tasks_max, &finished, group])
        .await?;
    Ok(found.iter().map(task_view).collect::<Result<_>>()?)
}

fn task_view(row: &Row) -> Result<TaskView> {
    let percent: Option<i32> = row.get("progress_percent");
    let unknown = |percent| rows::corrupt_value_error("running", "progress_percent", percent);
    let percent = percent.map(|n| u8::try_from(n).map_err(|_| unknown(n))).transpose()?;
    let message = rows::lossy_text(row.get("progress_message"));
    Ok(TaskView {
        id: TaskId(row.get("id")),
        kind: row.get::<_, &str>("kind").into(),
        queue: row.get::<_, &str>("queue").into(),
        state: rows::state_from_code(row.get("state"))?,
        group: rows::optional_name(row, "group_name"),
        job: rows::optional_name(row, "job"),
        workflow: rows::optional_name(row, "workflow"),
        unique_key: rows::optional_name(row, "unique_key"),
        weight: rows::read_unsigned(row, "tasks", "weight")?,
        priority: row.get("priority"),
        attempts_used: rows::read_unsigned(row, "tasks", "attempts_used")?,
        max_attempts: rows::read_unsigned(row, "tasks", "max_attempts")?,
        crashes: rows::read_unsigned(row, "tasks", "crashes")?,
        created_at: row.get("created_at"),
        run_at: row.get("run_at"),
        finished_at: row.get("finished_at"),
        error: rows::lossy_text(row.get("error")),
        progress: percent.map(|percent| Progress { percent, message: message.unwrap_or_default() }),
        payload: None,
        result: None,
    })
}

/// Reads the number of tasks in a state.
fn state_count(row: &Row) -> Result<(TaskState, u64)> {
    Ok((rows::state_from_code(row.get("state"))?, row.get::<_, i64>("tasks") as u64))
}

async fn explain_task(
    store: &PostgresInner,
    tx: &Tx<'_>,
    task: TaskId,
) -> Result<Option<Explanation>, TxError> {
    tx.execute(SNAPSHOT_BEGIN, &[]).await?;
    let now = read_tx_start(store, tx).await?.now;
    let rows = tx.query(EXPLAIN_TASK, &[&task.0, &now]).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let final_state = row.get::<_, Option<i32>>("state").map(rows::state_from_code).transpose()?;
    let run_at: Option<Millis> = row.get("run_at");
    let (state, reason, since) = if let Some(state) = final_state {
        (state, NotRunningReason::Finished, row.get("finished_at"))
    } else if let Some(run_at) = run_at {
        let state = Position::Scheduled(run_at).state();
        (state, NotRunningReason::NotDue { run_at }, Some(row.get("created_at")))
    } else if row.get("is_blocked") {
        let (reason, since) = explain_waiting(tx, task).await?;
        (TaskState::Blocked, reason, Some(since))
    } else if row.get("is_ready") {
        let (reason, since) = explain_ready(tx, task, now).await?;
        (TaskState::Pending, reason, Some(since))
    } else if let Some(started_at) = row.get::<_, Option<Millis>>("started_at") {
        (TaskState::Processing, explain_running(tx, row, task).await?, Some(started_at))
    } else {
        (TaskState::Pending, NotRunningReason::InInbox { is_served: row.get("is_served") }, None)
    };
    let pace = (row.get::<_, Option<i64>>("pace_tasks"))
        .zip(row.get("pace_total_ms"))
        .map(|(tasks, total_ms)| RunTimeStats { tasks, total_ms });
    let running = row.get::<_, i64>("running") as u64;
    let estimate_ms = reason.tasks_ahead().and_then(|ahead| estimate_wait_ms(ahead, pace, running));
    let paused_at = row.get("paused_at");
    Ok(Some(Explanation {
        task,
        state,
        reason,
        reason_since: since,
        queue_paused_at: paused_at,
        estimated_wait_ms: estimate_ms,
    }))
}

/// Tasks by state, for every name.
fn state_counts_by_name(rows: &[Row]) -> Result<BTreeMap<Arc<str>, BTreeMap<TaskState, u64>>> {
    let mut counts: BTreeMap<Arc<str>, BTreeMap<TaskState, u64>> = BTreeMap::new();
    for row in rows {
        let of_name = counts.entry(row.get::<_, &str>("name").into()).or_default();
        of_name.extend([state_count(row)?]);
    }
    Ok(counts)
}

async fn read_queues(store: &PostgresInner, tx: &Tx<'_>) -> Result<Vec<QueueView>, TxError> {
    tx.execute(SNAPSHOT_BEGIN, &[]).await?;
    let mut queues: BTreeMap<Arc<str>, QueueView> = BTreeMap::new();
    let view =
        |name: Arc<str>| QueueView { name, paused_at: None, workers: 0, tasks: BTreeMap::new() };
    for (name, tasks) in state_counts_by_name(&tx.query(TASK_COUNTS_BY_QUEUE, &[]).await?)? {
        queues.insert(name.clone(), QueueView { tasks, ..view(name) });
    }
    for name in read_live_workers(store, tx).await?.iter().flat_map(|worker| &worker.queues) {
        queues.entry(name.clone()).or_insert_with(|| view(name.clone())).workers += 1;
    }
    for row in tx.query(PAUSED_QUEUES, &[]).await? {
        let name: Arc<str> = row.get::<_, &str>("name").into();
        let queue = queues.entry(name.clone()).or_insert_with(|| view(name));
        queue.paused_at = Some(row.get("paused_at"));
    }
    Ok(queues.into_values().collect())
}

async fn read_workers(store: &PostgresInner, tx: &Tx<'_>) -> Result<Vec<WorkerView>, TxError> {
    tx.execute(SNAPSHOT_BEGIN, &[]).await?;
    read_live_workers(store, tx).await
}

async fn read_live_workers(store: &PostgresInner, tx: &Tx<'_>) -> Result<Vec<WorkerView>, TxError> {
    let now = read_tx_start(store, tx).await?.now;
    let mut workers: Vec<WorkerView> = Vec::new();
    for row in tx.query(LIVE_WORKERS, &[&now]).await? {
        let id = WorkerId(row.get::<_, &str>("id").into());
        if workers.last().is_none_or(|worker| worker.id != id) {
            workers.push(WorkerView {
                id,
                alive_until: row.get("alive_until"),
                queues: Vec::new(),
                kinds: Vec::new(),
                running: row.get::<_, i64>("running") as u64,
                report: rows::optional_name(&row, "report")
                    .and_then(|text| WorkerReport::from_json(&text)),
                registered_capacities: BTreeMap::new(),
            });
        }
        let lane = rows::optional_name(&row, "queue").zip(rows::optional_name(&row, "kind"));
        if let (Some(worker), Some((queue, kind))) = (workers.last_mut(), lane) {
            worker.add_served_lane(queue, kind);
        }
    }
    for row in tx.query(LIVE_REGISTRATIONS, &[&now]).await? {
        let id = WorkerId(row.get::<_, &str>("worker").into());
        if let Ok(at) = workers.binary_search_by(|worker| worker.id.cmp(&id)) {
            let brings = rows::read_optional_unsigned(&row, "registrations", "capacity")?;
            workers[at]
                .registered_capacities
                .insert(row.get::<_, &str>("group_name").into(), brings);
        }
    }
    Ok(workers)
}

async fn read_load(store: &PostgresInner, tx: &Tx<'_>) -> Result<StoreLoad, TxError> {
    tx.execute(SNAPSHOT_BEGIN, &[]).await?;
    let now = read_tx_start(store, tx).await?.now;
    let row = tx.query_one(BACKLOG_COUNTS, &[&now, &i64::from(LOAD_READY_TASKS_MAX)]).await?;
    let first = |row: &Row| (LimitId(row.get("limit_id")), row.get("due_at"));
    let of_job = |row: &Row| {
        let running = row.get::<_, i64>("running") as u64;
        let load = JobLoad { first_ready_at: row.get("ready_since"), running_tasks: running };
        (LimitId(row.get("limit_id")), load)
    };
    let is_any = |load: &JobLoad| load.first_ready_at.is_some() || load.running_tasks > 0;
    let jobs = tx.query(JOB_LOADS, &[]).await?;
    Ok(StoreLoad {
        ready_tasks: rows::read_unsigned(&row, "ready", "ready")?,
        abandoned_leases: rows::read_unsigned(&row, "leases", "abandoned")?,
        first_waiter_due_at: tx
            .query(FIRST_WAITER_DUE_TIMES, &[])
            .await?
            .iter()
            .map(first)
            .collect(),
        jobs: jobs.iter().map(of_job).filter(|(_, load)| is_any(load)).collect(),
        now,
    })
}

async fn read_waiters(
    tx: &Tx<'_>,
    limit: LimitId,
    waiters_max: u32,
) -> Result<Vec<WaiterView>, TxError> {
    let waiter = |row: &Row| {
        Ok(WaiterView {
            task: TaskId(row.get("task")),
            kind: row.get::<_, &str>("kind").into(),
            queue: row.get::<_, &str>("queue").into(),
            wait_reason: rows::wait_reason_from_code(row.get("wait_reason"))?,
            weight: rows::read_unsigned(row, "tasks", "weight")?,
            due_at: row.get("due_at"),
        })
    };
    tx.query(LIST_WAITERS, &[&limit.0, &i64::from(waiters_max)]).await?.iter().map(waiter).collect()
}

async fn explain_waiting(tx: &Tx<'_>, task: TaskId) -> Result<(NotRunningReason, Millis), TxError> {
    let row = tx.query_one_or_retry(EXPLAIN_WAITING, &[&task.0]).await?;
    let holders = read_holders(tx, LimitId(row.get("limit_id")), HOLDERS_MAX).await?;
    let reason = NotRunningReason::InWaitQueue {
        limit: row.get::<_, &str>("name").into(),
        capacity: rows::read_optional_unsigned(&row, "limits", "capacity")?,
        held: rows::read_unsigned(&row, "limits", "held")?,
        paused_by: row.get::<_, Option<i64>>("paused_by").map(PauseCause::from_code),
        delay_ms: row.get("delay_ms"),
        wait_reason: rows::wait_reason_from_code(row.get("wait_reason"))?,
        queue_position: row.get::<_, i64>("tasks_before") as u64 + 1,
        holders,
    };
    Ok((reason, row.get("due_at")))
}

async fn explain_ready(
    tx: &Tx<'_>,
    task: TaskId,
    now: Millis,
) -> Result<(NotRunningReason, Millis), TxError> {
    let row = tx.query_one_or_retry(EXPLAIN_READY, &[&task.0, &now]).await?;
    let kind: &str = row.get("kind");
    let kinds = read_kinds(tx, &[kind]).await?;
    let window = kinds.first().and_then(|kind| kind.day_window);
    let reason = NotRunningReason::Ready {
        queue: row.get::<_, &str>("queue").into(),
        kind: kind.into(),
        is_served: row.get("is_served"),
        is_in_day_window: window.is_none_or(|window| window.is_open(now)),
        tasks_ahead: row.get::<_, i64>("tasks_before") as u64,
    };
    Ok((reason, row.get("ready_at")))
}

async fn explain_running(
    tx: &Tx<'_>,
    row: &Row,
    task: TaskId,
) -> Result<NotRunningReason, TxError> {
    let Some(worker) = row.get::<_, Option<&str>>("worker") else {
        return Ok(NotRunningReason::InInbox { is_served: true });
    };
    let slot = |row: &Row| {
        Ok(HeldSlot {
            limit: LimitId(row.get("limit_id")),
            name: row.get::<_, &str>("name").into(),
            number: rows::read_unsigned(row, "slots", "number")?,
        })
    };
    let slots = read_slots(tx, &[task.0]).await?;
    let mut slots = slots.iter().map(slot).collect::<Result<Vec<HeldSlot>>>()?;
    slots.sort_by_key(|slot| (slot.limit, slot.number));
    Ok(NotRunningReason::Running {
        worker: WorkerId(worker.into()),
        expires_at: row.get("expires_at"),
        slots,
    })
}

async fn read_holders(
    tx: &Tx<'_>,
    limit: LimitId,
    holders_max: i64,
) -> Result<Vec<SlotHolder>, TxError> {
    let rows = tx.query(SLOT_HOLDERS_OF_LIMIT, &[&limit.0, &holders_max]).await?;
    let holder = |row: &Row| {
        Ok(SlotHolder {
            slot: rows::read_unsigned(row, "slots", "number")?,
            task: TaskId(row.get("task")),
            kind: row.get::<_, &str>("kind").into(),
            worker: row.get::<_, Option<&str>>("worker").map(|worker| WorkerId(worker.into())),
            expires_at: row.get("expires_at"),
        })
    };
    rows.iter().map(holder).collect()
}
