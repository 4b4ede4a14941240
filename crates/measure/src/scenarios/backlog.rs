//! What a claim costs with a great many tasks in the way, beside the cost without them.

use anyhow::ensure;
use tidegate_core::{CapacitySource, NewTask, SetLimit};
use tidegate_store::{OpenOptions, open};

use super::cost::{BATCH, BLOCKED_KIND, Cost, add_runnable, claim_request, measure};
use super::drain::{NOOP_KIND, kind, register};
use super::submit;
use super::target::Target;
use super::throughput::raw_drain_seconds;
use crate::report::ResultLine;

/// Tasks that are claimed in one measurement.
const RUNNABLE_TASKS: u64 = 10_000;

/// The same where there are more of them: as many as the smallest backlog has.
const CLAIMED_TASKS: u64 = 1_000;

/// A kind that the worker does not serve.
const UNSERVED: &str = "unserved";

/// What to measure.
#[derive(Debug, Clone)]
pub struct Backlog {
    /// The store; it is left with the backlog in it. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// Tasks in the way.
    pub tasks: u64,
}

/// Measures without a backlog, then with blocked tasks in the way, then with tasks of another
/// kind in the way as well.
pub async fn backlog(
    scenario: &Backlog,
    mut each: impl FnMut(ResultLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let target = Target::new(scenario.url.as_deref())?;
    prepare(&target).await?;
    add_runnable(&target, RUNNABLE_TASKS).await?;
    let without = measure(&target, RUNNABLE_TASKS).await?;
    add_blocked(&target, scenario.tasks).await?;
    add_runnable(&target, RUNNABLE_TASKS).await?;
    let blocked = measure(&target, RUNNABLE_TASKS).await?;
    each(result_line(&target, scenario, "blocked", blocked, without).await?)?;
    add_unserved(&target, scenario.tasks).await?;
    add_runnable(&target, RUNNABLE_TASKS).await?;
    let unserved = measure(&target, RUNNABLE_TASKS).await?;
    each(result_line(&target, scenario, "blocked and unserved", unserved, without).await?)
}

async fn result_line(
    target: &Target,
    scenario: &Backlog,
    ahead: &str,
    with: Cost,
    without: Cost,
) -> anyhow::Result<ResultLine> {
    let line = ResultLine::new("blocked-backlog", target.name(), RUNNABLE_TASKS, with.seconds)
        .with_extra("ahead", ahead)
        .with_extra("backlog", scenario.tasks);
    add_raw_rate(with.compared_line(without, line, target), target).await
}

/// Lets the raw loop claim and complete as many, with nothing in the way.
async fn add_raw_rate(mut line: ResultLine, target: &Target) -> anyhow::Result<ResultLine> {
    let seconds = raw_drain_seconds(target, BATCH, line.tasks, 1).await?;
    line.raw_per_s = seconds.map(|seconds| line.tasks as f64 / seconds);
    Ok(line)
}

/// What to measure where the backlog grows.
#[derive(Debug, Clone)]
pub struct Growth {
    /// The store; it is left with the backlog in it. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// How many tasks are there to claim, from few to many; one line is printed for each.
    pub pending: Vec<u64>,
}

/// Measures claims from ever more tasks that are all ready, each beside the first.
pub async fn growth(
    scenario: &Growth,
    mut each: impl FnMut(ResultLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let target = Target::new(scenario.url.as_deref())?;
    prepare(&target).await?;
    let (mut pending, mut first) = (0, None);
    for &wanted in &scenario.pending {
        ensure!(
            wanted >= pending.max(CLAIMED_TASKS),
            "a backlog of {wanted} is not more than the one before, or less than {CLAIMED_TASKS}"
        );
        add_runnable(&target, wanted - pending).await?;
        let cost = measure(&target, CLAIMED_TASKS).await?;
        pending = wanted - CLAIMED_TASKS;
        let without = *first.get_or_insert(cost);
        let line = ResultLine::new("backlog-growth", target.name(), CLAIMED_TASKS, cost.seconds)
            .with_extra("pending", wanted);
        each(add_raw_rate(cost.compared_line(without, line, &target), &target).await?)?;
    }
    Ok(())
}

async fn prepare(target: &Target) -> anyhow::Result<()> {
    let opened = target.open().await?;
    register(&*opened.store, vec![kind(NOOP_KIND)]).await?;
    let name = format!("group:{BLOCKED_KIND}");
    let capacity = Some(0);
    opened
        .store
        .set_limit(SetLimit { name, capacity, source: CapacitySource::Configuration })
        .await?;
    Ok(())
}

/// They are ahead of everything: they come first and have the highest priority.
async fn add_blocked(target: &Target, tasks: u64) -> anyhow::Result<()> {
    let opened = open(&target.url, OpenOptions::default()).await?;
    let task = NewTask { priority: 10, ..NewTask::new(BLOCKED_KIND, "null") };
    submit(&*opened.store, &[], (0..tasks).map(|_| task.clone())).await?;
    // A worker that serves them must be alive, or they are set aside for want of one.
    opened.store.claim(claim_request()).await?;
    while opened.store.admit().await?.has_more {}
    Ok(())
}

async fn add_unserved(target: &Target, tasks: u64) -> anyhow::Result<()> {
    let opened = open(&target.url, OpenOptions::default()).await?;
    let task = NewTask { priority: 10, ..NewTask::new(UNSERVED, "null") };
    Ok(submit(&*opened.store, &[], (0..tasks).map(|_| task.clone())).await?)
}
