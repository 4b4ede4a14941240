//! Worker processes that work off what is there, started and ended together.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context as _, bail, ensure};
use futures_util::FutureExt as _;
use futures_util::future::select_all;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::drain::{Drained, Load};
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
}

/// Lets a process for each of the loads work off so many tasks.
pub(super) async fn drain(
    program: &Program,
    url: &str,
    loads: &[Load],
    tasks: u64,
) -> anyhow::Result<Took> {
    let mut processes = Vec::new();
    for load in loads {
        processes.push(Process::start(program, url, load)?);
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
    let (mut completed, mut last_ns, mut rest_last_ns) = (0, begin_ns, begin_ns);
    for process in processes {
        let drained = process.end().await?;
        completed += drained.completed;
        last_ns = last_ns.max(drained.last_ns);
        rest_last_ns = rest_last_ns.max(drained.rest_last_ns);
    }
    ensure!(completed == tasks, "{completed} of {tasks} tasks were completed");
    let seconds = |ns: u64| (ns - begin_ns) as f64 / 1e9;
    Ok(Took { seconds: seconds(last_ns), rest_seconds: seconds(rest_last_ns) })
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
            .args([load.batch, load.permits, load.kinds].map(|number| number.to_string()))
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
