use super::gate;
use super::set_limit::set_without_settling;
use crate::bounds::{BATCH_MAX, check_number};
use crate::tables::Tables;
use crate::{Registered, Registration, Result, Scope, SetLimit, Source, check_capacity, name};

/// Makes kinds and the limits of their groups known.
pub fn register(tables: &mut dyn Tables, registration: &Registration) -> Result<Registered> {
    // Refusals come before the first write, so that a refused registration leaves no trace.
    let kinds = registration.kinds.len() + registration.defaults.len();
    check_number("kinds", kinds, BATCH_MAX)?;
    check_number("limits", registration.limits.len(), BATCH_MAX)?;
    for (group, capacity) in &registration.limits {
        name::check("group", group)?;
        check_capacity(group, i64::from(*capacity))?;
    }
    let mut kinds = registration.kinds.iter().chain(&registration.defaults);
    kinds.try_for_each(|kind| kind.check())?;
    for kind in &registration.kinds {
        tables.put_kind(kind)?;
    }
    for kind in &registration.defaults {
        if tables.kind(&kind.name)?.is_none() {
            tables.put_kind(kind)?;
        }
    }
    for kind in registration.kinds.iter().chain(&registration.defaults) {
        tables.lane(&kind.queue, &kind.name)?;
    }
    let mut registered = Registered::default();
    for (group, capacity) in &registration.limits {
        let name = Scope::Group.name(group);
        let source = registration.source.unwrap_or(Source::Registration);
        let set = SetLimit { name: name.clone(), capacity: Some(*capacity), source };
        if set_without_settling(tables, &set)?.is_some() {
            continue;
        }
        if let Some(id) = tables.limit_named(&name)?
            && let Some(limit) = tables.limit(id)?
            && limit.capacity != Some(*capacity)
        {
            registered.overruled.push((group.clone(), limit.capacity, limit.source));
        }
    }
    let mut budget = tables.gate_budget();
    gate::settle(tables, &mut budget)?;
    Ok(registered)
}
