//! Tells the store the limits of the configuration.

use std::collections::BTreeMap;

use tidegate_core::{
    CapacitySource, Limit, LimitScope, RegisteredCapacityChange, Registration, SetLimit,
};
use tidegate_engine::Result;
use tidegate_store::StoreHandle;

use crate::stderr::print_message;

/// A limit that somebody stronger holds: its name, its capacity, and who set it.
pub(crate) type OverriddenLimit = (String, Option<u32>, CapacitySource);

/// Sets limits as a configuration does: stronger than what workers and submits say, weaker than
/// an operator. Gives those that an operator holds. A job gets its limit once it exists.
pub(crate) async fn apply_limits(
    opened: &StoreHandle,
    limits: &BTreeMap<String, u32>,
) -> Result<Vec<OverriddenLimit>> {
    let group = |(name, capacity): (&String, &u32)| {
        Some((name.strip_prefix(&LimitScope::Group.limit_name(""))?.to_owned(), *capacity))
    };
    let groups: Vec<(String, u32)> = limits.iter().filter_map(group).collect();
    let mut overruled = Vec::new();
    if !groups.is_empty() {
        let source = Some(CapacitySource::Configuration);
        let registration = Registration { limits: groups, source, ..Registration::default() };
        overruled = opened.store.register(registration).await?.overridden_limits;
    }
    overruled.extend(apply_job_limits(opened, limits).await?);
    Ok(overruled)
}

/// Sets the limits of those jobs that exist.
pub(crate) async fn apply_job_limits(
    opened: &StoreHandle,
    limits: &BTreeMap<String, u32>,
) -> Result<Vec<OverriddenLimit>> {
    let is_job =
        |(name, _): &(&String, &u32)| LimitScope::from_limit_name(name) == Some(LimitScope::Job);
    let jobs: Vec<(&String, &u32)> = limits.iter().filter(is_job).collect();
    let mut overruled = Vec::new();
    if jobs.is_empty() {
        return Ok(overruled);
    }
    let known = opened.reader.limits().await?;
    for (name, capacity) in jobs {
        let is_it = |limit: &&Limit| *limit.name == **name;
        let Some(limit) = known.iter().find(is_it) else { continue };
        let (capacity, source) = (Some(*capacity), CapacitySource::Configuration);
        let set = SetLimit { name: name.clone(), capacity, source };
        let is_set = opened.store.set_limit(set).await?.is_some();
        if !is_set && limit.capacity != capacity {
            overruled.push((name.clone(), limit.capacity, limit.source));
        }
    }
    Ok(overruled)
}

/// Says which limits stay as somebody else set them.
pub(crate) fn print_overridden_limits(overruled: Vec<OverriddenLimit>) {
    for (name, capacity, by) in overruled {
        let capacity = capacity.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
        print_message!("note: the limit of {name:?} stays {capacity}, set by {by}");
    }
}

/// Says which limits of other workers are replaced.
pub(crate) fn print_replaced_limits(changed: Vec<RegisteredCapacityChange>) {
    for RegisteredCapacityChange { group, before, after, other_workers: others } in changed {
        let after = after.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
        let others = match others {
            0 => String::new(),
            1 => "; 1 live worker brings another".to_owned(),
            n => format!("; {n} live workers bring another"),
        };
        print_message!(
            "warning: the limit of {group:?} was {before} and is {after} now: of what live workers \
             bring the latest counts{others}"
        );
    }
}
