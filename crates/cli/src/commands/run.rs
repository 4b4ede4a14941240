use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tidegate_core::{Source, TaskId};
use tidegate_engine::{Options, Phase, Shutdown, signals, time};
use tidegate_measure::clock::Stopwatch;
use tidegate_measure::history::{self, Expected};
use tidegate_store::Opened;

use crate::cli::Global;
use crate::file::{self, Plan};
use crate::output::print;
use crate::run::{self, Progress, Server, Summary, Watch};
use crate::tell::tell;
use crate::worker::history::History;
use crate::worker::{Parts, build, register, settings};

/// Between two looks at how far the run has come.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Looks that may pass without asking the store what is left: another worker may have done it.
const LOOKS_MAX: u32 = 20;

/// Works off a file of tasks, jobs, workflows and limits
///
/// The file is TOML or JSON lines. It is checked as a whole before anything is submitted. Ctrl-C
/// lets what runs finish and ends; the same command then goes on where it was, since a run is
/// known by the content of its file. Built-in kinds: noop, sleep, http.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate run examples/partner-api.toml")]
pub(crate) struct Arguments {
    /// The file
    file: PathBuf,
    /// Tasks that run at once in this process
    #[arg(long, value_name = "N", default_value_t = 64)]
    concurrency: u32,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let plan = file::read(&arguments.file)?;
    let shutdown = signals()?;
    let opened = super::open_to_write(global).await?;
    let left = prepare(&opened, &plan).await?;
    let kinds = settings(&*opened.inspect).await?;
    let server = match plan.server {
        Some(server) => Some(Server::start(server).await.context("start the server")?),
        None => None,
    };
    let folder = tempfile::tempdir().context("make a folder for the history")?;
    let path = folder.path().join("history.jsonl");
    let watch = Arc::new(Watch::new(History::begin(&path, &*opened.inspect).await?));
    let worker = build(Parts {
        store: opened.store.clone(),
        options: Options {
            concurrency: arguments.concurrency,
            queues: plan.queues(&kinds),
            ..Options::default()
        },
        kinds,
        server: server.as_ref().map(|server| server.address().to_owned()),
        observer: Some(watch.clone()),
    })?;
    let stopwatch = Stopwatch::start();
    let seen = Seen { opened: &opened, plan: &plan, watch: &watch };
    let (worked, done) =
        tokio::join!(worker.run(shutdown.clone()), seen.until_done(left, &shutdown));
    worked?;
    let seconds = stopwatch.seconds();
    let left = done?;
    print_summary(&opened, &watch, seconds, &path, server.as_ref(), left, &arguments.file).await
}

/// Registers, submits, and gives what is to be done.
async fn prepare(opened: &Opened, plan: &Plan) -> anyhow::Result<BTreeMap<TaskId, String>> {
    let Opened { store, inspect } = opened;
    let kinds = plan.kinds(settings(&**inspect).await?);
    register(&**store, kinds, &plan.limits, Source::Configuration).await?;
    let submitted = run::submit(&**store, &**inspect, plan).await?;
    let left = run::remaining(&**inspect, &plan.run).await?;
    if submitted.continued {
        tell!("continuing: {} of {} tasks are left", left.len(), plan.tasks.len());
    } else {
        tell!("submitted {} tasks", submitted.stored);
    }
    Ok(left)
}

/// What a look at a run needs.
struct Seen<'a> {
    opened: &'a Opened,
    plan: &'a Plan,
    watch: &'a Watch,
}

impl Seen<'_> {
    /// Shows progress until nothing is left or a signal comes; gives how many are left.
    async fn until_done(
        &self,
        mut left: BTreeMap<TaskId, String>,
        shutdown: &Shutdown,
    ) -> anyhow::Result<usize> {
        let mut progress = Progress::new(counted(&left));
        let mut looks = 0;
        let outcome = loop {
            tokio::select! {
                () = shutdown.reached(Phase::Draining) => break self.interrupted(&progress).await,
                () = time::sleep(LOOK_INTERVAL) => {}
            }
            left.retain(|task, _| !self.watch.has_ended(*task));
            looks += 1;
            if left.is_empty() || looks >= LOOKS_MAX {
                looks = 0;
                match run::remaining(&*self.opened.inspect, &self.plan.run).await {
                    Ok(remaining) => left = remaining,
                    Err(error) => break Err(error.into()),
                }
                if left.is_empty() {
                    break self.all_done().await;
                }
            }
            progress.show(&counted(&left));
        };
        progress.show(&counted(&left));
        progress.end();
        shutdown.drain();
        outcome
    }

    async fn all_done(&self) -> anyhow::Result<usize> {
        run::finish(&*self.opened.store, &*self.opened.inspect, &self.plan.run).await?;
        Ok(0)
    }

    async fn interrupted(&self, progress: &Progress) -> anyhow::Result<usize> {
        progress.say("finishing what runs; Ctrl-C again stops it");
        Ok(run::remaining(&*self.opened.inspect, &self.plan.run).await?.len())
    }
}

/// How many tasks are left under each heading.
fn counted(left: &BTreeMap<TaskId, String>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for heading in left.values() {
        *counts.entry(heading.clone()).or_default() += 1;
    }
    counts
}

async fn print_summary(
    opened: &Opened,
    watch: &Watch,
    seconds: f64,
    history: &Path,
    server: Option<&Server>,
    left: usize,
    file: &Path,
) -> anyhow::Result<ExitCode> {
    let limits = opened.inspect.limits().await?;
    let report = history::verify(&[history], &Expected::default())?;
    let counts = watch.counts();
    let summary = Summary {
        counts: &counts,
        seconds,
        limits: &limits,
        report: &report,
        server: server.map(Server::seen),
    };
    print(&summary.to_string())?;
    let failed = summary.failed();
    if left > 0 {
        tell!("about {left} tasks are left; `tidegate run {}` goes on", file.display());
    }
    let good = left == 0 && failed == 0 && report.clean();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
