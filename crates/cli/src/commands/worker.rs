mod concurrency;
mod until_idle;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tidegate_core::{CapacitySource, Kind};
use tidegate_engine::{
    BackpressureThresholds, Observer, Shutdown, ShutdownPhase, WorkerConfig, WorkerSummary,
    shutdown_on_signals,
};

use self::until_idle::{ServedScope, UntilIdle};
use crate::cli::{Global, ProfileArg};
use crate::config::{Config, Key};
use crate::flags;
use crate::kinds::{self, Handlers, PermissionArgs, Permissions};
use crate::output;
use crate::run_file::unknown_word_message;
use crate::stderr::print_message;
use crate::worker::history::History;
use crate::worker::telemetry::Telemetry;
use crate::worker::{
    WorkerParts, build_worker, kind_settings, metrics_server, register_kinds, register_limits,
};

/// Works on tasks of the built-in kinds: noop, sleep, http, exec
///
/// It takes `http` and `exec` tasks only where --http-allow or --exec-allow says whom they may call
/// and what they may start.
///
/// The first Ctrl-C (or SIGTERM) lets what runs finish, the second stops it and gives it back. Those
/// that come within a second of the first count as the first.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidegate worker --concurrency 50\n  \
    tidegate worker --profile production --kind-concurrency exec=4 --exec-allow sort\n  \
    tidegate worker --queues mail,default --max-concurrent http=10 --history worker-1.jsonl\n  \
    tidegate worker --metrics 9464\n  \
    tidegate worker --http-allow api.example.com --exec-allow sort")]
pub(crate) struct Arguments {
    /// Queues to claim from, with commas between [default: `worker.queues` of the configuration, or
    /// the queues of its kinds]
    #[arg(long, value_name = "QUEUE,..", value_delimiter = ',')]
    queues: Vec<String>,
    /// Kinds to serve, with commas between [default: `worker.kinds` of the configuration, or all
    /// built-in ones that are allowed]
    #[arg(long, value_name = "KIND,..", value_delimiter = ',')]
    kinds: Vec<String>,
    /// Tasks that run at the same time in this process [default: `worker.max_concurrent_tasks` of the
    /// configuration, or `worker.workers` times `worker.concurrency`, 16]
    #[arg(
        long,
        value_name = "N",
        value_parser = flags::parse_number(Key::WorkerConcurrency),
        allow_negative_numbers = true
    )]
    concurrency: Option<u32>,
    /// Tasks in one claim [default: `worker.claim_batch` of the configuration, 100]
    #[arg(
        long,
        value_name = "N",
        value_parser = flags::parse_number(Key::WorkerClaimBatch),
        allow_negative_numbers = true
    )]
    claim_batch: Option<u32>,
    /// How often it asks for work that nobody told it about, such as 500ms [default:
    /// `worker.poll_interval_ms` of the configuration, 1s]
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration)]
    poll_interval: Option<jiff::SignedDuration>,
    /// How long the store waits for a sign of life, such as 2s [default:
    /// `concurrency.default_lease_duration_secs` of the configuration, 30s]
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration)]
    lease: Option<jiff::SignedDuration>,
    /// Append a record to this file as each handler enters and exits, for `tidegate verify`
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Tasks of a kind that run at once over all workers; may be repeated
    #[arg(long, value_name = "KIND=N")]
    max_concurrent: Vec<String>,
    /// Show metrics for Prometheus here, such as 127.0.0.1:9464 or 9464 alone, at /metrics [default:
    /// `worker.metrics` of the configuration, or nowhere]
    #[arg(long, value_name = "ADDRESS", value_parser = metrics_server::parse_address)]
    metrics: Option<SocketAddr>,
    /// Tasks of a kind that run at the same time in this process, at least 1; may be repeated
    #[arg(long, value_name = "KIND=N")]
    kind_concurrency: Vec<String>,
    #[command(flatten)]
    pub(crate) profile_arg: ProfileArg,
    #[command(flatten)]
    allow: PermissionArgs,
    /// End when no unfinished task is left that it serves, by queue and by kind; those that wait for a
    /// time, for a limit or for tasks of others are unfinished too
    #[arg(long)]
    until_idle: bool,
}

/// What it means.
struct WorkerPlan {
    options: WorkerConfig,
    kinds: Vec<String>,
    permissions: Permissions,
    fleet_limits: Vec<(String, u32)>,
    kind_concurrency: Vec<(String, u32)>,
    /// How its permits come about, in words.
    concurrency_description: String,
    history: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    until_idle: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let meaning = arguments.resolve(&global.config)?;
    let shutdown = shutdown_on_signals()?;
    let opened = super::open_to_work(global).await?;
    register_kinds(&*opened.store, Vec::new(), &[], CapacitySource::Registration).await?;
    let mut served: Vec<Kind> = kind_settings(&*opened.reader).await?;
    served.retain(|kind| meaning.kinds.iter().any(|name| *name == *kind.name));
    let history = match &meaning.history {
        Some(path) => Some(Arc::new(History::create(path, &*opened.reader).await?)),
        None => None,
    };
    let takes = ServedScope::new(&meaning.options.queues, &served);
    let (kinds, lease) = (meaning.describe_kinds(), meaning.options.lease);
    let beside = Telemetry::start(meaning.metrics, global.otlp()?, &opened, &shutdown).await?;
    let metrics = beside.as_ref().map(|beside| beside.metrics.clone());
    let worker = build_worker(WorkerParts {
        store: opened.store.clone(),
        options: meaning.options,
        kinds: served,
        limits: meaning.fleet_limits.clone(),
        kind_concurrency: meaning.kind_concurrency,
        handlers: Handlers::new(meaning.permissions, None, metrics.clone()),
        observer: history.clone().map(|history| history as Arc<dyn Observer>),
        metrics,
    })?;
    register_limits(&*opened.store, &worker, &meaning.fleet_limits, lease).await?;
    let permits = meaning.concurrency_description;
    print_message!(
        "worker {} works on {}: {permits}, kinds {kinds}",
        worker.id(),
        global.display_url()
    );
    let told = tokio::spawn(print_phases(shutdown.clone()));
    let idle = UntilIdle::new(opened.reader.clone(), shutdown.clone(), takes);
    let watched = async {
        if meaning.until_idle {
            idle.drain_when_idle(global, told.abort_handle()).await;
        }
        std::future::pending::<Infallible>().await
    };
    let work = async {
        tokio::select! {
            summary = worker.run(shutdown) => summary,
            never = watched => match never {},
        }
    };
    let summary = match &history {
        Some(history) => history.record_during(&*opened.reader, work).await?,
        None => work.await?,
    };
    told.abort();
    if let Some(beside) = beside {
        beside.shut_down().await;
    }
    output::print(&format_summary(&summary))?;
    Ok(ExitCode::SUCCESS)
}

impl WorkerPlan {
    /// The kinds, with how many of each run at once here at most.
    fn describe_kinds(&self) -> String {
        let words = |kind: &String| match self.kind_concurrency.iter().find(|(of, _)| of == kind) {
            Some((_, cap)) => format!("{kind} (at most {cap} at once)"),
            None => kind.clone(),
        };
        self.kinds.iter().map(words).collect::<Vec<_>>().join(", ")
    }
}

impl Arguments {
    fn resolve(self, config: &Config) -> anyhow::Result<WorkerPlan> {
        let permissions = self.allow.permissions(config)?;
        let kinds = first_non_empty([&self.kinds, config.list(Key::WorkerKinds)]);
        let kinds = resolve_kinds(kinds, &permissions)?;
        let (concurrency, permits) = self.resolve_concurrency(config)?;
        Ok(WorkerPlan {
            fleet_limits: self.resolve_fleet_limits()?,
            kind_concurrency: self.resolve_kind_concurrency(&kinds, concurrency)?,
            concurrency_description: permits,
            options: WorkerConfig {
                queues: first_non_empty([&self.queues, config.list(Key::WorkerQueues)]),
                concurrency,
                claim_batch_size: self.claim_batch.unwrap_or(config.number(Key::WorkerClaimBatch)),
                poll_interval: self.poll_interval(config)?,
                lease: resolve_lease(self.lease, config)?,
                backpressure: BackpressureThresholds {
                    free_capacity_low_percent: config.number(Key::WorkerFreeCapacityLow),
                    memory_high_percent: config.number(Key::WorkerMemoryHigh),
                    latency_high: milliseconds(config, Key::WorkerLatencyHigh),
                },
                ..WorkerConfig::default()
            },
            kinds,
            permissions,
            history: self.history,
            metrics: self.metrics.or(config.address(Key::WorkerMetrics)),
            until_idle: self.until_idle,
        })
    }

    fn poll_interval(&self, config: &Config) -> anyhow::Result<Duration> {
        match self.poll_interval {
            Some(interval) => interval.try_into().context("--poll-interval cannot be negative"),
            None => Ok(milliseconds(config, Key::WorkerPollInterval)),
        }
    }
}

fn milliseconds(config: &Config, key: Key) -> Duration {
    Duration::from_millis(config.number(key).into())
}

/// The first list that says something.
fn first_non_empty<const N: usize>(lists: [&[String]; N]) -> Vec<String> {
    lists.into_iter().find(|list| !list.is_empty()).unwrap_or_default().to_vec()
}

fn resolve_lease(flag: Option<jiff::SignedDuration>, config: &Config) -> anyhow::Result<Duration> {
    match flag {
        Some(lease) => lease.try_into().context("--lease cannot be negative"),
        None => Ok(Duration::from_secs(config.number(Key::LeaseSeconds).into())),
    }
}

/// The kinds that were named, or all that are allowed.
fn resolve_kinds(named: Vec<String>, permissions: &Permissions) -> anyhow::Result<Vec<String>> {
    if named.is_empty() {
        let allowed = kinds::NAMES.into_iter().filter(|kind| permissions.allows_kind(kind));
        return Ok(allowed.map(str::to_owned).collect());
    }
    for kind in &named {
        check_kind(kind)?;
        if !permissions.allows_kind(kind)
            && let Some([flag, value]) = kinds::permission_flag(kind)
        {
            bail!("kind `{kind}` does nothing that is not allowed; add `{flag} {value}`");
        }
    }
    Ok(named)
}

fn check_kind(kind: &str) -> anyhow::Result<()> {
    if !kinds::NAMES.contains(&kind) {
        bail!(
            "{}; this worker has handlers for these only",
            unknown_word_message("kind", kind, &kinds::NAMES)
        );
    }
    Ok(())
}

async fn print_phases(shutdown: Shutdown) {
    shutdown.wait_for_phase(ShutdownPhase::Draining).await;
    print_message!("draining: what runs may finish; a second signal, at least 1 s later, stops it");
    shutdown.wait_for_phase(ShutdownPhase::Stopping).await;
    print_message!("stopping: what runs is given back");
}

fn format_summary(summary: &WorkerSummary) -> String {
    let WorkerSummary { completed, failed, retried, snoozed, released, cancelled, lost } = summary;
    format!(
        "{completed} completed, {failed} failed, {retried} to be retried, {snoozed} snoozed, \
         {released} released, {cancelled} cancelled, {lost} lost\n"
    )
}
