//! What a claim costs with a great many tasks in the way, beside the cost without them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure};
use tidegate_core::{
    Attempt, Claim, Exit, Finish, NewTask, Outcome, SetLimit, Source, Store, WorkerId,
};
use tidegate_engine::time;
use tidegate_store::sqlite::{Options, Sqlite};
use tidegate_store::{OpenOptions, Place, open};
use tokio_postgres::NoTls;

use super::drain::{NOOP, kind, register, task};
use super::submit;
use super::target::Target;
use crate::clock::Stopwatch;
use crate::report::Line;

/// Tasks that are claimed in one measurement.
const RUNNABLE: u64 = 10_000;

/// The same where there are more of them: as many as the smallest backlog has.
const CLAIMED: u64 = 1_000;

/// Tasks in one claim.
const BATCH: u32 = 100;

/// A kind that the worker serves and that a limit stops.
const BLOCKED: &str = "blocked";

/// A kind that the worker does not serve.
const UNSERVED: &str = "unserved";

/// A session of PostgreSQL counts what it has read when it ends; this is enough for it to end.
const SESSION_END: Duration = Duration::from_millis(500);

/// Pages of all tables and indexes that were asked for, found in memory or not.
const PAGES: &str = "
    select coalesce(sum(coalesce(heap_blks_read, 0) + coalesce(heap_blks_hit, 0)
        + coalesce(idx_blks_read, 0) + coalesce(idx_blks_hit, 0)), 0)::bigint
    from pg_statio_user_tables";

/// What to measure.
#[derive(Debug, Clone)]
pub struct Backlog {
    /// The store; it is left with the backlog in it. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// Tasks in the way.
    pub tasks: u64,
}

/// What claiming the runnable tasks took.
#[derive(Debug, Clone, Copy)]
struct Cost {
    seconds: f64,
    /// What the database read: pages on PostgreSQL; on SQLite the steps of its machine, of which
    /// every row that is looked at takes one at least.
    reads: f64,
}

/// Measures without a backlog, then with blocked tasks in the way, then with tasks of another
/// kind in the way as well.
pub async fn backlog(
    scenario: &Backlog,
    mut each: impl FnMut(Line) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let target = Target::new(scenario.url.as_deref())?;
    prepare(&target).await?;
    add_runnable(&target, RUNNABLE).await?;
    let without = measure(&target, RUNNABLE).await?;
    add_blocked(&target, scenario.tasks).await?;
    add_runnable(&target, RUNNABLE).await?;
    let blocked = measure(&target, RUNNABLE).await?;
    each(line(&target, scenario, "blocked", blocked, without))?;
    add_unserved(&target, scenario.tasks).await?;
    add_runnable(&target, RUNNABLE).await?;
    let unserved = measure(&target, RUNNABLE).await?;
    each(line(&target, scenario, "blocked and unserved", unserved, without))
}

fn line(target: &Target, scenario: &Backlog, ahead: &str, with: Cost, without: Cost) -> Line {
    let line = Line::new("blocked-backlog", target.name(), RUNNABLE, with.seconds)
        .with_extra("ahead", ahead)
        .with_extra("backlog", scenario.tasks);
    compared(line, target, with, without)
}

/// Adds what was read beside what was read without the backlog.
fn compared(line: Line, target: &Target, with: Cost, without: Cost) -> Line {
    let unit = match target.place {
        Place::Postgres(_) => "pages",
        _ => "steps",
    };
    let tasks = line.tasks as f64;
    let per_task = |reads: f64| (10.0 * reads / tasks).round() / 10.0;
    let mut line = line
        .with_batch(BATCH)
        .with_extra(format!("{unit}_per_task"), per_task(with.reads))
        .with_extra(format!("{unit}_per_task_without"), per_task(without.reads))
        .with_extra("seconds_without", without.seconds);
    line.ratio = Some(with.reads / without.reads);
    line
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
    mut each: impl FnMut(Line) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let target = Target::new(scenario.url.as_deref())?;
    prepare(&target).await?;
    let (mut pending, mut first) = (0, None);
    for &wanted in &scenario.pending {
        ensure!(
            wanted >= pending.max(CLAIMED),
            "a backlog of {wanted} is not more than the one before, or less than {CLAIMED}"
        );
        add_runnable(&target, wanted - pending).await?;
        let cost = measure(&target, CLAIMED).await?;
        pending = wanted - CLAIMED;
        let without = *first.get_or_insert(cost);
        let line = Line::new("backlog-growth", target.name(), CLAIMED, cost.seconds)
            .with_extra("pending", wanted);
        each(compared(line, &target, cost, without))?;
    }
    Ok(())
}

async fn prepare(target: &Target) -> anyhow::Result<()> {
    let opened = target.open().await?;
    register(&*opened.store, vec![kind(NOOP)]).await?;
    let name = format!("group:{BLOCKED}");
    let capacity = Some(0);
    opened.store.set_limit(SetLimit { name, capacity, source: Source::Configuration }).await?;
    Ok(())
}

/// They are ahead of everything: they come first and have the highest priority.
async fn add_blocked(target: &Target, tasks: u64) -> anyhow::Result<()> {
    let opened = open(&target.url, OpenOptions::default()).await?;
    let task = NewTask { priority: 10, ..NewTask::new(BLOCKED, "null") };
    submit(&*opened.store, &[], (0..tasks).map(|_| task.clone())).await?;
    // A worker that serves them must be alive, or they are set aside for want of one.
    opened.store.claim(claim()).await?;
    while opened.store.admit().await?.more {}
    Ok(())
}

async fn add_unserved(target: &Target, tasks: u64) -> anyhow::Result<()> {
    let opened = open(&target.url, OpenOptions::default()).await?;
    let task = NewTask { priority: 10, ..NewTask::new(UNSERVED, "null") };
    Ok(submit(&*opened.store, &[], (0..tasks).map(|_| task.clone())).await?)
}

async fn add_runnable(target: &Target, tasks: u64) -> anyhow::Result<()> {
    let opened = open(&target.url, OpenOptions::default()).await?;
    Ok(submit(&*opened.store, &[], (0..tasks).map(|_| task(NOOP))).await?)
}

/// Counts what it takes to claim so many of the runnable tasks, and completes them.
async fn measure(target: &Target, tasks: u64) -> anyhow::Result<Cost> {
    let (cost, claimed) = match &target.place {
        Place::Memory => bail!("the memory store does not count what it reads"),
        Place::Sqlite { path, synchronous } => {
            let synchronous = synchronous.unwrap_or_default();
            let store = Sqlite::open(path, Options { synchronous, ..Options::default() })?;
            store.take_steps().await?;
            let (seconds, claimed) = claim_all(&store, tasks).await?;
            (Cost { seconds, reads: store.take_steps().await? as f64 }, claimed)
        }
        Place::Postgres(url) => {
            vacuum(url).await?;
            let before = pages(url).await?;
            let opened = open(url, OpenOptions::default()).await?;
            let (seconds, claimed) = claim_all(&*opened.store, tasks).await?;
            drop(opened);
            (Cost { seconds, reads: (pages(url).await? - before) as f64 }, claimed)
        }
    };
    let opened = open(&target.url, OpenOptions::default()).await?;
    complete(&*opened.store, claimed).await?;
    Ok(cost)
}

async fn pages(url: &str) -> anyhow::Result<i64> {
    time::sleep(SESSION_END).await;
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let pages = client.query_one(PAGES, &[]).await?.get(0);
    drop(client);
    connection.await??;
    Ok(pages)
}

/// Clears away the rows that a million tasks left behind on their way, as the server does by
/// itself before long: the question is what tasks cost that are there.
async fn vacuum(url: &str) -> anyhow::Result<()> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    client.batch_execute("vacuum").await?;
    drop(client);
    Ok(connection.await??)
}

/// What the worker asks for. Its lease outlasts every measurement.
fn claim() -> Claim {
    Claim {
        worker: WorkerId("bench".into()),
        queues: Arc::new([kind(NOOP).queue]),
        kinds: Arc::new([NOOP.into(), BLOCKED.into()]),
        tasks_max: BATCH,
        lease_ms: 3_600_000,
    }
}

/// Claims so many of the runnable tasks; gives the seconds it took, too.
async fn claim_all(store: &dyn Store, tasks: u64) -> anyhow::Result<(f64, Vec<Attempt>)> {
    let stopwatch = Stopwatch::start();
    let mut all = Vec::new();
    while (all.len() as u64) < tasks {
        let claimed = store.claim(claim()).await?;
        ensure!(!claimed.is_empty(), "{} of {tasks} tasks were claimed", all.len());
        all.extend(claimed);
    }
    Ok((stopwatch.seconds(), all))
}

async fn complete(store: &dyn Store, claimed: Vec<Attempt>) -> anyhow::Result<()> {
    let exit = |attempt: &Attempt| Exit {
        task: attempt.task,
        token: attempt.token,
        outcome: Outcome::Completed(b"null".to_vec()),
    };
    for part in claimed.chunks(BATCH as usize) {
        let exits = part.iter().map(exit).collect();
        store.finish(Finish { exits, claim: None }).await?;
    }
    Ok(())
}
