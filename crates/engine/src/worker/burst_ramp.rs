//! How fast a worker takes on more while others have room too.
//!
//! Who is woken first could take all of a burst before the others have asked once. So a worker that
//! reckons with others takes a burst in steps: two tasks, or a sixteenth of what it has in flight, and then
//! leaves the others a moment. Where nothing more is known to wait, what ends is replaced at once.
//!
//! The steps count from when the burst was ready, by the store's clock, and not from when a worker came to
//! it: who comes late takes at once what it would have in flight by now, and a backlog is taken as fast as
//! it can be. A thousand tasks are taken on within 0.4 s.

use std::time::{Duration, Instant};

/// The smallest step. Who asks for one more than the task that came alone learns that it is alone.
const RAMP_STEP_MIN: u32 = 2;

/// A step is this part of what a worker has in flight, where that is more.
const RAMP_FRACTION: u32 = 16;

/// Between two steps.
pub(crate) const RAMP_INTERVAL: Duration = Duration::from_millis(5);

/// After so many steps there is room for more than any worker runs.
const RAMP_STEPS_MAX: u128 = 180;

#[derive(Debug)]
pub(crate) struct BurstRamp {
    /// Since when there is more than was taken on.
    ready_since: Option<Instant>,
    last_step_at: Option<Instant>,
}

impl BurstRamp {
    pub(crate) fn new() -> Self {
        Self { ready_since: None, last_step_at: None }
    }

    /// How many more may be taken on with so many in flight, and so many that have just ended.
    pub(crate) fn claim_budget(&self, in_flight: u32, completed: u32, now: Instant) -> u32 {
        let may_step = self.last_step_at.is_none_or(|at| now >= at + RAMP_INTERVAL);
        let step = if may_step { step_size(in_flight) } else { 0 };
        match self.ready_since {
            // Of short tasks one that is early would be done with several before another comes.
            Some(since) => {
                let by_now = in_flight_after(now.saturating_duration_since(since));
                by_now.saturating_sub(in_flight).max(step)
            }
            None => step + completed,
        }
    }

    /// So many are asked for, with so many that have just ended.
    pub(crate) fn on_claim_sent(&mut self, tasks: u32, completed: u32, now: Instant) {
        if tasks > completed {
            self.last_step_at = Some(now);
        }
    }

    /// As many as were asked for were found, all of them ready for so long: there may be more.
    pub(crate) fn on_full_claim(&mut self, ready_for: Duration, now: Instant) {
        let since = now.checked_sub(ready_for).unwrap_or(now);
        self.ready_since = Some(self.ready_since.map_or(since, |before| before.min(since)));
    }

    /// There is no more: what comes next is taken on at once.
    pub(crate) fn on_partial_claim(&mut self) {
        *self = Self::new();
    }
}

/// What a worker has in flight of a burst that was ready for so long.
fn in_flight_after(ready_for: Duration) -> u32 {
    let steps = (ready_for.as_millis() / RAMP_INTERVAL.as_millis()).min(RAMP_STEPS_MAX);
    (0..steps).fold(RAMP_STEP_MIN, |in_flight, _| in_flight + step_size(in_flight))
}

fn step_size(in_flight: u32) -> u32 {
    RAMP_STEP_MIN.max(in_flight / RAMP_FRACTION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    #[test]
    fn burst_is_claimed_step_by_step() {
        let mut now = time::now();
        let mut pace = BurstRamp::new();
        assert_eq!(pace.claim_budget(0, 0, now), 2);
        pace.on_claim_sent(2, 0, now);
        assert_eq!(pace.claim_budget(2, 0, now), 0);
        now += RAMP_INTERVAL;
        assert_eq!(pace.claim_budget(2, 0, now), 2);
        assert_eq!(pace.claim_budget(800, 0, now), 50, "a sixteenth");
        pace.on_claim_sent(2, 0, now);
        pace.on_partial_claim();
        assert_eq!(pace.claim_budget(3, 0, now), 2, "what comes alone is not waited for");
    }

    #[test]
    fn completed_tasks_are_replaced_at_once() {
        let now = time::now();
        let mut pace = BurstRamp::new();
        pace.on_claim_sent(1, 0, now);
        assert_eq!(pace.claim_budget(40, 7, now), 7);
        pace.on_claim_sent(7, 7, now + RAMP_INTERVAL);
        assert_eq!(pace.claim_budget(40, 0, now + RAMP_INTERVAL), 2, "that was no step");
    }

    #[test]
    fn late_worker_catches_up() {
        let mut now = time::now();
        let began = now;
        let (mut early, mut late) = (BurstRamp::new(), BurstRamp::new());
        let mut in_flight = 0;
        for _ in 0..30 {
            let room = early.claim_budget(in_flight, 0, now);
            early.on_claim_sent(room, 0, now);
            early.on_full_claim(now - began, now);
            in_flight += room;
            now += RAMP_INTERVAL;
        }
        late.on_claim_sent(RAMP_STEP_MIN, 0, now - RAMP_INTERVAL);
        late.on_full_claim(RAMP_INTERVAL * 29, now - RAMP_INTERVAL);
        assert_eq!(
            late.claim_budget(RAMP_STEP_MIN, 0, now - RAMP_INTERVAL),
            in_flight - RAMP_STEP_MIN
        );
        late.on_partial_claim();
        assert_eq!(
            late.claim_budget(RAMP_STEP_MIN, 0, now - RAMP_INTERVAL),
            RAMP_STEP_MIN,
            "the burst is gone"
        );
        late.on_full_claim(Duration::from_secs(3600), now);
        assert!(late.claim_budget(RAMP_STEP_MIN, 0, now) > 100_000, "a backlog is nobody's burst");
    }
}
