//! The clock of everything that is measured.
//!
//! `CLOCK_MONOTONIC` counts from the start of the machine, so the readings of two processes on one
//! machine can be compared, which those of [`std::time::Instant`] cannot: it hides its value. And
//! unlike the calendar, it never jumps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the start of the machine; the same for every process on it.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Both are never negative for this clock, by its definition.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Measures how long something took.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    started_ns: u64,
}

impl Stopwatch {
    /// Starts to count now.
    pub fn start() -> Self {
        Self { started_ns: monotonic_ns() }
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(monotonic_ns() - self.started_ns)
    }

    /// The time since the start, in seconds.
    pub fn seconds(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}
