//! How many tasks per second, beside the raw loop in the same run.

use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use tidegate_engine::Shutdown;
use tidegate_store::{Opened, Place};

use super::crew::{self, Program};
use super::drain::{Counter, Load, permits, register, task, worker};
use super::submit;
use super::target::Target;
use crate::clock::Stopwatch;
use crate::raw::{RawPostgres, RawSqlite, Synchronous};
use crate::report::Line;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Throughput {
    /// The store. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// Tasks per measurement. Default: enough for a second or so.
    pub tasks: Option<u64>,
    /// Worker processes; one is this process itself.
    pub processes: u32,
    /// Tasks in one transaction; one line is printed for each.
    pub batches: Vec<u32>,
    /// Measurements of each, of which the middle one counts.
    pub rounds: u32,
    /// The worker processes.
    pub program: Program,
}

/// Measures ours and the raw loop in turn, and gives a line for each batch size.
pub async fn throughput(
    scenario: &Throughput,
    mut each: impl FnMut(Line) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for &batch in &scenario.batches {
        let tasks = scenario.tasks.unwrap_or_else(|| tasks_for(batch));
        let (mut ours, mut raws, mut name) = (Vec::new(), Vec::new(), "");
        for _ in 0..scenario.rounds.max(1) {
            let target = Target::new(scenario.url.as_deref())?;
            name = target.name();
            raws.extend(raw(&target, batch, tasks, scenario.processes).await?);
            ours.push(scenario.ours(&target, batch, tasks).await?);
        }
        let mut line = Line::new("throughput", name, tasks, middle(&ours, &raws).0)
            .with_batch(batch)
            .with_extra("processes", scenario.processes)
            .with_extra("in_flight", scenario.processes.max(1) * permits(batch))
            .with_extra("rounds", ours.len() as u64);
        if let (_, Some(raw)) = middle(&ours, &raws) {
            let ratios = || raws.iter().zip(&ours).map(|(raw, ours)| raw / ours);
            line = line
                .beside_raw(tasks as f64 / raw)
                .with_extra("ratio_min", ratios().fold(f64::INFINITY, f64::min))
                .with_extra("ratio_max", ratios().fold(0.0, f64::max));
        }
        each(line)?;
    }
    Ok(())
}

/// One commit per task is a hundred times slower than one per 500.
fn tasks_for(batch: u32) -> u64 {
    match batch {
        ..10 => 8_000,
        10..100 => 50_000,
        _ => 200_000,
    }
}

/// The round in the middle, ours and raw: by the ratio of the two, since they were measured one
/// after the other and a slow spell of the machine strikes both. How far the rounds disagree is
/// how little the ratio says.
pub(super) fn middle(ours: &[f64], raws: &[f64]) -> (f64, Option<f64>) {
    let mut rounds: Vec<(f64, Option<f64>)> =
        ours.iter().enumerate().map(|(at, ours)| (*ours, raws.get(at).copied())).collect();
    rounds.sort_by(|a, b| {
        let cost = |(ours, raw): &(f64, Option<f64>)| ours / raw.unwrap_or(1.0);
        cost(a).total_cmp(&cost(b))
    });
    rounds[rounds.len() / 2]
}

/// Seconds the raw loop takes, where there is one.
pub(super) async fn raw(
    target: &Target,
    batch: u32,
    tasks: u64,
    processes: u32,
) -> anyhow::Result<Option<f64>> {
    match &target.place {
        Place::Memory => Ok(None),
        Place::Sqlite { synchronous: as_safe, .. } => {
            let (path, as_safe) = (target.raw_path().context("a file has a path")?, *as_safe);
            let drain = move || -> anyhow::Result<f64> {
                let raw = RawSqlite::open(&path, synchronous(as_safe))?;
                raw.insert(tasks)?;
                let stopwatch = Stopwatch::start();
                ensure!(raw.drain(batch)? == tasks, "the raw loop lost tasks");
                let seconds = stopwatch.seconds();
                drop(raw);
                remove(&path)?;
                Ok(seconds)
            };
            Ok(Some(tokio::task::spawn_blocking(drain).await??))
        }
        Place::Postgres(url) => {
            let raw = RawPostgres::open(url, processes.max(4) as usize).await?;
            raw.insert(tasks).await?;
            let stopwatch = Stopwatch::start();
            ensure!(raw.drain(batch).await? == tasks, "the raw loop lost tasks");
            Ok(Some(stopwatch.seconds()))
        }
    }
}

/// As safe as the store it is compared with.
pub(super) fn synchronous(as_safe: Option<tidegate_store::sqlite::Synchronous>) -> Synchronous {
    match as_safe.unwrap_or_default() {
        tidegate_store::sqlite::Synchronous::Full => Synchronous::Full,
        tidegate_store::sqlite::Synchronous::Normal => Synchronous::Normal,
    }
}

pub(super) fn remove(path: &std::path::Path) -> anyhow::Result<()> {
    std::fs::remove_file(path)?;
    for end in ["-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        // SQLite has taken them away itself when it closed well.
        let _ = std::fs::remove_file(name);
    }
    Ok(())
}

impl Throughput {
    /// Seconds our engine takes from the start of the workers to the last completed task.
    async fn ours(&self, target: &Target, batch: u32, tasks: u64) -> anyhow::Result<f64> {
        let opened = target.open().await?;
        register(&*opened.store, 1).await?;
        submit(&*opened.store, &[], (0..tasks).map(|number| task(number, 1))).await?;
        if self.processes <= 1 {
            return alone(&opened, batch, tasks).await;
        }
        ensure!(target.place != Place::Memory, "the memory store has one process only");
        let load = Load { batch, permits: permits(batch), kinds: 1 };
        let loads = vec![load; self.processes as usize];
        Ok(crew::drain(&self.program, &target.url, &loads, tasks).await?.seconds)
    }
}

async fn alone(opened: &Opened, batch: u32, tasks: u64) -> anyhow::Result<f64> {
    let counter = Arc::new(Counter::new(tasks));
    let load = Load { batch, permits: permits(batch), kinds: 1 };
    let worker = worker(opened.store.clone(), load, counter.clone())?;
    let shutdown = Shutdown::new();
    let stopwatch = Stopwatch::start();
    let count = async {
        counter.reached().await;
        let seconds = stopwatch.seconds();
        shutdown.drain();
        seconds
    };
    let run = async {
        let worked = worker.run(shutdown.clone()).await;
        worked.map(drop)
    };
    tokio::pin!(run);
    let seconds = tokio::select! {
        seconds = count => seconds,
        ended = &mut run => match ended {
            Ok(()) => bail!("the worker ended early"),
            Err(error) => return Err(error.into()),
        },
    };
    run.await?;
    Ok(seconds)
}
