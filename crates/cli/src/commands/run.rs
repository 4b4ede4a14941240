use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tidegate_core::{CapacitySource, TaskId};
use tidegate_engine::{Shutdown, ShutdownPhase, Worker, WorkerConfig, shutdown_on_signals, time};
use tidegate_measure::clock::Stopwatch;
use tidegate_measure::history::{self, ExpectedLimits};
use tidegate_measure::table::counted;
use tidegate_store::StoreHandle;

use crate::cli::Global;
use crate::config::{Config, Key, apply_job_limits};
use crate::explain;
use crate::flags;
use crate::kinds::{self, Handlers, PermissionArgs, Permissions};
use crate::output::print;
use crate::run::{self, Progress, RunObserver, RunSummary, Server, ServerSeen, StallDetector};
use crate::run_file::{self, Plan};
use crate::stderr::print_message;
use crate::worker::history::History;
use crate::worker::{WorkerParts, build_worker, kind_settings, register_kinds};

/// Between two looks at how far the run has come.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Looks that may pass without asking the store what is left: another worker may have done it.
const POLLS_WITHOUT_STORE_MAX: u32 = 20;

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
        value_parser = flags::parse_number(Key::RunConcurrency),
        allow_negative_numbers = true
    )]
    concurrency: Option<u32>,
    #[command(flatten)]
    allow: PermissionArgs,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let plan = run_file::read(&arguments.file)?;
    let permissions = arguments.allow.permissions(&global.config)?;
    check_allowed(&plan, &permissions)?;
    if plan.tasks.is_empty() {
        print_message!(
            "warning: {} has no tasks, so there is nothing to run",
            arguments.file.display()
        );
    }
    let shutdown = shutdown_on_signals()?;
    let opened = super::open_to_work(global).await?;
    let begun = prepare(&opened, &plan, &global.config).await?;
    let mut kinds = kind_settings(&*opened.reader).await?;
    kinds.retain(|kind| is_kind_served(&plan, &permissions, &kind.name));
    let server = match plan.server {
        Some(server) => Some(Server::start(server).await.context("start the server")?),
        None => None,
    };
    let folder = tempfile::tempdir().context("make a folder for the history")?;
    let path = folder.path().join("history.jsonl");
    let history = Arc::new(History::create(&path, &*opened.reader).await?);
    let watch = Arc::new(RunObserver::new(history.clone()));
    let config = &global.config;
    let worker = build_worker(WorkerParts {
        store: opened.store.clone(),
        options: WorkerConfig {
            concurrency: arguments.concurrency.unwrap_or(config.number(Key::RunConcurrency)),
            lease: Duration::from_secs(config.number(Key::LeaseSeconds).into()),
            queues: plan.queues(&kinds),
            ..WorkerConfig::default()
        },
        kinds,
        limits: Vec::new(),
        kind_concurrency: Vec::new(),
        handlers: Handlers::new(permissions, server.as_ref().map(Server::address), None),
        metrics: None,
        observer: Some(watch.clone()),
    })?;
    let seen = RunState { global, opened: &opened, plan: &plan, watch: &watch };
    let work = seen.run_worker(worker, begun, &shutdown);
    let ended = history.record_during(&*opened.reader, work).await?;
    let server = server.as_ref().map(Server::stats);
    seen.print_summary(ended, server, &path, &arguments.file).await
}

/// Whether the run takes tasks of a kind. Its own server may be called by every file.
fn is_kind_served(plan: &Plan, permissions: &Permissions, kind: &str) -> bool {
    permissions.allows_kind(kind) || (kind == "http" && plan.server.is_some())
}

/// Checks that the run can do all of its work: it would wait for another worker otherwise.
fn check_allowed(plan: &Plan, permissions: &Permissions) -> anyhow::Result<()> {
    let named = plan.tasks.iter().map(|planned| &*planned.task.kind);
    let mut forbidden = named.filter(|kind| !is_kind_served(plan, permissions, kind));
    if let Some(kind) = forbidden.next()
        && let Some([flag, value]) = kinds::permission_flag(kind)
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
    opened: &StoreHandle,
    plan: &Plan,
    config: &Config,
) -> anyhow::Result<BTreeMap<TaskId, String>> {
    let StoreHandle { store, reader: inspect } = opened;
    let kinds = plan.kinds(kind_settings(&**inspect).await?);
    register_kinds(&**store, kinds, &plan.limits, CapacitySource::Configuration).await?;
    let submitted = run::submit(&**store, &**inspect, plan).await?;
    // Jobs of the file are there only now; that an operator holds one was told on opening.
    apply_job_limits(opened, config.limits()).await?;
    let left = run::remaining_tasks(&**inspect, &plan.run_id).await?;
    if submitted.continued {
        print_message!("continuing: {} of {} tasks are left", left.len(), plan.tasks.len());
        return Ok(left);
    }
    if let Some(first) = submitted.first
        && run::was_run_before(&**inspect, plan, first).await?
    {
        print_message!("this file was run to its end before; it is submitted again");
    }
    print_message!("submitted {}", counted(submitted.stored as u64, "task"));
    Ok(left)
}

/// How a run ended.
struct RunResult {
    seconds: f64,
    /// Tasks that others brought to their end.
    completed_elsewhere: u64,
    remaining: u64,
}

/// What a look at a run needs.
struct RunState<'a> {
    global: &'a Global,
    opened: &'a StoreHandle,
    plan: &'a Plan,
    watch: &'a RunObserver,
}

impl RunState<'_> {
    /// Lets the worker work until nothing is left or a signal comes.
    async fn run_worker(
        &self,
        worker: Worker,
        begun: BTreeMap<TaskId, String>,
        shutdown: &Shutdown,
    ) -> anyhow::Result<RunResult> {
        let stopwatch = Stopwatch::start();
        let until_done = self.show_progress_until_done(begun.clone(), shutdown);
        let (worked, is_done) = tokio::join!(worker.run(shutdown.clone()), until_done);
        let (worked, is_done) = (worked?, is_done?);
        let seconds = stopwatch.seconds();
        if shutdown.phase() == ShutdownPhase::Stopping {
            print_message!("stopped: {} given back", counted(worked.released, "attempt"));
        }
        let left = if is_done { 0 } else { self.remaining_tasks().await?.len() };
        let own = begun.keys().filter(|task| self.watch.is_finished(**task)).count();
        let others = begun.len().saturating_sub(left + own) as u64;
        Ok(RunResult { seconds, completed_elsewhere: others, remaining: left as u64 })
    }

    /// Shows progress until nothing is left or a signal comes; gives whether all is done.
    async fn show_progress_until_done(
        &self,
        left: BTreeMap<TaskId, String>,
        shutdown: &Shutdown,
    ) -> anyhow::Result<bool> {
        let mut progress = Progress::new(count_by_heading(&left));
        let outcome = tokio::select! {
            () = shutdown.wait_for_phase(ShutdownPhase::Draining) => Ok(false),
            done = self.poll_until_done(left, &mut progress) => done.map(|()| true),
        };
        match outcome {
            Ok(true) => progress.finish(),
            Ok(false) => {
                progress.freeze();
                print_message!(
                    "finishing what runs; Ctrl-C again, at least 1 s later, gives it back"
                );
            }
            Err(_) => progress.freeze(),
        }
        shutdown.drain();
        outcome
    }

    /// Shows progress until nothing is left.
    async fn poll_until_done(
        &self,
        mut left: BTreeMap<TaskId, String>,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let (mut looks, mut stall) = (0, StallDetector::new());
        loop {
            time::sleep(POLL_INTERVAL).await;
            left.retain(|task, _| !self.watch.is_finished(*task));
            looks += 1;
            if left.is_empty() || looks >= POLLS_WITHOUT_STORE_MAX {
                looks = 0;
                left = self.remaining_tasks().await?;
                if left.is_empty() {
                    run::remove_checkpoints(
                        &*self.opened.store,
                        &*self.opened.reader,
                        &self.plan.run_id,
                    )
                    .await?;
                    progress.show(&BTreeMap::new());
                    return Ok(());
                }
            }
            progress.show(&count_by_heading(&left));
            let (running, ended) = self.watch.progress_counts();
            if stall.is_due((running, ended, left.len())) {
                self.print_stall_reason(&left, &mut stall, progress).await?;
            }
        }
    }

    /// Says why nothing runs, as `task explain` would of the first that waits.
    async fn print_stall_reason(
        &self,
        left: &BTreeMap<TaskId, String>,
        stall: &mut StallDetector,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let Some(first) = left.keys().next() else { return Ok(()) };
        let Some(told) = explain::explain_task(&*self.opened.reader, *first).await? else {
            return Ok(());
        };
        if !told.explanation.state.is_final() && stall.should_report(&told.explanation.reason) {
            let tasks = counted(left.len() as u64, "task");
            let mut text =
                format!("nothing runs here, {tasks} left; {}", told.summary(self.global));
            if let Some(holder) = told.first_holder() {
                text.push_str(&format!("; {holder}"));
            }
            progress.print_message(&text);
        }
        Ok(())
    }

    async fn remaining_tasks(&self) -> anyhow::Result<BTreeMap<TaskId, String>> {
        Ok(run::remaining_tasks(&*self.opened.reader, &self.plan.run_id).await?)
    }

    async fn print_summary(
        &self,
        ended: RunResult,
        server: Option<ServerSeen>,
        history: &Path,
        file: &Path,
    ) -> anyhow::Result<ExitCode> {
        let limits = self.opened.reader.limits().await?;
        let report = history::verify(&[history], &ExpectedLimits::default())?;
        let counts = self.watch.counts();
        let summary = RunSummary {
            counts: &counts,
            completed_elsewhere: ended.completed_elsewhere,
            seconds: ended.seconds,
            limits: &limits,
            report: &report,
            server,
        };
        print(&summary.to_string())?;
        let failed = summary.failed();
        if failed > 0 {
            let list = self.global.command_line(&["task", "list", "--state", "failed"]);
            print_message!("{} failed; `{list}` shows why", counted(failed, "task"));
        }
        if ended.remaining > 0 {
            let again = self.global.command_line(&["run", &file.display().to_string()]);
            print_message!("{} left; `{again}` goes on", counted(ended.remaining, "task"));
        }
        let good = ended.remaining == 0 && failed == 0 && report.is_clean();
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// How many tasks are left under each heading.
fn count_by_heading(left: &BTreeMap<TaskId, String>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for heading in left.values() {
        *counts.entry(heading.clone()).or_default() += 1;
    }
    counts
}
