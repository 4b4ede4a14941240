//! A store whose claims and failures are counted.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::repair::Repair;
use tidegate_core::{
    AdmitReply, Attempt, CancelOutcome, Claim, Finish, FinishReply, Heartbeat, HeartbeatReply,
    PruneReply, ReapReply, RegisterReply, Registration, ReleaseOutcome, ReleaseSlot, Result,
    RetryOutcome, SetJob, SetLimit, SetPaused, Store, Submission, SubmittedTask, TaskId,
};

use super::Metrics;

/// Passes every verb on, and counts whether it fails. The store itself measures how long requests take.
#[derive(Debug)]
pub(super) struct MeteredStore {
    store: Arc<dyn Store>,
    metrics: Metrics,
}

impl MeteredStore {
    pub(super) fn new(store: Arc<dyn Store>, metrics: Metrics) -> Self {
        Self { store, metrics }
    }

    async fn record_request<T>(
        &self,
        verb: &'static str,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.metrics.count_call(verb, request).await
    }
}

impl Metrics {
    /// Makes a call of the store, and counts whether it fails.
    pub(super) async fn count_call<T>(
        &self,
        verb: &'static str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut guard = RequestGuard { metrics: self, verb, has_succeeded: false };
        let answer = answer.await;
        guard.has_succeeded = answer.is_ok();
        answer
    }
}

/// A call under way. One whose caller gives it up has failed.
struct RequestGuard<'a> {
    metrics: &'a Metrics,
    verb: &'static str,
    has_succeeded: bool,
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.metrics.counters().record_request(self.verb, self.has_succeeded);
    }
}

#[async_trait]
impl Store for MeteredStore {
    async fn migrate(&self) -> Result<()> {
        self.record_request("migrate", self.store.migrate()).await
    }
    async fn register(&self, registration: Registration) -> Result<RegisterReply> {
        self.record_request("register", self.store.register(registration)).await
    }
    async fn submit(&self, submission: Submission) -> Result<Vec<SubmittedTask>> {
        self.record_request("submit", self.store.submit(submission)).await
    }
    async fn admit(&self) -> Result<AdmitReply> {
        self.record_request("admit", self.store.admit()).await
    }
    async fn claim(&self, claim: Claim) -> Result<Vec<Attempt>> {
        let lease_ms = claim.lease_ms;
        let claimed = self.record_request("claim", self.store.claim(claim)).await;
        self.metrics.counters().record_claim(claimed.as_deref().ok(), lease_ms);
        claimed
    }
    async fn heartbeat(&self, extend: Heartbeat) -> Result<HeartbeatReply> {
        self.record_request("heartbeat", self.store.heartbeat(extend)).await
    }
    async fn finish(&self, finish: Finish) -> Result<FinishReply> {
        let lease_ms = finish.claim.as_ref().map(|claim| claim.lease_ms);
        let finished = self.record_request("finish", self.store.finish(finish)).await;
        if let Some(lease_ms) = lease_ms {
            let claimed = finished.as_ref().ok().map(|finished| &*finished.claimed);
            self.metrics.counters().record_claim(claimed, lease_ms);
        }
        finished
    }
    async fn cancel(&self, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>> {
        self.record_request("cancel", self.store.cancel(tasks)).await
    }
    async fn retry(&self, tasks: Vec<TaskId>) -> Result<Vec<RetryOutcome>> {
        self.record_request("retry", self.store.retry(tasks)).await
    }
    async fn release_slot(&self, release: ReleaseSlot) -> Result<ReleaseOutcome> {
        self.record_request("release", self.store.release_slot(release)).await
    }
    async fn set_paused(&self, pause: SetPaused) -> Result<bool> {
        self.record_request("pause", self.store.set_paused(pause)).await
    }
    async fn repair(&self) -> Result<Vec<Repair>> {
        self.record_request("repair", self.store.repair()).await
    }
    async fn reap(&self) -> Result<ReapReply> {
        let reaped = self.record_request("reap", self.store.reap()).await?;
        self.metrics.counters().record_expired_leases(reaped.expired_attempts);
        Ok(reaped)
    }
    async fn prune(&self) -> Result<PruneReply> {
        self.record_request("prune", self.store.prune()).await
    }
    async fn set_limit(&self, set: SetLimit) -> Result<Option<i64>> {
        self.record_request("set_limit", self.store.set_limit(set)).await
    }
    async fn set_job(&self, set: SetJob) -> Result<()> {
        self.record_request("set_job", self.store.set_job(set)).await
    }
    /// A wait, not a call.
    async fn wait_for_notification(&self) {
        self.store.wait_for_notification().await;
    }
}
