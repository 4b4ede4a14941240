//! One round trip to the store: exits go out, attempts come back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{Claim, Error, ErrorKind, Finish, Finished, Result};

use super::Shared;
use super::outbox::Done;
use super::rooms::Plan;
use crate::{Asked, time};

/// A call that takes longer than this, and longer than a lease, is given up: a connection that
/// is dead without saying so must not hold the worker for ever.
const PATIENCE: Duration = Duration::from_secs(10);

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
    let under_way = shared.controller.call().await;
    let sent_at = under_way.sent_at;
    let latest = sent_at + shared.options.lease.max(PATIENCE);
    let answer = time::until(latest, ask(&shared, &exits, claim)).await;
    drop(under_way);
    let no_answer = || Error::new(ErrorKind::Unavailable, "the store does not answer");
    let result = answer.unwrap_or_else(|| Err(no_answer()));
    let answer = Answer { result, exits, plan, sent_at };
    answer.tell(&shared);
    answer
}

impl Answer {
    /// Lets the observers see what came of a call for work.
    fn tell(&self, shared: &Shared) {
        let (Some(plan), Ok(finished)) = (&self.plan, &self.result) else { return };
        let asked = Asked {
            wanted: plan.tasks_max,
            ended: self.exits.len() as u32,
            found: finished.claimed.len() as u32,
            took: time::now() - self.sent_at,
        };
        shared.observers.iter().for_each(|observer| observer.asked(&asked));
    }
}

async fn ask(shared: &Shared, exits: &[Done], claim: Option<Claim>) -> Result<Finished> {
    match claim {
        Some(claim) if exits.is_empty() => {
            let claimed = shared.store.claim(claim).await?;
            Ok(Finished { claimed, ..Finished::default() })
        }
        claim => {
            let exits = exits.iter().map(Done::exit).collect();
            shared.store.finish(Finish { exits, claim }).await
        }
    }
}

fn claim_of(shared: &Shared, plan: &Plan) -> Claim {
    Claim {
        worker: shared.worker.clone(),
        queues: shared.queues.clone(),
        kinds: plan.kinds.clone(),
        tasks_max: plan.tasks_max,
        lease_ms: time::millis(shared.options.lease),
        poll_ms: time::millis(shared.options.poll_interval),
    }
}
