//! How many tasks per second, beside the raw loop in the same run.

use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use tidegate_engine::Shutdown;
use tidegate_store::{StoreHandle, StoreLocation};

use super::bench_phase::BenchPhase;
use super::drain::{Counter, Load, default_concurrency, worker};
use super::measurement::{Measurement, Workload};
use super::target::Target;
use super::worker_processes::Program;
use crate::clock::Stopwatch;
use crate::raw::{Outcome, RawPostgres, RawSqlite, Synchronous};
use crate::report::ResultLine;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Throughput {
    /// The store. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// Tasks per measurement. Default: enough for a second or so.
    pub tasks: Option<u64>,
    /// Worker processes; one is this process itself, except on PostgreSQL.
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
    mut each: impl FnMut(ResultLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for &batch in &scenario.batches {
        let tasks = scenario.tasks.unwrap_or_else(|| tasks_for(batch));
        let mut target = Target::new(scenario.url.as_deref())?;
        let mut rounds = Vec::new();
        for number in 0..scenario.rounds.max(1) {
            if number > 0 {
                target = Target::new(scenario.url.as_deref())?;
            }
            let raw = raw_drain_seconds(&target, batch, tasks, scenario.processes).await?;
            let (ours, measured) = scenario.measure(&target, batch, tasks).await?;
            rounds.push(Round { ours, raw, measured });
        }
        each(scenario.result_line(&target, batch, tasks, rounds))?;
    }
    Ok(())
}

/// One measurement of each, in seconds.
struct Round {
    ours: f64,
    raw: Option<f64>,
    /// What it cost, where a crew did it.
    measured: Option<Measurement>,
}

impl Round {
    fn ratio(&self) -> Option<f64> {
        self.raw.map(|raw| raw / self.ours)
    }
}

/// One commit per task is a hundred times slower than one per 500.
fn tasks_for(batch: u32) -> u64 {
    match batch {
        ..10 => 8_000,
        10..100 => 50_000,
        _ => 200_000,
    }
}

/// Seconds the raw loop takes, where there is one. It warms up as a crew does.
pub(super) async fn raw_drain_seconds(
    target: &Target,
    batch: u32,
    tasks: u64,
    processes: u32,
) -> anyhow::Result<Option<f64>> {
    match &target.place {
        StoreLocation::Memory => Ok(None),
        StoreLocation::Sqlite { synchronous: as_safe, .. } => {
            let (path, as_safe) = (target.raw_path().context("a file has a path")?, *as_safe);
            let drain = move || -> anyhow::Result<f64> {
                let raw = RawSqlite::open(&path, raw_synchronous(as_safe))?;
                raw.insert(BenchPhase::WarmUp.task_count(tasks))?;
                raw.drain(batch)?;
                raw.insert(tasks)?;
                let stopwatch = Stopwatch::start();
                ensure!(raw.drain(batch)? == tasks, "the raw loop lost tasks");
                let seconds = stopwatch.seconds();
                drop(raw);
                remove_database_files(&path)?;
                Ok(seconds)
            };
            Ok(Some(tokio::task::spawn_blocking(drain).await??))
        }
        StoreLocation::Postgres(url) => {
            let raw = RawPostgres::open(url, processes.max(4) as usize).await?;
            let drain = raw.prepare_drain(batch).await?;
            raw.insert(BenchPhase::WarmUp.task_count(tasks)).await?;
            drain.run(|_| Outcome::Complete).await?;
            raw.insert(tasks).await?;
            let stopwatch = Stopwatch::start();
            let completed = drain.run(|_| Outcome::Complete).await?;
            ensure!(completed == tasks, "the raw loop lost tasks");
            Ok(Some(stopwatch.seconds()))
        }
    }
}

/// As safe as the store it is compared with.
pub(super) fn raw_synchronous(as_safe: Option<tidegate_store::sqlite::Synchronous>) -> Synchronous {
    match as_safe.unwrap_or_default() {
        tidegate_store::sqlite::Synchronous::Full => Synchronous::Full,
        tidegate_store::sqlite::Synchronous::Normal => Synchronous::Normal,
    }
}

pub(super) fn remove_database_files(path: &std::path::Path) -> anyhow::Result<()> {
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
    /// Seconds our engine takes to the last completed task, and what that cost.
    async fn measure(
        &self,
        target: &Target,
        batch: u32,
        tasks: u64,
    ) -> anyhow::Result<(f64, Option<Measurement>)> {
        let load = Load::noop(batch, default_concurrency(batch), 1);
        if self.processes <= 1 && !matches!(target.place, StoreLocation::Postgres(_)) {
            return Ok((measure_in_process(target, load, tasks).await?, None));
        }
        ensure!(target.place != StoreLocation::Memory, "the memory store has one process only");
        let loads = &vec![load; self.processes.max(1) as usize];
        let work = Workload { program: &self.program, loads, limit: None, tasks };
        let measured = work.measure(target).await?;
        Ok((measured.took.seconds, Some(measured)))
    }

    /// Of the round in the middle: by the ratio of the two, since they were measured one after the
    /// other and a slow spell of the machine strikes both. How far the rounds disagree is how little
    /// the ratio says.
    fn result_line(
        &self,
        target: &Target,
        batch: u32,
        tasks: u64,
        mut rounds: Vec<Round>,
    ) -> ResultLine {
        let order = |round: &Round| round.ratio().unwrap_or(1.0 / round.ours);
        rounds.sort_by(|a, b| order(a).total_cmp(&order(b)));
        let middle = &rounds[rounds.len() / 2];
        let processes = self.processes.max(1);
        let mut line = ResultLine::new("throughput", target.name(), tasks, middle.ours)
            .with_batch(batch)
            .with_extra("per_worker", tasks as f64 / middle.ours / f64::from(processes))
            .with_extra("processes", processes)
            .with_extra("in_flight", processes * default_concurrency(batch))
            .with_extra("rounds", rounds.len() as u64)
            .with_optional("ratio_min", rounds[0].ratio())
            .with_optional("ratio_max", rounds[rounds.len() - 1].ratio());
        if let Some(raw) = middle.raw {
            line = line.compared_with_raw(tasks as f64 / raw);
        }
        match &middle.measured {
            Some(measured) => measured.add_to_line(line, target),
            None => line,
        }
    }
}

/// The same shifts in this process.
async fn measure_in_process(target: &Target, load: Load, tasks: u64) -> anyhow::Result<f64> {
    let opened = target.open().await?;
    for shift in BenchPhase::ALL {
        shift.submit_tasks(&*opened.store, load.kinds, None, shift.task_count(tasks)).await?;
    }
    let mut seconds = 0.0;
    for shift in BenchPhase::ALL {
        seconds = run_phase(&opened, shift, load, shift.task_count(tasks)).await?;
    }
    Ok(seconds)
}

async fn run_phase(
    opened: &StoreHandle,
    shift: BenchPhase,
    load: Load,
    tasks: u64,
) -> anyhow::Result<f64> {
    let counter = Arc::new(Counter::new(tasks));
    let worker = worker(opened.store.clone(), load, shift.kinds(load.kinds), counter.clone())?;
    let shutdown = Shutdown::new();
    let stopwatch = Stopwatch::start();
    shift.set_queue_open(&*opened.store, true).await?;
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
