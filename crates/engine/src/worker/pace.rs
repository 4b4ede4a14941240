//! How fast a worker takes on more while others have room too.
//!
//! Who is woken first could take all of a burst before the others have asked once. So a worker that
//! knows of others with room takes a burst in steps: an eighth of what it runs, or a few tasks, and
//! then leaves the others a moment. What ends is replaced at once. A burst that two workers meet a
//! moment apart is shared all the same, and a large one is taken on within some tenths of a second.

use std::time::{Duration, Instant};

/// The smallest step.
const STEP: u32 = 8;

/// Between two steps.
const TICK: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct Pace {
    /// How many tasks may be in flight until the next step.
    ceiling: u32,
    stepped_at: Instant,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self { ceiling: STEP, stepped_at: now }
    }

    /// How many more may be taken on with so many in flight.
    pub(crate) fn room(&mut self, in_flight: u32, now: Instant) -> u32 {
        let ticks = (now - self.stepped_at).as_millis() / TICK.as_millis();
        if ticks > 0 {
            self.stepped_at = now;
            // What ended a moment ago may come back at once; what ended long ago takes its steps.
            let fades = |ceiling: u32, _| ceiling - ceiling.div_ceil(16);
            let faded = (0..ticks.min(256)).fold(self.ceiling, fades);
            self.ceiling = faded.max(in_flight + STEP.max(in_flight / 8));
        }
        self.ceiling.saturating_sub(in_flight)
    }

    /// When the next step may be taken.
    pub(crate) fn next_step_at(&self) -> Instant {
        self.stepped_at + TICK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    #[test]
    fn more_is_taken_on_step_by_step() {
        let mut now = time::now();
        let mut pace = Pace::new(now);
        assert_eq!(pace.room(0, now), STEP);
        assert_eq!(pace.room(STEP, now), 0);
        now = pace.next_step_at();
        assert_eq!(pace.room(STEP, now), STEP);
        assert_eq!(pace.room(STEP, now), STEP, "the same step");
        now = pace.next_step_at();
        assert_eq!(pace.room(800, now), 100);
    }

    #[test]
    fn what_ends_is_replaced_and_a_pause_begins_anew() {
        let mut now = time::now();
        let mut pace = Pace::new(now);
        now += TICK;
        assert_eq!(pace.room(800, now), 100);
        now += TICK;
        assert_eq!(pace.room(0, now), 900 - 57, "nearly all of what has ended");
        now += TICK * 1000;
        assert_eq!(pace.room(0, now), STEP);
    }
}
