//! Tells the store the limits of the configuration.

use std::collections::BTreeMap;

use tidegate_core::{Limit, RegisteredChange, Registration, Scope, SetLimit, Source};
use tidegate_engine::Result;
use tidegate_store::Opened;

use crate::tell::tell;

/// A limit that somebody stronger holds: its name, its capacity, and who set it.
pub(crate) type Overruled = (String, Option<u32>, Source);

/// Sets limits as a configuration does: stronger than what workers and submits say, weaker than
/// an operator. Gives those that an operator holds. A job gets its limit once it exists.
pub(crate) async fn apply(
    opened: &Opened,
    limits: &BTreeMap<String, u32>,
) -> Result<Vec<Overruled>> {
    let group = |(name, capacity): (&String, &u32)| {
        Some((name.strip_prefix(&Scope::Group.name(""))?.to_owned(), *capacity))
    };
    let groups: Vec<(String, u32)> = limits.iter().filter_map(group).collect();
    let mut overruled = Vec::new();
    if !groups.is_empty() {
        let source = Some(Source::Configuration);
        let registration = Registration { limits: groups, source, ..Registration::default() };
        overruled = opened.store.register(registration).await?.overruled;
    }
    overruled.extend(apply_to_jobs(opened, limits).await?);
    Ok(overruled)
}

/// Sets the limits of those jobs that exist.
pub(crate) async fn apply_to_jobs(
    opened: &Opened,
    limits: &BTreeMap<String, u32>,
) -> Result<Vec<Overruled>> {
    let is_job = |(name, _): &(&String, &u32)| Scope::of(name) == Some(Scope::Job);
    let jobs: Vec<(&String, &u32)> = limits.iter().filter(is_job).collect();
    let mut overruled = Vec::new();
    if jobs.is_empty() {
        return Ok(overruled);
    }
    let known = opened.inspect.limits().await?;
    for (name, capacity) in jobs {
        let is_it = |limit: &&Limit| *limit.name == **name;
        let Some(limit) = known.iter().find(is_it) else { continue };
        let (capacity, source) = (Some(*capacity), Source::Configuration);
        let set = SetLimit { name: name.clone(), capacity, source };
        let is_set = opened.store.set_limit(set).await?.is_some();
        if !is_set && limit.capacity != capacity {
            overruled.push((name.clone(), limit.capacity, limit.source));
        }
    }
    Ok(overruled)
}

/// Says which limits stay as somebody else set them.
pub(crate) fn tell_overruled(overruled: Vec<Overruled>) {
    for (name, capacity, by) in overruled {
        let capacity = capacity.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
        tell!("note: the limit of {name:?} stays {capacity}, set by {by}");
    }
}

/// Says which limits of other workers are replaced.
pub(crate) fn tell_changed(changed: Vec<RegisteredChange>) {
    for RegisteredChange { group, before, after, others } in changed {
        let after = after.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
        let others = match others {
            0 => String::new(),
            1 => "; 1 live worker brings another".to_owned(),
            n => format!("; {n} live workers bring another"),
        };
        tell!(
            "warning: the limit of {group:?} was {before} and is {after} now: of what live workers \
             bring the latest counts{others}"
        );
    }
}
