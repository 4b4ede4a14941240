use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use tidegate_core::inspect::{Holder, TaskFilter, TaskView};
use tidegate_core::{Inspect, Limit, Scope, SetLimit, Source, State, check_capacity};
use tidegate_measure::table::Table;
use tidegate_store::Opened;

use crate::cli::Global;
use crate::kinds;
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
    /// Takes a `set` back, or a limit away that nobody `set`
    ///
    /// After a `set`, what a file, a worker or a submit says about the group counts again. Without
    /// one, what they said is removed: the group is unlimited until one of them says it again.
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
            set(&super::open_to_write(global).await?, name, capacity).await?;
        }
        Verb::Unset { group } => {
            unset(&super::open_to_read(global).await?, whole_name(&group)).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A bare name is that of a group. `queue:` begins a whole name too: it must not quietly become
/// the limit of a group that nobody meant.
fn whole_name(name: &str) -> String {
    let is_whole = Scope::of(name).is_some() || name.starts_with("queue:");
    if is_whole { name.to_owned() } else { Scope::Group.name(name) }
}

async fn set(opened: &Opened, name: String, capacity: u32) -> anyhow::Result<()> {
    let before = opened.inspect.limits().await?;
    let is_new = !before.iter().any(|limit| *limit.name == *name);
    let (capacity, source) = (Some(capacity), Source::Operator);
    opened.store.set_limit(SetLimit { name: name.clone(), capacity, source }).await?;
    let limits = opened.inspect.limits().await?;
    match limit_words(&limits, &name) {
        Some(words) => tell!("{name} is {words}"),
        None => tell!("{name} is unlimited"),
    }
    if is_new && !is_used(&*opened.inspect, &name).await? {
        tell!("note: limit {name} is new; nothing uses it yet");
    }
    Ok(())
}

/// Whether the limit of a group has anything to count: a kind of its name, or an unfinished task.
/// Where there are too many to look at all, nobody says that there is none.
async fn is_used(inspect: &dyn Inspect, name: &str) -> anyhow::Result<bool> {
    const TASKS_MAX: u32 = 5000;
    let group = name.strip_prefix("group:").unwrap_or(name);
    let is_kind = kinds::NAMES.contains(&group);
    if is_kind || inspect.kinds().await?.iter().any(|kind| *kind.name == *group) {
        return Ok(true);
    }
    let states = State::ALL.into_iter().filter(|state| !state.is_final()).collect();
    let filter = TaskFilter { states, tasks_max: TASKS_MAX, ..TaskFilter::default() };
    let tasks = inspect.tasks(filter).await?;
    let counts = |task: &TaskView| task.group.as_deref() == Some(group);
    Ok(tasks.len() == TASKS_MAX as usize || tasks.iter().any(counts))
}

async fn unset(opened: &Opened, name: String) -> anyhow::Result<()> {
    let before = opened.inspect.limits().await?;
    let before = find(&before, &name)?;
    let set = SetLimit { name: name.clone(), capacity: None, source: Source::Operator };
    opened.store.set_limit(set).await?;
    let limits = opened.inspect.limits().await?;
    match limit_words(&limits, &name) {
        Some(words) => tell!("{name} is {words}; `unset` again removes that"),
        None => tell!("{name} is unlimited{}", who_sets_again(before)),
    }
    Ok(())
}

/// A limit's capacity and who set it.
fn limit_words(limits: &[Limit], name: &str) -> Option<String> {
    let limit = limits.iter().find(|limit| &*limit.name == name)?;
    Some(format!("{}, set by {}", limit.capacity?, limit.source))
}

/// An operator's setting is gone for good; others come back with those who made them.
fn who_sets_again(before: &Limit) -> &'static str {
    match before.source {
        _ if before.capacity.is_none() => ", as it was",
        Source::Submit if before.share.is_none() => "; the next submit that brings a limit sets it",
        Source::Registration => "; the next worker that registers a limit for it sets it",
        Source::Configuration => "; the next file that names it sets it",
        _ => "",
    }
}

fn find<'a>(limits: &'a [Limit], name: &str) -> anyhow::Result<&'a Limit> {
    if let Some(limit) = limits.iter().find(|limit| &*limit.name == name) {
        return Ok(limit);
    }
    let names: Vec<&str> = limits.iter().map(|limit| &*limit.name).collect();
    match suggest(name, &names) {
        Some(meant) => bail!("there is no limit {name:?}; did you mean {meant:?}?"),
        None => bail!("there is no limit {name:?}; `tidegate concurrency status` lists all"),
    }
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
    let limit = find(&limits, name)?;
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
            "slot {slot}: task {task} ({kind}) on worker {worker}, lease ends in {} unless renewed",
            duration((at - now).max(0))
        ),
        _ => format!("slot {slot}: task {task} ({kind}), not running"),
    }
}
