use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::inspect::{
    Explanation, Holder, Inspect, JobLoad, JobView, LOAD_READY_MAX, Load, QueueView, Reason,
    SlotRow, Snapshot, TaskFilter, TaskRow, TaskView, WaiterView, WorkerView, WorkflowView,
    estimate_ms,
};
use tidegate_core::requests::RequestStats;
use tidegate_core::tables::{LineRow, Position, ReadyRow};
use tidegate_core::{
    Kind, LaneId, Limit, LimitId, Millis, Result, Scope, State as TaskState, TaskId, Token,
    WorkerId,
};

use super::state::{State, Task};
use super::workers::is_asked_for;
use super::{Memory, leases};

/// Holders listed in an explanation.
const HOLDERS_MAX: usize = 100;

#[async_trait]
impl Inspect for Memory {
    async fn now(&self) -> Result<Millis> {
        Ok((self.inner.clock)())
    }

    fn requests(&self) -> RequestStats {
        self.inner.requests.read()
    }

    async fn task(&self, task: TaskId) -> Result<Option<TaskView>> {
        let state = self.state();
        Ok(state.tasks.get(&task).map(|row| TaskView {
            payload: Some(row.new.payload.clone()),
            result: row.result.clone(),
            ..state.view(task, row)
        }))
    }

    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>> {
        let state = self.state();
        let after = filter.after.map_or(TaskId(i64::MIN), |task| TaskId(task.0 + 1));
        let views = state.tasks.range(after..).map(|(id, row)| state.view(*id, row));
        Ok(views.filter(|view| matches(&filter, view)).take(filter.tasks_max as usize).collect())
    }

    async fn explain(&self, task: TaskId) -> Result<Option<Explanation>> {
        let mut state = self.state();
        state.now = (self.inner.clock)();
        state.explain(task)
    }

    async fn counts(&self) -> Result<BTreeMap<TaskState, u64>> {
        let state = self.state();
        let mut counts = BTreeMap::new();
        for position in state.tasks.values().filter_map(|task| task.position) {
            *counts.entry(position.state()).or_default() += 1;
        }
        Ok(counts)
    }

    async fn limits(&self) -> Result<Vec<Limit>> {
        let state = self.state();
        Ok(state.limit_names.values().filter_map(|id| state.limits.get(id).cloned()).collect())
    }

    async fn holders(&self, limit: LimitId) -> Result<Vec<Holder>> {
        Ok(self.state().holders(limit))
    }

    async fn jobs(&self) -> Result<Vec<JobView>> {
        let state = self.state();
        let jobs = state.limits.values().filter(|limit| limit.scope() == Scope::Job);
        let mut jobs: Vec<JobView> = jobs.filter_map(|limit| state.job(limit)).collect();
        jobs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(jobs)
    }

    async fn workflows(&self) -> Result<Vec<WorkflowView>> {
        let state = self.state();
        let mut flows: BTreeMap<Arc<str>, BTreeMap<TaskState, u64>> = BTreeMap::new();
        let halts = |name: &str| {
            let limit = state.limit_names.get(&*Scope::Workflow.name(name))?;
            state.limits.get(limit)?.halt
        };
        for limit in state.limits.values().filter(|limit| limit.halt.is_some()) {
            if let Some(name) = limit.name.strip_prefix("workflow:") {
                flows.entry(name.into()).or_default();
            }
        }
        for task in state.tasks.values() {
            if let (Some(name), Some(position)) = (&task.tags.workflow, task.position) {
                *flows.entry(name.clone()).or_default().entry(position.state()).or_default() += 1;
            }
        }
        let view = |(name, tasks): (Arc<str>, _)| WorkflowView { halt: halts(&name), name, tasks };
        Ok(flows.into_iter().map(view).collect())
    }

    async fn queues(&self) -> Result<Vec<QueueView>> {
        Ok(self.state().queues((self.inner.clock)()))
    }

    async fn workers(&self) -> Result<Vec<WorkerView>> {
        Ok(self.state().workers((self.inner.clock)()))
    }

    async fn waiters(&self, limit: LimitId, waiters_max: u32) -> Result<Vec<WaiterView>> {
        let state = self.state();
        let rows = state.line.iter().filter(|row| row.limit == limit);
        Ok(rows.take(waiters_max as usize).filter_map(|row| state.waiter(row)).collect())
    }

    async fn kinds(&self) -> Result<Vec<Kind>> {
        Ok(self.state().kinds.values().map(|kind| Kind::clone(kind)).collect())
    }

    async fn load(&self) -> Result<Load> {
        Ok(self.state().load((self.inner.clock)()))
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        let mut state = self.state();
        state.now = (self.inner.clock)();
        Ok(state.snapshot())
    }
}

fn matches(filter: &TaskFilter, view: &TaskView) -> bool {
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

impl State {
    fn view(&self, id: TaskId, task: &Task) -> TaskView {
        let position = task.position.unwrap_or(Position::Arrived);
        let kind_attempts = self.kinds.get(&task.tags.kind).map_or(1, |kind| kind.max_attempts);
        let progress = match position {
            Position::Running(token) => self.running.get(&(token, id)),
            _ => None,
        };
        TaskView {
            id,
            kind: task.tags.kind.clone(),
            queue: task.queue.clone(),
            state: position.state(),
            group: task.tags.group.clone(),
            job: task.tags.job.clone(),
            workflow: task.tags.workflow.clone(),
            unique_key: task.new.unique_key.as_deref().map(Into::into),
            weight: task.tags.weight,
            priority: task.tags.priority,
            spent: task.tags.spent,
            max_attempts: task.tags.max_attempts.unwrap_or(kind_attempts),
            deaths: task.tags.deaths,
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

    fn explain(&mut self, id: TaskId) -> Result<Option<Explanation>> {
        let Some(task) = self.tasks.get(&id) else {
            return Ok(None);
        };
        let position = task.position.unwrap_or(Position::Arrived);
        let created_at = task.created_at;
        let (queue, group) =
            (task.queue.clone(), task.tags.group.as_ref().unwrap_or(&task.tags.kind).clone());
        let (reason, since) = match position {
            Position::Scheduled(run_at) => (Reason::NotDue { run_at }, Some(created_at)),
            Position::Arrived => (self.explain_gate(id)?, None),
            Position::Line(row) => (self.explain_line(row), Some(row.since)),
            Position::Ready(row) => (self.explain_ready(row)?, Some(row.since)),
            Position::Running(token) => self.explain_running(id, token),
            Position::Final(_) => (Reason::Ended, self.tasks[&id].finished_at),
        };
        let running = self.running_beside(position, &queue);
        let pace = self.paces.get(&group).map(|(pace, _)| *pace);
        let estimate_ms = reason.ahead().and_then(|ahead| estimate_ms(ahead, pace, running));
        let paused_at = self.paused.get(&queue).copied();
        let state = position.state();
        Ok(Some(Explanation { task: id, state, reason, since, paused_at, estimate_ms }))
    }

    /// Tasks that run and whose ends are waited for: those that hold slots of the limit, or
    /// those of the lane.
    fn running_beside(&self, position: Position, queue: &str) -> u64 {
        let is_beside = |id: &TaskId| match position {
            Position::Line(row) => {
                let slots = (*id, row.limit, 0)..=(*id, row.limit, u32::MAX);
                self.held.range(slots).next().is_some()
            }
            Position::Ready(row) => self
                .tasks
                .get(id)
                .is_some_and(|task| task.tags.lane == row.lane && *task.queue == *queue),
            _ => false,
        };
        self.running.keys().filter(|(_, task)| is_beside(task)).count() as u64
    }

    fn queues(&self, now: Millis) -> Vec<QueueView> {
        let view = |name: &Arc<str>| QueueView {
            name: name.clone(),
            paused_at: self.paused.get(name).copied(),
            workers: self.workers(now).iter().filter(|w| w.queues.contains(name)).count() as u64,
            tasks: BTreeMap::new(),
        };
        let mut queues: BTreeMap<Arc<str>, QueueView> =
            self.paused.keys().map(|name| (name.clone(), view(name))).collect();
        for name in self.workers(now).iter().flat_map(|worker| &worker.queues) {
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

    fn workers(&self, now: Millis) -> Vec<WorkerView> {
        let alive = self.workers.iter().filter(|(_, worker)| worker.alive_until > now);
        let view = |(id, worker): (&WorkerId, &super::rows::Worker)| {
            let is_own = |token: &Token| self.leases.get(token).is_some_and(|l| l.worker == *id);
            let mut view = WorkerView {
                id: id.clone(),
                alive_until: worker.alive_until,
                queues: Vec::new(),
                kinds: Vec::new(),
                running: self.running.keys().filter(|(token, _)| is_own(token)).count() as u64,
                report: worker.report.clone(),
                registered: self.registered_by(id),
            };
            for lane in worker.lanes.keys() {
                let (queue, kind) = self.lane_name(*lane);
                view.serve(queue, kind);
            }
            view
        };
        alive.map(view).collect()
    }

    fn registered_by(&self, id: &WorkerId) -> BTreeMap<Arc<str>, Option<u32>> {
        let by =
            |notes: &Vec<(WorkerId, Option<u32>)>| notes.iter().find(|(w, _)| w == id).cloned();
        let notes = self.registrations.iter();
        notes.filter_map(|(group, notes)| Some((group.clone(), by(notes)?.1))).collect()
    }

    fn load(&self, now: Millis) -> Load {
        let is_open = |row: &&ReadyRow| !self.paused.contains_key(&self.lane_name(row.lane).0);
        let mut first_waits = BTreeMap::new();
        for row in &self.line {
            let limit = self.limits.get(&row.limit);
            if limit.is_some_and(|limit| limit.scope() != Scope::Workflow) {
                first_waits.entry(row.limit).or_insert(row.since);
            }
        }
        Load {
            ready: self.ready.iter().filter(is_open).take(LOAD_READY_MAX as usize).count() as u32,
            abandoned: leases::abandoned(self, now, u32::MAX).len() as u32,
            first_waits,
            jobs: self.job_loads(),
            now,
        }
    }

    fn job_loads(&self) -> BTreeMap<LimitId, JobLoad> {
        let mut jobs: BTreeMap<LimitId, JobLoad> = BTreeMap::new();
        for (limit, slots) in &self.slots {
            if self.limits.get(limit).is_none_or(|limit| limit.scope() != Scope::Job) {
                continue;
            }
            let holders = slots.iter().flatten().filter_map(|task| self.tasks.get(task)?.position);
            for position in holders {
                let load = jobs.entry(*limit);
                match position {
                    Position::Running(_) => load.or_default().running += 1,
                    Position::Ready(row) => {
                        let first = &mut load.or_default().ready_since;
                        *first = Some(first.map_or(row.since, |since| since.min(row.since)));
                    }
                    _ => {}
                }
            }
        }
        jobs
    }

    fn waiter(&self, row: &LineRow) -> Option<WaiterView> {
        let task = self.tasks.get(&row.task)?;
        Some(WaiterView {
            task: row.task,
            kind: task.tags.kind.clone(),
            queue: task.queue.clone(),
            class: row.class,
            weight: task.tags.weight,
            since: row.since,
        })
    }

    fn explain_gate(&mut self, id: TaskId) -> Result<Reason> {
        let task = self.tasks.get(&id);
        let lane = task.and_then(|task| {
            self.lanes.get(&(task.queue.clone(), task.tags.kind.clone())).copied()
        });
        let is_served = lane.is_some_and(|lane| is_asked_for(self, lane));
        Ok(Reason::AtGate { is_served })
    }

    fn explain_line(&self, row: LineRow) -> Reason {
        let limit = self.limits.get(&row.limit);
        let before = self.line.iter().filter(|other| other.limit == row.limit && **other < row);
        let mut holders = self.holders(row.limit);
        holders.truncate(HOLDERS_MAX);
        Reason::InLine {
            limit: limit.map_or_else(|| "".into(), |limit| limit.name.clone()),
            capacity: limit.and_then(|limit| limit.capacity),
            held: limit.map_or(0, |limit| limit.held),
            halt: limit.and_then(|limit| limit.halt),
            delay_ms: limit.and_then(|limit| limit.share).map_or(0, |share| share.delay_ms),
            class: row.class,
            place: before.count() as u64 + 1,
            holders,
        }
    }

    fn explain_ready(&mut self, row: ReadyRow) -> Result<Reason> {
        let is_served = is_asked_for(self, row.lane);
        let ahead = self.ready.iter().filter(|other| other.lane == row.lane && **other < row);
        let ahead = ahead.count() as u64;
        let (queue, kind) = self.lane_name(row.lane);
        let window = self.kinds.get(&kind).and_then(|kind| kind.window);
        let is_open = window.is_none_or(|window| window.is_open(self.now));
        Ok(Reason::Ready { queue, kind, is_served, is_open, ahead })
    }

    fn lane_name(&self, lane: LaneId) -> (Arc<str>, Arc<str>) {
        let found = self.lanes.iter().find(|(_, id)| **id == lane);
        found.map_or_else(|| ("".into(), "".into()), |(name, _)| name.clone())
    }

    fn explain_running(&self, task: TaskId, token: Token) -> (Reason, Option<Millis>) {
        let since = self.running.get(&(token, task)).map(|running| running.started_at);
        let Some(lease) = self.leases.get(&token) else {
            return (Reason::AtGate { is_served: true }, since);
        };
        let held = self.held.iter().filter(|(holder, _, _)| *holder == task);
        let reason = Reason::Running {
            worker: lease.worker.clone(),
            expires_at: lease.expires_at,
            slots: held.map(|(_, limit, number)| self.slot_held(*limit, *number)).collect(),
        };
        (reason, since)
    }

    fn holders(&self, limit: LimitId) -> Vec<Holder> {
        let slots = self.slots.get(&limit).into_iter().flatten().enumerate();
        let held = slots.filter_map(|(number, task)| Some((number as u32, (*task)?)));
        held.map(|(slot, task)| {
            let row = self.tasks.get(&task);
            let lease = match row.and_then(|row| row.position) {
                Some(Position::Running(token)) => self.leases.get(&token),
                _ => None,
            };
            Holder {
                slot,
                task,
                kind: row.map_or_else(|| "".into(), |row| row.tags.kind.clone()),
                worker: lease.map(|lease| lease.worker.clone()),
                expires_at: lease.map(|lease| lease.expires_at),
            }
        })
        .collect()
    }

    fn job(&self, limit: &Limit) -> Option<JobView> {
        let mut job = JobView::of(limit)?;
        for task in self.tasks.values().filter(|task| task.tags.job.as_ref() == Some(&job.name)) {
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
                Some(Position::Final(state)) => *finished.entry(state).or_default() += 1,
                position => tasks.push(self.task_row(*id, task, position)),
            }
        }
        let mut slots: Vec<SlotRow> = self
            .held
            .iter()
            .map(|(task, limit, number)| SlotRow { limit: *limit, number: *number, task: *task })
            .collect();
        slots.sort_unstable();
        Snapshot {
            faults: Vec::new(),
            now: self.now,
            counters: self.counters,
            last_task: TaskId(self.last_task),
            highest_task: self.tasks.keys().next_back().copied().unwrap_or_default(),
            tasks,
            limits: self.limits.values().cloned().collect(),
            slots,
            leases: self.leases.values().cloned().collect(),
            keys: self.unique.iter().map(|(key, task)| (key.clone(), *task)).collect(),
            finished,
        }
    }

    fn task_row(&self, id: TaskId, task: &Task, position: Option<Position>) -> TaskRow {
        let gated = match position {
            Some(Position::Running(token)) => {
                self.running.get(&(token, id)).is_some_and(|running| running.gated)
            }
            _ => false,
        };
        TaskRow {
            id,
            kind: task.tags.kind.clone(),
            group: task.tags.group.clone(),
            job: task.tags.job.clone(),
            workflow: task.tags.workflow.clone(),
            unique_key: task.new.unique_key.as_deref().map(Into::into),
            weight: task.tags.weight,
            spent: task.tags.spent,
            deaths: task.tags.deaths,
            positions: position.into_iter().collect(),
            gated,
        }
    }
}
