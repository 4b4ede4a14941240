//! How many tasks per second are submitted, one by one and in bulk, beside the raw inserts.

use anyhow::Context as _;
use tidegate_core::{Store, Submission};
use tidegate_store::StoreLocation;

use super::drain::{NOOP_KIND, kind, register, task};
use super::target::Target;
use super::throughput::{raw_synchronous, remove_database_files};
use crate::clock::Stopwatch;
use crate::raw::{RawPostgres, RawSqlite};
use crate::report::ResultLine;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Enqueue {
    /// The store; it is left with the tasks in it. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// Tasks per measurement. Default: enough for a second or so.
    pub tasks: Option<u64>,
    /// Tasks in one submit; one line is printed for each.
    pub batches: Vec<u32>,
    /// Measurements of each, of which the middle one counts.
    pub rounds: u32,
}

/// Measures ours and the raw inserts in turn, and gives a line for each batch size.
pub async fn enqueue(
    scenario: &Enqueue,
    mut each: impl FnMut(ResultLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let target = Target::new(scenario.url.as_deref())?;
    let opened = target.open().await?;
    register(&*opened.store, vec![kind(NOOP_KIND)]).await?;
    for &batch in &scenario.batches {
        let tasks = scenario.tasks.unwrap_or_else(|| tasks_for(batch));
        let (mut ours, mut raws) = (Vec::new(), Vec::new());
        for _ in 0..scenario.rounds.max(1) {
            raws.extend(raw_insert_seconds(&target, batch, tasks).await?);
            ours.push(submit_batches(&*opened.store, batch, tasks).await?);
        }
        let (seconds, raw) = median_round(&ours, &raws);
        let mut line = ResultLine::new("enqueue", target.name(), tasks, seconds)
            .with_batch(batch)
            .with_extra("rounds", ours.len() as u64);
        if let Some(raw) = raw {
            line = line.compared_with_raw(tasks as f64 / raw);
        }
        each(line)?;
    }
    Ok(())
}

/// One commit per task is a hundred times slower than one per thousand.
fn tasks_for(batch: u32) -> u64 {
    match batch {
        ..10 => 2_000,
        10..100 => 20_000,
        _ => 100_000,
    }
}

/// The round in the middle, ours and raw: by the ratio of the two, since they were measured one
/// after the other and a slow spell of the machine strikes both. How far the rounds disagree is
/// how little the ratio says.
fn median_round(ours: &[f64], raws: &[f64]) -> (f64, Option<f64>) {
    let mut rounds: Vec<(f64, Option<f64>)> =
        ours.iter().enumerate().map(|(at, ours)| (*ours, raws.get(at).copied())).collect();
    rounds.sort_by(|a, b| {
        let cost = |(ours, raw): &(f64, Option<f64>)| ours / raw.unwrap_or(1.0);
        cost(a).total_cmp(&cost(b))
    });
    rounds[rounds.len() / 2]
}

/// Seconds that it takes to submit tasks, one submit after the other.
async fn submit_batches(store: &dyn Store, batch: u32, tasks: u64) -> anyhow::Result<f64> {
    let stopwatch = Stopwatch::start();
    let mut left = tasks;
    while left > 0 {
        let part = left.min(u64::from(batch.max(1)));
        let tasks = (0..part).map(|_| task(NOOP_KIND)).collect();
        store.submit(Submission { tasks, ..Submission::default() }).await?;
        left -= part;
    }
    Ok(stopwatch.seconds())
}

/// The same by inserts into a table, over one connection.
async fn raw_insert_seconds(
    target: &Target,
    batch: u32,
    tasks: u64,
) -> anyhow::Result<Option<f64>> {
    let batch = batch.max(1);
    match &target.place {
        StoreLocation::Memory => Ok(None),
        StoreLocation::Sqlite { synchronous: as_safe, .. } => {
            let (path, as_safe) = (target.raw_path().context("a file has a path")?, *as_safe);
            let put = move || -> anyhow::Result<f64> {
                let raw = RawSqlite::open(&path, raw_synchronous(as_safe))?;
                let stopwatch = Stopwatch::start();
                raw.insert_batches(batch, tasks)?;
                let seconds = stopwatch.seconds();
                drop(raw);
                remove_database_files(&path)?;
                Ok(seconds)
            };
            Ok(Some(tokio::task::spawn_blocking(put).await??))
        }
        StoreLocation::Postgres(url) => {
            let raw = RawPostgres::open(url, 1).await?;
            let stopwatch = Stopwatch::start();
            raw.insert_batches(batch, tasks).await?;
            Ok(Some(stopwatch.seconds()))
        }
    }
}
