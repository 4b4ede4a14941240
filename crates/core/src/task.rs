//! Tasks as callers see them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bounds::{ATTEMPTS_MAX, DURATION_MS_MAX, PRIORITY_MAX, TASK_WEIGHT_MAX};
use crate::{Error, Millis, Result, name, payload};

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Not due yet.
    Scheduled,
    /// Due: at the gate, or admitted and waiting for a worker.
    Pending,
    /// Parked in the line of a limit.
    Blocked,
    /// An attempt runs.
    Processing,
    /// Finished well.
    Completed,
    /// Finished badly, for good.
    Failed,
    /// Ended by request.
    Cancelled,
}

impl TaskState {
    /// Every state, in the order of a task's life.
    pub const ALL: [Self; 7] = [
        Self::Scheduled,
        Self::Pending,
        Self::Blocked,
        Self::Processing,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether the task is finished for good.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// The word for it, the same everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Pending => "pending",
            Self::Blocked => "blocked",
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a step that fails for good does to its workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The workflow halts until an operator says how it goes on.
    #[default]
    Halt,
    /// The next step runs all the same.
    Continue,
}

impl OnFailure {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Halt => "halt",
            Self::Continue => "continue",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Halt, Self::Continue].into_iter().find(|one| one.as_str() == word)
    }
}

/// A task to submit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// Names the handler.
    pub kind: String,
    /// JSON, handed to the handler as it is.
    pub payload: Vec<u8>,
    /// Where it lines up. Default: the kind's queue.
    pub queue: Option<String>,
    /// Whose limit it counts against. Default: the kind.
    pub effective_group: Option<String>,
    /// The job it belongs to.
    pub job: Option<String>,
    /// The workflow whose next step it is.
    pub workflow: Option<String>,
    /// Slots it takes of its group's limit. Default: 1.
    pub weight: u32,
    /// Higher goes first. Default: 0.
    pub priority: i32,
    /// Not before this time by the store's clock. Default: at once.
    pub run_at: Option<Millis>,
    /// At most one unfinished task carries this key.
    pub unique_key: Option<String>,
    /// Attempts, the first included. Default: the kind's.
    pub max_attempts: Option<u32>,
    /// How long an attempt may run. Default: the kind's.
    pub timeout_ms: Option<i64>,
    /// What its failure does to its workflow. Default: the workflow halts.
    pub on_failure: OnFailure,
    /// Where it was submitted, as a W3C `traceparent`: spans of its attempts follow from it.
    pub trace: Option<String>,
}

impl NewTask {
    /// A task with every default.
    pub fn new(kind: impl Into<String>, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind: kind.into(),
            payload: payload.into(),
            queue: None,
            effective_group: None,
            job: None,
            workflow: None,
            weight: 1,
            priority: 0,
            run_at: None,
            unique_key: None,
            max_attempts: None,
            timeout_ms: None,
            on_failure: OnFailure::default(),
            trace: None,
        }
    }

    /// Returns the same task with an empty payload, without copying the payload.
    pub fn without_payload(&self) -> Self {
        Self {
            kind: self.kind.clone(),
            payload: Vec::new(),
            queue: self.queue.clone(),
            effective_group: self.effective_group.clone(),
            job: self.job.clone(),
            workflow: self.workflow.clone(),
            weight: self.weight,
            priority: self.priority,
            run_at: self.run_at,
            unique_key: self.unique_key.clone(),
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout_ms,
            on_failure: self.on_failure,
            trace: self.trace.clone(),
        }
    }

    /// The group whose limit applies.
    pub fn group(&self) -> &str {
        self.effective_group.as_deref().unwrap_or(&self.kind)
    }

    /// When it is due, if it is submitted now.
    pub fn due_at(&self, now: Millis) -> Millis {
        self.run_at.map_or(now, |run_at| run_at.max(now))
    }

    /// Checks every bound.
    pub fn check(&self, payload_bytes_max: usize) -> Result<()> {
        name::check("kind", &self.kind)?;
        let names = [
            ("queue", &self.queue),
            ("group", &self.effective_group),
            ("job", &self.job),
            ("workflow", &self.workflow),
            ("unique key", &self.unique_key),
            ("trace", &self.trace),
        ];
        for (what, name) in names {
            name.as_deref().map_or(Ok(()), |name| name::check(what, name))?;
        }
        payload::check(&self.payload, payload_bytes_max)?;
        check_range("weight", i64::from(self.weight), 1, i64::from(TASK_WEIGHT_MAX))?;
        let priority_max = i64::from(PRIORITY_MAX);
        check_range("priority", i64::from(self.priority), -priority_max, priority_max)?;
        if let Some(attempts) = self.max_attempts {
            check_range("max_attempts", i64::from(attempts), 1, i64::from(ATTEMPTS_MAX))?;
        }
        if let Some(timeout) = self.timeout_ms {
            check_range("timeout in ms", timeout, 1, DURATION_MS_MAX)?;
        }
        Ok(())
    }
}

fn check_range(what: &str, value: i64, low: i64, high: i64) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("the {what} is {value}; it must be between {low} and {high}")))
}
