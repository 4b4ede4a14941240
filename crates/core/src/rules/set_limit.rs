use super::admission;
use crate::fault_injection::{InjectedBug, is_injected};
use crate::tables::Tables;
use crate::{
    CapacitySource, Error, Limit, LimitId, LimitScope, Result, SetLimit, check_capacity, name,
};

/// Sets or unsets a capacity. Lowering drains: no slot is taken while more than the new
/// capacity would be held, and what runs is not touched. What has not begun goes back to the line.
pub fn set_limit(tables: &mut dyn Tables, set: &SetLimit) -> Result<Option<i64>> {
    let version = set_limit_without_admission(tables, set)?;
    let mut budget = tables.admission_budget();
    admission::admit_from_dirty_limits(tables, &mut budget)?;
    Ok(version)
}

/// Sets a capacity and lets nobody through yet. Who changes several capacities in one step
/// settles after the last: a task let through in between could take a slot of a limit that the
/// same commit lowers.
pub(super) fn set_limit_without_admission(
    tables: &mut dyn Tables,
    set: &SetLimit,
) -> Result<Option<i64>> {
    check_set_limit(set)?;
    let Some(id) = tables.limit_id(&set.name)? else {
        return match set.capacity {
            Some(capacity) => create_group_limit(tables, set, capacity).map(Some),
            None => Ok(Some(0)),
        };
    };
    let Some(mut limit) = tables.locked_limit(id)? else {
        return Ok(None);
    };
    let replaced = match set.capacity {
        Some(capacity) => set_capacity(&mut limit, capacity, set.source),
        None => unset_capacity(&mut limit, set.source),
    };
    tables.put_limit(&limit)?;
    Ok(replaced.then_some(limit.version))
}

fn check_set_limit(set: &SetLimit) -> Result<()> {
    let (scope, of) = set.name.split_once(':').unwrap_or(("", ""));
    name::check("name of the limit", of)?;
    if !matches!(LimitScope::from_limit_name(&set.name), Some(LimitScope::Group | LimitScope::Job))
    {
        return Err(Error::invalid(format!(
            "{scope:?} limits cannot be set; name it group:NAME or job:NAME"
        )));
    }
    set.capacity.map_or(Ok(0), |capacity| check_capacity(&set.name, i64::from(capacity)))?;
    Ok(())
}

/// A limit where none was. Ready tasks go back to the gate when claim meets them, and what
/// already runs counts from now on.
fn create_group_limit(tables: &mut dyn Tables, set: &SetLimit, capacity: u32) -> Result<i64> {
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
    let id = tables.insert_limit(&set.name, Some(capacity), set.source, since, None)?;
    acquire_slots_for_running(tables, group, id)?;
    Ok(1)
}

fn acquire_slots_for_running(tables: &mut dyn Tables, group: &str, id: LimitId) -> Result<()> {
    for (task, token) in tables.running_tasks_of_group(group)? {
        let (Some(tags), Some(mut limit)) = (tables.task_info(task)?, tables.locked_limit(id)?)
        else {
            continue;
        };
        tables.acquire_slots(task, id, tags.weight)?;
        tables.set_holds_slots(task, token)?;
        limit.held += tags.weight;
        tables.put_limit(&limit)?;
    }
    Ok(())
}

fn set_capacity(limit: &mut Limit, capacity: u32, source: CapacitySource) -> bool {
    if source != CapacitySource::Operator
        && source
            .may_replace(limit.capacity_without_override.map_or(CapacitySource::Unset, |b| b.1))
    {
        limit.capacity_without_override = Some((capacity, source));
    }
    if !source.may_replace(limit.source) {
        return false;
    }
    if (limit.capacity, limit.source) != (Some(capacity), source) {
        apply_capacity(limit, Some(capacity), source);
    }
    true
}

fn unset_capacity(limit: &mut Limit, by: CapacitySource) -> bool {
    if limit.source > by {
        return false;
    }
    // An operator's unset takes away what is in force. What lies below an operator's setting
    // holds again; below any other there is nothing.
    let is_in_force = by == CapacitySource::Operator && limit.source < by;
    if is_in_force
        || by == limit.capacity_without_override.map_or(CapacitySource::Unset, |base| base.1)
    {
        limit.capacity_without_override = None;
    }
    let (capacity, source) = match limit.capacity_without_override {
        Some((capacity, source)) => (Some(capacity), source),
        None => (None, CapacitySource::Unset),
    };
    if (limit.capacity, limit.source) != (capacity, source) {
        apply_capacity(limit, capacity, source);
    }
    true
}

/// Replaces what is registered, or takes it away, also where somebody stronger is in force.
pub(super) fn set_registered_capacity(limit: &mut Limit, capacity: Option<u32>) {
    limit.capacity_without_override =
        capacity.map(|capacity| (capacity, CapacitySource::Registration));
    if limit.source == CapacitySource::Registration {
        let source = limit.capacity_without_override.map_or(CapacitySource::Unset, |base| base.1);
        apply_capacity(limit, capacity, source);
    }
}

fn apply_capacity(limit: &mut Limit, capacity: Option<u32>, source: CapacitySource) {
    // A job's limit stays as long as the job does, also unlimited.
    let source =
        if limit.fair_share.is_some() { source.max(CapacitySource::Submit) } else { source };
    limit.capacity = capacity;
    limit.source = source;
    limit.version += 1;
    limit.mark_dirty_after_change();
    if is_injected(InjectedBug::LoweredLimitForgetsHolders) {
        limit.held = limit.held.min(capacity.unwrap_or(limit.held));
    }
}
