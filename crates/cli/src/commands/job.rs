use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;
use tidegate_core::inspect::{Inspect, JobView};
use tidegate_core::{Limit, Scope, State};
use tidegate_measure::table::Table;

use crate::cli::Global;
use crate::output::{or_dash, print, print_json, state_counts};
use crate::suggest::no_such;
use crate::tell::tell;

/// Shows jobs and how far they are
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
}

/// A job and its limit.
#[derive(Debug, Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    job: &'a JobView,
    limit: Option<&'a Limit>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let inspect = super::open_to_read(global).await?.inspect;
    let jobs = inspect.jobs().await?;
    match arguments.verb {
        Verb::List { json: true } => print_json(&jobs)?,
        Verb::List { .. } if jobs.is_empty() => tell!("no jobs; `tidegate submit --job` makes one"),
        Verb::List { .. } => print(&table(&jobs).to_string())?,
        Verb::Show { job, json } => show(&*inspect, &jobs, &job, json).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(
    inspect: &dyn Inspect,
    jobs: &[JobView],
    name: &str,
    json: bool,
) -> anyhow::Result<()> {
    let Some(job) = jobs.iter().find(|job| &*job.name == name) else {
        let names: Vec<&str> = jobs.iter().map(|job| &*job.name).collect();
        bail!("{}", no_such("job", name, &names, "job list"));
    };
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
    let states = State::ALL.map(State::as_str);
    let mut table = Table::new(&[&["job", "concurrency", "weight"], &states[..]].concat());
    for job in jobs {
        let mut row = vec![job.name.to_string(), or_dash(job.concurrency), job.weight.to_string()];
        row.extend(state_counts(&job.tasks, &State::ALL));
        table.row(row);
    }
    table
}
