use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use tidegate_measure::history::{self, ExpectedLimits};

use crate::output::{print, print_json};

/// Checks history files of workers: were limits and orders kept?
///
/// The files of all processes are one history. For every limit it prints the most that was ever
/// held and whether the capacity was reached. A limit that was changed meanwhile is judged by the
/// largest of its capacities, and not at all if a change was not seen. The exit code is 0 only when
/// nothing is violated.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    tidegate worker --until-idle --history a.jsonl & \
    tidegate worker --until-idle --history b.jsonl & wait\n  \
    tidegate verify a.jsonl b.jsonl --limit group:partner=10")]
pub(crate) struct Arguments {
    /// Files that workers wrote with --history
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A capacity to check against, whatever the workers saw; may be repeated
    #[arg(long, value_name = "NAME=N")]
    limit: Vec<String>,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let expected = ExpectedLimits::parse(arguments.limit.iter().map(String::as_str))
        .context("read --limit")?;
    let report = history::verify(&arguments.files, &expected)?;
    if report.records == 0 {
        bail!(
            "the files have no records, so there is nothing to verify; workers write them with --history"
        );
    }
    if arguments.json {
        print_json([&report])?;
    } else {
        print(&report.to_string())?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
