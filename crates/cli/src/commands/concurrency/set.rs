//! Sets a limit, and takes that back.

use tidegate_core::inspect::{TaskFilter, TaskView};
use tidegate_core::{Inspect, Limit, Scope, SetLimit, Source};
use tidegate_store::Opened;

use super::find;
use crate::commands::job::tell_reserve;
use crate::kinds;
use crate::output::STATES_OPEN;
use crate::tell::tell;

pub(super) async fn set(opened: &Opened, name: String, capacity: u32) -> anyhow::Result<()> {
    let before = opened.inspect.limits().await?;
    let is_new = !before.iter().any(|limit| *limit.name == *name);
    let (capacity, source) = (Some(capacity), Source::Operator);
    opened.store.set_limit(SetLimit { name: name.clone(), capacity, source }).await?;
    let limits = opened.inspect.limits().await?;
    match limit_words(&limits, &name) {
        Some(words) => tell!("{name} is {words}"),
        None => tell!("{name} is unlimited"),
    }
    tell_reserve_of(&limits, &name);
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
    let states = STATES_OPEN.to_vec();
    let filter = TaskFilter { states, tasks_max: TASKS_MAX, ..TaskFilter::default() };
    let tasks = inspect.tasks(filter).await?;
    let counts = |task: &TaskView| task.group.as_deref() == Some(group);
    Ok(tasks.len() == TASKS_MAX as usize || tasks.iter().any(counts))
}

pub(super) async fn unset(opened: &Opened, name: String) -> anyhow::Result<()> {
    let before = opened.inspect.limits().await?;
    let before = find(&before, &name)?;
    let set = SetLimit { name: name.clone(), capacity: None, source: Source::Operator };
    opened.store.set_limit(set).await?;
    let limits = opened.inspect.limits().await?;
    match limit_words(&limits, &name) {
        Some(words) => tell!("{name} is {words}; `unset` again removes that"),
        None => tell!("{name} is unlimited{}", who_sets_again(before)),
    }
    tell_reserve_of(&limits, &name);
    Ok(())
}

/// Says where a job has a larger reserve than its limit.
fn tell_reserve_of(limits: &[Limit], name: &str) {
    let limit = limits.iter().find(|limit| &*limit.name == name);
    let Some((limit, share)) = limit.and_then(|limit| Some((limit, limit.share?))) else { return };
    let job = name.strip_prefix(&Scope::Job.name("")).unwrap_or(name);
    tell_reserve(job, limit.capacity, share.min_concurrency);
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
