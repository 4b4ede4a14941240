//! What a handler knows about its attempt.

use std::sync::Arc;
use std::time::Instant;

use tidegate_core::bounds::PROGRESS_MESSAGE_BYTES_MAX;
use tidegate_core::{
    Error, ErrorKind, HeldSlot, Millis, Progress, Result, Store, SubmittedTask, TaskId, Token,
};

use crate::worker::running_attempt::RunningAttempt;
use crate::{Task, client};

/// The attempt a handler runs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    running: Arc<RunningAttempt>,
    store: Arc<dyn Store>,
}

impl Context {
    pub(crate) fn new(running: Arc<RunningAttempt>, store: Arc<dyn Store>) -> Self {
        Self { running, store }
    }

    /// The task.
    pub fn task_id(&self) -> TaskId {
        self.running.attempt.task
    }

    /// The number of this attempt; the first is 1.
    pub fn attempt_number(&self) -> u32 {
        self.running.attempt.number
    }

    /// Attempts the task is given.
    pub fn max_attempts(&self) -> u32 {
        self.running.attempt.max_attempts
    }

    /// Whether a failure of this attempt is final.
    pub fn is_last_attempt(&self) -> bool {
        self.attempt_number() >= self.max_attempts()
    }

    /// The fencing token. Hand it to whatever the handler writes to: a writer that refuses
    /// lower tokens than it has seen is safe from handlers that were thought dead.
    pub fn token(&self) -> Token {
        self.running.attempt.token
    }

    /// The task's kind.
    pub fn kind(&self) -> &str {
        &self.running.attempt.kind
    }

    /// The queue it came from.
    pub fn queue(&self) -> &str {
        &self.running.attempt.queue
    }

    /// Its job.
    pub fn job(&self) -> Option<&str> {
        self.running.attempt.job.as_deref()
    }

    /// Its workflow.
    pub fn workflow(&self) -> Option<&str> {
        self.running.attempt.workflow.as_deref()
    }

    /// Where it was submitted, as a W3C `traceparent`: for whatever the handler calls.
    pub fn trace(&self) -> Option<&str> {
        self.running.attempt.trace.as_deref()
    }

    /// The slots it holds. No two holders have the same number of a limit, and a number stays
    /// as long as the slot is held, so it can name scarce things: ports, accounts, scratch
    /// folders. A number is below the capacity that was in force when the slot was taken; after
    /// lowering, those that still run may have higher ones.
    pub fn slots(&self) -> &[HeldSlot] {
        &self.running.attempt.slots
    }

    /// Reports progress. Only the last report before a heartbeat is sent; it can be called
    /// often. More than 100 percent is 100, a long message is cut, and a zero byte in it is
    /// replaced: not every store can keep one.
    pub fn progress(&self, percent: u8, message: impl Into<String>) {
        let mut message = message.into();
        if message.contains('\0') {
            message = message.replace('\0', "\u{fffd}");
        }
        let end = message.floor_char_boundary(PROGRESS_MESSAGE_BYTES_MAX);
        message.truncate(end);
        self.running.set_progress(Progress { percent: percent.min(100), message });
    }

    /// Submits tasks, all or none; the ids come back in the same order. Those that name no job join the
    /// job of this task, if it has one: a job may grow while it runs.
    ///
    /// They are stored at once, whatever becomes of this attempt. An attempt that is made again submits
    /// them again; a unique key keeps those that are unfinished from being doubled.
    ///
    /// An attempt that does not run any more adds nothing: where its lease was taken back, and the task
    /// runs elsewhere, or where it has ended, nothing is stored and the error is
    /// [`NotFound`](ErrorKind::NotFound).
    pub async fn submit_many(
        &self,
        tasks: impl IntoIterator<Item = Task>,
    ) -> Result<Vec<SubmittedTask>> {
        let join = |mut task: Task| {
            task.new_task.job = task.new_task.job.or_else(|| self.job().map(str::to_owned));
            task
        };
        let tasks = tasks.into_iter().map(join).collect();
        let (now, attempt) = (Some(self.store_now()), Some((self.task_id(), self.token())));
        client::submit_tasks(&*self.store, Vec::new(), tasks, now, attempt).await
    }

    /// The same for one task.
    pub async fn submit(&self, task: Task) -> Result<SubmittedTask> {
        let submitted = self.submit_many([task]).await?;
        submitted.into_iter().next().ok_or_else(|| {
            Error::new(ErrorKind::Incompatible, "the store took a task and named no id")
        })
    }

    /// About the store's time: that of the claim, and how long ago that was.
    fn store_now(&self) -> Millis {
        self.running.lease.store_now(self.running.attempt.expires_at)
    }

    /// Returns when the handler should stop: its task was cancelled, its lease is lost, or
    /// its worker stops. A handler that does not stop is dropped at its next await.
    pub async fn cancelled(&self) {
        self.running.stop_requested().await;
    }

    /// Whether the handler should stop.
    pub fn is_cancelled(&self) -> bool {
        self.running.stop_reason().is_some()
    }

    /// When the lease ends at the earliest unless it is renewed, which the worker does by
    /// itself. What must not happen twice at once must not happen after this.
    pub fn lease_deadline(&self) -> Instant {
        self.running.lease.expires_at()
    }
}
