//! One round trip to the store: exits go out, attempts come back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{Claim, Error, ErrorKind, Finish, FinishReply, Result};

use super::WorkerShared;
use super::claim_planner::ClaimPlan;
use super::completion_queue::PendingCompletion;
use crate::{ClaimStats, time};

/// A call that takes longer than this, and longer than a lease, is given up: a connection that
/// is dead without saying so must not hold the worker for ever.
const REQUEST_TIMEOUT_MIN: Duration = Duration::from_secs(10);

/// What a call carried, and what the store said.
#[derive(Debug)]
pub(crate) struct StoreReply {
    pub(crate) result: Result<FinishReply>,
    pub(crate) completions: Vec<PendingCompletion>,
    pub(crate) plan: Option<ClaimPlan>,
    /// Read before the request left.
    pub(crate) sent_at: Instant,
}

/// Ends attempts and claims, in one step of the store.
pub(crate) async fn send_store_request(
    shared: Arc<WorkerShared>,
    completions: Vec<PendingCompletion>,
    plan: Option<ClaimPlan>,
) -> StoreReply {
    let claim = plan.as_ref().map(|plan| claim_request(&shared, plan));
    let under_way = shared.worker_pool.begin_store_request().await;
    let sent_at = under_way.sent_at;
    let latest = sent_at + shared.config.lease.max(REQUEST_TIMEOUT_MIN);
    let answer = time::timeout_at(latest, finish_and_claim(&shared, &completions, claim)).await;
    drop(under_way);
    let no_answer = || Error::new(ErrorKind::Unavailable, "the store does not answer");
    let result = answer.unwrap_or_else(|| Err(no_answer()));
    let answer = StoreReply { result, completions, plan, sent_at };
    answer.notify_observers(&shared);
    answer
}

impl StoreReply {
    /// Lets the observers see what came of a call for work.
    fn notify_observers(&self, shared: &WorkerShared) {
        let (Some(plan), Ok(finished)) = (&self.plan, &self.result) else { return };
        let asked = ClaimStats {
            tasks_requested: plan.tasks_max,
            completions_sent: self.completions.len() as u32,
            tasks_claimed: finished.claimed.len() as u32,
            round_trip: time::now() - self.sent_at,
        };
        shared.observers.iter().for_each(|observer| observer.on_claim(&asked));
    }
}

async fn finish_and_claim(
    shared: &WorkerShared,
    completions: &[PendingCompletion],
    claim: Option<Claim>,
) -> Result<FinishReply> {
    match claim {
        Some(claim) if completions.is_empty() => {
            let claimed = shared.store.claim(claim).await?;
            Ok(FinishReply { claimed, ..FinishReply::default() })
        }
        claim => {
            let exits = completions.iter().map(PendingCompletion::to_completion).collect();
            shared.store.finish(Finish { completions: exits, claim }).await
        }
    }
}

fn claim_request(shared: &WorkerShared, plan: &ClaimPlan) -> Claim {
    Claim {
        worker: shared.worker_id.clone(),
        queues: shared.queues.clone(),
        kinds: plan.kinds.clone(),
        tasks_max: plan.tasks_max,
        lease_ms: time::millis(shared.config.lease),
        poll_interval_ms: time::millis(shared.config.poll_interval),
    }
}
