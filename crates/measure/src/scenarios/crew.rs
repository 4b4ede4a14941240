//! Worker processes that work off what is there, started and ended together.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context as _, bail, ensure};
use futures_util::FutureExt as _;
use futures_util::future::select_all;
use tidegate_core::Store;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::drain::{Drained, Handlers, Load, READY, Traffic};
use super::shift::Shift;
use crate::clock::monotonic_ns;

/// The program and arguments that run [`drain::process`](super::drain::process); the URL and the
/// load are added.
pub type Program = (PathBuf, Vec<String>);

/// How long a crew took, from the start of the work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    /// To the last task.
    pub(super) seconds: f64,
    /// To the last task that was not of the first kind.
    pub(super) rest_seconds: f64,
    /// What all of them sent, where the store counts it.
    pub(super) traffic: Option<Traffic>,
}

/// A process for each of the loads.
pub(super) struct Crew(Vec<Process>);

impl Crew {
    pub(super) fn start(program: &Program, url: &str, loads: &[Load]) -> anyhow::Result<Self> {
        let processes = loads.iter().map(|load| Process::start(program, url, load));
        Ok(Self(processes.collect::<anyhow::Result<_>>()?))
    }

    /// Opens the queue of the shift when all are there, and lets them work off so many tasks.
    pub(super) async fn work(
        &mut self,
        store: &dyn Store,
        shift: Shift,
        tasks: u64,
    ) -> anyhow::Result<Took> {
        for process in &mut self.0 {
            let said = process.line().await.context("wait until a worker process is ready")?;
            ensure!(said == READY, "a worker process says {said:?} before it is ready");
        }
        let begin_ns = monotonic_ns();
        shift.set_open(store, true).await?;
        self.until_done(tasks).await?;
        let mut all = Vec::new();
        for process in &mut self.0 {
            process.stdin.write_all(b"rest\n").await?;
        }
        for process in &mut self.0 {
            all.push(process.last().await?);
        }
        let completed: u64 = all.iter().map(|drained| drained.completed).sum();
        ensure!(completed == tasks, "{completed} of {tasks} tasks were completed");
        Ok(took(&all, begin_ns))
    }

    /// Waits until so many tasks are said to be done.
    async fn until_done(&mut self, tasks: u64) -> anyhow::Result<()> {
        let mut said = vec![0; self.0.len()];
        while said.iter().sum::<u64>() < tasks {
            let lines = self.0.iter_mut().enumerate();
            let lines = lines.map(|(at, process)| Box::pin(process.line().map(move |l| (at, l))));
            let ((at, line), ..) = select_all(lines).await;
            said[at] = serde_json::from_str::<Drained>(&line?)?.completed;
        }
        Ok(())
    }

    pub(super) async fn end(self) -> anyhow::Result<()> {
        for mut process in self.0 {
            drop(process.stdin);
            process.child.wait().await?;
        }
        Ok(())
    }
}

fn took(all: &[Drained], begin_ns: u64) -> Took {
    let seconds = |ns: Option<u64>| ns.unwrap_or_default().saturating_sub(begin_ns) as f64 / 1e9;
    let sum = |sum: Traffic, one: Traffic| Traffic {
        round_trips: sum.round_trips + one.round_trips,
        waited_ms: sum.waited_ms + one.waited_ms,
    };
    let traffic: Option<Vec<Traffic>> = all.iter().map(|drained| drained.traffic).collect();
    Took {
        seconds: seconds(all.iter().map(|drained| drained.last_ns).max()),
        rest_seconds: seconds(all.iter().map(|drained| drained.rest_last_ns).max()),
        traffic: traffic.map(|all| all.into_iter().fold(Traffic::default(), sum)),
    }
}

/// The load as the arguments of a worker process.
fn numbers(load: &Load) -> [u32; 6] {
    let Handlers { hold_ms, failing_percent, reporting_percent } = load.handlers;
    [load.batch, load.permits, load.kinds, hold_ms, failing_percent, reporting_percent]
}

struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start((program, arguments): &Program, url: &str, load: &Load) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .env("TIDEGATE_CONFIG", "")
            .args(arguments)
            .arg(url)
            .args(numbers(load).map(|number| number.to_string()))
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

    /// The last it says of a shift.
    async fn last(&mut self) -> anyhow::Result<Drained> {
        loop {
            let drained: Drained = serde_json::from_str(&self.line().await?)?;
            if drained.is_over {
                return Ok(drained);
            }
        }
    }
}
