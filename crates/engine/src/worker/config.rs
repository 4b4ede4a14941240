//! The knobs of a worker.

use std::time::Duration;

use tidegate_core::bounds::{BATCH_MAX, LEASE_MS_DEFAULT, LEASE_MS_MIN};
use tidegate_core::{Error, Result, name};

use super::BackpressureThresholds;
use crate::time;

/// The most permits of one worker.
pub(super) const CONCURRENCY_MAX: u32 = 100_000;

/// The knobs of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Queues it claims from. Default: empty, which means the queues of its kinds.
    pub queues: Vec<String>,
    /// Handlers that run at once. Default: 16.
    pub concurrency: u32,
    /// Tasks in one claim. Default: 100.
    pub claim_batch_size: u32,
    /// Calls to the store under way at once. With two, handlers run while the store works.
    /// Default: 2.
    pub max_store_requests: usize,
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
    pub backpressure: BackpressureThresholds,
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
    pub run_maintenance: bool,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            queues: Vec::new(),
            concurrency: 16,
            claim_batch_size: 100,
            max_store_requests: 2,
            lease: Duration::from_millis(LEASE_MS_DEFAULT as u64),
            heartbeat_interval: None,
            poll_interval: Duration::from_secs(1),
            backpressure: BackpressureThresholds::default(),
            cancel_grace: Duration::from_secs(5),
            shutdown_grace: None,
            release_grace: Duration::from_secs(5),
            run_maintenance: true,
        }
    }
}

impl WorkerConfig {
    /// Checks every bound.
    pub fn check(&self) -> Result<()> {
        self.queues.iter().try_for_each(|queue| name::check("queue", queue))?;
        check_range("concurrency", self.concurrency.into(), 1, CONCURRENCY_MAX.into())?;
        check_range("claim_batch", self.claim_batch_size.into(), 1, BATCH_MAX as i64)?;
        check_range("calls", self.max_store_requests as i64, 1, 8)?;
        let year = time::millis(Duration::MAX);
        check_range("lease in ms", time::millis(self.lease), LEASE_MS_MIN, year)?;
        let heartbeat = time::millis(self.heartbeat_interval());
        check_range("heartbeat_interval in ms", heartbeat, 1, time::millis(self.lease) / 3)?;
        check_range("poll_interval in ms", time::millis(self.poll_interval), 1, year)?;
        self.backpressure.check()
    }

    pub(crate) fn heartbeat_interval(&self) -> Duration {
        self.heartbeat_interval.unwrap_or(self.lease / 3)
    }
}

fn check_range(setting: &str, value: i64, min: i64, max: i64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the worker's {setting} is {value}; it must be between {min} and {max}"
    )))
}
