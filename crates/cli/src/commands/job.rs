use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use tidegate_core::bounds::CAPACITY_MAX;
use tidegate_core::inspect::{Inspect, JobView, TaskFilter};
use tidegate_core::{
    JobSpec, Limit, Pausable, Pause, Scope, SetJob, State, Submission, check_capacity, rules,
};
use tidegate_measure::table::Table;
use tidegate_store::Opened;

use super::end_all::end_all;
use crate::cli::Global;
use crate::flags;
use crate::output::{duration, or_dash, print, print_json, state_counts};
use crate::suggest::no_such;
use crate::tell::tell;

/// Shows jobs and how far they are, changes, pauses and cancels them
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
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
    Set(Set),
    /// Lets no more tasks of a job begin; what runs goes on
    ///
    /// Tasks that were about to begin go back to the job's line, and are the first when it goes on.
    #[command(after_help = "Example:\n  tidegate job pause nightly")]
    Pause(One),
    /// Lets a paused job go on
    #[command(after_help = "Example:\n  tidegate job resume nightly")]
    Resume(One),
    /// Cancels all unfinished tasks of a job, and waits until those that run have stopped
    ///
    /// The job is paused meanwhile, and tasks that its handlers add are cancelled too. Interrupted,
    /// it leaves the job paused and can be called again.
    #[command(after_help = "Example:\n  tidegate job cancel nightly")]
    Cancel(One),
}

#[derive(Debug, Args)]
struct One {
    /// The job's name
    job: String,
}

#[derive(Debug, Args)]
struct Set {
    /// The job's name
    job: String,
    /// Tasks of it that run at once over all workers; 0 lets none begin, `unset` takes an operator's
    /// word back
    #[arg(long, value_name = "N", value_parser = concurrency, allow_negative_numbers = true)]
    concurrency: Option<Quota>,
    /// Tasks of it that go before those of all others, whatever their priority, while it has work
    #[arg(long, value_name = "N", value_parser = reserve, allow_negative_numbers = true)]
    min_concurrency: Option<u32>,
    /// Its share of what is scarce, relative to other jobs
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// Added to the priority of its tasks among those of other jobs
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// The least time from one start of its tasks to the next, such as 500ms; 0s for none
    #[arg(long, value_name = "DURATION", value_parser = flags::duration)]
    delay: Option<jiff::SignedDuration>,
}

/// What `--concurrency` says.
#[derive(Debug, Clone, Copy)]
struct Quota(Option<u32>);

fn concurrency(text: &str) -> Result<Quota, String> {
    if text == "unset" {
        return Ok(Quota(None));
    }
    let number: i64 = text.parse().map_err(|_| "give a number, or `unset`".to_owned())?;
    check_capacity("job", number).map(|number| Quota(Some(number))).map_err(|e| e.to_string())
}

fn reserve(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (0..=CAPACITY_MAX).contains(number));
    number
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| format!("give a whole number between 0 and {CAPACITY_MAX}"))
}

impl Set {
    fn meaning(self) -> anyhow::Result<SetJob> {
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
struct Whole<'a> {
    #[serde(flatten)]
    job: &'a JobView,
    limit: Option<&'a Limit>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.verb {
        Verb::List { json } => list(&*super::open_to_read(global).await?.inspect, json).await?,
        Verb::Show { job, json } => {
            let inspect = super::open_to_read(global).await?.inspect;
            show(&*inspect, &inspect.jobs().await?, &job, json).await?;
        }
        Verb::Set(set) => {
            let set = set.meaning()?;
            change(&super::open_to_write(global).await?, set).await?;
        }
        Verb::Pause(One { job }) => {
            let changed = pause(global, &job, true).await?;
            let already = if changed { "" } else { " already" };
            let resume = global.command(&["job", "resume", &job]);
            tell!("job {job:?} is paused{already}; `{resume}` lets it go on");
        }
        Verb::Resume(One { job }) => match pause(global, &job, false).await? {
            true => tell!("job {job:?} goes on"),
            false => tell!("job {job:?} was not paused"),
        },
        Verb::Cancel(One { job }) => {
            let opened = super::open_to_read(global).await?;
            find(&opened.inspect.jobs().await?, &job)?;
            let filter = TaskFilter { job: Some(job.clone()), ..TaskFilter::default() };
            let ended = end_all(&opened, Pausable::Job(job.clone()), filter).await?;
            tell!("{}", ended.words(&format!("job {job:?}"), "task"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(inspect: &dyn Inspect, json: bool) -> anyhow::Result<()> {
    let jobs = inspect.jobs().await?;
    if json {
        return print_json(&jobs);
    }
    if jobs.is_empty() {
        tell!("no jobs; `tidegate submit --job` makes one");
        return Ok(());
    }
    Ok(print(&table(&jobs).to_string())?)
}

async fn pause(global: &Global, job: &str, paused: bool) -> anyhow::Result<bool> {
    let opened = super::open_to_read(global).await?;
    find(&opened.inspect.jobs().await?, job)?;
    Ok(opened.store.pause(Pause { what: Pausable::Job(job.to_owned()), paused }).await?)
}

/// A job that is not there is made, so that it can be set up before its first task.
async fn change(opened: &Opened, set: SetJob) -> anyhow::Result<()> {
    let name = set.job.clone();
    let before = opened.inspect.jobs().await?;
    let before = before.iter().find(|job| *job.name == *name);
    before.map_or(Ok(()), |before| check_result(before, &set))?;
    let is_new = before.is_none();
    if is_new {
        let jobs = vec![JobSpec::new(&name)];
        opened.store.submit(Submission { jobs, ..Submission::default() }).await?;
    }
    opened.store.set_job(set).await?;
    let jobs = opened.inspect.jobs().await?;
    let after = find(&jobs, &name)?;
    print(&table(std::slice::from_ref(after)).to_string())?;
    tell_reserve(&name, after.concurrency, after.min_concurrency);
    if is_new {
        tell!("note: job {name:?} is new; nothing uses it yet");
    }
    Ok(())
}

/// A change is judged by what holds after it, as one of a job that is made.
fn check_result(before: &JobView, set: &SetJob) -> anyhow::Result<()> {
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
pub(crate) fn tell_reserve(job: &str, concurrency: Option<u32>, min_concurrency: u32) {
    if let Some(most) = concurrency.filter(|most| (1..min_concurrency).contains(most)) {
        tell!(
            "warning: the min_concurrency of job {job:?} is {min_concurrency}, and no more than {most} \
             may run at once: it counts as {most}"
        );
    }
}

fn find<'a>(jobs: &'a [JobView], name: &str) -> anyhow::Result<&'a JobView> {
    let Some(job) = jobs.iter().find(|job| &*job.name == name) else {
        let names: Vec<&str> = jobs.iter().map(|job| &*job.name).collect();
        bail!("{}", no_such("job", name, &names, "job list"));
    };
    Ok(job)
}

async fn show(
    inspect: &dyn Inspect,
    jobs: &[JobView],
    name: &str,
    json: bool,
) -> anyhow::Result<()> {
    let job = find(jobs, name)?;
    let limits = inspect.limits().await?;
    let whole = Scope::Job.name(name);
    let limit = limits.iter().find(|limit| *limit.name == *whole);
    if json {
        return print_json([Whole { job, limit }]);
    }
    let mut text = table(std::slice::from_ref(job)).to_string();
    if let Some(limit) = limit {
        text.push_str(&format!(
            "{} of its slots are held, {} wait for one; `tidegate concurrency status {}` names \
             them\n",
            limit.held,
            limit.waiting,
            crate::output::quoted(&whole)
        ));
    }
    Ok(print(&text)?)
}

fn table(jobs: &[JobView]) -> Table {
    let heads = ["job", "concurrency", "min", "weight", "priority", "delay", "paused"];
    let states = State::ALL.map(State::as_str);
    let mut table = Table::new(&[&heads[..], &states[..]].concat());
    for job in jobs {
        let mut row = vec![
            job.name.to_string(),
            or_dash(job.concurrency),
            job.min_concurrency.to_string(),
            job.weight.to_string(),
            job.priority.to_string(),
            or_dash((job.delay_ms > 0).then(|| duration(job.delay_ms))),
            if job.paused { "yes" } else { "-" }.to_owned(),
        ];
        row.extend(state_counts(&job.tasks, &State::ALL));
        table.row(row);
    }
    table
}
