use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use tidegate_core::bounds::CAPACITY_MAX;
use tidegate_core::reader::{JobView, StoreReader, TaskFilter};
use tidegate_core::{
    JobSpec, Limit, LimitScope, PauseTarget, SetJob, SetPaused, Submission, TaskState,
    check_capacity, rules,
};
use tidegate_measure::table::Table;
use tidegate_store::StoreHandle;

use super::cancel_all::cancel_all;
use crate::cli::Global;
use crate::flags;
use crate::output::{format_duration, or_dash, print, print_json, state_counts};
use crate::stderr::print_message;
use crate::suggest::not_found_message;

/// Shows jobs and how far they are, changes, pauses and cancels them
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists jobs: quota, share, and tasks by state
    #[command(after_help = "Example:\n  tidegate job list")]
    List {
        /// One JSON object per job
        #[arg(long)]
        json: bool,
    },
    /// Shows one job with the use of its quota
    #[command(after_help = "Example:\n  tidegate job show nightly")]
    Show {
        /// The job's name
        job: String,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Changes a job, also while it has work; makes it where there is none
    ///
    /// The concurrency and the delay count at once: what runs is not touched, and no more begin while
    /// more run than may, or before the delay since the last start is over: those that were about to
    /// begin go back to its line. The rest counts for all its tasks but the few that are next. A
    /// min-concurrency above the concurrency that would hold then is refused; a concurrency of 0 only
    /// pauses.
    #[command(after_help = "Examples:\n  tidegate job set nightly --concurrency 3\n  \
        tidegate job set nightly --weight 4 --min-concurrency 1\n  \
        tidegate job set crawl-example-org --concurrency 2 --delay 500ms")]
    Set(SetArgs),
    /// Lets no more tasks of a job begin; what runs goes on
    ///
    /// Tasks that were about to begin go back to the job's line, and are the first when it goes on.
    #[command(after_help = "Example:\n  tidegate job pause nightly")]
    Pause(JobNameArg),
    /// Lets a paused job go on
    #[command(after_help = "Example:\n  tidegate job resume nightly")]
    Resume(JobNameArg),
    /// Cancels all unfinished tasks of a job, and waits until those that run have stopped
    ///
    /// The job is paused meanwhile, and tasks that its handlers add are cancelled too. Interrupted,
    /// it leaves the job paused and can be called again.
    #[command(after_help = "Example:\n  tidegate job cancel nightly")]
    Cancel(JobNameArg),
}

#[derive(Debug, Args)]
struct JobNameArg {
    /// The job's name
    job: String,
}

#[derive(Debug, Args)]
struct SetArgs {
    /// The job's name
    job: String,
    /// Tasks of it that run at once over all workers; 0 lets none begin, `unset` takes an operator's
    /// word back
    #[arg(long, value_name = "N", value_parser = parse_concurrency, allow_negative_numbers = true)]
    concurrency: Option<ConcurrencyArg>,
    /// Tasks of it that go before those of all others, whatever their priority, while it has work
    #[arg(long, value_name = "N", value_parser = parse_min_concurrency, allow_negative_numbers = true)]
    min_concurrency: Option<u32>,
    /// Its share of what is scarce, relative to other jobs
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// Added to the priority of its tasks among those of other jobs
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// The least time from one start of its tasks to the next, such as 500ms; 0s for none
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration)]
    delay: Option<jiff::SignedDuration>,
}

/// What `--concurrency` says.
#[derive(Debug, Clone, Copy)]
struct ConcurrencyArg(Option<u32>);

fn parse_concurrency(text: &str) -> Result<ConcurrencyArg, String> {
    if text == "unset" {
        return Ok(ConcurrencyArg(None));
    }
    let number: i64 = text.parse().map_err(|_| "give a number, or `unset`".to_owned())?;
    check_capacity("job", number)
        .map(|number| ConcurrencyArg(Some(number)))
        .map_err(|e| e.to_string())
}

fn parse_min_concurrency(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (0..=CAPACITY_MAX).contains(number));
    number
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| format!("give a whole number between 0 and {CAPACITY_MAX}"))
}

impl SetArgs {
    fn resolve(self) -> anyhow::Result<SetJob> {
        let delay_ms = match self.delay {
            Some(delay) => Some(i64::try_from(delay.as_millis()).context("read --delay")?),
            None => None,
        };
        let set = SetJob {
            job: self.job,
            concurrency: self.concurrency.map(|quota| quota.0),
            min_concurrency: self.min_concurrency,
            weight: self.weight,
            priority: self.priority,
            delay_ms,
        };
        if set == (SetJob { job: set.job.clone(), ..SetJob::default() }) {
            bail!(
                "what is to change? Say --concurrency, --weight, --priority, --min-concurrency or --delay"
            );
        }
        rules::check_set_job(&set)?;
        Ok(set)
    }
}

/// A job and its limit.
#[derive(Debug, Serialize)]
struct JobDetails<'a> {
    #[serde(flatten)]
    job: &'a JobView,
    limit: Option<&'a Limit>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.action {
        Action::List { json } => list(&*super::open_to_read(global).await?.reader, json).await?,
        Action::Show { job, json } => {
            let inspect = super::open_to_read(global).await?.reader;
            show(&*inspect, &inspect.jobs().await?, &job, json).await?;
        }
        Action::Set(set) => {
            let set = set.resolve()?;
            apply_change(&super::open_to_write(global).await?, set).await?;
        }
        Action::Pause(JobNameArg { job }) => {
            let changed = pause(global, &job, true).await?;
            let already = if changed { "" } else { " already" };
            let resume = global.command_line(&["job", "resume", &job]);
            print_message!("job {job:?} is paused{already}; `{resume}` lets it go on");
        }
        Action::Resume(JobNameArg { job }) => match pause(global, &job, false).await? {
            true => print_message!("job {job:?} goes on"),
            false => print_message!("job {job:?} was not paused"),
        },
        Action::Cancel(JobNameArg { job }) => {
            let opened = super::open_to_read(global).await?;
            find_job(&opened.reader.jobs().await?, &job)?;
            let filter = TaskFilter { job: Some(job.clone()), ..TaskFilter::default() };
            let ended = cancel_all(&opened, PauseTarget::Job(job.clone()), filter).await?;
            print_message!("{}", ended.describe(&format!("job {job:?}"), "task"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(reader: &dyn StoreReader, json: bool) -> anyhow::Result<()> {
    let jobs = reader.jobs().await?;
    if json {
        return print_json(&jobs);
    }
    if jobs.is_empty() {
        print_message!("no jobs; `tidegate submit --job` makes one");
        return Ok(());
    }
    Ok(print(&table(&jobs).to_string())?)
}

async fn pause(global: &Global, job: &str, paused: bool) -> anyhow::Result<bool> {
    let opened = super::open_to_read(global).await?;
    find_job(&opened.reader.jobs().await?, job)?;
    Ok(opened
        .store
        .set_paused(SetPaused { target: PauseTarget::Job(job.to_owned()), paused })
        .await?)
}

/// A job that is not there is made, so that it can be set up before its first task.
async fn apply_change(opened: &StoreHandle, set: SetJob) -> anyhow::Result<()> {
    let name = set.job.clone();
    let before = opened.reader.jobs().await?;
    let before = before.iter().find(|job| *job.name == *name);
    before.map_or(Ok(()), |before| check_resulting_job(before, &set))?;
    let is_new = before.is_none();
    if is_new {
        let jobs = vec![JobSpec::new(&name)];
        opened.store.submit(Submission { jobs, ..Submission::default() }).await?;
    }
    opened.store.set_job(set).await?;
    let jobs = opened.reader.jobs().await?;
    let after = find_job(&jobs, &name)?;
    print(&table(std::slice::from_ref(after)).to_string())?;
    warn_reserve_above_concurrency(&name, after.concurrency, after.min_concurrency);
    if is_new {
        print_message!("note: job {name:?} is new; nothing uses it yet");
    }
    Ok(())
}

/// A change is judged by what holds after it, as one of a job that is made.
fn check_resulting_job(before: &JobView, set: &SetJob) -> anyhow::Result<()> {
    if set.concurrency.is_none() && set.min_concurrency.is_none() {
        return Ok(());
    }
    let concurrency = set.concurrency.unwrap_or(before.concurrency);
    let min_concurrency = set.min_concurrency.unwrap_or(before.min_concurrency);
    Ok(rules::check_set_job(&SetJob {
        concurrency: Some(concurrency),
        min_concurrency: Some(min_concurrency),
        ..set.clone()
    })?)
}

/// Says that a reserve is larger than what may run, where whoever sets one does not see the other.
pub(crate) fn warn_reserve_above_concurrency(
    job: &str,
    concurrency: Option<u32>,
    min_concurrency: u32,
) {
    if let Some(most) = concurrency.filter(|most| (1..min_concurrency).contains(most)) {
        print_message!(
            "warning: the min_concurrency of job {job:?} is {min_concurrency}, and no more than {most} \
             may run at once: it counts as {most}"
        );
    }
}

fn find_job<'a>(jobs: &'a [JobView], name: &str) -> anyhow::Result<&'a JobView> {
    let Some(job) = jobs.iter().find(|job| &*job.name == name) else {
        let names: Vec<&str> = jobs.iter().map(|job| &*job.name).collect();
        bail!("{}", not_found_message("job", name, &names, "job list"));
    };
    Ok(job)
}

async fn show(
    inspect: &dyn StoreReader,
    jobs: &[JobView],
    name: &str,
    json: bool,
) -> anyhow::Result<()> {
    let job = find_job(jobs, name)?;
    let limits = inspect.limits().await?;
    let whole = LimitScope::Job.limit_name(name);
    let limit = limits.iter().find(|limit| *limit.name == *whole);
    if json {
        return print_json([JobDetails { job, limit }]);
    }
    let mut text = table(std::slice::from_ref(job)).to_string();
    if let Some(limit) = limit {
        text.push_str(&format!(
            "{} of its slots are held, {} wait for one; `tidegate concurrency status {}` names \
             them\n",
            limit.held,
            limit.waiting,
            crate::output::shell_quoted(&whole)
        ));
    }
    Ok(print(&text)?)
}

fn table(jobs: &[JobView]) -> Table {
    let heads = ["job", "concurrency", "min", "weight", "priority", "delay", "paused"];
    let states = TaskState::ALL.map(TaskState::as_str);
    let mut table = Table::new(&[&heads[..], &states[..]].concat());
    for job in jobs {
        let mut row = vec![
            job.name.to_string(),
            or_dash(job.concurrency),
            job.min_concurrency.to_string(),
            job.weight.to_string(),
            job.priority.to_string(),
            or_dash((job.delay_ms > 0).then(|| format_duration(job.delay_ms))),
            if job.paused { "yes" } else { "-" }.to_owned(),
        ];
        row.extend(state_counts(&job.tasks, &TaskState::ALL));
        table.row(row);
    }
    table
}
