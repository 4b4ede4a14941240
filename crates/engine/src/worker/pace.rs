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
const STEP: u32 = 2;

/// A step is this part of what a worker has in flight, where that is more.
const FRACTION: u32 = 16;

/// Between two steps.
pub(crate) const TICK: Duration = Duration::from_millis(5);

/// After so many steps there is room for more than any worker runs.
const STEPS_MAX: u128 = 180;

#[derive(Debug)]
pub(crate) struct Pace {
    /// Since when there is more than was taken on.
    ready_since: Option<Instant>,
    stepped_at: Option<Instant>,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { ready_since: None, stepped_at: None }
    }

    /// How many more may be taken on with so many in flight, and so many that have just ended.
    pub(crate) fn room(&self, in_flight: u32, ended: u32, now: Instant) -> u32 {
        let may_step = self.stepped_at.is_none_or(|at| now >= at + TICK);
        let step = if may_step { step(in_flight) } else { 0 };
        match self.ready_since {
            // Of short tasks one that is early would be done with several before another comes.
            Some(since) => {
                let by_now = after(now.saturating_duration_since(since));
                by_now.saturating_sub(in_flight).max(step)
            }
            None => step + ended,
        }
    }

    /// So many are asked for, with so many that have just ended.
    pub(crate) fn asks(&mut self, tasks: u32, ended: u32, now: Instant) {
        if tasks > ended {
            self.stepped_at = Some(now);
        }
    }

    /// As many as were asked for were found, all of them ready for so long: there may be more.
    pub(crate) fn found_all(&mut self, waited: Duration, now: Instant) {
        let since = now.checked_sub(waited).unwrap_or(now);
        self.ready_since = Some(self.ready_since.map_or(since, |before| before.min(since)));
    }

    /// There is no more: what comes next is taken on at once.
    pub(crate) fn found_few(&mut self) {
        *self = Self::new();
    }
}

/// What a worker has in flight of a burst that was ready for so long.
fn after(waited: Duration) -> u32 {
    let steps = (waited.as_millis() / TICK.as_millis()).min(STEPS_MAX);
    (0..steps).fold(STEP, |in_flight, _| in_flight + step(in_flight))
}

fn step(in_flight: u32) -> u32 {
    STEP.max(in_flight / FRACTION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    #[test]
    fn more_is_taken_on_step_by_step() {
        let mut now = time::now();
        let mut pace = Pace::new();
        assert_eq!(pace.room(0, 0, now), 2);
        pace.asks(2, 0, now);
        assert_eq!(pace.room(2, 0, now), 0);
        now += TICK;
        assert_eq!(pace.room(2, 0, now), 2);
        assert_eq!(pace.room(800, 0, now), 50, "a sixteenth");
        pace.asks(2, 0, now);
        pace.found_few();
        assert_eq!(pace.room(3, 0, now), 2, "what comes alone is not waited for");
    }

    #[test]
    fn what_ends_is_replaced_at_once() {
        let now = time::now();
        let mut pace = Pace::new();
        pace.asks(1, 0, now);
        assert_eq!(pace.room(40, 7, now), 7);
        pace.asks(7, 7, now + TICK);
        assert_eq!(pace.room(40, 0, now + TICK), 2, "that was no step");
    }

    #[test]
    fn who_comes_late_takes_what_it_would_have_by_now() {
        let mut now = time::now();
        let began = now;
        let (mut early, mut late) = (Pace::new(), Pace::new());
        let mut in_flight = 0;
        for _ in 0..30 {
            let room = early.room(in_flight, 0, now);
            early.asks(room, 0, now);
            early.found_all(now - began, now);
            in_flight += room;
            now += TICK;
        }
        late.asks(STEP, 0, now - TICK);
        late.found_all(TICK * 29, now - TICK);
        assert_eq!(late.room(STEP, 0, now - TICK), in_flight - STEP);
        late.found_few();
        assert_eq!(late.room(STEP, 0, now - TICK), STEP, "the burst is gone");
        late.found_all(Duration::from_secs(3600), now);
        assert!(late.room(STEP, 0, now) > 100_000, "a backlog is nobody's burst");
    }
}
