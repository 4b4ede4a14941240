use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use tidegate_core::inspect::Holder;
use tidegate_core::{Limit, Scope, SetLimit, Source, check_capacity};
use tidegate_measure::table::Table;
use tidegate_store::Opened;

use crate::cli::Global;
use crate::output::{duration, print, print_json};
use crate::suggest::suggest;
use crate::tell::tell;

/// Shows and changes limits
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Shows limits: capacity, slots held, tasks waiting
    #[command(after_help = "Example:\n  tidegate concurrency status partner")]
    Status {
        /// Only this group, with the holders of its slots; or a whole name such as job:nightly
        group: Option<String>,
        /// One JSON object per limit
        #[arg(long)]
        json: bool,
    },
    /// Sets the limit of a group, at once and for every worker
    ///
    /// It outlives deploys: what files, workers and submits say about this group counts again
    /// after `unset`. Lowering drains: what runs is not touched.
    #[command(after_help = "Example:\n  tidegate concurrency set partner --limit 4")]
    Set {
        /// A group, or a whole name such as job:nightly
        group: String,
        /// Slots in all; 0 pauses
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        limit: i64,
    },
    /// Takes a `set` back
    #[command(after_help = "Example:\n  tidegate concurrency unset partner")]
    Unset {
        /// A group, or a whole name such as job:nightly
        group: String,
    },
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.verb {
        Verb::Status { group, json } => {
            let opened = super::open_to_read(global).await?;
            match group {
                Some(group) => status_of(&opened, &whole_name(&group), json).await?,
                None => status(&opened, json).await?,
            }
        }
        Verb::Set { group, limit } => {
            let name = whole_name(&group);
            let capacity = check_capacity(&name, limit)?;
            set(&super::open_to_write(global).await?, name, Some(capacity)).await?;
        }
        Verb::Unset { group } => {
            set(&super::open_to_read(global).await?, whole_name(&group), None).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A bare name is that of a group.
fn whole_name(name: &str) -> String {
    if Scope::of(name).is_some() { name.to_owned() } else { Scope::Group.name(name) }
}

async fn set(opened: &Opened, name: String, capacity: Option<u32>) -> anyhow::Result<()> {
    let source = Source::Operator;
    opened.store.set_limit(SetLimit { name: name.clone(), capacity, source }).await?;
    let now = find(opened, &name).await?;
    match now.and_then(|limit| Some((limit.capacity?, limit.source))) {
        Some((capacity, source)) => tell!("{name} is {capacity}, set by {source}"),
        None => tell!("{name} is unlimited"),
    }
    Ok(())
}

async fn find(opened: &Opened, name: &str) -> anyhow::Result<Option<Limit>> {
    Ok(opened.inspect.limits().await?.into_iter().find(|limit| &*limit.name == name))
}

async fn status(opened: &Opened, json: bool) -> anyhow::Result<()> {
    let limits = opened.inspect.limits().await?;
    if json {
        return print_json(&limits);
    }
    if limits.is_empty() {
        tell!("no limits; `tidegate concurrency set GROUP --limit N` sets one");
        return Ok(());
    }
    Ok(print(&table(&limits).to_string())?)
}

fn table(limits: &[Limit]) -> Table {
    let mut table = Table::new(&["limit", "capacity", "held", "waiting", "set by", "version"]);
    for limit in limits {
        table.row(vec![
            limit.name.to_string(),
            limit.capacity.map_or_else(|| "-".to_owned(), |capacity| capacity.to_string()),
            limit.held.to_string(),
            limit.waiting.to_string(),
            limit.source.to_string(),
            limit.version.to_string(),
        ]);
    }
    table
}

async fn status_of(opened: &Opened, name: &str, json: bool) -> anyhow::Result<()> {
    let limits = opened.inspect.limits().await?;
    let Some(limit) = limits.iter().find(|limit| &*limit.name == name) else {
        let names: Vec<&str> = limits.iter().map(|limit| &*limit.name).collect();
        match suggest(name, &names) {
            Some(meant) => bail!("there is no limit {name:?}; did you mean {meant:?}?"),
            None => bail!("there is no limit {name:?}; `tidegate concurrency status` lists all"),
        }
    };
    if json {
        return print_json([limit]);
    }
    let now = opened.inspect.now().await?;
    let mut text = table(std::slice::from_ref(limit)).to_string();
    for holder in opened.inspect.holders(limit.id).await? {
        text.push_str(&format!("  {}\n", holder_words(&holder, now)));
    }
    Ok(print(&text)?)
}

/// Who holds a slot, in words.
pub(crate) fn holder_words(holder: &Holder, now: i64) -> String {
    let Holder { slot, task, kind, .. } = holder;
    match (&holder.worker, holder.expires_at) {
        (Some(worker), Some(at)) => format!(
            "slot {slot}: task {task} ({kind}) on worker {worker}, lease ends in {}",
            duration((at - now).max(0))
        ),
        _ => format!("slot {slot}: task {task} ({kind}), not running"),
    }
}
