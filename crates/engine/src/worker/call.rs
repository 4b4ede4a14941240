//! One round trip to the store: exits go out, attempts come back.

use std::sync::Arc;
use std::time::Instant;

use tidegate_core::{Claim, Finish, Finished, Result};

use super::Shared;
use super::outbox::Done;
use super::rooms::Plan;
use crate::time;

/// What a call carried, and what the store said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) result: Result<Finished>,
    pub(crate) exits: Vec<Done>,
    pub(crate) plan: Option<Plan>,
    /// Read before the request left.
    pub(crate) sent_at: Instant,
}

/// Ends attempts and claims, in one step of the store.
pub(crate) async fn call(shared: Arc<Shared>, exits: Vec<Done>, plan: Option<Plan>) -> Answer {
    let claim = plan.as_ref().map(|plan| claim_of(&shared, plan));
    let sent_at = time::now();
    let result = match claim {
        Some(claim) if exits.is_empty() => {
            let claimed = shared.store.claim(claim).await;
            claimed.map(|claimed| Finished { claimed, ..Finished::default() })
        }
        claim => {
            let exits = exits.iter().map(Done::exit).collect();
            shared.store.finish(Finish { exits, claim }).await
        }
    };
    Answer { result, exits, plan, sent_at }
}

fn claim_of(shared: &Shared, plan: &Plan) -> Claim {
    Claim {
        worker: shared.worker.clone(),
        queues: shared.queues.clone(),
        kinds: plan.kinds.clone(),
        tasks_max: plan.tasks_max,
        lease_ms: time::millis(shared.options.lease),
    }
}
