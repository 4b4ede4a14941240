use std::process::ExitCode;

use clap::Args;
use tidegate_core::reader::WorkerView;
use tidegate_core::{Millis, WorkerReport};
use tidegate_measure::table::Table;

use crate::cli::Global;
use crate::output::{format_duration, or_dash, print, print_json};
use crate::stderr::print_message;

/// Lists live workers: what they serve, how much of it they run, and how much room they have
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate workers")]
pub(crate) struct Arguments {
    /// One JSON object per worker
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let inspect = super::open_to_read(global).await?.reader;
    let workers = inspect.workers().await?;
    if arguments.json {
        print_json(&workers)?;
    } else if workers.is_empty() {
        print_message!("no worker lives; start one with `{}`", global.command_line(&["worker"]));
    } else {
        print(&table(&workers, inspect.now().await?).to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(workers: &[WorkerView], now: Millis) -> Table {
    let mut table = Table::new(&[
        "worker",
        "running",
        "free",
        "memory",
        "accepts",
        "queues",
        "kinds",
        "seen again within",
    ]);
    for worker in workers {
        let names =
            |names: &[std::sync::Arc<str>]| or_dash((!names.is_empty()).then(|| names.join(",")));
        table.row(vec![
            worker.id.to_string(),
            worker.running.to_string(),
            format_report(worker, |report| {
                Some(format!("{} of {}", free_concurrency(worker, report), report.concurrency))
            }),
            format_report(worker, |report| {
                report.memory.map(|memory| format!("{} %", memory.used_percent()))
            }),
            format_report(worker, |report| Some(format_accepting(worker, report))),
            names(&worker.queues),
            names(&worker.kinds),
            format_duration((worker.alive_until - now).max(0)),
        ]);
    }
    table
}

/// What a worker says of itself, where it says it.
fn format_report(worker: &WorkerView, words: impl Fn(&WorkerReport) -> Option<String>) -> String {
    or_dash(worker.report.as_ref().and_then(words))
}

/// How many tasks it may take on. What runs is known to the moment; a report may be some seconds old.
fn free_concurrency(worker: &WorkerView, report: &WorkerReport) -> u64 {
    u64::from(report.concurrency).saturating_sub(worker.running).min(report.free.into())
}

fn format_accepting(worker: &WorkerView, report: &WorkerReport) -> String {
    match report.accepting {
        true if free_concurrency(worker, report) == 0 => "no: permits".to_owned(),
        true => format!("yes: {}", report.reason),
        false => format!("no: {}", report.reason),
    }
}
