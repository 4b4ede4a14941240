use super::gate;
use super::set_limit::{put_registered, set_without_settling};
use crate::tables::Tables;
use crate::{
    Limit, Registered, RegisteredChange, Registration, Result, Scope, SetLimit, Source, WorkerId,
};

/// Makes kinds and the limits of their groups known.
pub fn register(tables: &mut dyn Tables, registration: &Registration) -> Result<Registered> {
    // Refusals come before the first write, so that a refused registration leaves no trace.
    registration.check()?;
    put_kinds(tables, registration)?;
    if let Some(worker) = &registration.worker {
        tables.see_worker(worker, tables.now() + registration.lease_ms, None)?;
        tables.put_registrations(worker, &registration.said())?;
    }
    let mut registered = Registered::default();
    for (group, capacity) in &registration.limits {
        set(tables, registration, group, *capacity, &mut registered)?;
    }
    if registration.worker.is_some() {
        for (group, _) in registration.said().iter().filter(|(_, capacity)| capacity.is_none()) {
            registered.changed.extend(reconsider(tables, group)?);
        }
    }
    let mut budget = tables.gate_budget();
    gate::settle(tables, &mut budget)?;
    Ok(registered)
}

fn put_kinds(tables: &mut dyn Tables, registration: &Registration) -> Result<()> {
    let by_worker = registration.worker.is_some();
    for kind in &registration.kinds {
        tables.put_kind(kind, by_worker)?;
    }
    for kind in &registration.defaults {
        if tables.kind(&kind.name)?.is_none() {
            tables.put_kind(kind, by_worker)?;
        }
    }
    for kind in registration.kinds.iter().chain(&registration.defaults) {
        tables.lane(&kind.queue, &kind.name)?;
    }
    Ok(())
}

fn set(
    tables: &mut dyn Tables,
    registration: &Registration,
    group: &str,
    capacity: u32,
    registered: &mut Registered,
) -> Result<()> {
    let name = Scope::Group.name(group);
    let source = registration.source.unwrap_or(Source::Registration);
    let before = group_limit(tables, group)?.and_then(|limit| limit.registered());
    let set = SetLimit { name, capacity: Some(capacity), source };
    let is_set = set_without_settling(tables, &set)?.is_some();
    let Some(limit) = group_limit(tables, group)? else { return Ok(()) };
    if !is_set && limit.capacity != Some(capacity) {
        registered.overruled.push((group.to_owned(), limit.capacity, limit.source));
    }
    if let Some(before) = before.filter(|before| *before != capacity)
        && limit.registered() == Some(capacity)
    {
        let worker = registration.worker.as_ref();
        registered.changed.push(change(tables, group, before, Some(capacity), worker)?);
    }
    Ok(())
}

/// Looks again at what is registered for a group: the word of the live workers counts, and of
/// several the latest that brings a limit. Where no live worker says anything about the group,
/// what was said last stays: a fleet that is down keeps its limits. Nobody is let through yet.
pub fn reconsider(tables: &mut dyn Tables, group: &str) -> Result<Option<RegisteredChange>> {
    let Some(mut limit) = group_limit(tables, group)? else { return Ok(None) };
    let Some(before) = limit.registered() else { return Ok(None) };
    let said = tables.registrations(group)?;
    let after = said.iter().rev().find_map(|(_, capacity)| *capacity);
    if said.is_empty() || after == Some(before) {
        return Ok(None);
    }
    put_registered(&mut limit, after);
    tables.put_limit(&limit)?;
    change(tables, group, before, after, None).map(Some)
}

/// What was registered for a group goes with its kind.
pub fn forget_registered(tables: &mut dyn Tables, group: &str) -> Result<()> {
    if let Some(mut limit) = group_limit(tables, group)?
        && limit.registered().is_some()
    {
        put_registered(&mut limit, None);
        tables.put_limit(&limit)?;
    }
    Ok(())
}

fn change(
    tables: &mut dyn Tables,
    group: &str,
    before: u32,
    after: Option<u32>,
    worker: Option<&WorkerId>,
) -> Result<RegisteredChange> {
    let said = tables.registrations(group)?;
    let others = said
        .iter()
        .filter(|(other, brought)| Some(other) != worker && brought.is_some() && *brought != after);
    let others = others.count() as u32;
    Ok(RegisteredChange { group: group.to_owned(), before, after, others })
}

fn group_limit(tables: &mut dyn Tables, group: &str) -> Result<Option<Limit>> {
    match tables.limit_named(&Scope::Group.name(group))? {
        Some(id) => tables.limit(id),
        None => Ok(None),
    }
}
