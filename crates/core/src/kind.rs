//! Kinds: what the handlers are called and how their tasks are treated.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bounds::{ATTEMPTS_MAX, CRASHES_MAX, DURATION_MS_MAX};
use crate::{Backoff, DayWindow, Error, Result, name};

/// A kind of task, as registered by a worker or made by the first submit that names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kind {
    /// Its name.
    pub name: Arc<str>,
    /// The queue of tasks that name none. Default: `default`.
    pub queue: Arc<str>,
    /// Attempts a task is given, the first included. Default: 5.
    pub max_attempts: u32,
    /// How long an attempt may run. Default: as long as it likes.
    pub timeout_ms: Option<i64>,
    /// When tasks of this kind may be claimed. Default: always.
    pub day_window: Option<DayWindow>,
    /// How retries are spaced.
    pub backoff: Backoff,
    /// Days a completed task is kept, to the end (UTC) of the last; 0 removes it as it completes.
    /// Default: for ever.
    pub remove_on_completed_days: Option<u32>,
    /// The same of a failed or cancelled task. Default: for ever.
    pub remove_on_failed_days: Option<u32>,
    /// Deaths of its process after which a task is quarantined as failed, attempts left or
    /// not. Default: 3.
    pub max_crashes: u32,
}

impl Kind {
    /// A kind with every default.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            queue: "default".into(),
            max_attempts: 5,
            timeout_ms: None,
            day_window: None,
            backoff: Backoff::default(),
            remove_on_completed_days: None,
            remove_on_failed_days: None,
            max_crashes: 3,
        }
    }

    /// Checks every bound.
    pub fn check(&self) -> Result<()> {
        name::check("kind", &self.name)?;
        name::check("queue", &self.queue)?;
        self.check_range("max_attempts", self.max_attempts, ATTEMPTS_MAX)?;
        self.check_range("max_crashes", self.max_crashes, CRASHES_MAX)?;
        let durations = [self.timeout_ms, Some(self.backoff.base_ms), Some(self.backoff.cap_ms)];
        if durations.into_iter().flatten().any(|ms| !(1..=DURATION_MS_MAX).contains(&ms)) {
            return Err(Error::invalid(format!(
                "a duration of kind {:?} is not between 1 ms and one year",
                self.name
            )));
        }
        self.day_window.as_ref().map_or(Ok(()), DayWindow::check)
    }

    fn check_range(&self, what: &str, value: u32, most: u32) -> Result<()> {
        if (1..=most).contains(&value) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{what} of kind {:?} is {value}; it must be between 1 and {most}",
            self.name
        )))
    }
}
