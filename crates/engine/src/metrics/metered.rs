//! A store whose claims and failures are counted.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::repair::Repair;
use tidegate_core::{
    Admitted, Attempt, CancelOutcome, Claim, Extend, Extended, Finish, Finished, Pause, Pruned,
    Reaped, Registered, Registration, Release, ReleaseOutcome, Result, RetryOutcome, SetJob,
    SetLimit, Store, Submission, Submitted, TaskId,
};

use super::Metrics;

/// Passes every verb on, and counts whether it fails. The store itself measures how long requests take.
#[derive(Debug)]
pub(super) struct Metered {
    store: Arc<dyn Store>,
    metrics: Metrics,
}

impl Metered {
    pub(super) fn new(store: Arc<dyn Store>, metrics: Metrics) -> Self {
        Self { store, metrics }
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.metrics.count_call(verb, answer).await
    }
}

impl Metrics {
    /// Makes a call of the store, and counts whether it fails.
    pub(super) async fn count_call<T>(
        &self,
        verb: &'static str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut call = Call { metrics: self, verb, is_good: false };
        let answer = answer.await;
        call.is_good = answer.is_ok();
        answer
    }
}

/// A call under way. One whose caller gives it up has failed.
struct Call<'a> {
    metrics: &'a Metrics,
    verb: &'static str,
    is_good: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.metrics.counted().request(self.verb, self.is_good);
    }
}

#[async_trait]
impl Store for Metered {
    async fn migrate(&self) -> Result<()> {
        self.call("migrate", self.store.migrate()).await
    }
    async fn register(&self, registration: Registration) -> Result<Registered> {
        self.call("register", self.store.register(registration)).await
    }
    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>> {
        self.call("submit", self.store.submit(submission)).await
    }
    async fn admit(&self) -> Result<Admitted> {
        self.call("admit", self.store.admit()).await
    }
    async fn claim(&self, claim: Claim) -> Result<Vec<Attempt>> {
        let lease_ms = claim.lease_ms;
        let claimed = self.call("claim", self.store.claim(claim)).await;
        self.metrics.counted().claim(claimed.as_deref().ok(), lease_ms);
        claimed
    }
    async fn extend(&self, extend: Extend) -> Result<Extended> {
        self.call("extend", self.store.extend(extend)).await
    }
    async fn finish(&self, finish: Finish) -> Result<Finished> {
        let lease_ms = finish.claim.as_ref().map(|claim| claim.lease_ms);
        let finished = self.call("finish", self.store.finish(finish)).await;
        if let Some(lease_ms) = lease_ms {
            let claimed = finished.as_ref().ok().map(|finished| &*finished.claimed);
            self.metrics.counted().claim(claimed, lease_ms);
        }
        finished
    }
    async fn cancel(&self, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>> {
        self.call("cancel", self.store.cancel(tasks)).await
    }
    async fn retry(&self, tasks: Vec<TaskId>) -> Result<Vec<RetryOutcome>> {
        self.call("retry", self.store.retry(tasks)).await
    }
    async fn release(&self, release: Release) -> Result<ReleaseOutcome> {
        self.call("release", self.store.release(release)).await
    }
    async fn pause(&self, pause: Pause) -> Result<bool> {
        self.call("pause", self.store.pause(pause)).await
    }
    async fn repair(&self) -> Result<Vec<Repair>> {
        self.call("repair", self.store.repair()).await
    }
    async fn reap(&self) -> Result<Reaped> {
        let reaped = self.call("reap", self.store.reap()).await?;
        self.metrics.counted().expire(reaped.expired);
        Ok(reaped)
    }
    async fn prune(&self) -> Result<Pruned> {
        self.call("prune", self.store.prune()).await
    }
    async fn set_limit(&self, set: SetLimit) -> Result<Option<i64>> {
        self.call("set_limit", self.store.set_limit(set)).await
    }
    async fn set_job(&self, set: SetJob) -> Result<()> {
        self.call("set_job", self.store.set_job(set)).await
    }
    /// A wait, not a call.
    async fn changed(&self) {
        self.store.changed().await;
    }
}
