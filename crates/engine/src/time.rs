//! The one place where the engine reads a clock or waits.
//!
//! These are clocks for waiting and for leases as seen from here: always differences, never
//! dates. What is written down is dated by the store.

pub use std::time::{Duration, Instant};

use crate::id;

/// A reading of the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "the engine reads the monotonic clock here")]
pub fn now() -> Instant {
    Instant::now()
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "the engine waits here")]
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Waits until a reading of the monotonic clock; not at all if it has passed.
#[expect(clippy::disallowed_methods, reason = "the engine waits here")]
pub async fn sleep_until(at: Instant) {
    // The timer would wait for its next millisecond.
    if now() < at {
        tokio::time::sleep_until(at.into()).await;
    }
}

/// Waits for a future, but not beyond `at`.
pub(crate) async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    tokio::time::timeout_at(deadline.into(), future).await.ok()
}

/// Between three and five quarters of a duration, so that what started together drifts apart.
pub(crate) fn jittered(duration: Duration) -> Duration {
    let quarter = duration / 4;
    let spread = (id::random_bits() % 1024) as u32;
    duration - quarter + (2 * quarter) * spread / 1024
}

/// Milliseconds as the store counts them, within its bounds.
pub(crate) fn millis(duration: Duration) -> i64 {
    let max = tidegate_core::bounds::DURATION_MS_MAX;
    i64::try_from(duration.as_millis()).unwrap_or(max).min(max)
}

/// Pauses between tries that fail: doubling, jittered, with a cap.
#[derive(Debug)]
pub(crate) struct Backoff {
    initial: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max, next: initial }
    }

    pub(crate) fn next_delay(&mut self) -> Duration {
        let delay = jittered(self.next);
        self.next = (2 * self.next).min(self.max);
        delay
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.initial;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_at_most_one_quarter() {
        for _ in 0..1000 {
            let spread = jittered(Duration::from_secs(4));
            assert!((Duration::from_secs(3)..=Duration::from_secs(5)).contains(&spread));
        }
    }

    #[test]
    fn backoff_doubles_up_to_max_and_resets() {
        let mut pauses = Backoff::new(Duration::from_millis(8), Duration::from_millis(32));
        let quarter = |d: Duration| d.as_millis();
        assert!((6..=10).contains(&quarter(pauses.next_delay())));
        assert!((12..=20).contains(&quarter(pauses.next_delay())));
        for _ in 0..5 {
            assert!(quarter(pauses.next_delay()) <= 40);
        }
        pauses.reset();
        assert!(quarter(pauses.next_delay()) <= 10);
    }

    #[test]
    fn millis_of_huge_duration_is_clamped() {
        assert_eq!(millis(Duration::MAX), tidegate_core::bounds::DURATION_MS_MAX);
    }
}
