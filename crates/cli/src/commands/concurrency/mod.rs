mod effect;
mod registered_limits;
mod release;
mod set;
mod status;

pub(crate) use status::format_holder;

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use tidegate_core::{Limit, LimitScope, check_capacity};

use crate::cli::Global;
use crate::suggest::{not_found_message_for, suggest};

/// Shows and changes limits, and takes slots back
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Shows limits: capacity and who set it, slots held and by whom, tasks waiting and refused,
    /// and whether live workers registered different capacities
    #[command(after_help = "Examples:\n  \
        tidegate concurrency status\n  \
        tidegate concurrency status partner --json")]
    Status {
        /// Only this group, with its line; or a whole name such as job:nightly
        group: Option<String>,
        /// One JSON object per limit
        #[arg(long)]
        json: bool,
    },
    /// Sets the limit of a group, at once and for every worker
    ///
    /// It outlives deploys: what files, workers and submits say about this group counts again
    /// after `unset`. Lowering drains: what runs is not touched.
    #[command(after_help = "Examples:\n  \
        tidegate concurrency set partner --limit 4\n  \
        tidegate concurrency set partner --limit 4 --dry-run")]
    Set {
        /// A group, or a whole name such as job:nightly
        group: String,
        /// Slots in all; 0 pauses
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        limit: i64,
        /// Say what it would admit or block, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// One JSON object; only with --dry-run
        #[arg(long, requires = "dry_run")]
        json: bool,
    },
    /// Takes a `set` back, or a limit away that nobody `set`
    ///
    /// After a `set`, what a file, a worker or a submit says about the group counts again. Without
    /// one, what they said is removed: the group is unlimited until one of them says it again.
    #[command(after_help = "Example:\n  tidegate concurrency unset partner")]
    Unset {
        /// A group, or a whole name such as job:nightly
        group: String,
    },
    /// Takes a slot away from the attempt that holds it
    ///
    /// The attempt is spent and all its slots go to the next in line. Its worker is told with its
    /// next heartbeat and nothing it still writes is accepted, but until then its handler may run
    /// beside the next one. So this is for a handler that hangs, and only with --force.
    #[command(after_help = "Example:\n  tidegate concurrency release partner 3 --force")]
    Release {
        /// A group, or a whole name such as job:nightly
        group: String,
        /// The slot's number, as `status` shows it
        slot: u32,
        /// The handler may still be running: take the slot all the same
        #[arg(long)]
        force: bool,
    },
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.action {
        Action::Status { group, json } => {
            let opened = super::open_to_read(global).await?;
            match group {
                Some(group) => status::show_one(&opened, &full_limit_name(&group), json).await?,
                None => status::show_all(&opened, json).await?,
            }
        }
        Action::Set { group, limit, dry_run, json } => {
            let name = full_limit_name(&group);
            let capacity = check_capacity(&name, limit)?;
            match dry_run {
                true => {
                    effect::show(&super::open_to_read(global).await?, name, capacity, json).await?
                }
                false => set::set(&super::open_to_write(global).await?, name, capacity).await?,
            }
        }
        Action::Unset { group } => {
            set::unset(&super::open_to_read(global).await?, full_limit_name(&group)).await?;
        }
        Action::Release { group, slot, force } => {
            let opened = super::open_to_read(global).await?;
            release::release(global, &opened, full_limit_name(&group), slot, force).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A bare name is that of a group. `queue:` begins a whole name too: it must not quietly become
/// the limit of a group that nobody meant.
fn full_limit_name(name: &str) -> String {
    let is_whole = LimitScope::from_limit_name(name).is_some() || name.starts_with("queue:");
    if is_whole { name.to_owned() } else { LimitScope::Group.limit_name(name) }
}

fn find_limit<'a>(limits: &'a [Limit], name: &str) -> anyhow::Result<&'a Limit> {
    if let Some(limit) = limits.iter().find(|limit| &*limit.name == name) {
        return Ok(limit);
    }
    // The word before the colon is alike in all of them and says nothing.
    let scope = &name[..name.find(':').map_or(0, |at| at + 1)];
    let others = limits.iter().filter_map(|limit| limit.name.strip_prefix(scope));
    let meant = suggest(&name[scope.len()..], &others.collect::<Vec<_>>());
    let meant = meant.map(|meant| format!("{scope}{meant}"));
    bail!("{}", not_found_message_for("limit", name, meant.as_deref(), "concurrency status"))
}
