//! The seam: the verbs that write. Each is one atomic step over a batch.
//!
//! **After an error.** [`Invalid`](crate::ErrorKind::Invalid), `NotFound` and `Refused` mean
//! that nothing was written. After `Unavailable` the step *may have happened*; each verb says
//! how to find out.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::bounds::{
    BATCH_MAX, DURATION_MS_MAX, HEARTBEAT_LEASES_MAX, LEASE_MS_MIN, check_batch_size,
};
use crate::repair::Repair;
use crate::tables::GroupCapacities;
use crate::{
    CapacitySource, Completion, Error, Kind, LimitId, LimitScope, Millis, Result, TaskId, Token,
    WorkerId, WorkerReport, check_capacity, name,
};

/// The verbs that write.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Brings the schema up to date. May be repeated; a newer schema is refused as
    /// `Incompatible`.
    async fn migrate(&self) -> Result<()>;

    /// Makes kinds and the limits of their groups known. Of the live workers that bring a limit
    /// for a group the one that registered last counts; where workers register a kind and none of
    /// those that live brings a limit any more, what was registered is unset. What is held stays
    /// held. May be repeated.
    async fn register(&self, registration: Registration) -> Result<RegisterReply>;

    /// Stores tasks with the jobs and limits they bring, all or none. It only inserts: tasks that no limit, job or workflow
    /// applies to are ready at once, the others arrive at the gate. One on behalf of an attempt is stored
    /// while that attempt runs, and not after. After `Unavailable`
    /// they may be stored: submit again with the same unique keys and nothing is doubled.
    async fn submit(&self, submission: Submission) -> Result<Vec<SubmittedTask>>;

    /// Lets what waits at the gate through: what is due, what arrived, and lines that may
    /// have room, a bounded number of tasks. May be repeated.
    async fn admit(&self) -> Result<AdmitReply>;

    /// Hands out ready tasks of the worker's queues and kinds under one new lease. Lets
    /// through what waits at the gate first. After `Unavailable` the lease may exist: nobody
    /// renews it, so it runs out and the tasks come back.
    async fn claim(&self, claim: Claim) -> Result<Vec<Attempt>>;

    /// Renews leases, records progress, and tells which attempts were lost or should stop.
    /// May be repeated.
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply>;

    /// Ends attempts, hands their slots on, and claims in the same step. An exit with a stale
    /// token changes nothing and is reported as such, so after `Unavailable` the same exits
    /// can be sent again: those that were accepted come back as stale. A store may take a long
    /// batch in several steps, and the claim as one that follows.
    async fn finish(&self, finish: Finish) -> Result<FinishReply>;

    /// Cancels tasks: what waits ends at once, what runs is told through its heartbeat. May be
    /// repeated. A store may take a long batch in several steps.
    async fn cancel(&self, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>>;

    /// Brings tasks back: one that failed or was cancelled starts anew, one that is not due
    /// becomes due. May be repeated; what runs or waits already is left alone.
    async fn retry(&self, tasks: Vec<TaskId>) -> Result<Vec<RetryOutcome>>;

    /// Takes a slot away from the attempt that holds it. The attempt is spent and fenced: its
    /// worker is told with the next heartbeat and none of its writes is accepted. Its handler
    /// may run on until then. May be repeated; then it may meet the next holder.
    async fn release_slot(&self, release: ReleaseSlot) -> Result<ReleaseOutcome>;

    /// Pauses a queue, a job or a workflow, or lets it go on. What runs is not touched. Returns
    /// whether that changed anything. May be repeated.
    async fn set_paused(&self, set: SetPaused) -> Result<bool>;

    /// Mends what [`check`](crate::check::check) finds, as far as the evidence tells how, and
    /// says what it did. Nothing else happens in the store meanwhile. May be repeated.
    async fn repair(&self) -> Result<Vec<Repair>>;

    /// Ends attempts of expired leases and parks what no worker has room for. An expired lease
    /// is left for at most one lease length to a worker that sends heartbeats. May be repeated.
    async fn reap(&self) -> Result<ReapReply>;

    /// Removes finished tasks that were kept long enough, limits nobody uses, and what workers
    /// registered that are gone. May be repeated.
    async fn prune(&self) -> Result<PruneReply>;

    /// Sets or unsets a capacity; returns the limit's version, or none where a stronger
    /// source holds it. An operator's unset takes away what is in force: where that is an
    /// operator's setting, what was set below it holds again, else the limit is unlimited
    /// until somebody sets it again. Lowering drains: what runs is not touched. May be repeated.
    async fn set_limit(&self, set: SetLimit) -> Result<Option<i64>>;

    /// Changes a job that exists. Its capacity counts at once, the rest for its tasks that have not
    /// passed its line. May be repeated.
    async fn set_job(&self, set: SetJob) -> Result<()>;

    /// Returns when something may have become claimable, here or in another process. A hint
    /// only: a caller polls as well.
    async fn wait_for_notification(&self);
}

/// What a worker brings along.
#[derive(Debug, Clone, Default)]
pub struct Registration {
    /// Its kinds. A kind that is known already is overwritten.
    pub kinds: Vec<Kind>,
    /// Kinds it serves and has no settings for. One that is known already is left as it is.
    pub default_kinds: Vec<Kind>,
    /// Capacities by group.
    pub limits: Vec<(String, u32)>,
    /// Who sets these limits: a registration or a configuration file.
    pub source: Option<CapacitySource>,
    /// The worker that brings this. What it brings is noted as long as it lives. None where
    /// nobody in particular does.
    pub worker: Option<WorkerId>,
    /// For how long the worker lives unless it says so again.
    pub lease_ms: i64,
}

/// What became of a registration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegisterReply {
    /// Groups whose capacity is held by a stronger source, and that capacity.
    pub overridden_limits: Vec<(String, Option<u32>, CapacitySource)>,
    /// Groups for which something else was registered before.
    pub changed_capacities: Vec<RegisteredCapacityChange>,
}

/// A registered capacity that a registration has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredCapacityChange {
    /// The group.
    pub group: String,
    /// What was registered before.
    pub before: u32,
    /// What is from now on; none where no live worker brings a limit any more.
    pub after: Option<u32>,
    /// Live workers that still bring another one.
    pub other_workers: u32,
}

/// A job, made known with its first tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    /// Its name.
    pub name: String,
    /// Tasks of it that may run at once; none means unlimited.
    pub concurrency: Option<u32>,
    /// Tasks of it that go before those of all others, while it has any: a job that has fewer at
    /// work is first in line for whatever is scarce. Default: 0.
    pub min_concurrency: u32,
    /// Its share relative to other jobs. Default: 1.
    pub weight: u32,
    /// Added to the priority of its tasks among those of other jobs. Default: 0.
    pub priority: i32,
    /// The least time from one start of its tasks to the next. Default: 0.
    pub delay_ms: i64,
}

/// A change of a job. What is none stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetJob {
    /// Its name.
    pub job: String,
    /// Tasks of it that may run at once, as an operator sets it; none inside takes the operator's
    /// word back.
    pub concurrency: Option<Option<u32>>,
    /// See [`JobSpec`].
    pub min_concurrency: Option<u32>,
    /// See [`JobSpec`].
    pub weight: Option<u32>,
    /// See [`JobSpec`].
    pub priority: Option<i32>,
    /// See [`JobSpec`].
    pub delay_ms: Option<i64>,
}

/// Tasks to store, and the jobs and limits they bring along.
#[derive(Debug, Clone, Default)]
pub struct Submission {
    /// Jobs; one that exists already is left as it is.
    pub jobs: Vec<JobSpec>,
    /// Capacities by group, which count where nobody has set one. Of two for one group the
    /// first counts.
    pub limits: Vec<(String, u32)>,
    /// Tasks.
    pub tasks: Vec<crate::NewTask>,
    /// The running attempt that makes it, if one does. The whole submission is refused as `NotFound`
    /// where this attempt does not run any more: its lease was taken back, or it has ended.
    pub submitting_attempt: Option<(TaskId, Token)>,
}

/// What became of a submitted task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubmittedTask {
    /// Its id, or that of the unfinished task with the same unique key.
    pub task: TaskId,
    /// Whether it was stored by this submit.
    pub is_new: bool,
}

/// What the gate did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdmitReply {
    /// Tasks that became ready.
    pub ready: u32,
    /// Tasks that were parked or moved.
    pub parked: u32,
    /// Whether work was left for the next step.
    pub has_more: bool,
}

/// What a worker asks for.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The worker.
    pub worker: WorkerId,
    /// Queues it serves.
    pub queues: Arc<[Arc<str>]>,
    /// Kinds it has a handler for and room for.
    pub kinds: Arc<[Arc<str>]>,
    /// At most so many. With 0 the worker only says that it has room for such tasks.
    pub tasks_max: u32,
    /// For how long.
    pub lease_ms: i64,
    /// How often it asks where nobody tells it of anything. A store may tell it from memory that there is
    /// nothing, for less than this where it is less than a second.
    pub poll_interval_ms: i64,
}

/// One claimed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The task.
    pub task: TaskId,
    /// The fencing token of its lease.
    pub token: Token,
    /// Names the handler.
    pub kind: Arc<str>,
    /// The queue it came from.
    pub queue: Arc<str>,
    /// The group whose limit applies: its own, or else its kind.
    pub group: Arc<str>,
    /// Slots it takes of its group's limit.
    pub weight: u32,
    /// JSON for the handler.
    pub payload: Vec<u8>,
    /// The first attempt is number 1.
    pub number: u32,
    /// Attempts it is given.
    pub max_attempts: u32,
    /// How long it may run.
    pub timeout_ms: Option<i64>,
    /// Its job.
    pub job: Option<Arc<str>>,
    /// Its workflow.
    pub workflow: Option<Arc<str>>,
    /// Slots it holds.
    pub slots: Vec<HeldSlot>,
    /// When the lease ends by the store's clock.
    pub expires_at: Millis,
    /// When it was due, by the store's clock. From then to `ready_at` it waited for its limits, if
    /// any apply.
    pub due_at: Millis,
    /// When it was through the gate. From then to its claim it waited for a worker.
    pub ready_at: Millis,
    /// Where it was submitted, as a W3C `traceparent`.
    pub trace: Option<Arc<str>>,
}

/// One slot in the hands of a task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldSlot {
    /// The limit's id.
    pub limit: LimitId,
    /// The limit's name.
    pub name: Arc<str>,
    /// The slot's stable number.
    pub number: u32,
}

/// A progress report of a handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Between 0 and 100.
    pub percent: u8,
    /// A few words.
    pub message: String,
}

/// A heartbeat.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// The worker.
    pub worker: WorkerId,
    /// The leases it still needs. Those of its leases that it does not list and that have expired
    /// are released: the worker does not know them, so none of its handlers runs under them.
    pub tokens: Vec<Token>,
    /// For how long from now. Zero, with no leases, says that the worker leaves.
    pub lease_ms: i64,
    /// Progress since the last heartbeat.
    pub progress: Vec<(TaskId, Token, Progress)>,
    /// How long handlers ran that ended since the last heartbeat.
    pub run_times: Vec<RunTimeSample>,
    /// What the worker says of itself. None leaves what it said before.
    pub report: Option<WorkerReport>,
}

/// How long the handlers of one group ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunTimeSample {
    /// The group.
    pub group: Arc<str>,
    /// How many ended.
    pub tasks: u32,
    /// How long they ran, all together.
    pub total_ms: i64,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// Leases that are gone: their attempts must stop and none of their writes is accepted.
    /// A lease also goes with its last attempt. So whoever asked for it while it told that
    /// attempt's end finds it here, and has nothing left to stop.
    pub lost_leases: Vec<Token>,
    /// Attempts that should stop because somebody cancelled the task or took their slot away.
    pub attempts_to_stop: Vec<(TaskId, Token)>,
    /// Other live workers that last reported room for a task.
    pub peers_with_capacity: u32,
    /// Attempts that were released: they ran under leases of this worker that had expired and
    /// that the heartbeat did not list.
    pub released_attempts: u32,
}

impl HeartbeatReply {
    /// Returns those of the listed leases that were renewed.
    pub fn renewed<'a>(&self, listed: &'a [Token]) -> impl Iterator<Item = Token> + use<'a> {
        // A set, because after an outage a worker may have lost very many leases.
        let lost: HashSet<Token> = self.lost_leases.iter().copied().collect();
        listed.iter().copied().filter(move |token| !lost.contains(token))
    }
}

/// Attempts that end, and what the worker wants next.
#[derive(Debug, Clone)]
pub struct Finish {
    /// The exits.
    pub completions: Vec<Completion>,
    /// What to claim in the same step.
    pub claim: Option<Claim>,
}

/// An exit whose lease was gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostAttempt {
    /// The task.
    pub task: TaskId,
    /// The stale token.
    pub token: Token,
}

/// What became of the exits.
#[derive(Debug, Clone, Default)]
pub struct FinishReply {
    /// Exits that changed nothing, because their token is stale.
    pub lost_attempts: Vec<LostAttempt>,
    /// What was claimed.
    pub claimed: Vec<Attempt>,
}

/// What became of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelOutcome {
    /// It waited and has ended.
    Cancelled,
    /// It runs; its worker is told with the next heartbeat.
    Requested,
    /// It had ended before.
    Finished,
    /// There is no such task.
    NotFound,
}

/// What became of a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryOutcome {
    /// It is at the gate with all its attempts before it.
    Retried,
    /// It was not due, and is now. It keeps the attempts it has left.
    MadeDue,
    /// It waits for its turn or runs.
    Unfinished,
    /// It is completed; submit it again to do its work again.
    Completed,
    /// Another unfinished task carries its unique key.
    UniqueKeyTaken,
    /// There is no such task.
    NotFound,
}

/// A slot to take away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseSlot {
    /// The limit's whole name, such as `group:mail`.
    pub limit: String,
    /// The slot's number.
    pub slot: u32,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseOutcome {
    /// This task's attempt was ended, and all slots of the attempt are free.
    Released(TaskId),
    /// This task holds it and has not started: no worker's handler is in the way.
    NotRunning(TaskId),
    /// This task holds it for life, as the step of a workflow does: it has to end.
    HeldByTask(TaskId),
    /// Nobody holds it.
    SlotFree,
    /// There is no such limit.
    LimitNotFound,
}

/// What can be paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PauseTarget {
    /// Nothing of the queue is claimed.
    Queue(String),
    /// Nothing of the job is let through the gate.
    Job(String),
    /// No further step of the workflow begins. A step that fails for good does the same, and what
    /// lets a paused workflow go on lets that one go on too, with the step after.
    Workflow(String),
}

/// Something to pause, or to let go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetPaused {
    /// What.
    pub target: PauseTarget,
    /// Whether it is to be paused.
    pub paused: bool,
}

/// What the reaper found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReapReply {
    /// Attempts whose lease had run out.
    pub expired_attempts: u32,
    /// Admitted tasks that no worker had room for; their slots went to others.
    pub unserved_tasks: u32,
    /// Whether work was left for the next step.
    pub has_more: bool,
}

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PruneReply {
    /// Finished tasks.
    pub tasks: u32,
    /// Limits nobody used.
    pub limits: u32,
    /// Kinds nobody registers any more.
    pub kinds: u32,
    /// Whether work was left for the next step.
    pub has_more: bool,
}

/// A change of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetLimit {
    /// The limit's whole name, such as `group:mail`.
    pub name: String,
    /// The new capacity; none unsets it.
    pub capacity: Option<u32>,
    /// Who asks.
    pub source: CapacitySource,
}

impl Attempt {
    /// The limits that apply to the task, where they exist, and how many slots it takes of
    /// each. This is what the task says, not what the store did: who checks a store compares
    /// the two.
    pub fn required_limits(&self) -> Vec<(String, u32)> {
        let once =
            |scope: LimitScope, of: &Option<Arc<str>>| Some((scope.limit_name(of.as_ref()?), 1));
        let group = (LimitScope::Group.limit_name(&self.group), self.weight);
        let others = [once(LimitScope::Workflow, &self.workflow), once(LimitScope::Job, &self.job)];
        others.into_iter().flatten().chain([group]).collect()
    }

    /// How many slots of a limit it holds.
    pub fn held_slots_of(&self, limit_name: &str) -> u32 {
        self.slots.iter().filter(|slot| *slot.name == *limit_name).count() as u32
    }
}

impl Registration {
    /// Checks every bound.
    pub fn check(&self) -> Result<()> {
        check_batch_size("kinds", self.kinds.len() + self.default_kinds.len(), BATCH_MAX)?;
        check_batch_size("limits", self.limits.len(), BATCH_MAX)?;
        for (group, capacity) in &self.limits {
            name::check("group", group)?;
            check_capacity(group, i64::from(*capacity))?;
        }
        if let Some(worker) = &self.worker {
            name::check("worker", &worker.0)?;
            check_lease_duration(self.lease_ms)?;
        }
        self.kinds.iter().chain(&self.default_kinds).try_for_each(|kind| kind.check())
    }

    /// What the worker says of groups, to be noted with it: the capacities it brings, and that it
    /// brings none for its other kinds. A kind it has no settings for it says nothing about, and
    /// what stands in a file is not the worker's word.
    pub fn group_capacities(&self) -> GroupCapacities<'_> {
        if self.source.is_some_and(|source| source != CapacitySource::Registration) {
            return GroupCapacities::new();
        }
        let kinds = self.kinds.iter().map(|kind| (&*kind.name, None));
        let limits = self.limits.iter().map(|(group, capacity)| (&**group, Some(*capacity)));
        kinds.chain(limits).collect()
    }
}

impl Claim {
    /// Checks every bound.
    pub fn check(&self) -> Result<()> {
        name::check("worker", &self.worker.0)?;
        self.queues.iter().try_for_each(|queue| name::check("queue", queue))?;
        self.kinds.iter().try_for_each(|kind| name::check("kind", kind))?;
        check_lease_duration(self.lease_ms)?;
        check_batch_size("queues", self.queues.len(), BATCH_MAX)?;
        check_batch_size("kinds", self.kinds.len(), BATCH_MAX)?;
        check_batch_size("tasks", self.tasks_max as usize, BATCH_MAX)
    }
}

impl Heartbeat {
    /// Checks every bound of the lease; those of progress are the rules' own.
    pub fn check(&self) -> Result<()> {
        name::check("worker", &self.worker.0)?;
        check_batch_size("leases", self.tokens.len(), HEARTBEAT_LEASES_MAX)?;
        check_batch_size("reports of progress", self.progress.len(), HEARTBEAT_LEASES_MAX)?;
        check_batch_size("groups", self.run_times.len(), BATCH_MAX)?;
        self.run_times.iter().try_for_each(|ran| name::check("group", &ran.group))?;
        self.report.iter().try_for_each(WorkerReport::check)?;
        if self.is_deregistration() { Ok(()) } else { check_lease_duration(self.lease_ms) }
    }

    /// Whether the worker says that it leaves.
    pub fn is_deregistration(&self) -> bool {
        self.lease_ms == 0 && self.tokens.is_empty()
    }
}

fn check_lease_duration(lease_ms: i64) -> Result<()> {
    if (LEASE_MS_MIN..=DURATION_MS_MAX).contains(&lease_ms) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the lease of {lease_ms} ms is not between {LEASE_MS_MIN} ms and one year"
    )))
}
