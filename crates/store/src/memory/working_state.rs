use std::sync::Arc;

use tidegate_core::tables::{
    Counters, Lease, Position, ReadyRow, RunTimeStats, TaskInfo, WaiterRow,
};
use tidegate_core::{
    Attempt, HeldSlot, Kind, LaneId, Limit, LimitId, Millis, NewTask, TaskId, Token, WorkerId,
};

pub(crate) use super::rows::{RunningAttempt, StoredTask, WorkerRow};
use super::undo_log::{Undo, UndoMap, UndoSet};

/// The tables, as ordered maps. Public so that a simulator can run the rules over them
/// without a runtime.
#[derive(Debug, Clone, Default)]
pub struct WorkingState {
    /// Tasks the gate may look at in one transaction; none means as many as anywhere.
    pub gate_budget: Option<u32>,
    /// Tasks of a job that may be past its line; none means as many as anywhere.
    pub job_window: Option<u32>,
    /// The time of the running transaction.
    pub now: Millis,
    /// Whether something may have become claimable since this was last put back.
    pub(crate) has_new_work: bool,
    pub(crate) counters: Counters,
    pub(crate) kinds: UndoMap<Arc<str>, Arc<Kind>>,
    /// When a worker last registered a kind that nobody else made known.
    pub(crate) kinds_registered_at: UndoMap<Arc<str>, Millis>,
    pub(crate) lanes: UndoMap<(Arc<str>, Arc<str>), LaneId>,
    pub(crate) workers: UndoMap<WorkerId, WorkerRow>,
    /// What workers say of groups, in the order in which they registered.
    pub(crate) registrations: UndoMap<Arc<str>, Vec<(WorkerId, Option<u32>)>>,
    /// Paused queues, and since when.
    pub(crate) paused_queues: UndoMap<Arc<str>, Millis>,
    /// How long tasks of each group run, and when that was last heard.
    pub(crate) run_times: UndoMap<Arc<str>, (RunTimeStats, Millis)>,
    pub(crate) limits: UndoMap<LimitId, Limit>,
    pub(crate) limit_ids_by_name: UndoMap<Arc<str>, LimitId>,
    pub(crate) slot_holders: UndoMap<LimitId, Vec<Option<TaskId>>>,
    pub(crate) held_slots: UndoSet<(TaskId, LimitId, u32)>,
    pub(crate) tasks: UndoMap<TaskId, StoredTask>,
    pub(crate) unique_keys: UndoMap<Arc<str>, TaskId>,
    pub(crate) scheduled: UndoSet<(Millis, TaskId)>,
    pub(crate) inbox: UndoSet<TaskId>,
    /// Of these the tasks of jobs that are no steps of a workflow.
    pub(crate) inbox_of_jobs: UndoSet<(Arc<str>, TaskId)>,
    pub(crate) ready: UndoSet<ReadyRow>,
    pub(crate) waiters: UndoSet<WaiterRow>,
    pub(crate) running: UndoMap<(Token, TaskId), RunningAttempt>,
    pub(crate) leases: UndoMap<Token, Lease>,
    /// Attempts whose slots were taken away and whose workers are yet to be told.
    pub(crate) fenced_attempts: UndoSet<(Token, TaskId)>,
    pub(crate) lease_expiries: UndoSet<(Millis, Token)>,
    pub(crate) task_removals: UndoSet<(Millis, TaskId)>,
    pub(crate) last_task_id: i64,
    pub(crate) last_limit_id: i64,
    /// Whether tasks are inserted without their payloads: for a submission that is only checked.
    pub(crate) omits_payloads: bool,
    /// The numbers as they were when the recorded transaction began, if one is recorded.
    pub(crate) saved_scalars: Option<ScalarState>,
}

/// What a transaction changes beside the tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScalarState {
    now: Millis,
    has_new_work: bool,
    counters: Counters,
    last_task_id: i64,
    last_limit_id: i64,
}

impl WorkingState {
    /// Begins a transaction that can be rolled back.
    pub(super) fn begin_transaction(&mut self) {
        self.for_each_table(|table| table.begin());
        self.saved_scalars = Some(ScalarState {
            now: self.now,
            has_new_work: self.has_new_work,
            counters: self.counters,
            last_task_id: self.last_task_id,
            last_limit_id: self.last_limit_id,
        });
    }

    /// Keeps what the recorded transaction has written.
    pub(super) fn commit_transaction(&mut self) {
        self.saved_scalars = None;
        self.for_each_table(|table| table.commit());
    }

    /// Takes back what the recorded transaction has written, if it was not committed.
    pub(super) fn roll_back_transaction(&mut self) {
        let Some(numbers) = self.saved_scalars.take() else {
            return;
        };
        let ScalarState {
            now,
            has_new_work: wakes,
            counters,
            last_task_id: last_task,
            last_limit_id: last_limit,
        } = numbers;
        (self.now, self.has_new_work, self.counters) = (now, wakes, counters);
        (self.last_task_id, self.last_limit_id) = (last_task, last_limit);
        self.for_each_table(|table| table.roll_back());
    }

    fn for_each_table(&mut self, each: impl FnMut(&mut dyn Undo)) {
        // Without `..`, so that a new table is not forgotten.
        let Self {
            gate_budget: _,
            job_window: _,
            now: _,
            has_new_work: _,
            counters: _,
            kinds,
            kinds_registered_at: kinds_seen,
            lanes,
            workers,
            registrations,
            paused_queues: paused,
            run_times: paces,
            limits,
            limit_ids_by_name: limit_names,
            slot_holders: slots,
            held_slots: held,
            tasks,
            unique_keys: unique,
            scheduled,
            inbox: arrived,
            inbox_of_jobs: arrived_of_jobs,
            ready,
            waiters: line,
            running,
            leases,
            fenced_attempts: fenced,
            lease_expiries: expiries,
            task_removals: removals,
            last_task_id: _,
            last_limit_id: _,
            omits_payloads: _,
            saved_scalars: _,
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

impl WorkingState {
    /// The job whose share brings a task to the gate, unless it is a step of a workflow.
    pub(crate) fn fair_share_job(&self, task: TaskId) -> Option<&Arc<str>> {
        self.tasks.get(&task)?.info.fair_share_job()
    }

    pub(super) fn set_position(&mut self, task: TaskId, position: Option<Position>) {
        if let Some(task) = self.tasks.get_mut(&task) {
            task.position = position;
        }
    }

    pub(super) fn build_attempt(&self, row: ReadyRow, lease: &Lease) -> Option<Attempt> {
        let task = self.tasks.get(&row.task)?;
        let kind = self.kinds.get(&task.info.kind);
        let held = self
            .held_slots
            .range((row.task, LimitId(0), 0)..(TaskId(row.task.0 + 1), LimitId(0), 0));
        Some(Attempt {
            task: row.task,
            token: lease.token,
            kind: task.info.kind.clone(),
            queue: task.queue.clone(),
            group: task.info.group.as_ref().unwrap_or(&task.info.kind).clone(),
            weight: task.info.weight,
            payload: task.submitted.payload.clone(),
            number: task.info.attempts_used + 1,
            max_attempts: task
                .info
                .max_attempts
                .unwrap_or_else(|| kind.map_or(1, |kind| kind.max_attempts)),
            timeout_ms: task.submitted.timeout_ms.or_else(|| kind.and_then(|kind| kind.timeout_ms)),
            job: task.info.job.clone(),
            workflow: task.info.workflow.clone(),
            slots: held
                .map(|(_, limit, number)| self.slot_with_limit_name(*limit, *number))
                .collect(),
            expires_at: lease.expires_at,
            due_at: task.info.due_at,
            ready_at: row.ready_at,
            trace: task.submitted.trace.as_deref().map(Arc::from),
        })
    }

    pub(crate) fn slot_with_limit_name(&self, limit: LimitId, number: u32) -> HeldSlot {
        let name = self.limits.get(&limit).map_or_else(|| "".into(), |limit| limit.name.clone());
        HeldSlot { limit, name, number }
    }

    pub(super) fn add_task_row(&mut self, new: &NewTask, lane: LaneId) -> TaskId {
        self.last_task_id += 1;
        let task = TaskId(self.last_task_id);
        let shared = |name: &Option<String>| name.as_deref().map(Arc::from);
        let tags = TaskInfo {
            task,
            lane,
            kind: new.kind.as_str().into(),
            group: shared(&new.effective_group),
            job: shared(&new.job),
            workflow: shared(&new.workflow),
            weight: new.weight,
            priority: new.priority,
            max_attempts: new.max_attempts,
            attempts_used: 0,
            crashes: 0,
            on_failure: new.on_failure,
            due_at: new.due_at(self.now),
        };
        let queue = self.lanes.iter().find(|(_, id)| **id == lane);
        let queue = queue.map_or_else(|| "".into(), |((queue, _), _)| queue.clone());
        if let Some(key) = &new.unique_key {
            self.unique_keys.insert(key.as_str().into(), task);
        }
        let row = StoredTask {
            submitted: Arc::new(if self.omits_payloads {
                new.without_payload()
            } else {
                new.clone()
            }),
            info: tags,
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
