//! How many tasks per second, beside the raw loop in the same run.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use futures_util::FutureExt as _;
use futures_util::future::select_all;
use tidegate_engine::Shutdown;
use tidegate_store::{Opened, Place};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::drain::{Counter, Drained, permits, register, task, worker};
use super::submit;
use super::target::Target;
use crate::clock::{Stopwatch, monotonic_ns};
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
    /// The program and arguments that run [`drain::process`](super::drain::process); the URL and
    /// the batch are added.
    pub process: (PathBuf, Vec<String>),
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
fn middle(ours: &[f64], raws: &[f64]) -> (f64, Option<f64>) {
    let mut rounds: Vec<(f64, Option<f64>)> =
        ours.iter().enumerate().map(|(at, ours)| (*ours, raws.get(at).copied())).collect();
    rounds.sort_by(|a, b| {
        let cost = |(ours, raw): &(f64, Option<f64>)| ours / raw.unwrap_or(1.0);
        cost(a).total_cmp(&cost(b))
    });
    rounds[rounds.len() / 2]
}

/// Seconds the raw loop takes, where there is one.
async fn raw(
    target: &Target,
    batch: u32,
    tasks: u64,
    processes: u32,
) -> anyhow::Result<Option<f64>> {
    match &target.place {
        Place::Memory => Ok(None),
        Place::Sqlite { synchronous, .. } => {
            // As safe as the store it is compared with.
            let synchronous = match synchronous.unwrap_or_default() {
                tidegate_store::sqlite::Synchronous::Full => Synchronous::Full,
                tidegate_store::sqlite::Synchronous::Normal => Synchronous::Normal,
            };
            let path = target.raw_path().context("a file has a path")?;
            let drain = move || -> anyhow::Result<f64> {
                let raw = RawSqlite::open(&path, synchronous)?;
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

fn remove(path: &std::path::Path) -> anyhow::Result<()> {
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
        register(&*opened.store).await?;
        submit(&*opened.store, &[], (0..tasks).map(|_| task())).await?;
        if self.processes <= 1 {
            return alone(&opened, batch, tasks).await;
        }
        ensure!(target.place != Place::Memory, "the memory store has one process only");
        self.together(&target.url, batch, tasks).await
    }

    async fn together(&self, url: &str, batch: u32, tasks: u64) -> anyhow::Result<f64> {
        let mut processes = Vec::new();
        for _ in 0..self.processes {
            processes.push(Process::start(&self.process, url, batch)?);
        }
        for process in &mut processes {
            process.line().await.context("wait until a worker process is ready")?;
        }
        let begin_ns = monotonic_ns();
        for process in &mut processes {
            process.stdin.write_all(b"go\n").await?;
        }
        let mut said = vec![0; processes.len()];
        while said.iter().sum::<u64>() < tasks {
            let lines = processes.iter_mut().enumerate();
            let lines = lines.map(|(at, process)| Box::pin(process.line().map(move |l| (at, l))));
            let ((at, line), ..) = select_all(lines).await;
            said[at] = serde_json::from_str::<Drained>(&line?)?.completed;
        }
        let (mut completed, mut last_ns) = (0, begin_ns);
        for process in processes {
            let drained = process.end().await?;
            completed += drained.completed;
            last_ns = last_ns.max(drained.last_ns);
        }
        ensure!(completed == tasks, "{completed} of {tasks} tasks were completed");
        Ok((last_ns - begin_ns) as f64 / 1e9)
    }
}

async fn alone(opened: &Opened, batch: u32, tasks: u64) -> anyhow::Result<f64> {
    let counter = Arc::new(Counter::new(tasks));
    let worker = worker(opened.store.clone(), batch, counter.clone())?;
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

/// A worker process.
struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(
        (program, arguments): &(PathBuf, Vec<String>),
        url: &str,
        batch: u32,
    ) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .env("TIDEGATE_CONFIG", "")
            .args(arguments)
            .arg(url)
            .arg(batch.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start a worker process")?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a worker process has no pipes");
        };
        Ok(Self { child, stdin, stdout: BufReader::new(stdout).lines() })
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        self.stdout.next_line().await?.context("a worker process ended early")
    }

    async fn end(mut self) -> anyhow::Result<Drained> {
        drop(self.stdin);
        let mut last = None;
        while let Some(line) = self.stdout.next_line().await? {
            last = Some(line);
        }
        self.child.wait().await?;
        Ok(serde_json::from_str(&last.context("a worker process said nothing")?)?)
    }
}
