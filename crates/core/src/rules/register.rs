use super::admission;
use super::set_limit::{set_limit_without_admission, set_registered_capacity};
use crate::tables::Tables;
use crate::{
    CapacitySource, Limit, LimitScope, RegisterReply, RegisteredCapacityChange, Registration,
    Result, SetLimit, WorkerId,
};

/// Makes kinds and the limits of their groups known.
pub fn register(tables: &mut dyn Tables, registration: &Registration) -> Result<RegisterReply> {
    // Refusals come before the first write, so that a refused registration leaves no trace.
    registration.check()?;
    put_kinds(tables, registration)?;
    if let Some(worker) = &registration.worker {
        tables.record_live_worker(worker, tables.now() + registration.lease_ms, None)?;
        tables.put_registrations(worker, &registration.group_capacities())?;
    }
    let mut registered = RegisterReply::default();
    for (group, capacity) in &registration.limits {
        set_registered_limit(tables, registration, group, *capacity, &mut registered)?;
    }
    if registration.worker.is_some() {
        for (group, _) in
            registration.group_capacities().iter().filter(|(_, capacity)| capacity.is_none())
        {
            registered.changed_capacities.extend(resolve_registered_capacity(tables, group)?);
        }
    }
    let mut budget = tables.admission_budget();
    admission::admit_from_dirty_limits(tables, &mut budget)?;
    Ok(registered)
}

fn put_kinds(tables: &mut dyn Tables, registration: &Registration) -> Result<()> {
    let by_worker = registration.worker.is_some();
    for kind in &registration.kinds {
        tables.put_kind(kind, by_worker)?;
    }
    for kind in &registration.default_kinds {
        if tables.kind(&kind.name)?.is_none() {
            tables.put_kind(kind, by_worker)?;
        }
    }
    for kind in registration.kinds.iter().chain(&registration.default_kinds) {
        tables.get_or_create_lane(&kind.queue, &kind.name)?;
    }
    Ok(())
}

fn set_registered_limit(
    tables: &mut dyn Tables,
    registration: &Registration,
    group: &str,
    capacity: u32,
    registered: &mut RegisterReply,
) -> Result<()> {
    let name = LimitScope::Group.limit_name(group);
    let source = registration.source.unwrap_or(CapacitySource::Registration);
    let before = locked_group_limit(tables, group)?.and_then(|limit| limit.registered_capacity());
    let set = SetLimit { name, capacity: Some(capacity), source };
    let is_set = set_limit_without_admission(tables, &set)?.is_some();
    let Some(limit) = locked_group_limit(tables, group)? else { return Ok(()) };
    if !is_set && limit.capacity != Some(capacity) {
        registered.overridden_limits.push((group.to_owned(), limit.capacity, limit.source));
    }
    if let Some(before) = before.filter(|before| *before != capacity)
        && limit.registered_capacity() == Some(capacity)
    {
        let worker = registration.worker.as_ref();
        registered.changed_capacities.push(capacity_change(
            tables,
            group,
            before,
            Some(capacity),
            worker,
        )?);
    }
    Ok(())
}

/// Looks again at what is registered for a group: the word of the live workers counts, and of
/// several the latest that brings a limit. Where no live worker says anything about the group,
/// what was said last stays: a fleet that is down keeps its limits. Nobody is let through yet.
pub fn resolve_registered_capacity(
    tables: &mut dyn Tables,
    group: &str,
) -> Result<Option<RegisteredCapacityChange>> {
    let Some(mut limit) = locked_group_limit(tables, group)? else { return Ok(None) };
    let Some(before) = limit.registered_capacity() else { return Ok(None) };
    let said = tables.registrations(group)?;
    let after = said.iter().rev().find_map(|(_, capacity)| *capacity);
    if said.is_empty() || after == Some(before) {
        return Ok(None);
    }
    set_registered_capacity(&mut limit, after);
    tables.put_limit(&limit)?;
    capacity_change(tables, group, before, after, None).map(Some)
}

/// What was registered for a group goes with its kind.
pub fn clear_registered_capacity(tables: &mut dyn Tables, group: &str) -> Result<()> {
    if let Some(mut limit) = locked_group_limit(tables, group)?
        && limit.registered_capacity().is_some()
    {
        set_registered_capacity(&mut limit, None);
        tables.put_limit(&limit)?;
    }
    Ok(())
}

fn capacity_change(
    tables: &mut dyn Tables,
    group: &str,
    before: u32,
    after: Option<u32>,
    worker: Option<&WorkerId>,
) -> Result<RegisteredCapacityChange> {
    let said = tables.registrations(group)?;
    let others = said
        .iter()
        .filter(|(other, brought)| Some(other) != worker && brought.is_some() && *brought != after);
    let others = others.count() as u32;
    Ok(RegisteredCapacityChange { group: group.to_owned(), before, after, other_workers: others })
}

fn locked_group_limit(tables: &mut dyn Tables, group: &str) -> Result<Option<Limit>> {
    match tables.limit_id(&LimitScope::Group.limit_name(group))? {
        Some(id) => tables.locked_limit(id),
        None => Ok(None),
    }
}
