use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::{Inspect, JobSpec, Millis, NewTask, Scope, check_capacity};
use tidegate_engine::{Client, Task};

use crate::cli::Global;
use crate::config::apply;
use crate::file::unknown;
use crate::kinds;
use crate::output::print;
use crate::tell::tell;

/// Submits one task and prints its id
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidegate submit sleep --payload '{\"ms\": 500}' --group partner --limit 10\n  \
    tidegate submit noop --delay 5m --unique-key nightly")]
pub(crate) struct Arguments {
    /// Names the handler
    kind: String,
    /// JSON for the handler [default: null]
    #[arg(long, value_name = "JSON", conflicts_with = "payload_file")]
    payload: Option<String>,
    /// A file with the payload; - reads stdin
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// Where it lines up [default: the kind's queue]
    #[arg(long)]
    queue: Option<String>,
    /// Whose limit it counts against [default: the kind]
    #[arg(long)]
    group: Option<String>,
    /// The limit of its group, where none is set yet
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    limit: Option<i64>,
    /// The job it belongs to
    #[arg(long)]
    job: Option<String>,
    /// The workflow whose next step it is
    #[arg(long)]
    workflow: Option<String>,
    /// Slots it takes of its group's limit
    #[arg(long, default_value_t = 1)]
    weight: u32,
    /// Higher goes first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Not before this time, such as 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    run_at: Option<jiff::Timestamp>,
    /// Not before so long from now, such as 90s or 1h30m
    #[arg(long, value_name = "DURATION")]
    delay: Option<jiff::SignedDuration>,
    /// At most one unfinished task carries this key; its id is printed if there is one
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// Attempts, the first included [default: the kind's]
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// How long an attempt may run, such as 30s [default: the kind's]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<jiff::SignedDuration>,
    /// Take a kind that nobody has registered yet
    #[arg(long)]
    new_kind: bool,
}

/// What it means.
struct Meaning {
    task: Task,
    kind: String,
    job: Option<String>,
    new_kind: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let meaning = arguments.meaning()?;
    let limits = global.config.limits();
    let opened = super::open_to_write(global).await?;
    // Whoever submits need not hear what an operator has set.
    apply(&opened, limits).await?;
    if !meaning.new_kind {
        check_kind(&*opened.inspect, &meaning.kind).await?;
    }
    let job = meaning.job.and_then(|name| job_spec(name, limits));
    let client = Client::new(opened.store, opened.inspect);
    let submitted = client.submit_jobs(job, [meaning.task]).await?;
    let submitted = submitted.first().context("the store took a task and named no id")?;
    if !submitted.is_new {
        tell!("an unfinished task carries this unique key already");
    }
    if global.is_memory() {
        tell!("note: the store is in memory: the task is gone with this command");
    }
    print(&format!("{}\n", submitted.task))?;
    Ok(ExitCode::SUCCESS)
}

impl Arguments {
    fn meaning(self) -> anyhow::Result<Meaning> {
        let payload = match (&self.payload, &self.payload_file) {
            (Some(payload), _) => payload.clone().into_bytes(),
            (None, Some(path)) => read(path)?,
            (None, None) => b"null".to_vec(),
        };
        let mut new = NewTask::new(&self.kind, payload);
        new.queue = self.queue;
        new.group = self.group;
        new.job = self.job;
        new.workflow = self.workflow;
        new.weight = self.weight;
        new.priority = self.priority;
        new.unique_key = self.unique_key;
        new.max_attempts = self.max_attempts;
        new.run_at = self.run_at.map(jiff::Timestamp::as_millisecond);
        new.timeout_ms = self.timeout.map(millis).transpose().context("read --timeout")?;
        new.check(PAYLOAD_BYTES_MAX)?;
        kinds::check(&new.kind, &new.payload, false).map_err(anyhow::Error::msg)?;
        let job = new.job.clone();
        let limit = self.limit.map(|limit| check_capacity(&Scope::Group.name(new.group()), limit));
        let mut task = Task::from(new);
        if let Some(limit) = limit.transpose()? {
            task = task.concurrency_limit(limit);
        }
        if let Some(delay) = self.delay {
            task = task.delay(delay.try_into().context("--delay cannot be negative")?);
        }
        Ok(Meaning { task, kind: self.kind, job, new_kind: self.new_kind })
    }
}

/// A job that does not exist yet begins with the limit that the configuration gives it.
fn job_spec(name: String, limits: &BTreeMap<String, u32>) -> Option<JobSpec> {
    let capacity = *limits.get(&Scope::Job.name(&name))?;
    Some(JobSpec { name, concurrency: Some(capacity), weight: 1 })
}

fn millis(duration: jiff::SignedDuration) -> anyhow::Result<Millis> {
    Ok(Millis::try_from(duration.as_millis())?)
}

/// Reads a payload, but not much more than is allowed.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes_max = PAYLOAD_BYTES_MAX as u64 + 1;
    let mut payload = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(bytes_max).read_to_end(&mut payload)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(bytes_max).read_to_end(&mut payload))
    };
    read.with_context(|| format!("read the payload from {}", path.display()))?;
    if payload.len() > PAYLOAD_BYTES_MAX {
        bail!("the payload has more than {PAYLOAD_BYTES_MAX} bytes, the most that are allowed");
    }
    Ok(payload)
}

/// A kind is known if the binary runs it or somebody has registered it.
async fn check_kind(inspect: &dyn Inspect, kind: &str) -> anyhow::Result<()> {
    let registered = inspect.kinds().await?;
    let mut known: Vec<&str> = registered.iter().map(|kind| &*kind.name).collect();
    known.extend(kinds::NAMES);
    known.sort_unstable();
    known.dedup();
    if !known.contains(&kind) {
        bail!("{}; --new-kind submits it all the same", unknown("kind", kind, &known));
    }
    Ok(())
}
