//! A handler on a simulated worker: when it ends, and how.

use tidegate_core::{Attempt, Millis, Outcome};

use super::rng::Rng;
use super::scenario::{POISON, Scenario};

/// A handler that was started for an attempt.
#[derive(Debug, Clone)]
pub(super) struct Handler {
    /// When it returns.
    pub(super) ends_at: Millis,
    /// When it is stopped unless the lease is renewed: most of a lease after the last renewal
    /// was *sent*, on a clock that only measures durations. The store counts from when the
    /// renewal *came*, so the handler always stops first, even if its clock is slow.
    pub(super) fence_at: Millis,
    pub(super) end: HandlerEnd,
}

/// How a handler ends.
#[derive(Debug, Clone)]
pub(super) enum HandlerEnd {
    Reports(Outcome),
    /// It takes the process with it.
    Aborts,
}

impl Handler {
    pub(super) fn new(
        rng: &mut Rng,
        world: &Scenario,
        attempt: &Attempt,
        now: Millis,
        fence_at: Millis,
        calm: bool,
    ) -> Self {
        let long = rng.chance(if calm { 5 } else { 30 });
        let most = if long { 3 * world.lease_ms } else { world.handler_ms };
        let end = if attempt.payload == POISON {
            HandlerEnd::Aborts
        } else {
            HandlerEnd::Reports(outcome(rng, calm))
        };
        Self { ends_at: now + rng.between(1, most), fence_at, end }
    }

    /// Whether its code runs at this moment, on a process that is not stopped.
    pub(super) fn is_running(&self, now: Millis) -> bool {
        now < self.ends_at && now < self.fence_at
    }

    /// Tells it that its task was cancelled. Some do not listen.
    pub(super) fn cancel(&mut self, rng: &mut Rng, now: Millis) {
        if rng.chance(700) {
            self.ends_at = self.ends_at.min(now + rng.between(0, 20));
            self.end = HandlerEnd::Reports(Outcome::Cancelled);
        }
    }
}

fn outcome(rng: &mut Rng, calm: bool) -> Outcome {
    let failed = |error: &str, retryable, retry_in_ms| Outcome::Failed {
        error: error.into(),
        retryable,
        retry_in_ms,
    };
    match rng.below(if calm { 150 } else { 100 }) {
        0..=9 => failed("no", true, None),
        10..=14 => failed("no", true, Some(rng.between(0, 200))),
        15..=17 => failed("never", false, None),
        18..=20 => failed("the handler panicked", true, Some(0)),
        21..=27 => Outcome::Snoozed { delay_ms: rng.between(0, 200) },
        28..=33 => Outcome::Released,
        34 => Outcome::Cancelled,
        _ => Outcome::Completed(Vec::new()),
    }
}
