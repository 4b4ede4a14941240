//! The lease as the guard knows it: a worker that is frozen cannot end its commands, so the guard
//! ends them before the lease does.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tidegate_engine::time;

/// Until when the command may run, by the system's monotonic clock: the worker and the guard read
/// the same, so it does not matter how long the word is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Deadline {
    monotonic_ns: u64,
}

impl Deadline {
    /// A tenth before the lease ends, so that all is gone by then.
    pub(super) fn before_lease_end(lease_deadline: Instant) -> Self {
        let left = lease_deadline.saturating_duration_since(time::now());
        Self { monotonic_ns: nanoseconds(monotonic() + left * 9 / 10) }
    }

    /// Returns when the time is over.
    pub(super) async fn reached(self) {
        let until = Duration::from_nanos(self.monotonic_ns);
        time::sleep(until.saturating_sub(monotonic())).await;
    }
}

fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}
