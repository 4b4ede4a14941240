//! The client: hands tasks to the store and takes them back.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::reader::{Explanation, TaskView};
use tidegate_core::{
    CancelOutcome, CapacitySource, Error, ErrorKind, JobSpec, Millis, Result, SetLimit, Store,
    StoreReader, Submission, SubmittedTask, TaskId, Token,
};

use tracing::Instrument as _;

use crate::{Task, trace};

/// Submits, cancels and looks. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    store: Arc<dyn Store>,
    reader: Arc<dyn StoreReader>,
}

impl Client {
    /// A client of a store. The reads are those of the same store; a delay counts from its
    /// clock, not from this machine's.
    pub fn new(store: Arc<dyn Store>, reader: Arc<dyn StoreReader>) -> Self {
        Self { store, reader }
    }

    /// Submits one task. After `Unavailable` it may be stored; give it a unique key and
    /// submit it again.
    pub async fn submit(&self, task: Task) -> Result<SubmittedTask> {
        let submitted = self.submit_many([task]).await?;
        submitted.into_iter().next().ok_or_else(|| {
            Error::new(ErrorKind::Incompatible, "the store took a task and named no id")
        })
    }

    /// Submits tasks, all or none. The ids come back in the same order.
    pub async fn submit_many(
        &self,
        tasks: impl IntoIterator<Item = Task>,
    ) -> Result<Vec<SubmittedTask>> {
        self.submit_with_jobs([], tasks).await
    }

    /// Submits tasks with the jobs they belong to and the limits they ask for, all or none. A job that exists already is
    /// left as it is.
    pub async fn submit_with_jobs(
        &self,
        jobs: impl IntoIterator<Item = JobSpec>,
        tasks: impl IntoIterator<Item = Task>,
    ) -> Result<Vec<SubmittedTask>> {
        let tasks: Vec<Task> = tasks.into_iter().collect();
        let now = self.store_now_if_delayed(&tasks).await?;
        submit_tasks(&*self.store, jobs.into_iter().collect(), tasks, now, None).await
    }

    /// Cancels tasks: what waits ends at once, what runs is told by its worker's heartbeat.
    pub async fn cancel(&self, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>> {
        self.store.cancel(tasks).await
    }

    /// Sets a limit by its whole name, such as `group:mail`, as an operator does. Returns the
    /// limit's version.
    pub async fn set_limit(&self, name: impl Into<String>, capacity: u32) -> Result<Option<i64>> {
        self.set_operator_limit(name.into(), Some(capacity)).await
    }

    /// Takes a limit's setting away. Where that was an operator's, what was set below it holds
    /// again; a submit's, a registration's or a file's is gone until one of them sets it again.
    pub async fn unset_limit(&self, name: impl Into<String>) -> Result<Option<i64>> {
        self.set_operator_limit(name.into(), None).await
    }

    /// One task as it is now.
    pub async fn task(&self, task: TaskId) -> Result<Option<TaskView>> {
        self.reader.task(task).await
    }

    /// Why a task is where it is.
    pub async fn explain(&self, task: TaskId) -> Result<Option<Explanation>> {
        self.reader.explain(task).await
    }

    async fn set_operator_limit(&self, name: String, capacity: Option<u32>) -> Result<Option<i64>> {
        let source = CapacitySource::Operator;
        self.store.set_limit(SetLimit { name, capacity, source }).await
    }

    /// The store's time, if a task needs it.
    async fn store_now_if_delayed(&self, tasks: &[Task]) -> Result<Option<Millis>> {
        match tasks.iter().any(|task| task.delay.is_some()) {
            true => self.reader.now().await.map(Some),
            false => Ok(None),
        }
    }
}

/// Hands tasks to a store; `now` is its time, which delays count from, and `on_behalf_of` the attempt
/// whose handler does so.
pub(crate) async fn submit_tasks(
    store: &dyn Store,
    jobs: Vec<JobSpec>,
    tasks: Vec<Task>,
    now: Option<Millis>,
    submitting_attempt: Option<(TaskId, Token)>,
) -> Result<Vec<SubmittedTask>> {
    let span = trace::submit_span(tasks.len());
    let parent = trace::traceparent_of(&span);
    let limits = requested_limits(&tasks).into_iter().collect();
    let finish = |task: Task| task.into_new_task(now, parent.as_deref());
    let tasks: Result<_> = tasks.into_iter().map(finish).collect();
    store
        .submit(Submission { jobs, limits, tasks: tasks?, submitting_attempt })
        .instrument(span)
        .await
}

/// The limits tasks bring along; of two for one group the first counts.
fn requested_limits(tasks: &[Task]) -> BTreeMap<String, u32> {
    let mut limits = BTreeMap::new();
    for task in tasks {
        if let Some(capacity) = task.concurrency_limit {
            limits.entry(task.new_task.group().to_owned()).or_insert(capacity);
        }
    }
    limits
}
