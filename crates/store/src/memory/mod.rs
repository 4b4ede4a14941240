//! The reference: the rules in a mutex. Nothing survives the process.

mod inspect;
mod leases;
mod registrations;
mod rows;
mod slots;
pub(crate) mod state;
mod tables;
#[cfg(test)]
mod tests;
mod undo;
pub(crate) mod workers;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::repair::Repair;
use tidegate_core::requests::RequestPath;
use tidegate_core::{
    Admitted, Attempt, CancelOutcome, Claim, Extend, Extended, Finish, Finished, Millis, Pause,
    Pruned, Reaped, Registered, Registration, Release, ReleaseOutcome, Result, RetryOutcome,
    SetJob, SetLimit, Store, Submission, Submitted, TaskId, repair, rules,
};
use tokio::sync::Notify;

pub use state::State;

use crate::requests::Requests;
use crate::{clock, requests};

/// A store in memory.
#[derive(Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    clock: Box<dyn Fn() -> Millis + Send + Sync>,
    changed: Notify,
    requests: Requests,
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
        Self::with_clock(clock::system)
    }

    /// An empty store on a clock of the caller's.
    pub fn with_clock(clock: impl Fn() -> Millis + Send + Sync + 'static) -> Self {
        let inner = Inner {
            state: Mutex::new(State::default()),
            clock: Box::new(clock),
            changed: Notify::new(),
            requests: Requests::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Runs a verb as one transaction. The time is read once. A verb that fails or panics changes nothing.
    fn at_once<T>(
        &self,
        verb: &'static str,
        body: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        let _span = requests::general_span(verb).entered();
        let began_at = requests::now();
        let now = (self.inner.clock)();
        let mut transaction = Transaction(self.state());
        let state = &mut *transaction.0;
        state.now = now;
        state.begin();
        let outcome = body(state);
        if outcome.is_ok() {
            state.commit();
        } else {
            state.roll_back();
        }
        let wakes = std::mem::take(&mut state.wakes);
        drop(transaction);
        if wakes {
            // A permit for the next to come as well: it may have looked before this step.
            self.inner.changed.notify_waiters();
            self.inner.changed.notify_one();
        }
        let took = requests::now() - began_at;
        self.inner.requests.record(verb, RequestPath::General, None, took);
        outcome
    }

    /// A verb that panicked while it held the mutex was rolled back, so a poisoned mutex guards complete
    /// transactions only.
    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rolls back a transaction that a panic has ended, before the mutex is unlocked.
struct Transaction<'a>(MutexGuard<'a, State>);

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.0.roll_back();
    }
}

#[async_trait]
impl Store for Memory {
    async fn migrate(&self) -> Result<()> {
        Ok(())
    }

    async fn register(&self, registration: Registration) -> Result<Registered> {
        self.at_once("register", |state| rules::register(state, &registration))
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>> {
        rules::check_submission(&submission, PAYLOAD_BYTES_MAX)?;
        self.at_once("submit", |state| rules::submit(state, &submission))
    }

    async fn admit(&self) -> Result<Admitted> {
        self.at_once("admit", |state| rules::admit(state))
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Attempt>> {
        self.at_once("claim", |state| rules::claim(state, &claim))
    }

    async fn extend(&self, extend: Extend) -> Result<Extended> {
        self.at_once("extend", |state| rules::extend(state, &extend))
    }

    async fn finish(&self, finish: Finish) -> Result<Finished> {
        self.at_once("finish", |state| rules::finish(state, finish))
    }

    async fn cancel(&self, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>> {
        self.at_once("cancel", |state| rules::cancel(state, &tasks))
    }

    async fn retry(&self, tasks: Vec<TaskId>) -> Result<Vec<RetryOutcome>> {
        self.at_once("retry", |state| rules::retry(state, &tasks))
    }

    async fn release(&self, release: Release) -> Result<ReleaseOutcome> {
        self.at_once("release", |state| rules::release(state, &release))
    }

    async fn pause(&self, pause: Pause) -> Result<bool> {
        self.at_once("pause", |state| rules::pause(state, &pause))
    }

    async fn repair(&self) -> Result<Vec<Repair>> {
        self.at_once("repair", |state| {
            let mut steps = Vec::new();
            loop {
                let plan = repair::plan(&state.snapshot());
                rules::repair(state, &plan)?;
                let is_first = repair::is_first_part(&plan);
                steps.extend(plan);
                if !is_first {
                    return Ok(steps);
                }
            }
        })
    }

    async fn reap(&self) -> Result<Reaped> {
        self.at_once("reap", |state| rules::reap(state))
    }

    async fn prune(&self) -> Result<Pruned> {
        self.at_once("prune", |state| rules::prune(state))
    }

    async fn set_limit(&self, set: SetLimit) -> Result<Option<i64>> {
        self.at_once("set_limit", |state| rules::set_limit(state, &set))
    }

    async fn set_job(&self, set: SetJob) -> Result<()> {
        self.at_once("set_job", |state| rules::set_job(state, &set))
    }

    async fn changed(&self) {
        self.inner.changed.notified().await;
    }
}
