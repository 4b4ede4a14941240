//! Tasks to submit, built step by step.

use std::time::Duration;

use serde::Serialize;
use tidegate_core::{Error, Millis, NewTask, OnFailure, Result};

use crate::time;

/// A task to submit.
///
/// ```
/// # use std::time::Duration;
/// # use tidegate_engine::Task;
/// let task = Task::new("mail", &"someone@example.org")
///     .concurrency_group("smtp")
///     .concurrency_limit(5)
///     .delay(Duration::from_secs(60))
///     .max_attempts(3);
/// ```
#[derive(Debug, Clone)]
pub struct Task {
    pub(crate) new_task: NewTask,
    pub(crate) delay: Option<Duration>,
    pub(crate) concurrency_limit: Option<u32>,
    /// A builder cannot fail, so a payload that could not be written is reported by submit.
    pub(crate) payload_error: Option<Error>,
}

impl Task {
    /// A task with every default. Its payload is written as JSON.
    pub fn new(kind: impl Into<String>, payload: &impl Serialize) -> Self {
        let (payload, payload_error) = match serde_json::to_vec(payload) {
            Ok(payload) => (payload, None),
            Err(cause) => {
                let text = format!("the payload cannot be written as JSON: {cause}");
                (Vec::new(), Some(Error::invalid(text)))
            }
        };
        Self { payload_error, ..NewTask::new(kind, payload).into() }
    }

    /// The queue it lines up in. Default: the kind's.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.new_task.queue = Some(queue.into());
        self
    }

    /// The group whose limit it counts against. Default: its kind.
    pub fn concurrency_group(mut self, group: impl Into<String>) -> Self {
        self.new_task.effective_group = Some(group.into());
        self
    }

    /// Sets the limit of its group, where nobody has set one yet.
    pub fn concurrency_limit(mut self, capacity: u32) -> Self {
        self.concurrency_limit = Some(capacity);
        self
    }

    /// The job it belongs to. Default: none.
    pub fn job(mut self, job: impl Into<String>) -> Self {
        self.new_task.job = Some(job.into());
        self
    }

    /// The workflow whose next step it is. Default: none.
    pub fn workflow(mut self, workflow: impl Into<String>) -> Self {
        self.new_task.workflow = Some(workflow.into());
        self
    }

    /// What its failure for good does to its workflow. Default: the workflow halts until an operator
    /// says how it goes on.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.new_task.on_failure = on_failure;
        self
    }

    /// Slots it takes of its group's limit. Default: 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.new_task.weight = weight;
        self
    }

    /// Higher goes first. Default: 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.new_task.priority = priority;
        self
    }

    /// Not before this time by the store's clock. Default: at once.
    pub fn run_at(mut self, run_at: Millis) -> Self {
        self.new_task.run_at = Some(run_at);
        self.delay = None;
        self
    }

    /// Not before so long after the submit, by the store's clock. Default: at once.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// At most one unfinished task carries this key; submitting another gives back the first.
    pub fn unique_key(mut self, key: impl Into<String>) -> Self {
        self.new_task.unique_key = Some(key.into());
        self
    }

    /// Attempts, the first included. Default: the kind's.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.new_task.max_attempts = Some(attempts);
        self
    }

    /// How long an attempt may run. Default: the kind's.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.new_task.timeout_ms = Some(time::millis(timeout));
        self
    }

    /// Where it comes from, as a W3C `traceparent`; its handler is told. Default: the current span,
    /// where the engine is built with `otel` and somebody traces.
    pub fn trace(mut self, traceparent: impl Into<String>) -> Self {
        self.new_task.trace = Some(traceparent.into());
        self
    }

    /// The task as the store takes it; `now` is the store's time, `trace` where it is submitted.
    pub(crate) fn into_new_task(self, now: Option<Millis>, trace: Option<&str>) -> Result<NewTask> {
        if let Some(error) = self.payload_error {
            return Err(error);
        }
        let mut new = self.new_task;
        new.trace = new.trace.or_else(|| trace.map(str::to_owned));
        if let (Some(delay), Some(now)) = (self.delay, now) {
            new.run_at = Some(now.saturating_add(time::millis(delay)));
        }
        Ok(new)
    }
}

impl From<NewTask> for Task {
    fn from(new: NewTask) -> Self {
        Self { new_task: new, delay: None, concurrency_limit: None, payload_error: None }
    }
}
