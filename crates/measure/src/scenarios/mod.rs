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
pub mod concurrency;
mod cost;
pub mod crew;
pub mod drain;
pub mod enqueue;
pub mod estimate;
pub mod explain;
pub mod fleet;
pub mod handlers;
pub mod held;
pub mod job_quota;
pub mod latency;
pub mod limit_changes;
pub mod limit_on_backlog;
mod measured;
mod mixture;
mod plan;
pub mod restarts;
mod server;
mod shift;
mod target;
pub mod throughput;
mod workers;
mod writes;

use std::time::Duration;

use anyhow::Context as _;
use tidegate_core::bounds::SUBMIT_TASKS_MAX;
use tidegate_core::inspect::TaskFilter;
use tidegate_core::{Inspect, JobSpec, Millis, NewTask, Result, State, Store, Submission, TaskId};
use tidegate_engine::time;
use tidegate_store::Opened;

/// Between two looks whether work is left.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

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
async fn anchor(opened: &Opened, jobs: &[JobSpec]) -> anyhow::Result<TaskId> {
    let tomorrow = opened.inspect.now().await? + Duration::from_hours(24).as_millis() as Millis;
    let anchor = NewTask { run_at: Some(tomorrow), ..NewTask::new("noop", "null") };
    let submission =
        Submission { jobs: jobs.to_vec(), tasks: vec![anchor], ..Submission::default() };
    let submitted = opened.store.submit(submission).await?;
    Ok(submitted.first().context("the store took no task")?.task)
}

/// Whether a task is unfinished.
async fn has_work(inspect: &dyn Inspect) -> Result<bool> {
    let states = State::ALL.into_iter().filter(|state| !state.is_final()).collect();
    let unfinished = TaskFilter { states, tasks_max: 1, ..TaskFilter::default() };
    Ok(!inspect.tasks(unfinished).await?.is_empty())
}

/// Waits until no task is unfinished.
async fn until_done(inspect: &dyn Inspect) -> Result<()> {
    while has_work(inspect).await? {
        time::sleep(LOOK_INTERVAL).await;
    }
    Ok(())
}
