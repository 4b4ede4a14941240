use super::gate;
use crate::planted::{Bug, is_planted};
use crate::tables::Tables;
use crate::{Error, Limit, LimitId, Result, Scope, SetLimit, Source, check_capacity, name};

/// Sets or unsets a capacity. Lowering drains: no slot is taken while more than the new
/// capacity would be held, and what runs is not touched. What has not begun goes back to the line.
pub fn set_limit(tables: &mut dyn Tables, set: &SetLimit) -> Result<Option<i64>> {
    let version = set_without_settling(tables, set)?;
    let mut budget = tables.gate_budget();
    gate::settle(tables, &mut budget)?;
    Ok(version)
}

/// Sets a capacity and lets nobody through yet. Who changes several capacities in one step
/// settles after the last: a task let through in between could take a slot of a limit that the
/// same commit lowers.
pub(super) fn set_without_settling(tables: &mut dyn Tables, set: &SetLimit) -> Result<Option<i64>> {
    check(set)?;
    let Some(id) = tables.limit_named(&set.name)? else {
        return match set.capacity {
            Some(capacity) => begin(tables, set, capacity).map(Some),
            None => Ok(Some(0)),
        };
    };
    let Some(mut limit) = tables.limit(id)? else {
        return Ok(None);
    };
    let replaced = match set.capacity {
        Some(capacity) => replace(&mut limit, capacity, set.source),
        None => unset(&mut limit, set.source),
    };
    tables.put_limit(&limit)?;
    Ok(replaced.then_some(limit.version))
}

fn check(set: &SetLimit) -> Result<()> {
    let (scope, of) = set.name.split_once(':').unwrap_or(("", ""));
    name::check("name of the limit", of)?;
    if !matches!(Scope::of(&set.name), Some(Scope::Group | Scope::Job)) {
        return Err(Error::invalid(format!(
            "{scope:?} limits cannot be set; name it group:NAME or job:NAME"
        )));
    }
    set.capacity.map_or(Ok(0), |capacity| check_capacity(&set.name, i64::from(capacity)))?;
    Ok(())
}

/// A limit where none was. Ready tasks go back to the gate when claim meets them, and what
/// already runs counts from now on.
fn begin(tables: &mut dyn Tables, set: &SetLimit, capacity: u32) -> Result<i64> {
    let Some(group) = set.name.strip_prefix("group:") else {
        return Err(Error::invalid(format!(
            "there is no {:?}; a job's limit can be set once the job exists",
            set.name
        )));
    };
    let mut counters = tables.counters()?;
    counters.limits_version += 1;
    tables.set_counters(counters)?;
    let since = counters.limits_version;
    let id = tables.make_limit(&set.name, Some(capacity), set.source, since, None)?;
    adopt_running(tables, group, id)?;
    Ok(1)
}

fn adopt_running(tables: &mut dyn Tables, group: &str, id: LimitId) -> Result<()> {
    for (task, token) in tables.running_in_group(group)? {
        let (Some(tags), Some(mut limit)) = (tables.tags(task)?, tables.limit(id)?) else {
            continue;
        };
        tables.take_slots(task, id, tags.weight)?;
        tables.set_gated(task, token)?;
        limit.held += tags.weight;
        tables.put_limit(&limit)?;
    }
    Ok(())
}

fn replace(limit: &mut Limit, capacity: u32, source: Source) -> bool {
    if source != Source::Operator && source.replaces(limit.base.map_or(Source::Unset, |b| b.1)) {
        limit.base = Some((capacity, source));
    }
    if !source.replaces(limit.source) {
        return false;
    }
    if (limit.capacity, limit.source) != (Some(capacity), source) {
        change(limit, Some(capacity), source);
    }
    true
}

fn unset(limit: &mut Limit, by: Source) -> bool {
    if limit.source > by {
        return false;
    }
    // An operator's unset takes away what is in force. What lies below an operator's setting
    // holds again; below any other there is nothing.
    let is_in_force = by == Source::Operator && limit.source < by;
    if is_in_force || by == limit.base.map_or(Source::Unset, |base| base.1) {
        limit.base = None;
    }
    let (capacity, source) = match limit.base {
        Some((capacity, source)) => (Some(capacity), source),
        None => (None, Source::Unset),
    };
    if (limit.capacity, limit.source) != (capacity, source) {
        change(limit, capacity, source);
    }
    true
}

/// Replaces what is registered, or takes it away, also where somebody stronger is in force.
pub(super) fn put_registered(limit: &mut Limit, capacity: Option<u32>) {
    limit.base = capacity.map(|capacity| (capacity, Source::Registration));
    if limit.source == Source::Registration {
        let source = limit.base.map_or(Source::Unset, |base| base.1);
        change(limit, capacity, source);
    }
}

fn change(limit: &mut Limit, capacity: Option<u32>, source: Source) {
    // A job's limit stays as long as the job does, also unlimited.
    let source = if limit.share.is_some() { source.max(Source::Submit) } else { source };
    limit.capacity = capacity;
    limit.source = source;
    limit.version += 1;
    limit.changed();
    if is_planted(Bug::LoweringForgets) {
        limit.held = limit.held.min(capacity.unwrap_or(limit.held));
    }
}
