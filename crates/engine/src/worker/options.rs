//! The knobs of a worker.

use std::time::Duration;

use tidegate_core::bounds::{BATCH_MAX, LEASE_MS, LEASE_MS_MIN};
use tidegate_core::{Error, Result, name};

use super::Marks;
use crate::time;

/// The most permits of one worker.
pub(super) const CONCURRENCY_MAX: u32 = 100_000;

/// The knobs of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Queues it claims from. Default: empty, which means the queues of its kinds.
    pub queues: Vec<String>,
    /// Handlers that run at once. Default: 16.
    pub concurrency: u32,
    /// Tasks in one claim. Default: 100.
    pub claim_batch: u32,
    /// Calls to the store under way at once. With two, handlers run while the store works.
    /// Default: 2.
    pub calls: usize,
    /// How long the store waits for a sign of life before it gives a task to somebody else.
    /// At least 100 ms. Default: 30 s.
    pub lease: Duration,
    /// How often leases are renewed. Cancels and progress travel with it. At most a third of
    /// the lease. Default: none, a third of the lease.
    pub heartbeat_interval: Option<Duration>,
    /// How often an idle worker asks for work that nobody told it about; jittered.
    /// Default: 1 s.
    pub poll_interval: Duration,
    /// The marks of memory and latency at which it claims less.
    pub marks: Marks,
    /// How long a handler may take to stop by itself after its task was cancelled.
    /// Default: 5 s.
    pub cancel_grace: Duration,
    /// How long a drain may take before it becomes a stop. Default: none, as long as the
    /// handlers need.
    pub shutdown_grace: Option<Duration>,
    /// How long a stop may take to give attempts back before the worker leaves them to their
    /// leases. Default: 5 s.
    pub release_grace: Duration,
    /// Whether a keeper runs beside the worker. Default: true.
    pub keeper: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: Vec::new(),
            concurrency: 16,
            claim_batch: 100,
            calls: 2,
            lease: Duration::from_millis(LEASE_MS as u64),
            heartbeat_interval: None,
            poll_interval: Duration::from_secs(1),
            marks: Marks::default(),
            cancel_grace: Duration::from_secs(5),
            shutdown_grace: None,
            release_grace: Duration::from_secs(5),
            keeper: true,
        }
    }
}

impl Options {
    /// Checks every bound.
    pub fn check(&self) -> Result<()> {
        self.queues.iter().try_for_each(|queue| name::check("queue", queue))?;
        within("concurrency", self.concurrency.into(), 1, CONCURRENCY_MAX.into())?;
        within("claim_batch", self.claim_batch.into(), 1, BATCH_MAX as i64)?;
        within("calls", self.calls as i64, 1, 8)?;
        let year = time::millis(Duration::MAX);
        within("lease in ms", time::millis(self.lease), LEASE_MS_MIN, year)?;
        let heartbeat = time::millis(self.heartbeat_interval());
        within("heartbeat_interval in ms", heartbeat, 1, time::millis(self.lease) / 3)?;
        within("poll_interval in ms", time::millis(self.poll_interval), 1, year)?;
        self.marks.check()
    }

    pub(crate) fn heartbeat_interval(&self) -> Duration {
        self.heartbeat_interval.unwrap_or(self.lease / 3)
    }
}

fn within(what: &str, value: i64, low: i64, high: i64) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the worker's {what} is {value}; it must be between {low} and {high}"
    )))
}
