//! What `tidegate bench` runs. Every scenario ends in [`Line`](crate::report::Line)s.
//!
//! - [`concurrency`]: what a limit costs.
//! - [`throughput`]: how many tasks per second, beside the raw loop.
//! - [`enqueue`]: how many tasks per second are submitted, beside raw inserts.
//! - [`latency`]: how long a task on an idle queue waits, beside the raw loop.
//! - [`backlog`]: what a claim costs with a million tasks in the way, beside the cost without.
//! - [`limit_on_backlog`]: what others notice when a limit is set on a million waiting tasks.
//! - [`handlers`]: what failing handlers and progress reports cost.
//! - [`held`]: what a claim costs while somebody holds an old snapshot.
//! - [`explain`]: the plans of the hot statements, kept and compared.
//! - [`estimate`]: how far the wait that `explain` tells is off.
//! - [`fleet`]: many worker processes under limits, with or without being killed.
//! - [`job_quota`]: how much of the quotas of many jobs is in use.
//! - [`limit_changes`]: the same under limits that change all the time, with an audit of every commit.
//! - [`restarts`]: the same while PostgreSQL crashes and comes back again and again.

pub mod backlog;
mod bench_phase;
pub mod concurrency;
mod cost;
pub mod drain;
pub mod enqueue;
pub mod estimate;
pub mod explain;
pub mod fleet;
pub mod handler_mix;
pub mod held_snapshot;
pub mod job_quota;
pub mod latency;
pub mod limit_changes;
pub mod limit_on_backlog;
mod measurement;
mod pg_stats;
mod plan;
pub mod restarts;
mod row_writes;
mod target;
mod task_mix;
pub mod throughput;
pub mod worker_processes;
mod workers;

use std::time::Duration;

use anyhow::Context as _;
use tidegate_core::bounds::SUBMIT_TASKS_MAX;
use tidegate_core::reader::TaskFilter;
use tidegate_core::{
    JobSpec, Millis, NewTask, Result, Store, StoreReader, Submission, TaskId, TaskState,
};
use tidegate_engine::time;
use tidegate_store::StoreHandle;

/// Between two looks whether work is left.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Submits any number of tasks, in order.
async fn submit(
    store: &dyn Store,
    jobs: &[JobSpec],
    tasks: impl IntoIterator<Item = NewTask>,
) -> Result<()> {
    let mut tasks = tasks.into_iter().peekable();
    while tasks.peek().is_some() {
        let tasks = tasks.by_ref().take(SUBMIT_TASKS_MAX).collect();
        store.submit(Submission { jobs: jobs.to_vec(), tasks, ..Submission::default() }).await?;
    }
    Ok(())
}

/// Stores a task that is not due for a day, with the jobs that it brings. Workers end when nothing is
/// left: whoever has more to submit cancels it at the end.
async fn submit_keep_alive_task(opened: &StoreHandle, jobs: &[JobSpec]) -> anyhow::Result<TaskId> {
    let tomorrow = opened.reader.now().await? + Duration::from_hours(24).as_millis() as Millis;
    let anchor = NewTask { run_at: Some(tomorrow), ..NewTask::new("noop", "null") };
    let submission =
        Submission { jobs: jobs.to_vec(), tasks: vec![anchor], ..Submission::default() };
    let submitted = opened.store.submit(submission).await?;
    Ok(submitted.first().context("the store took no task")?.task)
}

/// Whether a task is unfinished.
async fn has_unfinished_tasks(reader: &dyn StoreReader) -> Result<bool> {
    let states = TaskState::ALL.into_iter().filter(|state| !state.is_final()).collect();
    let unfinished = TaskFilter { states, tasks_max: 1, ..TaskFilter::default() };
    Ok(!reader.tasks(unfinished).await?.is_empty())
}

/// Waits until no task is unfinished.
async fn wait_until_done(reader: &dyn StoreReader) -> Result<()> {
    while has_unfinished_tasks(reader).await? {
        time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
