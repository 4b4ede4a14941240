//! How fast a worker takes on more while others have room too.
//!
//! Who is woken first could take all of a burst before the others have asked once. So a worker that
//! reckons with others takes a burst in steps: a few tasks, or a sixteenth of what it has got to, and then
//! leaves the others a moment. What ends is replaced at once. A burst that two workers meet a moment
//! apart is shared all the same, and a thousand tasks are taken on within a quarter of a second.

use std::time::{Duration, Instant};

/// The smallest step.
const STEP: u32 = 8;

/// Between two steps.
const TICK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Pace {
    /// How many tasks may be in flight until the next step.
    ceiling: u32,
    /// The most that were since the last one.
    reached: u32,
    stepped_at: Instant,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self { ceiling: STEP, reached: 0, stepped_at: now }
    }

    /// How many more may be taken on with so many in flight.
    pub(crate) fn room(&mut self, in_flight: u32, now: Instant) -> u32 {
        self.reached = self.reached.max(in_flight);
        let ticks = (now - self.stepped_at).as_millis() / TICK.as_millis();
        if ticks > 0 {
            self.step(in_flight, ticks.min(256) as u32);
            self.stepped_at = now;
        }
        self.ceiling.saturating_sub(in_flight)
    }

    /// Whoever got to the ceiling gets a higher one, also if what it took on has ended meanwhile. One
    /// that is not needed comes down little by little.
    fn step(&mut self, in_flight: u32, ticks: u32) {
        let fades = |ceiling: u32, _| ceiling - ceiling.div_ceil(16);
        self.ceiling = match self.reached >= self.ceiling {
            true => higher(self.ceiling.max(in_flight)),
            false => (0..ticks).fold(self.ceiling, fades).max(higher(in_flight)),
        };
        self.reached = in_flight;
    }

    /// When the next step may be taken.
    pub(crate) fn next_step_at(&self) -> Instant {
        self.stepped_at + TICK
    }
}

fn higher(ceiling: u32) -> u32 {
    ceiling + STEP.max(ceiling / 16)
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
        assert_eq!(pace.room(800, now), 50, "what runs already is no step");
    }

    #[test]
    fn what_ends_at_once_is_followed_by_more() {
        let mut now = time::now();
        let mut pace = Pace::new(now);
        for wanted in [8, 16, 24] {
            assert_eq!(pace.room(0, now), wanted);
            assert_eq!(pace.room(wanted, now), 0);
            now = pace.next_step_at();
        }
    }

    #[test]
    fn a_ceiling_that_is_not_needed_comes_down() {
        let mut now = time::now();
        let mut pace = Pace::new(now);
        now += TICK;
        assert_eq!(pace.room(800, now), 50);
        now += TICK;
        assert_eq!(pace.room(0, now), 850 - 54, "nearly all of what has ended");
        now += TICK * 1000;
        assert_eq!(pace.room(0, now), STEP);
    }
}
