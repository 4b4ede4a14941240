//! How the tasks of a handler are treated.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Backoff, DayWindow, Kind};

use crate::time;

/// A kind as a worker registers it: its settings and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindConfig {
    pub(crate) kind: Kind,
    pub(crate) max_concurrent: Option<u32>,
    pub(crate) kind_concurrency: Option<u32>,
    pub(crate) keeps_existing_settings: bool,
}

impl KindConfig {
    /// A kind with every default.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Kind::new(name).into()
    }

    /// The queue of tasks that name none. Default: `default`.
    pub fn queue(mut self, queue: impl Into<Arc<str>>) -> Self {
        self.kind.queue = queue.into();
        self
    }

    /// Tasks of this kind that run at once over all workers: the limit `group:<kind>`, unless
    /// a configuration file or an operator has set it. Default: unlimited.
    pub fn max_concurrent(mut self, tasks: u32) -> Self {
        self.max_concurrent = Some(tasks);
        self
    }

    /// Tasks of this kind that run at once on this worker. Default: as many as its permits.
    pub fn kind_concurrency(mut self, tasks_per_worker: u32) -> Self {
        self.kind_concurrency = Some(tasks_per_worker);
        self
    }

    /// Attempts, the first included. Default: 5.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.kind.max_attempts = attempts;
        self
    }

    /// Deaths of its process after which a task is quarantined as failed. Default: 3.
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.kind.max_crashes = crashes;
        self
    }

    /// How long an attempt may run. Default: as long as it likes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.kind.timeout_ms = Some(time::millis(timeout));
        self
    }

    /// When tasks may be claimed. Default: always.
    pub fn day_window(mut self, window: DayWindow) -> Self {
        self.kind.day_window = Some(window);
        self
    }

    /// How retries are spaced. Default: from 1 s, doubling, up to 1 h.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.kind.backoff = Backoff { base_ms: time::millis(first), cap_ms: time::millis(longest) };
        self
    }

    /// Leaves the settings of the kind as the store has them; these are only for a store that
    /// does not know it yet. Default: what a worker registers overwrites what was stored.
    pub fn keep_existing_settings(mut self) -> Self {
        self.keeps_existing_settings = true;
        self
    }

    /// Days a completed task is kept; 0 removes it as it completes. Default: for ever.
    pub fn remove_on_completed_days(mut self, days: u32) -> Self {
        self.kind.remove_on_completed_days = Some(days);
        self
    }

    /// Days a failed or cancelled task is kept. Default: for ever.
    pub fn remove_on_failed_days(mut self, days: u32) -> Self {
        self.kind.remove_on_failed_days = Some(days);
        self
    }
}

impl From<Kind> for KindConfig {
    fn from(kind: Kind) -> Self {
        Self { kind, max_concurrent: None, kind_concurrency: None, keeps_existing_settings: false }
    }
}

impl From<&str> for KindConfig {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for KindConfig {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}
