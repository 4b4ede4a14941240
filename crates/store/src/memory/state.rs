use std::sync::Arc;

use tidegate_core::tables::{Counters, Lease, LineRow, Pace, Position, ReadyRow, Tags};
use tidegate_core::{
    Attempt, Kind, LaneId, Limit, LimitId, Millis, NewTask, SlotHeld, TaskId, Token, WorkerId,
};

pub(crate) use super::rows::{Running, Task, Worker};
use super::undo::{Map, Set, Undo};

/// The tables, as ordered maps. Public so that a simulator can run the rules over them
/// without a runtime.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Tasks the gate may look at in one transaction; none means as many as anywhere.
    pub gate_budget: Option<u32>,
    /// Tasks of a job that may be past its line; none means as many as anywhere.
    pub job_window: Option<u32>,
    /// The time of the running transaction.
    pub now: Millis,
    /// Whether something may have become claimable since this was last put back.
    pub(crate) wakes: bool,
    pub(crate) counters: Counters,
    pub(crate) kinds: Map<Arc<str>, Arc<Kind>>,
    /// When a worker last registered a kind that nobody else made known.
    pub(crate) kinds_seen: Map<Arc<str>, Millis>,
    pub(crate) lanes: Map<(Arc<str>, Arc<str>), LaneId>,
    pub(crate) workers: Map<WorkerId, Worker>,
    /// What workers say of groups, in the order in which they registered.
    pub(crate) registrations: Map<Arc<str>, Vec<(WorkerId, Option<u32>)>>,
    /// Paused queues, and since when.
    pub(crate) paused: Map<Arc<str>, Millis>,
    /// How long tasks of each group run, and when that was last heard.
    pub(crate) paces: Map<Arc<str>, (Pace, Millis)>,
    pub(crate) limits: Map<LimitId, Limit>,
    pub(crate) limit_names: Map<Arc<str>, LimitId>,
    pub(crate) slots: Map<LimitId, Vec<Option<TaskId>>>,
    pub(crate) held: Set<(TaskId, LimitId, u32)>,
    pub(crate) tasks: Map<TaskId, Task>,
    pub(crate) unique: Map<Arc<str>, TaskId>,
    pub(crate) scheduled: Set<(Millis, TaskId)>,
    pub(crate) arrived: Set<TaskId>,
    /// Of these the tasks of jobs that are no steps of a workflow.
    pub(crate) arrived_of_jobs: Set<(Arc<str>, TaskId)>,
    pub(crate) ready: Set<ReadyRow>,
    pub(crate) line: Set<LineRow>,
    pub(crate) running: Map<(Token, TaskId), Running>,
    pub(crate) leases: Map<Token, Lease>,
    /// Attempts whose slots were taken away and whose workers are yet to be told.
    pub(crate) fenced: Set<(Token, TaskId)>,
    pub(crate) expiries: Set<(Millis, Token)>,
    pub(crate) removals: Set<(Millis, TaskId)>,
    pub(crate) last_task: i64,
    pub(crate) last_limit: i64,
    /// Whether tasks are inserted without their payloads: for a submission that is only checked.
    pub(crate) drops_payloads: bool,
    /// The numbers as they were when the recorded transaction began, if one is recorded.
    pub(crate) recorded: Option<Numbers>,
}

/// What a transaction changes beside the tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    now: Millis,
    wakes: bool,
    counters: Counters,
    last_task: i64,
    last_limit: i64,
}

impl State {
    /// Begins a transaction that can be rolled back.
    pub(super) fn begin(&mut self) {
        self.each_table(|table| table.begin());
        self.recorded = Some(Numbers {
            now: self.now,
            wakes: self.wakes,
            counters: self.counters,
            last_task: self.last_task,
            last_limit: self.last_limit,
        });
    }

    /// Keeps what the recorded transaction has written.
    pub(super) fn commit(&mut self) {
        self.recorded = None;
        self.each_table(|table| table.commit());
    }

    /// Takes back what the recorded transaction has written, if it was not committed.
    pub(super) fn roll_back(&mut self) {
        let Some(numbers) = self.recorded.take() else {
            return;
        };
        let Numbers { now, wakes, counters, last_task, last_limit } = numbers;
        (self.now, self.wakes, self.counters) = (now, wakes, counters);
        (self.last_task, self.last_limit) = (last_task, last_limit);
        self.each_table(|table| table.roll_back());
    }

    fn each_table(&mut self, each: impl FnMut(&mut dyn Undo)) {
        // Without `..`, so that a new table is not forgotten.
        let Self {
            gate_budget: _,
            job_window: _,
            now: _,
            wakes: _,
            counters: _,
            kinds,
            kinds_seen,
            lanes,
            workers,
            registrations,
            paused,
            paces,
            limits,
            limit_names,
            slots,
            held,
            tasks,
            unique,
            scheduled,
            arrived,
            arrived_of_jobs,
            ready,
            line,
            running,
            leases,
            fenced,
            expiries,
            removals,
            last_task: _,
            last_limit: _,
            drops_payloads: _,
            recorded: _,
        } = self;
        let tables: [&mut dyn Undo; 23] = [
            kinds,
            kinds_seen,
            lanes,
            workers,
            registrations,
            paused,
            paces,
            limits,
            limit_names,
            slots,
            held,
            tasks,
            unique,
            scheduled,
            arrived,
            arrived_of_jobs,
            ready,
            line,
            running,
            leases,
            fenced,
            expiries,
            removals,
        ];
        tables.into_iter().for_each(each);
    }
}

impl State {
    /// The job whose share brings a task to the gate, unless it is a step of a workflow.
    pub(crate) fn job_at_gate(&self, task: TaskId) -> Option<&Arc<str>> {
        self.tasks.get(&task)?.tags.job_at_gate()
    }

    pub(super) fn stand(&mut self, task: TaskId, position: Option<Position>) {
        if let Some(task) = self.tasks.get_mut(&task) {
            task.position = position;
        }
    }

    pub(super) fn attempt(&self, row: ReadyRow, lease: &Lease) -> Option<Attempt> {
        let task = self.tasks.get(&row.task)?;
        let kind = self.kinds.get(&task.tags.kind);
        let held =
            self.held.range((row.task, LimitId(0), 0)..(TaskId(row.task.0 + 1), LimitId(0), 0));
        Some(Attempt {
            task: row.task,
            token: lease.token,
            kind: task.tags.kind.clone(),
            queue: task.queue.clone(),
            group: task.tags.group.as_ref().unwrap_or(&task.tags.kind).clone(),
            weight: task.tags.weight,
            payload: task.new.payload.clone(),
            number: task.tags.spent + 1,
            max_attempts: task
                .tags
                .max_attempts
                .unwrap_or_else(|| kind.map_or(1, |kind| kind.max_attempts)),
            timeout_ms: task.new.timeout_ms.or_else(|| kind.and_then(|kind| kind.timeout_ms)),
            job: task.tags.job.clone(),
            workflow: task.tags.workflow.clone(),
            slots: held.map(|(_, limit, number)| self.slot_held(*limit, *number)).collect(),
            expires_at: lease.expires_at,
            arrived_at: task.tags.arrival,
            ready_at: row.since,
            trace: task.new.trace.as_deref().map(Arc::from),
        })
    }

    pub(crate) fn slot_held(&self, limit: LimitId, number: u32) -> SlotHeld {
        let name = self.limits.get(&limit).map_or_else(|| "".into(), |limit| limit.name.clone());
        SlotHeld { limit, name, number }
    }

    pub(super) fn insert(&mut self, new: &NewTask, lane: LaneId) -> TaskId {
        self.last_task += 1;
        let task = TaskId(self.last_task);
        let shared = |name: &Option<String>| name.as_deref().map(Arc::from);
        let tags = Tags {
            task,
            lane,
            kind: new.kind.as_str().into(),
            group: shared(&new.group),
            job: shared(&new.job),
            workflow: shared(&new.workflow),
            weight: new.weight,
            priority: new.priority,
            max_attempts: new.max_attempts,
            spent: 0,
            deaths: 0,
            on_failure: new.on_failure,
            arrival: new.arrival(self.now),
        };
        let queue = self.lanes.iter().find(|(_, id)| **id == lane);
        let queue = queue.map_or_else(|| "".into(), |((queue, _), _)| queue.clone());
        if let Some(key) = &new.unique_key {
            self.unique.insert(key.as_str().into(), task);
        }
        let row = Task {
            new: Arc::new(if self.drops_payloads { new.without_payload() } else { new.clone() }),
            tags,
            queue,
            position: None,
            created_at: self.now,
            finished_at: None,
            error: None,
            result: None,
        };
        self.tasks.insert(task, row);
        task
    }
}
