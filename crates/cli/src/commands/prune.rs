use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tidegate_measure::table::counted;

use crate::cli::Global;
use crate::output::{print, print_json};

/// Removes finished tasks that were kept long enough, and limits and kinds nobody uses
///
/// Workers do this by themselves now and then. How long tasks are kept is a setting of their
/// kind: remove_on_completed_days and remove_on_failed_days.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate prune")]
pub(crate) struct Arguments {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
struct Removed {
    tasks: u64,
    limits: u64,
    kinds: u64,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let store = super::open_to_read(global).await?.store;
    let mut removed = Removed::default();
    loop {
        let pruned = store.prune().await?;
        removed.tasks += u64::from(pruned.tasks);
        removed.limits += u64::from(pruned.limits);
        removed.kinds += u64::from(pruned.kinds);
        if !pruned.has_more {
            break;
        }
    }
    if arguments.json {
        print_json([&removed])?;
    } else {
        let (tasks, limits) = (counted(removed.tasks, "task"), counted(removed.limits, "limit"));
        let kinds = counted(removed.kinds, "kind");
        print(&format!("removed {tasks}, {limits} and {kinds}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
