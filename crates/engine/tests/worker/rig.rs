//! What the tests share: a store with faults, a worker on it, and signals to wait for.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tidegate_core::inspect::TaskView;
use tidegate_core::repair::Repair;
use tidegate_core::{
    Admitted, Attempt, CancelOutcome, Claim, Error, ErrorKind, Extend, Extended, Finish, Finished,
    Inspect, Pause, Pruned, Reaped, Registered, Registration, Release, ReleaseOutcome, Result,
    RetryOutcome, SetJob, SetLimit, State, Store, Submission, Submitted, TaskId,
};
use tidegate_engine::{
    Builder, Client, Ended, Observer, Options, Shutdown, Summary, Task, Worker, time,
};
use tidegate_store::memory::Memory;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// No test waits longer than this for a signal.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for a signal, or fails the test.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not happen within {PATIENCE:?}"),
    }
}

/// The pause between two looks at a condition that sends no signal. A loop without it takes the processor from
/// the worker under test.
pub(crate) async fn pause() {
    time::sleep(Duration::from_millis(2)).await;
}

/// A memory store whose calls can be made to fail.
#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) memory: Memory,
    /// Finishes that are done and whose answer is lost.
    pub(crate) lose_finish_replies: AtomicU32,
    /// Finishes that never arrive.
    pub(crate) lose_finishes: AtomicU32,
    /// Finishes that are done and whose answer comes after a heartbeat that was sent later.
    pub(crate) late_finish_replies: AtomicU32,
    /// Claims that never arrive.
    pub(crate) lose_claims: AtomicU32,
    pub(crate) no_heartbeats: AtomicBool,
    /// How long the store takes for each heartbeat.
    pub(crate) slow_heartbeats_ms: AtomicU32,
    /// Every call of a worker fails.
    pub(crate) is_away: AtomicBool,
    /// Every finish fails.
    pub(crate) is_finish_away: AtomicBool,
    /// When the store was last asked to reap.
    pub(crate) reaped_at: watch::Sender<Option<Instant>>,
    /// When the store was last asked to admit, also if the call failed.
    pub(crate) admit_attempted_at: watch::Sender<Option<Instant>>,
    /// Heartbeats with progress are refused.
    pub(crate) no_progress: AtomicBool,
    pub(crate) no_hints: AtomicBool,
    /// Hints that never end and mean nothing.
    pub(crate) idle_hints: AtomicBool,
    /// How long the answer to the next claim that finds something is on its way.
    pub(crate) slow_claim_ms: AtomicU32,
    /// The answers to claims are on their way for as long as this is set.
    pub(crate) hold_claims: watch::Sender<bool>,
    /// Claims so far.
    pub(crate) claims: watch::Sender<u32>,
    /// Heartbeats so far.
    pub(crate) beats: watch::Sender<u32>,
    /// Leases that heartbeats were told are gone.
    pub(crate) lost_leases: AtomicU32,
}

impl Faulty {
    pub(crate) fn new(memory: Memory) -> Arc<Self> {
        Arc::new(Self {
            memory,
            lose_finish_replies: AtomicU32::new(0),
            lose_finishes: AtomicU32::new(0),
            late_finish_replies: AtomicU32::new(0),
            lose_claims: AtomicU32::new(0),
            no_heartbeats: AtomicBool::new(false),
            slow_heartbeats_ms: AtomicU32::new(0),
            is_away: AtomicBool::new(false),
            is_finish_away: AtomicBool::new(false),
            reaped_at: watch::Sender::new(None),
            admit_attempted_at: watch::Sender::new(None),
            no_progress: AtomicBool::new(false),
            no_hints: AtomicBool::new(false),
            idle_hints: AtomicBool::new(false),
            slow_claim_ms: AtomicU32::new(0),
            hold_claims: watch::Sender::new(false),
            claims: watch::Sender::new(0),
            beats: watch::Sender::new(0),
            lost_leases: AtomicU32::new(0),
        })
    }

    fn reach(&self) -> Result<()> {
        if self.is_away.load(Ordering::SeqCst) { cut_off() } else { Ok(()) }
    }

    /// Returns when the store is first asked to reap after `since`.
    pub(crate) async fn reap_after(&self, since: Instant) -> Instant {
        first_after(&self.reaped_at, since).await
    }

    /// Returns when the store is first asked to admit after `since`.
    pub(crate) async fn admit_attempt_after(&self, since: Instant) -> Instant {
        first_after(&self.admit_attempted_at, since).await
    }

    async fn be_late(&self) {
        if use_up(&self.late_finish_replies) {
            self.next_beat().await;
        }
    }

    /// Returns after a heartbeat that is sent from now on: the first to be answered may have
    /// been under way.
    async fn next_beat(&self) {
        let mut beats = self.beats.subscribe();
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

fn use_up(fault: &AtomicU32) -> bool {
    let one_less = |left: u32| left.checked_sub(1);
    fault.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
}

fn cut_off<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unavailable, "cut off by the test"))
}

#[async_trait]
impl Store for Faulty {
    async fn migrate(&self) -> Result<()> {
        self.memory.migrate().await
    }
    async fn register(&self, registration: Registration) -> Result<Registered> {
        self.memory.register(registration).await
    }
    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>> {
        self.memory.submit(submission).await
    }
    async fn admit(&self) -> Result<Admitted> {
        self.admit_attempted_at.send_replace(Some(time::now()));
        self.reach()?;
        self.memory.admit().await
    }
    async fn claim(&self, claim: Claim) -> Result<Vec<Attempt>> {
        self.reach()?;
        if use_up(&self.lose_claims) {
            return cut_off();
        }
        self.claims.send_modify(|claims| *claims += 1);
        let claimed = self.memory.claim(claim).await;
        let _ = self.hold_claims.subscribe().wait_for(|is_held| !is_held).await;
        if claimed.as_ref().is_ok_and(|claimed| !claimed.is_empty()) {
            let slow_ms = self.slow_claim_ms.swap(0, Ordering::SeqCst);
            time::sleep(Duration::from_millis(slow_ms.into())).await;
        }
        claimed
    }
    async fn extend(&self, extend: Extend) -> Result<Extended> {
        self.reach()?;
        if self.no_heartbeats.load(Ordering::SeqCst) {
            return cut_off();
        }
        if self.no_progress.load(Ordering::SeqCst) && !extend.progress.is_empty() {
            return Err(Error::invalid("progress is refused by the test"));
        }
        let delay = self.slow_heartbeats_ms.load(Ordering::SeqCst);
        time::sleep(Duration::from_millis(delay.into())).await;
        let extended = self.memory.extend(extend).await?;
        self.lost_leases.fetch_add(extended.lost.len() as u32, Ordering::SeqCst);
        self.beats.send_modify(|beats| *beats += 1);
        Ok(extended)
    }
    async fn finish(&self, finish: Finish) -> Result<Finished> {
        self.reach()?;
        if use_up(&self.lose_finishes) || self.is_finish_away.load(Ordering::SeqCst) {
            return cut_off();
        }
        if use_up(&self.lose_finish_replies) {
            self.memory.finish(Finish { claim: None, ..finish }).await?;
            self.be_late().await;
            return cut_off();
        }
        let finished = self.memory.finish(finish).await;
        self.be_late().await;
        finished
    }
    async fn cancel(&self, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>> {
        self.memory.cancel(tasks).await
    }
    async fn reap(&self) -> Result<Reaped> {
        self.reach()?;
        let reaped = self.memory.reap().await;
        self.reaped_at.send_replace(Some(time::now()));
        reaped
    }
    async fn prune(&self) -> Result<Pruned> {
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
    async fn release(&self, release: Release) -> Result<ReleaseOutcome> {
        self.memory.release(release).await
    }
    async fn pause(&self, pause: Pause) -> Result<bool> {
        self.memory.pause(pause).await
    }
    async fn repair(&self) -> Result<Vec<Repair>> {
        self.memory.repair().await
    }
    async fn changed(&self) {
        if self.no_hints.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.idle_hints.load(Ordering::SeqCst) {
            return;
        }
        self.memory.changed().await;
    }
}

/// What an attempt did, as the observer saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Enter(TaskId),
    Leave(TaskId),
    Exit(TaskId, Ended),
}

#[derive(Debug)]
struct Tell(mpsc::UnboundedSender<Seen>);

impl Observer for Tell {
    fn enter(&self, attempt: &Attempt) {
        let _ = self.0.send(Seen::Enter(attempt.task));
    }
    fn leave(&self, attempt: &Attempt, _ran: Duration) {
        let _ = self.0.send(Seen::Leave(attempt.task));
    }
    fn exit(&self, attempt: &Attempt, ended: Ended) {
        let _ = self.0.send(Seen::Exit(attempt.task, ended));
    }
}

/// One store, one client, and what its workers were seen to do.
pub(crate) struct Rig {
    pub(crate) store: Arc<Faulty>,
    pub(crate) client: Client,
    pub(crate) shutdown: Shutdown,
    tell: mpsc::UnboundedSender<Seen>,
    seen: Mutex<mpsc::UnboundedReceiver<Seen>>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::on(Memory::new())
    }

    pub(crate) fn on(memory: Memory) -> Self {
        let (tell, seen) = mpsc::unbounded_channel();
        Self {
            client: Client::new(Arc::new(memory.clone()), Arc::new(memory.clone())),
            store: Faulty::new(memory),
            shutdown: Shutdown::new(),
            tell,
            seen: Mutex::new(seen),
        }
    }

    /// A worker that notices everything quickly.
    pub(crate) fn worker(&self) -> Builder {
        let options = Options { poll_interval: Duration::from_millis(20), ..Options::default() };
        self.worker_with(options)
    }

    pub(crate) fn worker_with(&self, options: Options) -> Builder {
        let observer = Arc::new(Tell(self.tell.clone()));
        Worker::builder(self.store.clone()).options(options).observer(observer)
    }

    pub(crate) fn start(&self, builder: Builder) -> JoinHandle<Result<Summary>> {
        let worker = builder.build().expect("a good worker");
        tokio::spawn(worker.run(self.shutdown.clone()))
    }

    pub(crate) async fn submit(&self, task: Task) -> TaskId {
        self.client.submit(task).await.expect("a good task").task
    }

    /// The next thing seen.
    pub(crate) async fn next(&self) -> Seen {
        let next = std::future::poll_fn(|context| self.seen.lock().unwrap().poll_recv(context));
        soon("the worker to do something", next).await.expect("the rig holds a sender")
    }

    /// Waits until a task has ended for good, and tells how.
    pub(crate) async fn ended(&self, task: TaskId) -> TaskView {
        loop {
            if let Seen::Exit(seen, ended) = self.next().await
                && seen == task
                && !matches!(ended, Ended::Retry | Ended::Snoozed | Ended::Released)
            {
                return self.view(task).await;
            }
        }
    }

    pub(crate) async fn entered(&self, task: TaskId) {
        while self.next().await != Seen::Enter(task) {}
    }

    pub(crate) async fn exited(&self, task: TaskId, ended: Ended) {
        while self.next().await != Seen::Exit(task, ended) {}
    }

    /// Waits until so many tasks have completed.
    pub(crate) async fn completed(&self, tasks: usize) {
        for _ in 0..tasks {
            while !matches!(self.next().await, Seen::Exit(_, Ended::Completed)) {}
        }
    }

    pub(crate) async fn view(&self, task: TaskId) -> TaskView {
        self.store.memory.task(task).await.unwrap().expect("a known task")
    }

    pub(crate) async fn state(&self, task: TaskId) -> State {
        self.view(task).await.state
    }

    /// Drains the workers; nothing must be left behind.
    pub(crate) async fn end(&self, worker: JoinHandle<Result<Summary>>) -> Summary {
        self.shutdown.drain();
        soon("the drain", worker).await.expect("no panic").expect("no error")
    }
}
