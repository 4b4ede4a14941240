//! What the tests share: a store with faults, a worker on it, and signals to wait for.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tidegate_core::reader::TaskView;
use tidegate_core::repair::Repair;
use tidegate_core::{
    AdmitReply, Attempt, CancelOutcome, Claim, Error, ErrorKind, Finish, FinishReply, Heartbeat,
    HeartbeatReply, PruneReply, ReapReply, RegisterReply, Registration, ReleaseOutcome,
    ReleaseSlot, Result, RetryOutcome, SetJob, SetLimit, SetPaused, Store, StoreReader, Submission,
    SubmittedTask, TaskId, TaskState,
};
use tidegate_engine::{
    AttemptOutcome, Client, Observer, Shutdown, Task, Worker, WorkerBuilder, WorkerConfig,
    WorkerSummary, time,
};
use tidegate_store::memory::Memory;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// No test waits longer than this for a signal.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Waits for a signal, or fails the test.
pub(crate) async fn within_timeout<F: Future>(what: &str, signal: F) -> F::Output {
    match tokio::time::timeout(SIGNAL_TIMEOUT, signal).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not happen within {SIGNAL_TIMEOUT:?}"),
    }
}

/// The pause between two looks at a condition that sends no signal. A loop without it takes the processor from
/// the worker under test.
pub(crate) async fn sleep_between_checks() {
    time::sleep(Duration::from_millis(2)).await;
}

/// A memory store whose calls can be made to fail.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    pub(crate) memory: Memory,
    /// Finishes that are done and whose answer is lost.
    pub(crate) finish_replies_to_lose: AtomicU32,
    /// Finishes that never arrive.
    pub(crate) finishes_to_lose: AtomicU32,
    /// Finishes that are done and whose answer comes after a heartbeat that was sent later.
    pub(crate) finish_replies_to_delay: AtomicU32,
    /// Claims that never arrive.
    pub(crate) claims_to_lose: AtomicU32,
    pub(crate) fails_heartbeats: AtomicBool,
    /// How long the store takes for each heartbeat.
    pub(crate) heartbeat_delay_ms: AtomicU32,
    /// Every call of a worker fails.
    pub(crate) is_unavailable: AtomicBool,
    /// Every finish fails.
    pub(crate) is_finish_unavailable: AtomicBool,
    /// When the store was last asked to reap.
    pub(crate) reaped_at: watch::Sender<Option<Instant>>,
    /// When the store was last asked to admit, also if the call failed.
    pub(crate) admit_attempted_at: watch::Sender<Option<Instant>>,
    /// Heartbeats with progress are refused.
    pub(crate) rejects_progress: AtomicBool,
    pub(crate) suppresses_notifications: AtomicBool,
    /// Hints that never end and mean nothing.
    pub(crate) notifies_continuously: AtomicBool,
    /// How long the answer to the next claim that finds something is on its way.
    pub(crate) next_claim_delay_ms: AtomicU32,
    /// The answers to claims are on their way for as long as this is set.
    pub(crate) holds_claim_replies: watch::Sender<bool>,
    /// Claims so far.
    pub(crate) claim_count: watch::Sender<u32>,
    /// Heartbeats so far.
    pub(crate) heartbeat_count: watch::Sender<u32>,
    /// Leases that heartbeats were told are gone.
    pub(crate) lost_lease_count: AtomicU32,
}

impl FaultyStore {
    pub(crate) fn new(memory: Memory) -> Arc<Self> {
        Arc::new(Self {
            memory,
            finish_replies_to_lose: AtomicU32::new(0),
            finishes_to_lose: AtomicU32::new(0),
            finish_replies_to_delay: AtomicU32::new(0),
            claims_to_lose: AtomicU32::new(0),
            fails_heartbeats: AtomicBool::new(false),
            heartbeat_delay_ms: AtomicU32::new(0),
            is_unavailable: AtomicBool::new(false),
            is_finish_unavailable: AtomicBool::new(false),
            reaped_at: watch::Sender::new(None),
            admit_attempted_at: watch::Sender::new(None),
            rejects_progress: AtomicBool::new(false),
            suppresses_notifications: AtomicBool::new(false),
            notifies_continuously: AtomicBool::new(false),
            next_claim_delay_ms: AtomicU32::new(0),
            holds_claim_replies: watch::Sender::new(false),
            claim_count: watch::Sender::new(0),
            heartbeat_count: watch::Sender::new(0),
            lost_lease_count: AtomicU32::new(0),
        })
    }

    fn check_available(&self) -> Result<()> {
        if self.is_unavailable.load(Ordering::SeqCst) { unavailable_error() } else { Ok(()) }
    }

    /// Returns when the store is first asked to reap after `since`.
    pub(crate) async fn wait_for_reap_after(&self, since: Instant) -> Instant {
        first_after(&self.reaped_at, since).await
    }

    /// Returns when the store is first asked to admit after `since`.
    pub(crate) async fn admit_attempt_after(&self, since: Instant) -> Instant {
        first_after(&self.admit_attempted_at, since).await
    }

    async fn delay_finish_reply(&self) {
        if take_one_fault(&self.finish_replies_to_delay) {
            self.wait_for_next_heartbeat().await;
        }
    }

    /// Returns after a heartbeat that is sent from now on: the first to be answered may have
    /// been under way.
    async fn wait_for_next_heartbeat(&self) {
        let mut beats = self.heartbeat_count.subscribe();
        let so_far = *beats.borrow();
        let _ = beats.wait_for(|beats| *beats >= so_far + 2).await;
    }
}

/// Returns the first time after `since` that is sent.
async fn first_after(sender: &watch::Sender<Option<Instant>>, since: Instant) -> Instant {
    let mut times = sender.subscribe();
    let first = times.wait_for(|at| at.is_some_and(|at| at > since)).await;
    first.expect("the store lives").expect("a time")
}

fn take_one_fault(fault: &AtomicU32) -> bool {
    let one_less = |left: u32| left.checked_sub(1);
    fault.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
}

fn unavailable_error<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unavailable, "cut off by the test"))
}

#[async_trait]
impl Store for FaultyStore {
    async fn migrate(&self) -> Result<()> {
        self.memory.migrate().await
    }
    async fn register(&self, registration: Registration) -> Result<RegisterReply> {
        self.memory.register(registration).await
    }
    async fn submit(&self, submission: Submission) -> Result<Vec<SubmittedTask>> {
        self.memory.submit(submission).await
    }
    async fn admit(&self) -> Result<AdmitReply> {
        self.admit_attempted_at.send_replace(Some(time::now()));
        self.check_available()?;
        self.memory.admit().await
    }
    async fn claim(&self, claim: Claim) -> Result<Vec<Attempt>> {
        self.check_available()?;
        if take_one_fault(&self.claims_to_lose) {
            return unavailable_error();
        }
        self.claim_count.send_modify(|claims| *claims += 1);
        let claimed = self.memory.claim(claim).await;
        let _ = self.holds_claim_replies.subscribe().wait_for(|is_held| !is_held).await;
        if claimed.as_ref().is_ok_and(|claimed| !claimed.is_empty()) {
            let slow_ms = self.next_claim_delay_ms.swap(0, Ordering::SeqCst);
            time::sleep(Duration::from_millis(slow_ms.into())).await;
        }
        claimed
    }
    async fn heartbeat(&self, extend: Heartbeat) -> Result<HeartbeatReply> {
        self.check_available()?;
        if self.fails_heartbeats.load(Ordering::SeqCst) {
            return unavailable_error();
        }
        if self.rejects_progress.load(Ordering::SeqCst) && !extend.progress.is_empty() {
            return Err(Error::invalid("progress is refused by the test"));
        }
        let delay = self.heartbeat_delay_ms.load(Ordering::SeqCst);
        time::sleep(Duration::from_millis(delay.into())).await;
        let extended = self.memory.heartbeat(extend).await?;
        self.lost_lease_count.fetch_add(extended.lost_leases.len() as u32, Ordering::SeqCst);
        self.heartbeat_count.send_modify(|beats| *beats += 1);
        Ok(extended)
    }
    async fn finish(&self, finish: Finish) -> Result<FinishReply> {
        self.check_available()?;
        if take_one_fault(&self.finishes_to_lose)
            || self.is_finish_unavailable.load(Ordering::SeqCst)
        {
            return unavailable_error();
        }
        if take_one_fault(&self.finish_replies_to_lose) {
            self.memory.finish(Finish { claim: None, ..finish }).await?;
            self.delay_finish_reply().await;
            return unavailable_error();
        }
        let finished = self.memory.finish(finish).await;
        self.delay_finish_reply().await;
        finished
    }
    async fn cancel(&self, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>> {
        self.memory.cancel(tasks).await
    }
    async fn reap(&self) -> Result<ReapReply> {
        self.check_available()?;
        let reaped = self.memory.reap().await;
        self.reaped_at.send_replace(Some(time::now()));
        reaped
    }
    async fn prune(&self) -> Result<PruneReply> {
        self.memory.prune().await
    }
    async fn set_limit(&self, set: SetLimit) -> Result<Option<i64>> {
        self.memory.set_limit(set).await
    }
    async fn set_job(&self, set: SetJob) -> Result<()> {
        self.memory.set_job(set).await
    }
    async fn retry(&self, tasks: Vec<TaskId>) -> Result<Vec<RetryOutcome>> {
        self.memory.retry(tasks).await
    }
    async fn release_slot(&self, release: ReleaseSlot) -> Result<ReleaseOutcome> {
        self.memory.release_slot(release).await
    }
    async fn set_paused(&self, pause: SetPaused) -> Result<bool> {
        self.memory.set_paused(pause).await
    }
    async fn repair(&self) -> Result<Vec<Repair>> {
        self.memory.repair().await
    }
    async fn wait_for_notification(&self) {
        if self.suppresses_notifications.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.notifies_continuously.load(Ordering::SeqCst) {
            return;
        }
        self.memory.wait_for_notification().await;
    }
}

/// What an attempt did, as the observer saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptEvent {
    Started(TaskId),
    HandlerDone(TaskId),
    Acknowledged(TaskId, AttemptOutcome),
}

#[derive(Debug)]
struct EventObserver(mpsc::UnboundedSender<AttemptEvent>);

impl Observer for EventObserver {
    fn on_start(&self, attempt: &Attempt) {
        let _ = self.0.send(AttemptEvent::Started(attempt.task));
    }
    fn on_handler_done(&self, attempt: &Attempt, _run_time: Duration) {
        let _ = self.0.send(AttemptEvent::HandlerDone(attempt.task));
    }
    fn on_acknowledged(&self, attempt: &Attempt, outcome: AttemptOutcome) {
        let _ = self.0.send(AttemptEvent::Acknowledged(attempt.task, outcome));
    }
}

/// One store, one client, and what its workers were seen to do.
pub(crate) struct Harness {
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) client: Client,
    pub(crate) shutdown: Shutdown,
    event_sender: mpsc::UnboundedSender<AttemptEvent>,
    events: Mutex<mpsc::UnboundedReceiver<AttemptEvent>>,
}

impl Harness {
    pub(crate) fn new() -> Self {
        Self::with_memory(Memory::new())
    }

    pub(crate) fn with_memory(memory: Memory) -> Self {
        let (event_sender, seen) = mpsc::unbounded_channel();
        Self {
            client: Client::new(Arc::new(memory.clone()), Arc::new(memory.clone())),
            store: FaultyStore::new(memory),
            shutdown: Shutdown::new(),
            event_sender,
            events: Mutex::new(seen),
        }
    }

    /// A worker that notices everything quickly.
    pub(crate) fn worker_builder(&self) -> WorkerBuilder {
        let options =
            WorkerConfig { poll_interval: Duration::from_millis(20), ..WorkerConfig::default() };
        self.worker_builder_with(options)
    }

    pub(crate) fn worker_builder_with(&self, options: WorkerConfig) -> WorkerBuilder {
        let observer = Arc::new(EventObserver(self.event_sender.clone()));
        Worker::builder(self.store.clone()).config(options).observer(observer)
    }

    pub(crate) fn start_worker(&self, builder: WorkerBuilder) -> JoinHandle<Result<WorkerSummary>> {
        let worker = builder.build().expect("a good worker");
        tokio::spawn(worker.run(self.shutdown.clone()))
    }

    pub(crate) async fn submit(&self, task: Task) -> TaskId {
        self.client.submit(task).await.expect("a good task").task
    }

    /// The next thing seen.
    pub(crate) async fn next_event(&self) -> AttemptEvent {
        let next = std::future::poll_fn(|context| self.events.lock().unwrap().poll_recv(context));
        within_timeout("the worker to do something", next).await.expect("the rig holds a sender")
    }

    /// Waits until a task has ended for good, and tells how.
    pub(crate) async fn wait_until_final(&self, task: TaskId) -> TaskView {
        loop {
            if let AttemptEvent::Acknowledged(seen, ended) = self.next_event().await
                && seen == task
                && !matches!(
                    ended,
                    AttemptOutcome::Retry | AttemptOutcome::Snoozed | AttemptOutcome::Released
                )
            {
                return self.task_view(task).await;
            }
        }
    }

    pub(crate) async fn wait_until_started(&self, task: TaskId) {
        while self.next_event().await != AttemptEvent::Started(task) {}
    }

    pub(crate) async fn wait_until_acknowledged(&self, task: TaskId, outcome: AttemptOutcome) {
        while self.next_event().await != AttemptEvent::Acknowledged(task, outcome) {}
    }

    /// Waits until so many tasks have completed.
    pub(crate) async fn wait_until_completed(&self, tasks: usize) {
        for _ in 0..tasks {
            while !matches!(
                self.next_event().await,
                AttemptEvent::Acknowledged(_, AttemptOutcome::Completed)
            ) {}
        }
    }

    pub(crate) async fn task_view(&self, task: TaskId) -> TaskView {
        self.store.memory.task(task).await.unwrap().expect("a known task")
    }

    pub(crate) async fn task_state(&self, task: TaskId) -> TaskState {
        self.task_view(task).await.state
    }

    /// Drains the workers; nothing must be left behind.
    pub(crate) async fn drain_worker(
        &self,
        worker: JoinHandle<Result<WorkerSummary>>,
    ) -> WorkerSummary {
        self.shutdown.drain();
        within_timeout("the drain", worker).await.expect("no panic").expect("no error")
    }
}
