//! What the rules need of a store inside one transaction.
//!
//! A task stands in exactly one place: scheduled, arrived, ready, in one line, running, or
//! final. Each place is a table of its own, so that claim reads the ready table and nothing
//! else, and a task in two places is a fault that can be seen.
//!
//! Whoever implements this trait keeps rows; whoever calls it (the [`rules`](crate::rules))
//! decides. All of a transaction's calls take effect together or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bounds::{ADMISSION_BATCH_MAX, JOB_WINDOW_SIZE};
use crate::{
    Attempt, AttemptCounts, CapacitySource, FairShare, Kind, LaneId, Limit, LimitId, Millis,
    NewTask, OnFailure, Progress, Result, TaskId, TaskState, Token, WorkerId, WorkerReport,
};

/// Numbers the store counts up. They change in the same transaction as what they number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// The last token given.
    pub last_token: i64,
    /// The last place in line given.
    pub last_admission_seq: i64,
    /// The fair tag of the furthest task that was claimed.
    pub virtual_time: i64,
    /// Raised when a limit begins to apply to a group that had none.
    pub limits_version: i64,
}

/// A lane of the ready table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Its id.
    pub id: LaneId,
    /// The queue.
    pub queue: Arc<str>,
    /// The kind.
    pub kind: Arc<str>,
}

/// What the rules must know of an unfinished task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskInfo {
    /// The task.
    pub task: TaskId,
    /// Its lane.
    pub lane: LaneId,
    /// Its kind.
    pub kind: Arc<str>,
    /// Its group, if it is not its kind.
    pub group: Option<Arc<str>>,
    /// Its job.
    pub job: Option<Arc<str>>,
    /// Its workflow.
    pub workflow: Option<Arc<str>>,
    /// Slots it takes of its group's limit.
    pub weight: u32,
    /// Its priority.
    pub priority: i32,
    /// Attempts it is given, if it says so itself.
    pub max_attempts: Option<u32>,
    /// Attempts spent.
    pub attempts_used: u32,
    /// Deaths of its process.
    pub crashes: u32,
    /// What its failure does to its workflow.
    pub on_failure: OnFailure,
    /// When it was first due, or due again after a failure or a snooze. Its rank counts from
    /// then, however often it comes to the gate.
    pub due_at: Millis,
}

impl TaskInfo {
    /// The job whose share brings the task to the gate. A step of a workflow comes when the one
    /// before it has.
    pub fn fair_share_job(&self) -> Option<&Arc<str>> {
        self.job.as_ref().filter(|_| self.workflow.is_none())
    }
}

/// Why a task stands in a line, and whether it can be the head of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// It collects its slots one after another and goes first.
    Reserving = 0,
    /// It waits its turn.
    Queued = 1,
    /// It has moved often enough to reserve and waits until nobody else does.
    WaitingToReserve = 2,
    /// It takes more slots than the limit has now.
    TooHeavy = 3,
    /// No worker has room for it; its slot would help nobody.
    NoWorker = 4,
}

impl WaitReason {
    /// Every class, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Reserving, Self::Queued, Self::WaitingToReserve, Self::TooHeavy, Self::NoWorker];

    /// Whether a task of this class can be the head of the line.
    pub fn may_be_first(self) -> bool {
        matches!(self, Self::Reserving | Self::Queued)
    }
}

/// A row of the ready table; claim goes by `(lane, rank, tag, task)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReadyRow {
    /// The lane.
    pub lane: LaneId,
    /// Priority, raised by waiting.
    pub rank: i64,
    /// The fair tag.
    pub tag: i64,
    /// The task.
    pub task: TaskId,
    /// The limits version it was made ready under.
    pub limits_version: i64,
    /// Whether it came through the gate: it holds slots or counts in its job's window.
    pub holds_slots: bool,
    /// When it was made ready.
    pub ready_at: Millis,
}

/// A row of a line; its order is `(limit, class, rank, tag, place)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WaiterRow {
    /// The limit that stopped the task.
    pub limit: LimitId,
    /// Why it stands here.
    pub wait_reason: WaitReason,
    /// Priority, raised by waiting; 0 in lines that go by arrival alone.
    pub rank: i64,
    /// The fair tag; 0 until the task of a job passed its job's line, and below 0 for a task
    /// that came back.
    pub tag: i64,
    /// The order of arrival at the gate.
    pub admission_seq: i64,
    /// The task.
    pub task: TaskId,
    /// Its lane.
    pub lane: LaneId,
    /// How often it moved between lines.
    pub queue_switches: u32,
    /// Whether it passed its job's line.
    pub in_job_window: bool,
    /// When it became due; its rank counts from then.
    pub due_at: Millis,
}

/// A running attempt that was just taken off the running table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedAttempt {
    /// Whether somebody asked for the task's end.
    pub cancel_requested: bool,
    /// Whether it came through the gate.
    pub holds_slots: bool,
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// Not due before this time.
    Scheduled(Millis),
    /// At the gate; nobody has looked yet.
    Inbox,
    /// Ready.
    Ready(ReadyRow),
    /// In a line.
    Waiting(WaiterRow),
    /// Running under this token.
    Running(Token),
    /// Finished for good.
    Finished(TaskState),
}

impl Position {
    /// The state a caller sees.
    pub fn state(&self) -> TaskState {
        match self {
            Self::Scheduled(_) => TaskState::Scheduled,
            Self::Inbox | Self::Ready(_) => TaskState::Pending,
            Self::Waiting(_) => TaskState::Blocked,
            Self::Running(_) => TaskState::Processing,
            Self::Finished(state) => *state,
        }
    }

    /// Where that is, in words.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Scheduled(_) => "on the schedule",
            Self::Inbox => "at the gate",
            Self::Ready(_) => "among the ready",
            Self::Waiting(_) => "in a line",
            Self::Running(_) => "among the running",
            Self::Finished(_) => "at its end",
        }
    }

    /// The token it runs under, if it runs.
    pub fn running_token(&self) -> Option<Token> {
        match self {
            Self::Running(token) => Some(*token),
            _ => None,
        }
    }
}

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its fencing token.
    pub token: Token,
    /// Who holds it.
    pub worker: WorkerId,
    /// When it runs out.
    pub expires_at: Millis,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedTask {
    /// In which state.
    pub state: TaskState,
    /// The handler's result.
    pub result: Option<Vec<u8>>,
    /// What went wrong.
    pub error: Option<String>,
    /// Until when it is kept; none keeps it for ever.
    pub remove_at: Option<Millis>,
}

/// Tasks of a group whose run times count; older ones fade.
const RUN_TIME_TASKS_MAX: i64 = 256;

/// How long tasks of a group run, by the latest of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunTimeStats {
    /// Tasks that count.
    pub tasks: i64,
    /// How long they ran, all together.
    pub total_ms: i64,
}

impl RunTimeStats {
    /// With more tasks, of which the oldest no longer count if there are many.
    pub fn with_finished_tasks(self, tasks: u32, total_ms: i64) -> Self {
        let new = Self { tasks: i64::from(tasks), total_ms: total_ms.max(0) }.scale_to_max_tasks();
        let total_ms = self.total_ms.saturating_add(new.total_ms);
        Self { tasks: self.tasks + new.tasks, total_ms }.scale_to_max_tasks()
    }

    fn scale_to_max_tasks(self) -> Self {
        if self.tasks <= RUN_TIME_TASKS_MAX {
            return self;
        }
        let total_ms =
            i128::from(self.total_ms) * i128::from(RUN_TIME_TASKS_MAX) / i128::from(self.tasks);
        Self { tasks: RUN_TIME_TASKS_MAX, total_ms: i64::try_from(total_ms).unwrap_or(i64::MAX) }
    }

    /// How long one of them runs.
    pub fn mean_ms(self) -> Option<f64> {
        (self.tasks > 0).then(|| self.total_ms as f64 / self.tasks as f64)
    }
}

/// What a worker says of groups: the capacity it brings, or that it brings none.
pub type GroupCapacities<'a> = BTreeMap<&'a str, Option<u32>>;

/// The rows of a store inside one transaction.
pub trait Tables {
    /// The store's time; the same throughout the transaction.
    fn now(&self) -> Millis;

    /// Tasks the gate may look at in this transaction; the next one takes up what is left.
    fn admission_budget(&self) -> u32 {
        ADMISSION_BATCH_MAX
    }

    /// Tasks of one job that may be past the job's line and not yet claimed.
    fn job_window_size(&self) -> u32 {
        JOB_WINDOW_SIZE
    }

    /// Notes that this transaction leaves work which the next one can take up: whoever waits
    /// for a change is told.
    fn notify_workers_on_commit(&mut self) {}

    /// The counters.
    fn counters(&mut self) -> Result<Counters>;
    /// Writes the counters.
    fn set_counters(&mut self, counters: Counters) -> Result<()>;

    /// A kind by name.
    fn kind(&mut self, name: &str) -> Result<Option<Arc<Kind>>>;
    /// Makes or overwrites a kind. One that only workers registered can be forgotten; whoever
    /// else makes it known counts on it.
    fn put_kind(&mut self, kind: &Kind, by_worker: bool) -> Result<()>;
    /// Forgets kinds that only workers registered, the last of them before `before`, where no
    /// live worker registers or serves the kind, it has no task, and its limit is no more than
    /// registered and nobody holds or awaits it. Those that are in use count as registered now.
    fn delete_unused_kinds(&mut self, before: Millis) -> Result<Vec<Arc<str>>>;
    /// The lane of a queue and a kind, made when new.
    fn get_or_create_lane(&mut self, queue: &str, kind: &str) -> Result<LaneId>;
    /// The lanes that exist of these queues and kinds, ascending.
    fn existing_lanes(&mut self, queues: &[Arc<str>], kinds: &[Arc<str>]) -> Result<Vec<Lane>>;

    /// Notes that a worker lives until `alive_until` and, when `lanes` are given, that it
    /// serves them until then. What is noted for three quarters of that time already need not
    /// be written again.
    fn record_live_worker(
        &mut self,
        worker: &WorkerId,
        alive_until: Millis,
        lanes: Option<&[Lane]>,
    ) -> Result<()>;
    /// Records a heartbeat: the worker lives for `lease_ms` from now, and until then the reaper
    /// leaves its expired leases to it, see [`Tables::abandoned_leases`]. A report replaces the
    /// one before. Returns the number of other live workers that last reported room.
    fn record_heartbeat(
        &mut self,
        worker: &WorkerId,
        lease_ms: Millis,
        report: Option<&WorkerReport>,
    ) -> Result<u32>;
    /// Whether a worker serves the lane: it asked for its tasks within its last lease. One
    /// that only sends heartbeats is busy or on its way out and has no room for more.
    fn is_lane_served(&mut self, lane: LaneId) -> Result<bool>;
    /// Whether the queue is paused.
    fn is_queue_paused(&mut self, queue: &str) -> Result<bool>;
    /// Notes that a queue is paused from now on, or no longer.
    fn set_queue_paused(&mut self, queue: &str, paused: bool) -> Result<()>;
    /// Removes a worker that leaves, with what it asked for and registered.
    fn delete_worker(&mut self, worker: &WorkerId) -> Result<()>;
    /// Removes workers that died before `before`, with what they asked for and registered.
    fn delete_dead_workers(&mut self, before: Millis) -> Result<()>;

    /// Notes what a worker says of groups, instead of what it said before: the capacity it
    /// brings, or that it brings none.
    fn put_registrations(
        &mut self,
        worker: &WorkerId,
        capacities: &GroupCapacities<'_>,
    ) -> Result<()>;
    /// What live workers say of a group, in the order in which they registered.
    fn registrations(&mut self, group: &str) -> Result<Vec<(WorkerId, Option<u32>)>>;
    /// Groups of which live workers say something, by name.
    fn registered_groups(&mut self) -> Result<Vec<Arc<str>>>;

    /// A limit by id. None where this transaction does not hold its lock.
    fn locked_limit(&mut self, id: LimitId) -> Result<Option<Limit>>;
    /// The id of a limit.
    fn limit_id(&mut self, name: &str) -> Result<Option<LimitId>>;
    /// Makes a limit that nobody holds or awaits. A job's has a share.
    fn insert_limit(
        &mut self,
        name: &str,
        capacity: Option<u32>,
        source: CapacitySource,
        applies_from_version: i64,
        fair_share: Option<FairShare>,
    ) -> Result<LimitId>;
    /// Writes a limit back.
    fn put_limit(&mut self, limit: &Limit) -> Result<()>;
    /// The first limit with an id above `after` whose line somebody should look at: it is dirty, or
    /// its time to be looked at has come.
    fn next_limit_to_recheck(&mut self, after: LimitId) -> Result<Option<LimitId>>;
    /// Limits that nobody set, holds or awaits and whose scope has no further use for them.
    fn unused_limits(&mut self, limits_max: u32) -> Result<Vec<LimitId>>;
    /// Removes a limit and its slots.
    fn delete_limit(&mut self, id: LimitId) -> Result<()>;

    /// Takes the `weight` lowest free slots.
    fn acquire_slots(&mut self, task: TaskId, limit: LimitId, weight: u32) -> Result<()>;
    /// The lowest number of a limit that nobody holds.
    fn lowest_free_slot(&mut self, limit: LimitId) -> Result<u32>;
    /// Frees every slot the task holds of the limit; returns how many.
    fn free_slots(&mut self, task: TaskId, limit: LimitId) -> Result<u32>;
    /// Ready tasks that hold slots of the limit, those with the highest numbers first, and whether these
    /// are all.
    fn ready_slot_holders(
        &mut self,
        limit: LimitId,
        rows_max: u32,
    ) -> Result<(Vec<ReadyRow>, bool)>;
    /// Who holds a slot.
    fn slot_holder(&mut self, limit: LimitId, number: u32) -> Result<Option<TaskId>>;
    /// Frees one slot, whoever holds it.
    fn free_slot(&mut self, limit: LimitId, number: u32) -> Result<()>;
    /// How many slots the task holds, by limit, ascending.
    fn held_slot_counts(&mut self, task: TaskId) -> Result<Vec<(LimitId, u32)>>;

    /// The unfinished task with this key.
    fn unique_key_owner(&mut self, key: &str) -> Result<Option<TaskId>>;
    /// Stores a task. It stands nowhere yet.
    fn insert_task(&mut self, task: &NewTask, lane: LaneId) -> Result<TaskId>;
    /// What the rules must know of an unfinished task.
    fn task_info(&mut self, task: TaskId) -> Result<Option<TaskInfo>>;
    /// Writes the attempts spent, the deaths and the last error.
    fn put_attempt_counts(
        &mut self,
        task: TaskId,
        counts: AttemptCounts,
        error: Option<&str>,
    ) -> Result<()>;
    /// Notes that a task is due anew, and that its rank counts from then.
    fn set_due_at(&mut self, task: TaskId, due_at: Millis) -> Result<()>;
    /// Moves the ids of tasks on: the next one follows this.
    fn set_last_task_id(&mut self, last_task: TaskId) -> Result<()>;
    /// Ends a task that stands nowhere, and frees its unique key. Removes it where
    /// `remove_at` is not in the future.
    fn finish_task(&mut self, task: TaskId, finished: &FinishedTask) -> Result<()>;
    /// Brings an ended task back as if nobody had tried it, due now; it stands nowhere. False,
    /// and nothing is done, where another unfinished task carries its unique key.
    fn restart_finished_task(&mut self, task: TaskId) -> Result<bool>;
    /// Notes which unfinished task carries a unique key, or that none does.
    fn set_unique_key_owner(&mut self, key: &str, owner: Option<TaskId>) -> Result<()>;
    /// Removes ended tasks whose time has come; returns how many.
    fn delete_expired_tasks(&mut self, tasks_max: u32) -> Result<u32>;

    /// Where a task stands.
    fn position(&mut self, task: TaskId) -> Result<Option<Position>>;

    /// Puts a task on the schedule.
    fn put_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()>;
    /// Takes a task off the schedule.
    fn remove_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()>;
    /// Takes the first due tasks off the schedule.
    fn take_due(&mut self, tasks_max: u32) -> Result<Vec<TaskId>>;

    /// Puts a task at the gate.
    fn put_inbox(&mut self, task: TaskId) -> Result<()>;
    /// Takes one task away from the gate.
    fn remove_inbox(&mut self, task: TaskId) -> Result<()>;
    /// Takes the first arrived tasks away from the gate, in order of id.
    fn take_inbox(&mut self, tasks_max: u32) -> Result<Vec<TaskId>>;
    /// The first jobs, by name, of which tasks stand at the gate. Steps of workflows do not count.
    fn inbox_jobs(&mut self, jobs_max: u32) -> Result<Vec<Arc<str>>>;
    /// The first tasks of a job that stand at the gate and are no steps of a workflow, in order of id.
    fn inbox_tasks_of_job(&mut self, job: &str, tasks_max: u32) -> Result<Vec<TaskId>>;

    /// Makes a task ready.
    fn put_ready(&mut self, row: ReadyRow) -> Result<()>;
    /// Takes a ready task out.
    fn remove_ready(&mut self, row: ReadyRow) -> Result<()>;
    /// The ready tasks of a lane behind `after`, in order.
    fn ready_page(
        &mut self,
        lane: LaneId,
        after: Option<ReadyRow>,
        rows_max: u32,
    ) -> Result<Vec<ReadyRow>>;
    /// Gated ready tasks since before `before` in lanes no worker serves.
    fn unserved_ready_tasks(&mut self, before: Millis, rows_max: u32) -> Result<Vec<ReadyRow>>;

    /// Puts a task in a line.
    fn put_waiter(&mut self, row: WaiterRow) -> Result<()>;
    /// Takes a task out of its line.
    fn remove_waiter(&mut self, row: WaiterRow) -> Result<()>;
    /// The first of a line among the given classes, which follow each other.
    fn first_waiter(
        &mut self,
        limit: LimitId,
        from: WaitReason,
        to: WaitReason,
    ) -> Result<Option<WaiterRow>>;
    /// The first task of a job that is past the job's line, not yet claimed, and does not have the rank
    /// of the reserve: ready, or in the line of another limit.
    fn first_unguaranteed_in_window(&mut self, job_limit: LimitId) -> Result<Option<Position>>;
    /// Tasks of these lanes that were parked because nobody served them.
    fn waiters_without_worker(&mut self, lanes: &[Lane], rows_max: u32) -> Result<Vec<WaiterRow>>;

    /// Moves ready tasks to running under one lease, which is made.
    fn start_attempts(&mut self, rows: &[ReadyRow], lease: &Lease) -> Result<Vec<Attempt>>;
    /// Takes an attempt off the running table, if the token is the one it runs under.
    fn remove_running(&mut self, task: TaskId, token: Token) -> Result<Option<RemovedAttempt>>;
    /// Asks a running attempt to stop.
    fn request_cancel(&mut self, task: TaskId, token: Token) -> Result<()>;
    /// Writes progress of a running attempt.
    fn put_progress(&mut self, task: TaskId, token: Token, progress: &Progress) -> Result<()>;
    /// Notes that an attempt was taken off the running table behind its worker's back.
    fn insert_fenced_attempt(&mut self, task: TaskId, token: Token) -> Result<()>;
    /// Forgets attempts that were fenced under leases that are gone.
    fn delete_obsolete_fenced_attempts(&mut self) -> Result<()>;
    /// Attempts of these leases that should stop: asked to, or fenced.
    fn attempts_to_stop(&mut self, tokens: &[Token]) -> Result<Vec<(TaskId, Token)>>;
    /// Running attempts of a lease, ascending.
    fn running_tasks_of_lease(&mut self, token: Token) -> Result<Vec<TaskId>>;
    /// Running attempts of a group, ascending.
    fn running_tasks_of_group(&mut self, group: &str) -> Result<Vec<(TaskId, Token)>>;
    /// Notes that a running attempt holds slots from now on.
    fn set_holds_slots(&mut self, task: TaskId, token: Token) -> Result<()>;

    /// How long tasks of a group run.
    fn run_time_stats(&mut self, group: &str) -> Result<Option<RunTimeStats>>;
    /// Writes how long tasks of a group run.
    fn put_run_time_stats(&mut self, group: &str, stats: RunTimeStats) -> Result<()>;
    /// Forgets the pace of groups of which nothing was heard since `before`.
    fn delete_run_time_stats(&mut self, before: Millis) -> Result<()>;

    /// Renews a lease that has not run out; false where there is none.
    fn renew_lease(&mut self, token: Token, worker: &WorkerId, expires_at: Millis) -> Result<bool>;
    /// Leases of a worker that expire at `at` or before, oldest first.
    fn expired_leases_of_worker(
        &mut self,
        at: Millis,
        worker: &WorkerId,
        max: u32,
    ) -> Result<Vec<Token>>;
    /// Leases that expire at `at` or before and that the reaper ends, oldest first. A lease is left
    /// to its worker while the last heartbeat of the worker is younger than the lease length that
    /// this heartbeat gave, and the lease expired less than that length ago. Claims are no
    /// heartbeats.
    fn abandoned_leases(&mut self, at: Millis, max: u32) -> Result<Vec<Token>>;
    /// Removes those of these leases under which nothing runs any more.
    fn delete_empty_leases(&mut self, tokens: &[Token]) -> Result<()>;
    /// Removes a lease.
    fn delete_lease(&mut self, token: Token) -> Result<()>;
}
