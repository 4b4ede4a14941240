//! Worker processes that work off what is there, started and ended together.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context as _, bail, ensure};
use futures_util::FutureExt as _;
use futures_util::future::select_all;
use tidegate_core::Store;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::bench_phase::BenchPhase;
use super::drain::{DrainReport, Handlers, Load, READY_LINE, Traffic};
use crate::clock::monotonic_ns;

/// The program and arguments that run [`drain::process`](super::drain::process); the URL and the
/// load are added.
pub type Program = (PathBuf, Vec<String>);

/// How long a crew took, from the start of the work.
#[derive(Debug, Clone, Copy)]
pub(super) struct ElapsedTimes {
    /// To the last task.
    pub(super) seconds: f64,
    /// To the last task that was not of the first kind.
    pub(super) rest_seconds: f64,
    /// What all of them sent, where the store counts it.
    pub(super) traffic: Option<Traffic>,
}

/// A process for each of the loads.
pub(super) struct WorkerProcesses(Vec<WorkerProcess>);

impl WorkerProcesses {
    pub(super) fn start(program: &Program, url: &str, loads: &[Load]) -> anyhow::Result<Self> {
        let processes = loads.iter().map(|load| WorkerProcess::start(program, url, load));
        Ok(Self(processes.collect::<anyhow::Result<_>>()?))
    }

    /// Opens the queue of the shift when all are there, and lets them work off so many tasks.
    pub(super) async fn run_phase(
        &mut self,
        store: &dyn Store,
        shift: BenchPhase,
        tasks: u64,
    ) -> anyhow::Result<ElapsedTimes> {
        for process in &mut self.0 {
            let said = process.read_line().await.context("wait until a worker process is ready")?;
            ensure!(said == READY_LINE, "a worker process says {said:?} before it is ready");
        }
        let begin_ns = monotonic_ns();
        shift.set_queue_open(store, true).await?;
        self.wait_for_tasks(tasks).await?;
        let mut all = Vec::new();
        for process in &mut self.0 {
            process.stdin.write_all(b"rest\n").await?;
        }
        for process in &mut self.0 {
            all.push(process.final_report().await?);
        }
        let completed: u64 = all.iter().map(|drained| drained.completed).sum();
        ensure!(completed == tasks, "{completed} of {tasks} tasks were completed");
        Ok(elapsed_times(&all, begin_ns))
    }

    /// Waits until so many tasks are said to be done.
    async fn wait_for_tasks(&mut self, tasks: u64) -> anyhow::Result<()> {
        let mut said = vec![0; self.0.len()];
        while said.iter().sum::<u64>() < tasks {
            let lines = self.0.iter_mut().enumerate();
            let lines =
                lines.map(|(at, process)| Box::pin(process.read_line().map(move |l| (at, l))));
            let ((at, line), ..) = select_all(lines).await;
            said[at] = serde_json::from_str::<DrainReport>(&line?)?.completed;
        }
        Ok(())
    }

    pub(super) async fn shut_down(self) -> anyhow::Result<()> {
        for mut process in self.0 {
            drop(process.stdin);
            process.child.wait().await?;
        }
        Ok(())
    }
}

fn elapsed_times(all: &[DrainReport], begin_ns: u64) -> ElapsedTimes {
    let seconds = |ns: Option<u64>| ns.unwrap_or_default().saturating_sub(begin_ns) as f64 / 1e9;
    let sum = |sum: Traffic, one: Traffic| Traffic {
        round_trips: sum.round_trips + one.round_trips,
        waited_ms: sum.waited_ms + one.waited_ms,
    };
    let traffic: Option<Vec<Traffic>> = all.iter().map(|drained| drained.traffic).collect();
    ElapsedTimes {
        seconds: seconds(all.iter().map(|drained| drained.last_ns).max()),
        rest_seconds: seconds(all.iter().map(|drained| drained.rest_last_ns).max()),
        traffic: traffic.map(|all| all.into_iter().fold(Traffic::default(), sum)),
    }
}

/// The load as the arguments of a worker process.
fn load_arguments(load: &Load) -> [u32; 6] {
    let Handlers { hold_ms, failing_percent, reporting_percent } = load.handlers;
    [load.batch, load.concurrency, load.kinds, hold_ms, failing_percent, reporting_percent]
}

struct WorkerProcess {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl WorkerProcess {
    fn start((program, arguments): &Program, url: &str, load: &Load) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .env("TIDEGATE_CONFIG", "")
            .args(arguments)
            .arg(url)
            .args(load_arguments(load).map(|number| number.to_string()))
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

    async fn read_line(&mut self) -> anyhow::Result<String> {
        self.stdout.next_line().await?.context("a worker process ended early")
    }

    /// The last it says of a shift.
    async fn final_report(&mut self) -> anyhow::Result<DrainReport> {
        loop {
            let drained: DrainReport = serde_json::from_str(&self.read_line().await?)?;
            if drained.is_final {
                return Ok(drained);
            }
        }
    }
}
