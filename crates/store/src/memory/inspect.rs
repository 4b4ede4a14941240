use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::reader::{
    Explanation, JobLoad, JobView, LOAD_READY_TASKS_MAX, NotRunningReason, QueueView, SlotHolder,
    Snapshot, SnapshotSlot, SnapshotTask, StoreLoad, StoreReader, TaskFilter, TaskView, WaiterView,
    WorkerView, WorkflowView, estimate_wait_ms,
};
use tidegate_core::request_stats::RequestStats;
use tidegate_core::tables::{Position, ReadyRow, WaiterRow};
use tidegate_core::{
    Kind, LaneId, Limit, LimitId, LimitScope, Millis, Result, TaskId, TaskState, Token, WorkerId,
};

use super::workers::is_lane_of_live_worker;
use super::working_state::{StoredTask, WorkingState};
use super::{Memory, leases};

/// Holders listed in an explanation.
const EXPLAINED_HOLDERS_MAX: usize = 100;

#[async_trait]
impl StoreReader for Memory {
    async fn now(&self) -> Result<Millis> {
        Ok((self.inner.clock)())
    }

    fn request_stats(&self) -> RequestStats {
        self.inner.requests.stats()
    }

    async fn task(&self, task: TaskId) -> Result<Option<TaskView>> {
        let state = self.lock_state();
        Ok(state.tasks.get(&task).map(|row| TaskView {
            payload: Some(row.submitted.payload.clone()),
            result: row.result.clone(),
            ..state.build_task_view(task, row)
        }))
    }

    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>> {
        let state = self.lock_state();
        let after = filter.after_task.map_or(TaskId(i64::MIN), |task| TaskId(task.0 + 1));
        let views = state.tasks.range(after..).map(|(id, row)| state.build_task_view(*id, row));
        Ok(views
            .filter(|view| matches_filter(&filter, view))
            .take(filter.tasks_max as usize)
            .collect())
    }

    async fn explain(&self, task: TaskId) -> Result<Option<Explanation>> {
        let mut state = self.lock_state();
        state.now = (self.inner.clock)();
        state.explain_task(task)
    }

    async fn task_counts(&self) -> Result<BTreeMap<TaskState, u64>> {
        let state = self.lock_state();
        let mut counts = BTreeMap::new();
        for position in state.tasks.values().filter_map(|task| task.position) {
            *counts.entry(position.state()).or_default() += 1;
        }
        Ok(counts)
    }

    async fn limits(&self) -> Result<Vec<Limit>> {
        let state = self.lock_state();
        Ok(state
            .limit_ids_by_name
            .values()
            .filter_map(|id| state.limits.get(id).cloned())
            .collect())
    }

    async fn slot_holders(&self, limit: LimitId) -> Result<Vec<SlotHolder>> {
        Ok(self.lock_state().list_slot_holders(limit))
    }

    async fn jobs(&self) -> Result<Vec<JobView>> {
        let state = self.lock_state();
        let jobs = state.limits.values().filter(|limit| limit.scope() == LimitScope::Job);
        let mut jobs: Vec<JobView> = jobs.filter_map(|limit| state.job_view(limit)).collect();
        jobs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(jobs)
    }

    async fn workflows(&self) -> Result<Vec<WorkflowView>> {
        let state = self.lock_state();
        let mut flows: BTreeMap<Arc<str>, BTreeMap<TaskState, u64>> = BTreeMap::new();
        let halts = |name: &str| {
            let limit = state.limit_ids_by_name.get(&*LimitScope::Workflow.limit_name(name))?;
            state.limits.get(limit)?.paused_by
        };
        for limit in state.limits.values().filter(|limit| limit.paused_by.is_some()) {
            if let Some(name) = limit.name.strip_prefix("workflow:") {
                flows.entry(name.into()).or_default();
            }
        }
        for task in state.tasks.values() {
            if let (Some(name), Some(position)) = (&task.info.workflow, task.position) {
                *flows.entry(name.clone()).or_default().entry(position.state()).or_default() += 1;
            }
        }
        let view =
            |(name, tasks): (Arc<str>, _)| WorkflowView { paused_by: halts(&name), name, tasks };
        Ok(flows.into_iter().map(view).collect())
    }

    async fn queues(&self) -> Result<Vec<QueueView>> {
        Ok(self.lock_state().queue_views((self.inner.clock)()))
    }

    async fn workers(&self) -> Result<Vec<WorkerView>> {
        Ok(self.lock_state().worker_views((self.inner.clock)()))
    }

    async fn waiters(&self, limit: LimitId, waiters_max: u32) -> Result<Vec<WaiterView>> {
        let state = self.lock_state();
        let rows = state.waiters.iter().filter(|row| row.limit == limit);
        Ok(rows.take(waiters_max as usize).filter_map(|row| state.waiter_view(row)).collect())
    }

    async fn kinds(&self) -> Result<Vec<Kind>> {
        Ok(self.lock_state().kinds.values().map(|kind| Kind::clone(kind)).collect())
    }

    async fn store_load(&self) -> Result<StoreLoad> {
        Ok(self.lock_state().measure_load((self.inner.clock)()))
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        let mut state = self.lock_state();
        state.now = (self.inner.clock)();
        Ok(state.snapshot())
    }
}

fn matches_filter(filter: &TaskFilter, view: &TaskView) -> bool {
    let same = |wanted: &Option<String>, name: Option<&str>| {
        wanted.as_deref().is_none_or(|wanted| Some(wanted) == name)
    };
    (filter.states.is_empty() || filter.states.contains(&view.state))
        && same(&filter.kind, Some(&view.kind))
        && same(&filter.queue, Some(&view.queue))
        && same(&filter.group, Some(view.group.as_ref().unwrap_or(&view.kind)))
        && same(&filter.job, view.job.as_deref())
        && same(&filter.workflow, view.workflow.as_deref())
}

impl WorkingState {
    fn build_task_view(&self, id: TaskId, task: &StoredTask) -> TaskView {
        let position = task.position.unwrap_or(Position::Inbox);
        let kind_attempts = self.kinds.get(&task.info.kind).map_or(1, |kind| kind.max_attempts);
        let progress = match position {
            Position::Running(token) => self.running.get(&(token, id)),
            _ => None,
        };
        TaskView {
            id,
            kind: task.info.kind.clone(),
            queue: task.queue.clone(),
            state: position.state(),
            group: task.info.group.clone(),
            job: task.info.job.clone(),
            workflow: task.info.workflow.clone(),
            unique_key: task.submitted.unique_key.as_deref().map(Into::into),
            weight: task.info.weight,
            priority: task.info.priority,
            attempts_used: task.info.attempts_used,
            max_attempts: task.info.max_attempts.unwrap_or(kind_attempts),
            crashes: task.info.crashes,
            created_at: task.created_at,
            run_at: match position {
                Position::Scheduled(run_at) => Some(run_at),
                _ => None,
            },
            finished_at: task.finished_at,
            error: task.error.clone(),
            progress: progress.and_then(|running| running.progress.clone()),
            payload: None,
            result: None,
        }
    }

    fn explain_task(&mut self, id: TaskId) -> Result<Option<Explanation>> {
        let Some(task) = self.tasks.get(&id) else {
            return Ok(None);
        };
        let position = task.position.unwrap_or(Position::Inbox);
        let created_at = task.created_at;
        let (queue, group) =
            (task.queue.clone(), task.info.group.as_ref().unwrap_or(&task.info.kind).clone());
        let (reason, since) = match position {
            Position::Scheduled(run_at) => (NotRunningReason::NotDue { run_at }, Some(created_at)),
            Position::Inbox => (self.explain_inbox_task(id)?, None),
            Position::Waiting(row) => (self.explain_waiting_task(row), Some(row.due_at)),
            Position::Ready(row) => (self.explain_ready_task(row)?, Some(row.ready_at)),
            Position::Running(token) => self.explain_running_attempt(id, token),
            Position::Finished(_) => (NotRunningReason::Finished, self.tasks[&id].finished_at),
        };
        let running = self.count_running_ahead(position, &queue);
        let pace = self.run_times.get(&group).map(|(pace, _)| *pace);
        let estimate_ms =
            reason.tasks_ahead().and_then(|ahead| estimate_wait_ms(ahead, pace, running));
        let paused_at = self.paused_queues.get(&queue).copied();
        let state = position.state();
        Ok(Some(Explanation {
            task: id,
            state,
            reason,
            reason_since: since,
            queue_paused_at: paused_at,
            estimated_wait_ms: estimate_ms,
        }))
    }

    /// Tasks that run and whose ends are waited for: those that hold slots of the limit, or
    /// those of the lane.
    fn count_running_ahead(&self, position: Position, queue: &str) -> u64 {
        let is_beside = |id: &TaskId| match position {
            Position::Waiting(row) => {
                let slots = (*id, row.limit, 0)..=(*id, row.limit, u32::MAX);
                self.held_slots.range(slots).next().is_some()
            }
            Position::Ready(row) => self
                .tasks
                .get(id)
                .is_some_and(|task| task.info.lane == row.lane && *task.queue == *queue),
            _ => false,
        };
        self.running.keys().filter(|(_, task)| is_beside(task)).count() as u64
    }

    fn queue_views(&self, now: Millis) -> Vec<QueueView> {
        let view = |name: &Arc<str>| QueueView {
            name: name.clone(),
            paused_at: self.paused_queues.get(name).copied(),
            workers: self.worker_views(now).iter().filter(|w| w.queues.contains(name)).count()
                as u64,
            tasks: BTreeMap::new(),
        };
        let mut queues: BTreeMap<Arc<str>, QueueView> =
            self.paused_queues.keys().map(|name| (name.clone(), view(name))).collect();
        for name in self.worker_views(now).iter().flat_map(|worker| &worker.queues) {
            queues.entry(name.clone()).or_insert_with(|| view(name));
        }
        for task in self.tasks.values() {
            if let Some(position) = task.position.filter(|at| !at.state().is_final()) {
                let queue = queues.entry(task.queue.clone()).or_insert_with(|| view(&task.queue));
                *queue.tasks.entry(position.state()).or_default() += 1;
            }
        }
        queues.into_values().collect()
    }

    fn worker_views(&self, now: Millis) -> Vec<WorkerView> {
        let alive = self.workers.iter().filter(|(_, worker)| worker.alive_until > now);
        let view = |(id, worker): (&WorkerId, &super::rows::WorkerRow)| {
            let is_own = |token: &Token| self.leases.get(token).is_some_and(|l| l.worker == *id);
            let mut view = WorkerView {
                id: id.clone(),
                alive_until: worker.alive_until,
                queues: Vec::new(),
                kinds: Vec::new(),
                running: self.running.keys().filter(|(token, _)| is_own(token)).count() as u64,
                report: worker.report.clone(),
                registered_capacities: self.capacities_registered_by(id),
            };
            for lane in worker.lanes_served_until.keys() {
                let (queue, kind) = self.queue_and_kind_of_lane(*lane);
                view.add_served_lane(queue, kind);
            }
            view
        };
        alive.map(view).collect()
    }

    fn capacities_registered_by(&self, id: &WorkerId) -> BTreeMap<Arc<str>, Option<u32>> {
        let by =
            |notes: &Vec<(WorkerId, Option<u32>)>| notes.iter().find(|(w, _)| w == id).cloned();
        let notes = self.registrations.iter();
        notes.filter_map(|(group, notes)| Some((group.clone(), by(notes)?.1))).collect()
    }

    fn measure_load(&self, now: Millis) -> StoreLoad {
        let is_open = |row: &&ReadyRow| {
            !self.paused_queues.contains_key(&self.queue_and_kind_of_lane(row.lane).0)
        };
        let mut first_waits = BTreeMap::new();
        for row in &self.waiters {
            let limit = self.limits.get(&row.limit);
            if limit.is_some_and(|limit| limit.scope() != LimitScope::Workflow) {
                first_waits.entry(row.limit).or_insert(row.due_at);
            }
        }
        StoreLoad {
            ready_tasks: self
                .ready
                .iter()
                .filter(is_open)
                .take(LOAD_READY_TASKS_MAX as usize)
                .count() as u32,
            abandoned_leases: leases::abandoned_leases(self, now, u32::MAX).len() as u32,
            first_waiter_due_at: first_waits,
            jobs: self.measure_job_loads(),
            now,
        }
    }

    fn measure_job_loads(&self) -> BTreeMap<LimitId, JobLoad> {
        let mut jobs: BTreeMap<LimitId, JobLoad> = BTreeMap::new();
        for (limit, slots) in &self.slot_holders {
            if self.limits.get(limit).is_none_or(|limit| limit.scope() != LimitScope::Job) {
                continue;
            }
            let holders = slots.iter().flatten().filter_map(|task| self.tasks.get(task)?.position);
            for position in holders {
                let load = jobs.entry(*limit);
                match position {
                    Position::Running(_) => load.or_default().running_tasks += 1,
                    Position::Ready(row) => {
                        let first = &mut load.or_default().first_ready_at;
                        *first = Some(first.map_or(row.ready_at, |since| since.min(row.ready_at)));
                    }
                    _ => {}
                }
            }
        }
        jobs
    }

    fn waiter_view(&self, row: &WaiterRow) -> Option<WaiterView> {
        let task = self.tasks.get(&row.task)?;
        Some(WaiterView {
            task: row.task,
            kind: task.info.kind.clone(),
            queue: task.queue.clone(),
            wait_reason: row.wait_reason,
            weight: task.info.weight,
            due_at: row.due_at,
        })
    }

    fn explain_inbox_task(&mut self, id: TaskId) -> Result<NotRunningReason> {
        let task = self.tasks.get(&id);
        let lane = task.and_then(|task| {
            self.lanes.get(&(task.queue.clone(), task.info.kind.clone())).copied()
        });
        let is_served = lane.is_some_and(|lane| is_lane_of_live_worker(self, lane));
        Ok(NotRunningReason::InInbox { is_served })
    }

    fn explain_waiting_task(&self, row: WaiterRow) -> NotRunningReason {
        let limit = self.limits.get(&row.limit);
        let before = self.waiters.iter().filter(|other| other.limit == row.limit && **other < row);
        let mut holders = self.list_slot_holders(row.limit);
        holders.truncate(EXPLAINED_HOLDERS_MAX);
        NotRunningReason::InWaitQueue {
            limit: limit.map_or_else(|| "".into(), |limit| limit.name.clone()),
            capacity: limit.and_then(|limit| limit.capacity),
            held: limit.map_or(0, |limit| limit.held),
            paused_by: limit.and_then(|limit| limit.paused_by),
            delay_ms: limit.and_then(|limit| limit.fair_share).map_or(0, |share| share.delay_ms),
            wait_reason: row.wait_reason,
            queue_position: before.count() as u64 + 1,
            holders,
        }
    }

    fn explain_ready_task(&mut self, row: ReadyRow) -> Result<NotRunningReason> {
        let is_served = is_lane_of_live_worker(self, row.lane);
        let ahead = self.ready.iter().filter(|other| other.lane == row.lane && **other < row);
        let ahead = ahead.count() as u64;
        let (queue, kind) = self.queue_and_kind_of_lane(row.lane);
        let window = self.kinds.get(&kind).and_then(|kind| kind.day_window);
        let is_open = window.is_none_or(|window| window.is_open(self.now));
        Ok(NotRunningReason::Ready {
            queue,
            kind,
            is_served,
            is_in_day_window: is_open,
            tasks_ahead: ahead,
        })
    }

    fn queue_and_kind_of_lane(&self, lane: LaneId) -> (Arc<str>, Arc<str>) {
        let found = self.lanes.iter().find(|(_, id)| **id == lane);
        found.map_or_else(|| ("".into(), "".into()), |(name, _)| name.clone())
    }

    fn explain_running_attempt(
        &self,
        task: TaskId,
        token: Token,
    ) -> (NotRunningReason, Option<Millis>) {
        let since = self.running.get(&(token, task)).map(|running| running.started_at);
        let Some(lease) = self.leases.get(&token) else {
            return (NotRunningReason::InInbox { is_served: true }, since);
        };
        let held = self.held_slots.iter().filter(|(holder, _, _)| *holder == task);
        let reason = NotRunningReason::Running {
            worker: lease.worker.clone(),
            expires_at: lease.expires_at,
            slots: held
                .map(|(_, limit, number)| self.slot_with_limit_name(*limit, *number))
                .collect(),
        };
        (reason, since)
    }

    fn list_slot_holders(&self, limit: LimitId) -> Vec<SlotHolder> {
        let slots = self.slot_holders.get(&limit).into_iter().flatten().enumerate();
        let held = slots.filter_map(|(number, task)| Some((number as u32, (*task)?)));
        held.map(|(slot, task)| {
            let row = self.tasks.get(&task);
            let lease = match row.and_then(|row| row.position) {
                Some(Position::Running(token)) => self.leases.get(&token),
                _ => None,
            };
            SlotHolder {
                slot,
                task,
                kind: row.map_or_else(|| "".into(), |row| row.info.kind.clone()),
                worker: lease.map(|lease| lease.worker.clone()),
                expires_at: lease.map(|lease| lease.expires_at),
            }
        })
        .collect()
    }

    fn job_view(&self, limit: &Limit) -> Option<JobView> {
        let mut job = JobView::from_limit(limit)?;
        for task in self.tasks.values().filter(|task| task.info.job.as_ref() == Some(&job.name)) {
            if let Some(position) = task.position {
                *job.tasks.entry(position.state()).or_default() += 1;
            }
        }
        Some(job)
    }

    /// Everything the invariants speak of.
    pub fn snapshot(&self) -> Snapshot {
        let mut finished = BTreeMap::new();
        let mut tasks = Vec::with_capacity(self.tasks.len());
        for (id, task) in &self.tasks {
            match task.position {
                Some(Position::Finished(state)) => *finished.entry(state).or_default() += 1,
                position => tasks.push(self.build_snapshot_task(*id, task, position)),
            }
        }
        let mut slots: Vec<SnapshotSlot> = self
            .held_slots
            .iter()
            .map(|(task, limit, number)| SnapshotSlot {
                limit: *limit,
                number: *number,
                task: *task,
            })
            .collect();
        slots.sort_unstable();
        Snapshot {
            store_faults: Vec::new(),
            now: self.now,
            counters: self.counters,
            last_task_id: TaskId(self.last_task_id),
            highest_task_id: self.tasks.keys().next_back().copied().unwrap_or_default(),
            tasks,
            limits: self.limits.values().cloned().collect(),
            slots,
            leases: self.leases.values().cloned().collect(),
            unique_keys: self.unique_keys.iter().map(|(key, task)| (key.clone(), *task)).collect(),
            finished,
        }
    }

    fn build_snapshot_task(
        &self,
        id: TaskId,
        task: &StoredTask,
        position: Option<Position>,
    ) -> SnapshotTask {
        let gated = match position {
            Some(Position::Running(token)) => {
                self.running.get(&(token, id)).is_some_and(|running| running.holds_slots)
            }
            _ => false,
        };
        SnapshotTask {
            id,
            kind: task.info.kind.clone(),
            group: task.info.group.clone(),
            job: task.info.job.clone(),
            workflow: task.info.workflow.clone(),
            unique_key: task.submitted.unique_key.as_deref().map(Into::into),
            weight: task.info.weight,
            attempts_used: task.info.attempts_used,
            crashes: task.info.crashes,
            positions: position.into_iter().collect(),
            holds_slots: gated,
        }
    }
}
