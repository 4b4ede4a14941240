//! Sets a limit, and takes that back.

use tidegate_core::reader::{TaskFilter, TaskView};
use tidegate_core::{CapacitySource, Limit, LimitScope, SetLimit, StoreReader};
use tidegate_store::StoreHandle;

use super::find_limit;
use crate::commands::job::warn_reserve_above_concurrency;
use crate::kinds;
use crate::output::STATES_UNFINISHED;
use crate::stderr::print_message;

pub(super) async fn set(opened: &StoreHandle, name: String, capacity: u32) -> anyhow::Result<()> {
    let before = opened.reader.limits().await?;
    let is_new = !before.iter().any(|limit| *limit.name == *name);
    let (capacity, source) = (Some(capacity), CapacitySource::Operator);
    opened.store.set_limit(SetLimit { name: name.clone(), capacity, source }).await?;
    let limits = opened.reader.limits().await?;
    match describe_limit(&limits, &name) {
        Some(words) => print_message!("{name} is {words}"),
        None => print_message!("{name} is unlimited"),
    }
    warn_if_reserve_exceeds_limit(&limits, &name);
    if is_new && !is_used(&*opened.reader, &name).await? {
        print_message!("note: limit {name} is new; nothing uses it yet");
    }
    Ok(())
}

/// Whether the limit of a group has anything to count: a kind of its name, or an unfinished task.
/// Where there are too many to look at all, nobody says that there is none.
async fn is_used(reader: &dyn StoreReader, name: &str) -> anyhow::Result<bool> {
    const TASKS_MAX: u32 = 5000;
    let group = name.strip_prefix("group:").unwrap_or(name);
    let is_kind = kinds::NAMES.contains(&group);
    if is_kind || reader.kinds().await?.iter().any(|kind| *kind.name == *group) {
        return Ok(true);
    }
    let states = STATES_UNFINISHED.to_vec();
    let filter = TaskFilter { states, tasks_max: TASKS_MAX, ..TaskFilter::default() };
    let tasks = reader.tasks(filter).await?;
    let counts = |task: &TaskView| task.group.as_deref() == Some(group);
    Ok(tasks.len() == TASKS_MAX as usize || tasks.iter().any(counts))
}

pub(super) async fn unset(opened: &StoreHandle, name: String) -> anyhow::Result<()> {
    let before = opened.reader.limits().await?;
    let before = find_limit(&before, &name)?;
    let set = SetLimit { name: name.clone(), capacity: None, source: CapacitySource::Operator };
    opened.store.set_limit(set).await?;
    let limits = opened.reader.limits().await?;
    match describe_limit(&limits, &name) {
        Some(words) => print_message!("{name} is {words}; `unset` again removes that"),
        None => print_message!("{name} is unlimited{}", next_source_hint(before)),
    }
    warn_if_reserve_exceeds_limit(&limits, &name);
    Ok(())
}

/// Says where a job has a larger reserve than its limit.
fn warn_if_reserve_exceeds_limit(limits: &[Limit], name: &str) {
    let limit = limits.iter().find(|limit| &*limit.name == name);
    let Some((limit, share)) = limit.and_then(|limit| Some((limit, limit.fair_share?))) else {
        return;
    };
    let job = name.strip_prefix(&LimitScope::Job.limit_name("")).unwrap_or(name);
    warn_reserve_above_concurrency(job, limit.capacity, share.min_concurrency);
}

/// A limit's capacity and who set it.
fn describe_limit(limits: &[Limit], name: &str) -> Option<String> {
    let limit = limits.iter().find(|limit| &*limit.name == name)?;
    Some(format!("{}, set by {}", limit.capacity?, limit.source))
}

/// An operator's setting is gone for good; others come back with those who made them.
fn next_source_hint(before: &Limit) -> &'static str {
    match before.source {
        _ if before.capacity.is_none() => ", as it was",
        CapacitySource::Submit if before.fair_share.is_none() => {
            "; the next submit that brings a limit sets it"
        }
        CapacitySource::Registration => "; the next worker that registers a limit for it sets it",
        CapacitySource::Configuration => "; the next file that names it sets it",
        _ => "",
    }
}
