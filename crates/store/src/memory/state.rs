use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::tables::{Counters, Lease, LineRow, Pace, Position, ReadyRow, Tags};
use tidegate_core::{
    Attempt, Kind, LaneId, Limit, LimitId, Millis, NewTask, SlotHeld, TaskId, Token, WorkerId,
};

pub(crate) use super::rows::{Running, Task, Worker};

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
    pub(crate) kinds: BTreeMap<Arc<str>, Arc<Kind>>,
    /// When a worker last registered a kind that nobody else made known.
    pub(crate) kinds_seen: BTreeMap<Arc<str>, Millis>,
    pub(crate) lanes: BTreeMap<(Arc<str>, Arc<str>), LaneId>,
    pub(crate) workers: BTreeMap<WorkerId, Worker>,
    /// What workers say of groups, in the order in which they registered.
    pub(crate) registrations: BTreeMap<Arc<str>, Vec<(WorkerId, Option<u32>)>>,
    /// Paused queues, and since when.
    pub(crate) paused: BTreeMap<Arc<str>, Millis>,
    /// How long tasks of each group run, and when that was last heard.
    pub(crate) paces: BTreeMap<Arc<str>, (Pace, Millis)>,
    pub(crate) limits: BTreeMap<LimitId, Limit>,
    pub(crate) limit_names: BTreeMap<Arc<str>, LimitId>,
    pub(crate) slots: BTreeMap<LimitId, Vec<Option<TaskId>>>,
    pub(crate) held: BTreeSet<(TaskId, LimitId, u32)>,
    pub(crate) tasks: BTreeMap<TaskId, Task>,
    pub(crate) unique: BTreeMap<Arc<str>, TaskId>,
    pub(crate) scheduled: BTreeSet<(Millis, TaskId)>,
    pub(crate) arrived: BTreeSet<TaskId>,
    /// Of these the tasks of jobs that are no steps of a workflow.
    pub(crate) arrived_of_jobs: BTreeSet<(Arc<str>, TaskId)>,
    pub(crate) ready: BTreeSet<ReadyRow>,
    pub(crate) line: BTreeSet<LineRow>,
    pub(crate) running: BTreeMap<(Token, TaskId), Running>,
    pub(crate) leases: BTreeMap<Token, Lease>,
    /// Attempts whose slots were taken away and whose workers are yet to be told.
    pub(crate) fenced: BTreeSet<(Token, TaskId)>,
    pub(crate) expiries: BTreeSet<(Millis, Token)>,
    pub(crate) removals: BTreeSet<(Millis, TaskId)>,
    pub(crate) last_task: i64,
    pub(crate) last_limit: i64,
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

    /// The leases that end at `at` or before, oldest first; those of one worker, or of all.
    pub(super) fn expired<'a>(
        &'a self,
        at: Millis,
        of: Option<&'a WorkerId>,
    ) -> impl Iterator<Item = Token> + 'a {
        let expired = self.expiries.range(..=(at, Token(i64::MAX))).map(|(_, token)| *token);
        expired.filter(move |token| {
            of.is_none_or(|worker| self.leases.get(token).is_some_and(|l| l.worker == *worker))
        })
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
            new: Arc::new(new.clone()),
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
