//! How many attempts a step of the reaper, or of a release, takes from expired leases.

use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_core::bounds::STEP_ATTEMPTS_MAX;

/// The smallest step, so that an outage does not make the steps after it arbitrarily slow.
const ATTEMPTS_MIN: u32 = 10;

/// Adapts to the server: a step that misses its deadline would miss it again, and the leases would stay.
#[derive(Debug)]
pub(super) struct StepSize(AtomicU32);

impl Default for StepSize {
    fn default() -> Self {
        Self(AtomicU32::new(STEP_ATTEMPTS_MAX))
    }
}

impl StepSize {
    pub(super) fn attempts_max(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// A step of this size has missed its deadline: the next one is half as large. Returns false if it is not
    /// smaller.
    pub(super) fn reduce(&self, attempts_max: u32) -> bool {
        let half = (attempts_max / 2).max(ATTEMPTS_MIN);
        self.0.fetch_min(half, Ordering::Relaxed);
        half < attempts_max
    }

    /// A step of this size was in time. The size grows by an eighth, so that few steps fail where the largest
    /// one is too large.
    pub(super) fn grow(&self, attempts_max: u32) {
        let next = (attempts_max + attempts_max / 8).min(STEP_ATTEMPTS_MAX);
        let _ = self.0.compare_exchange(attempts_max, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_is_halved_after_a_missed_deadline_and_grows_back() {
        let step = StepSize::default();
        assert_eq!(step.attempts_max(), STEP_ATTEMPTS_MAX);
        assert!(step.reduce(STEP_ATTEMPTS_MAX));
        assert_eq!(step.attempts_max(), STEP_ATTEMPTS_MAX / 2);
        while step.reduce(step.attempts_max()) {}
        assert_eq!(step.attempts_max(), ATTEMPTS_MIN);
        for _ in 0..60 {
            step.grow(step.attempts_max());
        }
        assert_eq!(step.attempts_max(), STEP_ATTEMPTS_MAX);
    }
}
