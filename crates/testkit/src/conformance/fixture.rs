//! What a case works with: a store on a clock that stands still, and short words for the verbs.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use tidegate_core::invariants::{check, check_idle_store};
use tidegate_core::reader::{Explanation, SlotHolder, Snapshot, StoreReader, TaskView};
use tidegate_core::tables::{Position, WaitReason, WaiterRow};
use tidegate_core::{
    Attempt, CancelOutcome, CapacitySource, Claim, Completion, Finish, FinishReply, JobSpec, Limit,
    Millis, NewTask, Outcome, SetLimit, Store, Submission, SubmittedTask, TaskId, TaskState, Token,
    WorkerId,
};

/// Where a store reads the time.
pub type Clock = Arc<dyn Fn() -> Millis + Send + Sync>;

/// A Tuesday, 09:30 UTC: no case starts at midnight or on the first day of time.
pub const START: Millis = 1_700_559_000_000;

/// The lease of the workers in these cases.
pub const LEASE_MS: i64 = 30_000;

/// One opened store.
#[derive(Debug, Clone)]
pub struct Handle {
    /// To write.
    pub store: Arc<dyn Store>,
    /// To read.
    pub reader: Arc<dyn StoreReader>,
}

impl Handle {
    /// Both seams of one store.
    pub fn new<S: Store + StoreReader + 'static>(store: S) -> Self {
        let store = Arc::new(store);
        Self { store: store.clone(), reader: store }
    }
}

/// A kind of store that joins the suite. A value stands for one set of data, empty at first
/// and gone when the value is dropped.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Fresh, empty data.
    fn create() -> Self
    where
        Self: Sized;
    /// One more handle on the data: where the store has connections, connections of its own.
    async fn open(&self, clock: Clock) -> Handle;
    /// Whether a step may leave to a following transaction what another store does at once.
    /// Then a case calls `admit` before it looks.
    fn needs_settling(&self) -> bool {
        false
    }
    /// Whether a task that waits at another limit gets a slot of its job's reserve that becomes free (decision 19).
    fn promotes_parked_tasks(&self) -> bool {
        true
    }
    /// Where another process finds the data; none where it cannot.
    fn address(&self) -> Option<String> {
        None
    }
    /// The data at an address that another process gave.
    fn from_address(_address: &str) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

/// A clock that moves when it is told to.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl Default for ManualClock {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(START)))
    }
}

impl ManualClock {
    /// What it shows.
    pub fn now(&self) -> Millis {
        self.0.load(Ordering::SeqCst)
    }

    /// Moves it on.
    pub fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    /// As a store reads it.
    pub fn as_clock(&self) -> Clock {
        let clock = self.clone();
        Arc::new(move || clock.now())
    }
}

/// A store in a case.
pub struct Fixture {
    /// To write.
    pub store: Arc<dyn Store>,
    /// To read.
    pub reader: Arc<dyn StoreReader>,
    /// Its time.
    pub clock: ManualClock,
    needs_settling: bool,
    /// Dropped last: the data goes with it.
    backend: Box<dyn Backend>,
}

impl std::fmt::Debug for Fixture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fixture").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A task of a kind, with every default.
pub fn task(kind: &str) -> NewTask {
    NewTask::new(kind, "{}")
}

/// So many tasks of a kind.
pub fn tasks(kind: &str, number: usize) -> Vec<NewTask> {
    vec![task(kind); number]
}

/// A job with a quota.
pub fn job(name: &str, concurrency: Option<u32>) -> JobSpec {
    JobSpec { concurrency, ..JobSpec::new(name) }
}

/// A worker of queue `default` and these kinds that asks for so many tasks.
pub fn claim_request(worker: &str, kinds: &[&str], tasks_max: u32) -> Claim {
    Claim {
        worker: WorkerId(worker.into()),
        queues: ["default".into()].into(),
        kinds: kinds.iter().map(|kind| (*kind).into()).collect(),
        tasks_max,
        lease_ms: LEASE_MS,
        poll_interval_ms: 1000,
    }
}

/// The ids of attempts, in order.
pub fn task_ids(attempts: &[Attempt]) -> Vec<TaskId> {
    attempts.iter().map(|attempt| attempt.task).collect()
}

/// A failure that is tried again after so long.
pub fn retry_in(ms: i64) -> Outcome {
    Outcome::Failed { error: "try again".into(), retryable: true, retry_in_ms: Some(ms) }
}

/// A failure for good.
pub fn fatal_failure(error: &str) -> Outcome {
    Outcome::Failed { error: error.into(), retryable: false, retry_in_ms: None }
}

/// A completion without a result worth naming.
pub fn completed_outcome() -> Outcome {
    Outcome::Completed(b"null".to_vec())
}

impl Fixture {
    /// The data of a backend, migrated, at [`START`].
    pub async fn new(backend: Box<dyn Backend>) -> Self {
        let clock = ManualClock::default();
        let Handle { store, reader: inspect } = backend.open(clock.as_clock()).await;
        store.migrate().await.expect("migrate");
        Self { store, reader: inspect, clock, needs_settling: backend.needs_settling(), backend }
    }

    /// Whose data it is.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// A second handle on the same data and the same time.
    pub async fn second_handle(&self) -> Handle {
        self.backend.open(self.clock.as_clock()).await
    }

    /// The store's time.
    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Moves the time on.
    pub fn advance(&self, ms: i64) {
        self.clock.advance(ms);
    }

    /// Stores one task.
    pub async fn submit(&self, task: NewTask) -> TaskId {
        self.submit_all(vec![task]).await[0]
    }

    /// Stores tasks that all are new.
    pub async fn submit_all(&self, tasks: Vec<NewTask>) -> Vec<TaskId> {
        let stored = self.try_submit(tasks).await.expect("submit");
        assert!(stored.iter().all(|one| one.is_new), "{stored:?}");
        stored.iter().map(|one| one.task).collect()
    }

    /// Stores tasks or says why not.
    pub async fn try_submit(
        &self,
        tasks: Vec<NewTask>,
    ) -> tidegate_core::Result<Vec<SubmittedTask>> {
        self.store.submit(Submission { jobs: vec![], tasks, ..Submission::default() }).await
    }

    /// Makes a job known.
    pub async fn job(&self, job: JobSpec) {
        self.store
            .submit(Submission { jobs: vec![job], tasks: vec![], ..Submission::default() })
            .await
            .expect("job");
    }

    /// Lets the gate come to rest where a store takes several transactions for it.
    pub async fn settle(&self) {
        if self.needs_settling {
            settle(&*self.store).await;
        }
    }

    /// Lets the gate look at whatever waits, on every store.
    pub async fn admit(&self) {
        settle(&*self.store).await;
    }

    /// A worker of the kinds `a` to `d` claims.
    pub async fn claim(&self, tasks_max: u32) -> Vec<Attempt> {
        self.claim_as(claim_request("worker", &["a", "b", "c", "d"], tasks_max)).await
    }

    /// A worker claims.
    pub async fn claim_as(&self, claim: Claim) -> Vec<Attempt> {
        if self.needs_settling {
            // The first look tells the store that the worker lives, so that the gate lets
            // tasks through to it.
            let look = Claim { tasks_max: 0, ..claim.clone() };
            self.store.claim(look).await.expect("claim none");
            self.settle().await;
        }
        let claimed = self.store.claim(claim).await.expect("claim");
        self.settle().await;
        claimed
    }

    /// A worker claims exactly one.
    pub async fn claim_one(&self) -> Attempt {
        let mut claimed = self.claim(1).await;
        assert_eq!(claimed.len(), 1, "a task should be claimable");
        claimed.remove(0)
    }

    /// An attempt ends; its token must be accepted.
    pub async fn finish_attempt(&self, attempt: &Attempt, outcome: Outcome) {
        let finished = self.finish(attempt.task, attempt.token, outcome).await;
        assert_eq!(finished.lost_attempts, [], "the exit was not accepted");
    }

    /// Attempts complete.
    pub async fn complete(&self, attempts: &[Attempt]) {
        for attempt in attempts {
            self.finish_attempt(attempt, completed_outcome()).await;
        }
    }

    /// Attempts complete, and their worker asks for others in the same step.
    pub async fn finish_and_claim(&self, attempts: &[Attempt], tasks_max: u32) -> Vec<Attempt> {
        let exit = |one: &Attempt| Completion {
            task: one.task,
            token: one.token,
            outcome: completed_outcome(),
        };
        let exits = attempts.iter().map(exit).collect();
        let claim = Some(claim_request("worker", &["a", "b", "c", "d"], tasks_max));
        let finished =
            self.store.finish(Finish { completions: exits, claim }).await.expect("finish");
        assert_eq!(finished.lost_attempts, [], "the exits were not accepted");
        self.settle().await;
        finished.claimed
    }

    /// Reports an exit that may be stale.
    pub async fn finish(&self, task: TaskId, token: Token, outcome: Outcome) -> FinishReply {
        let exits = vec![Completion { task, token, outcome }];
        let finished =
            self.store.finish(Finish { completions: exits, claim: None }).await.expect("finish");
        self.settle().await;
        finished
    }

    /// Works off whatever the kinds `a` to `d` have; returns the order of the starts.
    pub async fn run_all(&self) -> Vec<TaskId> {
        let mut order = Vec::new();
        loop {
            let claimed = self.claim(1).await;
            if claimed.is_empty() {
                return order;
            }
            order.extend(task_ids(&claimed));
            self.complete(&claimed).await;
        }
    }

    /// Cancels one task.
    pub async fn cancel(&self, task: TaskId) -> CancelOutcome {
        let outcomes = self.store.cancel(vec![task]).await.expect("cancel");
        self.settle().await;
        outcomes[0]
    }

    /// An operator sets or unsets a limit.
    pub async fn set_limit(&self, name: &str, capacity: Option<u32>) -> Option<i64> {
        self.set_limit_as(name, capacity, CapacitySource::Operator).await
    }

    /// Somebody sets or unsets a limit.
    pub async fn set_limit_as(
        &self,
        name: &str,
        capacity: Option<u32>,
        source: CapacitySource,
    ) -> Option<i64> {
        let set = SetLimit { name: name.into(), capacity, source };
        let version = self.store.set_limit(set).await.expect("set_limit");
        self.settle().await;
        version
    }

    /// The reaper passes.
    pub async fn reap(&self) -> tidegate_core::ReapReply {
        let reaped = self.store.reap().await.expect("reap");
        self.settle().await;
        reaped
    }

    /// A limit, if there is one.
    pub async fn find_limit(&self, name: &str) -> Option<Limit> {
        let limits = self.reader.limits().await.expect("limits");
        limits.into_iter().find(|limit| &*limit.name == name)
    }

    /// A limit that is there.
    pub async fn limit(&self, name: &str) -> Limit {
        self.find_limit(name).await.unwrap_or_else(|| panic!("there is no limit {name}"))
    }

    /// Who holds the slots of a limit.
    pub async fn holders(&self, name: &str) -> Vec<SlotHolder> {
        let limit = self.limit(name).await;
        self.reader.slot_holders(limit.id).await.expect("holders")
    }

    /// A task that is there.
    pub async fn view(&self, task: TaskId) -> TaskView {
        let view = self.reader.task(task).await.expect("task");
        view.unwrap_or_else(|| panic!("there is no task {task}"))
    }

    /// The state of a task.
    pub async fn state(&self, task: TaskId) -> TaskState {
        self.view(task).await.state
    }

    /// The states of tasks, in order.
    pub async fn states(&self, tasks: &[TaskId]) -> Vec<TaskState> {
        let mut states = Vec::with_capacity(tasks.len());
        for task in tasks {
            states.push(self.state(*task).await);
        }
        states
    }

    /// Why a task is where it is.
    pub async fn explain(&self, task: TaskId) -> Explanation {
        let explanation = self.reader.explain(task).await.expect("explain");
        explanation.unwrap_or_else(|| panic!("there is no task {task}"))
    }

    /// One committed state.
    pub async fn snapshot(&self) -> Snapshot {
        self.reader.snapshot().await.expect("snapshot")
    }

    /// Where a task stands in a line, if it does.
    pub async fn waiter_row(&self, task: TaskId) -> Option<WaiterRow> {
        let snapshot = self.snapshot().await;
        let row = snapshot.tasks.iter().find(|row| row.id == task)?;
        match row.positions.first() {
            Some(Position::Waiting(row)) => Some(*row),
            _ => None,
        }
    }

    /// Why a task stands in a line, if it does.
    pub async fn wait_reason(&self, task: TaskId) -> Option<WaitReason> {
        self.waiter_row(task).await.map(|row| row.wait_reason)
    }

    /// Every invariant holds.
    pub async fn check_invariants(&self) {
        assert_eq!(check(&self.snapshot().await), []);
    }

    /// Every invariant holds and nothing is left over.
    pub async fn check_at_rest(&self) {
        assert_eq!(check_idle_store(&self.snapshot().await), []);
    }
}

/// Admits until nothing moves. Bounded, so that a gate that never comes to rest is a failure
/// with a name.
pub async fn settle(store: &dyn Store) {
    for _ in 0..10_000 {
        let admitted = store.admit().await.expect("admit");
        if !admitted.has_more && admitted.ready == 0 && admitted.parked == 0 {
            return;
        }
    }
    panic!("the gate does not come to rest");
}
