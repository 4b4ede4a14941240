//! The seam for reading. Whoever only looks never holds a writer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::request_stats::RequestStats;
use crate::tables::{Counters, Lease, Position, RunTimeStats, WaitReason};
use crate::{
    HeldSlot, Kind, Limit, LimitId, Millis, PauseCause, Progress, Result, TaskId, TaskState,
    WorkerId, WorkerReport,
};

/// The reads. Each sees one committed state of the store.
#[async_trait]
pub trait StoreReader: Send + Sync + fmt::Debug {
    /// The store's time.
    async fn now(&self) -> Result<Millis>;
    /// One task.
    async fn task(&self, task: TaskId) -> Result<Option<TaskView>>;
    /// Tasks, in ascending order of id.
    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>>;
    /// Why a task is not running, or since when it runs.
    async fn explain(&self, task: TaskId) -> Result<Option<Explanation>>;
    /// Tasks by state.
    async fn task_counts(&self) -> Result<BTreeMap<TaskState, u64>>;
    /// Every limit, by name.
    async fn limits(&self) -> Result<Vec<Limit>>;
    /// Who holds the slots of a limit, by slot number.
    async fn slot_holders(&self, limit: LimitId) -> Result<Vec<SlotHolder>>;
    /// Progress of every job, by name.
    async fn jobs(&self) -> Result<Vec<JobView>>;
    /// Every workflow with tasks that are kept, by name.
    async fn workflows(&self) -> Result<Vec<WorkflowView>>;
    /// Every queue that has unfinished tasks, is served or is paused, by name.
    async fn queues(&self) -> Result<Vec<QueueView>>;
    /// Every worker that lives by its last word, by id.
    async fn workers(&self) -> Result<Vec<WorkerView>>;
    /// The first in the line of a limit.
    async fn waiters(&self, limit: LimitId, waiters_max: u32) -> Result<Vec<WaiterView>>;
    /// Every kind, by name.
    async fn kinds(&self) -> Result<Vec<Kind>>;
    /// What waits, for whoever watches a store: cheap enough to ask for every few seconds.
    async fn store_load(&self) -> Result<StoreLoad>;
    /// Connections to the server, where the store has a pool of them. Asks nobody.
    fn connection_pool_stats(&self) -> Option<ConnectionPoolStats> {
        None
    }
    /// Returns how the newest connection to the server is encrypted, where the store has a server. Sends
    /// nothing to it.
    fn connection_encryption(&self) -> Option<ConnectionEncryption> {
        None
    }
    /// Returns statistics of the requests of this process. Reads no store.
    fn request_stats(&self) -> RequestStats {
        RequestStats::default()
    }
    /// Everything the invariants speak of, for [`check`](crate::check::check).
    async fn snapshot(&self) -> Result<Snapshot>;
}

/// Which tasks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Only these states; empty means all.
    pub states: Vec<TaskState>,
    /// Only this kind.
    pub kind: Option<String>,
    /// Only this queue.
    pub queue: Option<String>,
    /// Only this group, given or by kind.
    pub group: Option<String>,
    /// Only this job.
    pub job: Option<String>,
    /// Only this workflow.
    pub workflow: Option<String>,
    /// Only ids above this one.
    pub after_task: Option<TaskId>,
    /// At most so many.
    pub tasks_max: u32,
}

/// A task as a person sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    /// Its id.
    pub id: TaskId,
    /// Its kind.
    pub kind: Arc<str>,
    /// Its queue.
    pub queue: Arc<str>,
    /// Its state.
    pub state: TaskState,
    /// Its group, if it is not its kind.
    pub group: Option<Arc<str>>,
    /// Its job.
    pub job: Option<Arc<str>>,
    /// Its workflow.
    pub workflow: Option<Arc<str>>,
    /// Its unique key.
    pub unique_key: Option<Arc<str>>,
    /// Slots it takes of its group's limit.
    pub weight: u32,
    /// Its priority.
    pub priority: i32,
    /// Attempts spent.
    pub attempts_used: u32,
    /// Attempts it is given.
    pub max_attempts: u32,
    /// Deaths of its process.
    pub crashes: u32,
    /// When it was submitted.
    pub created_at: Millis,
    /// When it is due, while it is scheduled.
    pub run_at: Option<Millis>,
    /// When it ended.
    pub finished_at: Option<Millis>,
    /// Its last error.
    pub error: Option<String>,
    /// What its handler last reported.
    pub progress: Option<Progress>,
    /// Its payload; left out of lists.
    #[serde(skip)]
    pub payload: Option<Vec<u8>>,
    /// Its result; left out of lists.
    #[serde(skip)]
    pub result: Option<Vec<u8>>,
}

/// Why a task is where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The task.
    pub task: TaskId,
    /// Its state.
    pub state: TaskState,
    /// Why.
    pub reason: NotRunningReason,
    /// Since when, where the store knows.
    pub reason_since: Option<Millis>,
    /// Since when its queue is paused, if it is.
    pub queue_paused_at: Option<Millis>,
    /// How long until it starts, by how long such tasks ran lately and how many go first. None
    /// where nothing can be told: nothing ran lately, or it does not wait for its turn.
    pub estimated_wait_ms: Option<i64>,
}

/// The reason a task is not running, or that it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum NotRunningReason {
    /// It is not due.
    NotDue {
        /// When it is.
        run_at: Millis,
    },
    /// It arrived and nobody has looked yet; the next claim of any worker does.
    InInbox {
        /// Whether a live worker asks for such tasks when it has room.
        is_served: bool,
    },
    /// It stands in the line of a limit.
    InWaitQueue {
        /// The limit's name.
        limit: Arc<str>,
        /// Its capacity.
        capacity: Option<u32>,
        /// Slots held.
        held: u32,
        /// Why nobody is let through, where nobody is.
        paused_by: Option<PauseCause>,
        /// How far apart tasks of the job start at least, where it is a job's.
        delay_ms: i64,
        /// Why it stands there.
        wait_reason: WaitReason,
        /// Its place in line, from 1.
        queue_position: u64,
        /// Who holds the slots; at most a hundred are listed.
        holders: Vec<SlotHolder>,
    },
    /// It is ready and no worker has come for it.
    Ready {
        /// Its queue.
        queue: Arc<str>,
        /// Its kind.
        kind: Arc<str>,
        /// Whether a live worker asks for such tasks when it has room.
        is_served: bool,
        /// Whether its kind is inside its time of day.
        is_in_day_window: bool,
        /// Ready tasks of its kind and queue that go first.
        tasks_ahead: u64,
    },
    /// It runs.
    Running {
        /// Where.
        worker: WorkerId,
        /// Until when the lease lasts unless renewed.
        expires_at: Millis,
        /// The slots it holds.
        slots: Vec<HeldSlot>,
    },
    /// It has ended.
    Finished,
}

/// Who holds a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotHolder {
    /// The slot's number.
    pub slot: u32,
    /// The task.
    pub task: TaskId,
    /// Its kind.
    pub kind: Arc<str>,
    /// Its worker, if it runs.
    pub worker: Option<WorkerId>,
    /// When the lease ends unless renewed.
    pub expires_at: Option<Millis>,
}

/// A job's progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    /// Its name.
    pub name: Arc<str>,
    /// Tasks that may run at once.
    pub concurrency: Option<u32>,
    /// Tasks of it that go before those of all others.
    pub min_concurrency: u32,
    /// Its share.
    pub weight: u32,
    /// Added to the priority of its tasks.
    pub priority: i32,
    /// The least time from one start to the next.
    pub delay_ms: i64,
    /// Whether it is paused.
    pub paused: bool,
    /// Its tasks by state, as far as they are kept.
    pub tasks: BTreeMap<TaskState, u64>,
}

impl JobView {
    /// A job as its limit tells of it, with no tasks yet.
    pub fn from_limit(limit: &Limit) -> Option<Self> {
        let (name, share) = (limit.name.strip_prefix("job:")?, limit.fair_share?);
        Some(Self {
            name: name.into(),
            concurrency: limit.capacity,
            min_concurrency: share.min_concurrency,
            weight: share.weight,
            priority: share.priority,
            delay_ms: share.delay_ms,
            paused: limit.paused_by.is_some(),
            tasks: BTreeMap::new(),
        })
    }
}

/// A workflow's progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkflowView {
    /// Its name.
    pub name: Arc<str>,
    /// Why no further step begins, where that is so.
    pub paused_by: Option<PauseCause>,
    /// Its tasks by state, as far as they are kept.
    pub tasks: BTreeMap<TaskState, u64>,
}

/// A queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    /// Its name.
    pub name: Arc<str>,
    /// Since when it is paused, if it is.
    pub paused_at: Option<Millis>,
    /// Workers that asked for its tasks within their last lease.
    pub workers: u64,
    /// Its unfinished tasks by state.
    pub tasks: BTreeMap<TaskState, u64>,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerView {
    /// Its id.
    pub id: WorkerId,
    /// Until when it lives unless it says so again.
    pub alive_until: Millis,
    /// Queues it asks for, as far as they had tasks of its kinds.
    pub queues: Vec<Arc<str>>,
    /// Kinds it asks for, as far as there were tasks.
    pub kinds: Vec<Arc<str>>,
    /// Attempts it runs.
    pub running: u64,
    /// What it last said of itself.
    pub report: Option<WorkerReport>,
    /// What it registered: the capacity it brings for a group, or none where it brings none.
    pub registered_capacities: BTreeMap<Arc<str>, Option<u32>>,
}

impl WorkerView {
    /// Notes that it asked for tasks of this kind in this queue.
    pub fn add_served_lane(&mut self, queue: Arc<str>, kind: Arc<str>) {
        for (names, name) in [(&mut self.queues, queue), (&mut self.kinds, kind)] {
            if let Err(at) = names.binary_search(&name) {
                names.insert(at, name);
            }
        }
    }
}

/// A task in a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterView {
    /// The task.
    pub task: TaskId,
    /// Its kind.
    pub kind: Arc<str>,
    /// Its queue.
    pub queue: Arc<str>,
    /// Why it stands there.
    pub wait_reason: WaitReason,
    /// Slots it takes of its group's limit.
    pub weight: u32,
    /// Since when.
    pub due_at: Millis,
}

/// Ready tasks that a [`Load`] counts: who has more has enough to do.
pub const LOAD_READY_TASKS_MAX: u32 = 100_000;

/// What waits in a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreLoad {
    /// Tasks that wait for a worker and for nothing else, up to [`LOAD_READY_MAX`]. Those of paused
    /// queues are not among them.
    pub ready_tasks: u32,
    /// Expired leases that the reaper has to end. Those that it leaves to their worker are not counted.
    pub abandoned_leases: u32,
    /// By limit, since when the first in its line waits. Workflows are left out: a step waits for the
    /// one before it.
    pub first_waiter_due_at: BTreeMap<LimitId, Millis>,
    /// By the limit of a job, what is past its line and has a slot, where something is.
    pub jobs: BTreeMap<LimitId, JobLoad>,
    /// The store's time.
    pub now: Millis,
}

/// What has slots of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobLoad {
    /// Since when the first of its ready tasks is ready, if one is.
    pub first_ready_at: Option<Millis>,
    /// Its tasks that run.
    pub running_tasks: u64,
}

/// A pool of connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionPoolStats {
    /// Those that somebody uses.
    pub in_use: usize,
    /// As many as there may be.
    pub max: usize,
    /// Calls that wait for one.
    pub waiting: usize,
}

/// How a connection to the server of a store is encrypted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionEncryption {
    /// Whether it is encrypted at all.
    pub is_encrypted: bool,
    /// Whether it is a Unix socket, which does not leave the machine.
    pub is_unix_socket: bool,
    /// The version of TLS.
    pub tls_version: Option<String>,
    /// The cipher suite.
    pub cipher_suite: Option<String>,
    /// What was verified of the certificate of the server: `verify-ca` or `verify-full`.
    pub certificate_verification: Option<&'static str>,
}

/// How long until a task starts whose turn comes after `ahead` others, where `running` run at
/// once and end at the pace of their group: one of them ends every mean / running.
pub fn estimate_wait_ms(tasks_ahead: u64, pace: Option<RunTimeStats>, running: u64) -> Option<i64> {
    let mean_ms = pace.and_then(RunTimeStats::mean_ms)?;
    (running > 0).then(|| ((tasks_ahead + 1) as f64 * mean_ms / running as f64).round() as i64)
}

impl NotRunningReason {
    /// How many go before the task, if it waits for its turn and that comes without anybody
    /// doing something about it.
    pub fn tasks_ahead(&self) -> Option<u64> {
        match self {
            Self::InWaitQueue {
                wait_reason: class,
                capacity,
                paused_by: halt,
                queue_position: place,
                ..
            } => {
                let moves = class.may_be_first() && *capacity != Some(0) && halt.is_none();
                moves.then(|| place.saturating_sub(1))
            }
            Self::Ready { is_served: true, is_in_day_window: true, tasks_ahead: ahead, .. } => {
                Some(*ahead)
            }
            _ => None,
        }
    }
}

/// Everything the invariants speak of, in one committed state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// The store's time.
    pub now: Millis,
    /// The counters.
    pub counters: Counters,
    /// The last id that was given to a task.
    pub last_task_id: TaskId,
    /// The highest id that a task has, finished or not.
    pub highest_task_id: TaskId,
    /// Unfinished tasks by id, each with every position it stands in: one, if all is well.
    pub tasks: Vec<SnapshotTask>,
    /// Limits by id.
    pub limits: Vec<Limit>,
    /// Held slots by limit and number.
    pub slots: Vec<SnapshotSlot>,
    /// Leases by token.
    pub leases: Vec<Lease>,
    /// Unique keys, and the tasks that carry them as the store has noted.
    pub unique_keys: Vec<(Arc<str>, TaskId)>,
    /// Finished tasks that are kept, by state.
    pub finished: BTreeMap<TaskState, u64>,
    /// What a store keeps for its own use and that is not as the rest says, in words.
    pub store_faults: Vec<String>,
}

/// An unfinished task in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotTask {
    /// Its id.
    pub id: TaskId,
    /// Its kind.
    pub kind: Arc<str>,
    /// Its group, if it is not its kind.
    pub group: Option<Arc<str>>,
    /// Its job.
    pub job: Option<Arc<str>>,
    /// Its workflow.
    pub workflow: Option<Arc<str>>,
    /// Its unique key.
    pub unique_key: Option<Arc<str>>,
    /// Slots it takes of its group's limit.
    pub weight: u32,
    /// Attempts spent.
    pub attempts_used: u32,
    /// Deaths of its process.
    pub crashes: u32,
    /// Where it stands.
    pub positions: Vec<Position>,
    /// For a running task: whether the gate let it through.
    pub holds_slots: bool,
}

impl SnapshotTask {
    /// Whether it stands for rows whose task is missing.
    pub fn is_orphan(&self) -> bool {
        self.kind.is_empty()
    }

    /// Stands for a row whose task is missing. It already stands somewhere, so the place where
    /// it was found is its second, which no task may have: the check finds it.
    pub fn orphan(id: TaskId) -> Self {
        Self {
            id,
            kind: "".into(),
            group: None,
            job: None,
            workflow: None,
            unique_key: None,
            weight: 1,
            attempts_used: 0,
            crashes: 0,
            positions: vec![Position::Inbox],
            holds_slots: false,
        }
    }
}

/// A held slot in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotSlot {
    /// The limit.
    pub limit: LimitId,
    /// The slot's number.
    pub number: u32,
    /// Who holds it.
    pub task: TaskId,
}
