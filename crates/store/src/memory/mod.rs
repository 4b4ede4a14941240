//! The reference: the rules in a mutex. Nothing survives the process.

mod inspect;
mod leases;
mod registrations;
mod rows;
mod slots;
mod tables;
#[cfg(test)]
mod tests;
mod undo_log;
pub(crate) mod workers;
pub(crate) mod working_state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::repair::Repair;
use tidegate_core::request_stats::RequestPath;
use tidegate_core::{
    AdmitReply, Attempt, CancelOutcome, Claim, Finish, FinishReply, Heartbeat, HeartbeatReply,
    Millis, PruneReply, ReapReply, RegisterReply, Registration, ReleaseOutcome, ReleaseSlot,
    Result, RetryOutcome, SetJob, SetLimit, SetPaused, Store, Submission, SubmittedTask, TaskId,
    repair, rules,
};
use tokio::sync::Notify;

pub use working_state::WorkingState;

use crate::requests::RequestRecorder;
use crate::{clock, requests};

/// A store in memory.
#[derive(Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<WorkingState>,
    clock: Box<dyn Fn() -> Millis + Send + Sync>,
    notify: Notify,
    requests: RequestRecorder,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// An empty store on the system's clock.
    pub fn new() -> Self {
        Self::with_clock(clock::system_now)
    }

    /// An empty store on a clock of the caller's.
    pub fn with_clock(clock: impl Fn() -> Millis + Send + Sync + 'static) -> Self {
        let inner = Inner {
            state: Mutex::new(WorkingState::default()),
            clock: Box::new(clock),
            notify: Notify::new(),
            requests: RequestRecorder::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Runs a verb as one transaction. The time is read once. A verb that fails or panics changes nothing.
    fn run_transaction<T>(
        &self,
        verb: &'static str,
        body: impl FnOnce(&mut WorkingState) -> Result<T>,
    ) -> Result<T> {
        let _span = requests::general_request_span(verb).entered();
        let began_at = requests::now();
        let now = (self.inner.clock)();
        let mut transaction = RollbackOnDrop(self.lock_state());
        let state = &mut *transaction.0;
        state.now = now;
        state.begin_transaction();
        let outcome = body(state);
        if outcome.is_ok() {
            state.commit_transaction();
        } else {
            state.roll_back_transaction();
        }
        let wakes = std::mem::take(&mut state.has_new_work);
        drop(transaction);
        if wakes {
            // A permit for the next to come as well: it may have looked before this step.
            self.inner.notify.notify_waiters();
            self.inner.notify.notify_one();
        }
        let took = requests::now() - began_at;
        self.inner.requests.record(verb, RequestPath::General, None, took);
        outcome
    }

    /// A verb that panicked while it held the mutex was rolled back, so a poisoned mutex guards complete
    /// transactions only.
    fn lock_state(&self) -> MutexGuard<'_, WorkingState> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rolls back a transaction that a panic has ended, before the mutex is unlocked.
struct RollbackOnDrop<'a>(MutexGuard<'a, WorkingState>);

impl Drop for RollbackOnDrop<'_> {
    fn drop(&mut self) {
        self.0.roll_back_transaction();
    }
}

#[async_trait]
impl Store for Memory {
    async fn migrate(&self) -> Result<()> {
        Ok(())
    }

    async fn register(&self, registration: Registration) -> Result<RegisterReply> {
        self.run_transaction("register", |state| rules::register(state, &registration))
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<SubmittedTask>> {
        rules::check_submission(&submission, PAYLOAD_BYTES_MAX)?;
        self.run_transaction("submit", |state| rules::submit(state, &submission))
    }

    async fn admit(&self) -> Result<AdmitReply> {
        self.run_transaction("admit", |state| rules::admit(state))
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Attempt>> {
        self.run_transaction("claim", |state| rules::claim(state, &claim))
    }

    async fn heartbeat(&self, extend: Heartbeat) -> Result<HeartbeatReply> {
        self.run_transaction("heartbeat", |state| rules::heartbeat(state, &extend))
    }

    async fn finish(&self, finish: Finish) -> Result<FinishReply> {
        self.run_transaction("finish", |state| rules::finish(state, finish))
    }

    async fn cancel(&self, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>> {
        self.run_transaction("cancel", |state| rules::cancel(state, &tasks))
    }

    async fn retry(&self, tasks: Vec<TaskId>) -> Result<Vec<RetryOutcome>> {
        self.run_transaction("retry", |state| rules::retry(state, &tasks))
    }

    async fn release_slot(&self, release: ReleaseSlot) -> Result<ReleaseOutcome> {
        self.run_transaction("release", |state| rules::release_slot(state, &release))
    }

    async fn set_paused(&self, pause: SetPaused) -> Result<bool> {
        self.run_transaction("pause", |state| rules::set_paused(state, &pause))
    }

    async fn repair(&self) -> Result<Vec<Repair>> {
        self.run_transaction("repair", |state| {
            let mut steps = Vec::new();
            loop {
                let plan = repair::plan_repairs(&state.snapshot());
                rules::repair(state, &plan)?;
                let is_first = repair::is_partial_plan(&plan);
                steps.extend(plan);
                if !is_first {
                    return Ok(steps);
                }
            }
        })
    }

    async fn reap(&self) -> Result<ReapReply> {
        self.run_transaction("reap", |state| rules::reap(state))
    }

    async fn prune(&self) -> Result<PruneReply> {
        self.run_transaction("prune", |state| rules::prune(state))
    }

    async fn set_limit(&self, set: SetLimit) -> Result<Option<i64>> {
        self.run_transaction("set_limit", |state| rules::set_limit(state, &set))
    }

    async fn set_job(&self, set: SetJob) -> Result<()> {
        self.run_transaction("set_job", |state| rules::set_job(state, &set))
    }

    async fn wait_for_notification(&self) {
        self.inner.notify.notified().await;
    }
}
