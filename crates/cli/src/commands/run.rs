use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tidegate_core::{Source, TaskId};
use tidegate_engine::{Options, Phase, Shutdown, Worker, signals, time};
use tidegate_measure::clock::Stopwatch;
use tidegate_measure::history::{self, Expected};
use tidegate_measure::table::counted;
use tidegate_store::Opened;

use crate::cli::Global;
use crate::config::{Config, Key, apply_to_jobs};
use crate::explain;
use crate::file::{self, Plan};
use crate::flags;
use crate::kinds::{self, Allow, Handlers, Permissions};
use crate::output::print;
use crate::run::{self, Progress, Server, ServerSeen, Stall, Summary, Watch};
use crate::tell::tell;
use crate::worker::history::History;
use crate::worker::{Parts, build, register, settings};

/// Between two looks at how far the run has come.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Looks that may pass without asking the store what is left: another worker may have done it.
const LOOKS_MAX: u32 = 20;

/// Works off a file of tasks, jobs, workflows and limits
///
/// The file is TOML or JSON lines. It is checked as a whole before anything is submitted. Built-in
/// kinds: noop, sleep, http, exec; the last two need --http-allow and --exec-allow, but for calls to
/// the server of the file.
///
/// A run is known by the content of its file. Ctrl-C lets what runs finish and ends; a second one, at
/// least a second later, gives it back. The same command then depends on how the file was left: one that was interrupted
/// goes on where it was, one that was run to its end is submitted again and does all its work
/// again, and a file that was changed is another run.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate run examples/partner-api.toml")]
pub(crate) struct Arguments {
    /// The file
    file: PathBuf,
    /// Tasks that run at once in this process [default: `run.concurrency` of the configuration, 64]
    #[arg(
        long,
        value_name = "N",
        value_parser = flags::number(Key::RunConcurrency),
        allow_negative_numbers = true
    )]
    concurrency: Option<u32>,
    #[command(flatten)]
    allow: Allow,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let plan = file::read(&arguments.file)?;
    let permissions = arguments.allow.permissions(&global.config)?;
    check_allowed(&plan, &permissions)?;
    if plan.tasks.is_empty() {
        tell!("warning: {} has no tasks, so there is nothing to run", arguments.file.display());
    }
    let shutdown = signals()?;
    let opened = super::open_to_work(global).await?;
    let begun = prepare(&opened, &plan, &global.config).await?;
    let mut kinds = settings(&*opened.inspect).await?;
    kinds.retain(|kind| serves(&plan, &permissions, &kind.name));
    let server = match plan.server {
        Some(server) => Some(Server::start(server).await.context("start the server")?),
        None => None,
    };
    let folder = tempfile::tempdir().context("make a folder for the history")?;
    let path = folder.path().join("history.jsonl");
    let history = Arc::new(History::begin(&path, &*opened.inspect).await?);
    let watch = Arc::new(Watch::new(history.clone()));
    let config = &global.config;
    let worker = build(Parts {
        store: opened.store.clone(),
        options: Options {
            concurrency: arguments.concurrency.unwrap_or(config.number(Key::RunConcurrency)),
            lease: Duration::from_secs(config.number(Key::LeaseSeconds).into()),
            queues: plan.queues(&kinds),
            ..Options::default()
        },
        kinds,
        limits: Vec::new(),
        caps: Vec::new(),
        handlers: Handlers::new(permissions, server.as_ref().map(Server::address), None),
        metrics: None,
        observer: Some(watch.clone()),
    })?;
    let seen = Seen { global, opened: &opened, plan: &plan, watch: &watch };
    let work = seen.work_off(worker, begun, &shutdown);
    let ended = history.beside(&*opened.inspect, work).await?;
    let server = server.as_ref().map(Server::seen);
    seen.print_summary(ended, server, &path, &arguments.file).await
}

/// Whether the run takes tasks of a kind. Its own server may be called by every file.
fn serves(plan: &Plan, permissions: &Permissions, kind: &str) -> bool {
    permissions.serve(kind) || (kind == "http" && plan.server.is_some())
}

/// Checks that the run can do all of its work: it would wait for another worker otherwise.
fn check_allowed(plan: &Plan, permissions: &Permissions) -> anyhow::Result<()> {
    let named = plan.tasks.iter().map(|planned| &*planned.task.kind);
    let mut forbidden = named.filter(|kind| !serves(plan, permissions, kind));
    if let Some(kind) = forbidden.next()
        && let Some([flag, value]) = kinds::flag_of(kind)
    {
        bail!(
            "the file has tasks of kind `{kind}`, which does nothing that is not allowed; add \
             `{flag} {value}`"
        );
    }
    Ok(())
}

/// Registers, submits, and gives what is to be done.
async fn prepare(
    opened: &Opened,
    plan: &Plan,
    config: &Config,
) -> anyhow::Result<BTreeMap<TaskId, String>> {
    let Opened { store, inspect } = opened;
    let kinds = plan.kinds(settings(&**inspect).await?);
    register(&**store, kinds, &plan.limits, Source::Configuration).await?;
    let submitted = run::submit(&**store, &**inspect, plan).await?;
    // Jobs of the file are there only now; that an operator holds one was told on opening.
    apply_to_jobs(opened, config.limits()).await?;
    let left = run::remaining(&**inspect, &plan.run).await?;
    if submitted.continued {
        tell!("continuing: {} of {} tasks are left", left.len(), plan.tasks.len());
        return Ok(left);
    }
    if let Some(first) = submitted.first
        && run::was_run_before(&**inspect, plan, first).await?
    {
        tell!("this file was run to its end before; it is submitted again");
    }
    tell!("submitted {}", counted(submitted.stored as u64, "task"));
    Ok(left)
}

/// How a run ended.
struct Ended {
    seconds: f64,
    /// Tasks that others brought to their end.
    others: u64,
    left: u64,
}

/// What a look at a run needs.
struct Seen<'a> {
    global: &'a Global,
    opened: &'a Opened,
    plan: &'a Plan,
    watch: &'a Watch,
}

impl Seen<'_> {
    /// Lets the worker work until nothing is left or a signal comes.
    async fn work_off(
        &self,
        worker: Worker,
        begun: BTreeMap<TaskId, String>,
        shutdown: &Shutdown,
    ) -> anyhow::Result<Ended> {
        let stopwatch = Stopwatch::start();
        let until_done = self.until_done(begun.clone(), shutdown);
        let (worked, is_done) = tokio::join!(worker.run(shutdown.clone()), until_done);
        let (worked, is_done) = (worked?, is_done?);
        let seconds = stopwatch.seconds();
        if shutdown.phase() == Phase::Stopping {
            tell!("stopped: {} given back", counted(worked.released, "attempt"));
        }
        let left = if is_done { 0 } else { self.left().await?.len() };
        let own = begun.keys().filter(|task| self.watch.has_ended(**task)).count();
        let others = begun.len().saturating_sub(left + own) as u64;
        Ok(Ended { seconds, others, left: left as u64 })
    }

    /// Shows progress until nothing is left or a signal comes; gives whether all is done.
    async fn until_done(
        &self,
        left: BTreeMap<TaskId, String>,
        shutdown: &Shutdown,
    ) -> anyhow::Result<bool> {
        let mut progress = Progress::new(counts(&left));
        let outcome = tokio::select! {
            () = shutdown.reached(Phase::Draining) => Ok(false),
            done = self.follow(left, &mut progress) => done.map(|()| true),
        };
        match outcome {
            Ok(true) => progress.end(),
            Ok(false) => {
                progress.freeze();
                tell!("finishing what runs; Ctrl-C again, at least 1 s later, gives it back");
            }
            Err(_) => progress.freeze(),
        }
        shutdown.drain();
        outcome
    }

    /// Shows progress until nothing is left.
    async fn follow(
        &self,
        mut left: BTreeMap<TaskId, String>,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let (mut looks, mut stall) = (0, Stall::new());
        loop {
            time::sleep(LOOK_INTERVAL).await;
            left.retain(|task, _| !self.watch.has_ended(*task));
            looks += 1;
            if left.is_empty() || looks >= LOOKS_MAX {
                looks = 0;
                left = self.left().await?;
                if left.is_empty() {
                    run::finish(&*self.opened.store, &*self.opened.inspect, &self.plan.run).await?;
                    progress.show(&BTreeMap::new());
                    return Ok(());
                }
            }
            progress.show(&counts(&left));
            let (running, ended) = self.watch.moves();
            if stall.is_due((running, ended, left.len())) {
                self.say_why(&left, &mut stall, progress).await?;
            }
        }
    }

    /// Says why nothing runs, as `task explain` would of the first that waits.
    async fn say_why(
        &self,
        left: &BTreeMap<TaskId, String>,
        stall: &mut Stall,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let Some(first) = left.keys().next() else { return Ok(()) };
        let Some(told) = explain::ask(&*self.opened.inspect, *first).await? else { return Ok(()) };
        if !told.explanation.state.is_final() && stall.is_news(&told.explanation.reason) {
            let tasks = counted(left.len() as u64, "task");
            let mut text = format!("nothing runs here, {tasks} left; {}", told.words(self.global));
            if let Some(holder) = told.first_holder() {
                text.push_str(&format!("; {holder}"));
            }
            progress.say(&text);
        }
        Ok(())
    }

    async fn left(&self) -> anyhow::Result<BTreeMap<TaskId, String>> {
        Ok(run::remaining(&*self.opened.inspect, &self.plan.run).await?)
    }

    async fn print_summary(
        &self,
        ended: Ended,
        server: Option<ServerSeen>,
        history: &Path,
        file: &Path,
    ) -> anyhow::Result<ExitCode> {
        let limits = self.opened.inspect.limits().await?;
        let report = history::verify(&[history], &Expected::default())?;
        let counts = self.watch.counts();
        let summary = Summary {
            counts: &counts,
            others: ended.others,
            seconds: ended.seconds,
            limits: &limits,
            report: &report,
            server,
        };
        print(&summary.to_string())?;
        let failed = summary.failed();
        if failed > 0 {
            let list = self.global.command(&["task", "list", "--state", "failed"]);
            tell!("{} failed; `{list}` shows why", counted(failed, "task"));
        }
        if ended.left > 0 {
            let again = self.global.command(&["run", &file.display().to_string()]);
            tell!("{} left; `{again}` goes on", counted(ended.left, "task"));
        }
        let good = ended.left == 0 && failed == 0 && report.clean();
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// How many tasks are left under each heading.
fn counts(left: &BTreeMap<TaskId, String>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for heading in left.values() {
        *counts.entry(heading.clone()).or_default() += 1;
    }
    counts
}
