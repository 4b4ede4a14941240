use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::{LimitScope, Millis, NewTask, OnFailure, StoreReader, check_capacity};
use tidegate_engine::{Client, Task};

use crate::cli::Global;
use crate::config::apply_limits;
use crate::flags;
use crate::kinds;
use crate::output::print;
use crate::run_file::unknown_word_message;
use crate::stderr::print_message;
use crate::submit::{
    BulkSubmit, LINE_PLACEHOLDER, PayloadTemplate, PreparedTask, SubmitRecord, format_records,
    job_specs,
};

/// Submits a task and prints its id; or one for each line of stdin
///
/// With --each-line every line of stdin is one task, and blank lines are skipped. {} stands for the
/// line in the strings of the payload and in the names (--queue, --group, --job, --workflow,
/// --unique-key); without --payload the line itself is the payload, as JSON. Lines are submitted in
/// order and in batches, as they come. A line that is no task ends the command: those before it are
/// submitted, and the error says how many. With a unique key the same lines can be given again:
/// those whose task is unfinished are not submitted twice.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidegate submit sleep --payload '{\"ms\": 500}' --group partner --limit 10\n  \
    tidegate submit noop --delay 5m --unique-key nightly\n  \
    seq 1000 | tidegate submit noop --each-line --payload '{\"row\": \"{}\"}' --unique-key 'import-{}'")]
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
    /// What its failure does to its workflow: `halt`, or `continue` with the next step
    /// [default: halt]
    #[arg(long, value_name = "WORD", requires = "workflow", value_parser = parse_on_failure)]
    on_failure: Option<OnFailure>,
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
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration)]
    delay: Option<jiff::SignedDuration>,
    /// At most one unfinished task carries this key; its id is printed if there is one
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// Attempts, the first included [default: the kind's]
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// How long an attempt may run, such as 30s [default: the kind's]
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration)]
    timeout: Option<jiff::SignedDuration>,
    /// Take a kind that nobody has registered yet
    #[arg(long)]
    new_kind: bool,
    /// Submit a task for each line of stdin
    #[arg(long)]
    each_line: bool,
    /// One JSON object per task instead of its id
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    if arguments.each_line {
        return run_each_line(global, &arguments).await;
    }
    let made = arguments.prepare_task(arguments.payload()?, None)?;
    let client = arguments.open_client(global).await?;
    let jobs = job_specs(std::slice::from_ref(&made), global.config.limits());
    let submitted = client.submit_with_jobs(jobs, [made.task]).await?;
    if submitted.iter().any(|submitted| !submitted.is_new) {
        print_message!("an unfinished task carries this unique key already");
    }
    warn_if_memory_store(global);
    let lines = submitted.iter().map(|submitted| SubmitRecord::new(submitted, None));
    print(&format_records(lines, arguments.json)?)?;
    Ok(ExitCode::SUCCESS)
}

async fn run_each_line(global: &Global, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let payload = arguments.line_payload()?;
    let make = |line: &str| arguments.prepare_line(&payload, line);
    let client = arguments.open_client(global).await?;
    let stdin = std::io::stdin().lock();
    if stdin.is_terminal() {
        print_message!("each line is a task; Ctrl-D ends");
    }
    warn_if_memory_store(global);
    let limits = global.config.limits();
    BulkSubmit { client, limits, prepare_line: &make, json: arguments.json }.run(stdin).await
}

fn warn_if_memory_store(global: &Global) {
    if global.is_memory() {
        print_message!("note: the store is in memory: the task is gone with this command");
    }
}

impl Arguments {
    /// Opens the store, in which the limits of the configuration hold and the kind is known.
    async fn open_client(&self, global: &Global) -> anyhow::Result<Client> {
        let opened = super::open_to_write(global).await?;
        // Whoever submits need not hear what an operator has set.
        apply_limits(&opened, global.config.limits()).await?;
        if !self.new_kind {
            check_kind(&*opened.reader, &self.kind).await?;
        }
        Ok(Client::new(opened.store, opened.reader))
    }

    fn payload(&self) -> anyhow::Result<Vec<u8>> {
        match (&self.payload, &self.payload_file) {
            (Some(payload), _) => Ok(payload.clone().into_bytes()),
            (None, Some(path)) => read_payload(path),
            (None, None) => Ok(b"null".to_vec()),
        }
    }

    /// How lines become payloads. Lines that all make the same task are a mistake.
    fn line_payload(&self) -> anyhow::Result<PayloadTemplate> {
        if self.payload_file.as_deref() == Some(Path::new("-")) {
            bail!("stdin has the lines; --payload-file needs a file of its own");
        }
        let is_line = self.payload.is_none() && self.payload_file.is_none();
        let payload = match is_line {
            true => PayloadTemplate::Line,
            false => self.payload_template()?,
        };
        let mut names = self.templated_names().into_iter().flatten();
        if !payload.has_placeholder() && !names.any(|name| name.contains(LINE_PLACEHOLDER)) {
            bail!(
                "nothing uses the lines; put {LINE_PLACEHOLDER} into a string of the payload, such as \
                 '{{\"row\": \"{LINE_PLACEHOLDER}\"}}'; outside of a string it is an empty object. Where a line is \
                 to be a number or an object, make it the whole payload and leave --payload out"
            );
        }
        Ok(payload)
    }

    fn payload_template(&self) -> anyhow::Result<PayloadTemplate> {
        let json = String::from_utf8(self.payload()?).context("read the payload")?;
        let template = PayloadTemplate::parse(&json);
        template.with_context(|| {
            format!(
                "--payload is JSON with {LINE_PLACEHOLDER} for the line, such as '{{\"row\": \"{LINE_PLACEHOLDER}\"}}'"
            )
        })
    }

    /// The task of a line.
    fn prepare_line(&self, payload: &PayloadTemplate, line: &str) -> anyhow::Result<PreparedTask> {
        let json = || payload.fill(line).into_bytes();
        self.prepare_task(json(), Some(line)).map_err(|error| match self.is_payload(&json()) {
            true => error,
            false => payload.explain(&error),
        })
    }

    /// Whether it is JSON that the kind takes.
    fn is_payload(&self, json: &[u8]) -> bool {
        serde_json::from_slice::<serde::de::IgnoredAny>(json).is_ok()
            && kinds::check_payload(&self.kind, json, false).is_ok()
    }

    /// The names that may have the line in them.
    fn templated_names(&self) -> [&Option<String>; 5] {
        [&self.queue, &self.group, &self.job, &self.workflow, &self.unique_key]
    }

    /// The task with a payload; `line` goes into its names.
    fn prepare_task(&self, payload: Vec<u8>, line: Option<&str>) -> anyhow::Result<PreparedTask> {
        let filled = |name: &Option<String>| match (name, line) {
            (Some(name), Some(line)) => Some(name.replace(LINE_PLACEHOLDER, line)),
            (name, _) => name.clone(),
        };
        let mut new = NewTask::new(&self.kind, payload);
        [new.queue, new.effective_group, new.job, new.workflow, new.unique_key] =
            self.templated_names().map(filled);
        new.on_failure = self.on_failure.unwrap_or_default();
        new.weight = self.weight;
        new.priority = self.priority;
        new.max_attempts = self.max_attempts;
        new.run_at = self.run_at.map(jiff::Timestamp::as_millisecond);
        new.timeout_ms = self.timeout.map(to_millis).transpose().context("read --timeout")?;
        new.check(PAYLOAD_BYTES_MAX)?;
        kinds::check_payload(&new.kind, &new.payload, false).map_err(anyhow::Error::msg)?;
        let limit = self
            .limit
            .map(|limit| check_capacity(&LimitScope::Group.limit_name(new.group()), limit));
        let (job, bytes) = (new.job.clone(), new.payload.len());
        let mut task = Task::from(new);
        if let Some(limit) = limit.transpose()? {
            task = task.concurrency_limit(limit);
        }
        if let Some(delay) = self.delay {
            task = task.delay(delay.try_into().context("--delay cannot be negative")?);
        }
        Ok(PreparedTask { task, job, bytes })
    }
}

fn parse_on_failure(word: &str) -> Result<OnFailure, String> {
    OnFailure::parse(word).ok_or_else(|| unknown_word_message("word", word, &["halt", "continue"]))
}

fn to_millis(duration: jiff::SignedDuration) -> anyhow::Result<Millis> {
    Ok(Millis::try_from(duration.as_millis())?)
}

/// Reads a payload, but not much more than is allowed.
fn read_payload(path: &Path) -> anyhow::Result<Vec<u8>> {
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
async fn check_kind(reader: &dyn StoreReader, kind: &str) -> anyhow::Result<()> {
    let registered = reader.kinds().await?;
    let mut known: Vec<&str> = registered.iter().map(|kind| &*kind.name).collect();
    known.extend(kinds::NAMES);
    known.sort_unstable();
    known.dedup();
    if !known.contains(&kind) {
        bail!("{}; --new-kind submits it all the same", unknown_word_message("kind", kind, &known));
    }
    Ok(())
}
