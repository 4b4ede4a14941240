//! How the tasks of a handler are treated.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Backoff, DayWindow, Kind};

use crate::time;

/// A kind as a worker registers it: its settings and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindOptions {
    pub(crate) kind: Kind,
    pub(crate) max_concurrent: Option<u32>,
    pub(crate) max_running: Option<u32>,
    pub(crate) keeps_stored: bool,
}

impl KindOptions {
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
    pub fn max_running(mut self, tasks: u32) -> Self {
        self.max_running = Some(tasks);
        self
    }

    /// Attempts, the first included. Default: 5.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.kind.max_attempts = attempts;
        self
    }

    /// Deaths of its process after which a task is quarantined as failed. Default: 3.
    pub fn max_deaths(mut self, deaths: u32) -> Self {
        self.kind.max_deaths = deaths;
        self
    }

    /// How long an attempt may run. Default: as long as it likes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.kind.timeout_ms = Some(time::millis(timeout));
        self
    }

    /// When tasks may be claimed. Default: always.
    pub fn window(mut self, window: DayWindow) -> Self {
        self.kind.window = Some(window);
        self
    }

    /// How retries are spaced. Default: from 1 s, doubling, up to 1 h.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.kind.backoff = Backoff { base_ms: time::millis(first), cap_ms: time::millis(longest) };
        self
    }

    /// Leaves the settings of the kind as the store has them; these are only for a store that
    /// does not know it yet. Default: what a worker registers overwrites what was stored.
    pub fn keep_stored(mut self) -> Self {
        self.keeps_stored = true;
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

impl From<Kind> for KindOptions {
    fn from(kind: Kind) -> Self {
        Self { kind, max_concurrent: None, max_running: None, keeps_stored: false }
    }
}

impl From<&str> for KindOptions {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for KindOptions {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}
