//! What workers say of groups, and the kinds that nobody registers any more.

use std::sync::Arc;

use tidegate_core::tables::GroupCapacities;
use tidegate_core::{CapacitySource, Kind, Limit, LimitScope, Millis, WorkerId};

use super::WorkingState;

pub(super) fn replace_registrations(
    state: &mut WorkingState,
    worker: &WorkerId,
    capacities: &GroupCapacities<'_>,
) {
    state.registrations.retain(|_, notes| {
        notes.retain(|(other, _)| other != worker);
        true
    });
    for (group, capacity) in capacities {
        let notes = state.registrations.get_or_insert_with((*group).into(), Vec::new);
        notes.push((worker.clone(), *capacity));
    }
}

/// Notes go with their workers.
pub(super) fn remove_orphan_registrations(state: &mut WorkingState) {
    let workers = &state.workers;
    state.registrations.retain(|_, notes| {
        notes.retain(|(worker, _)| workers.contains_key(worker));
        !notes.is_empty()
    });
}

pub(super) fn live_registrations(
    state: &WorkingState,
    group: &str,
) -> Vec<(WorkerId, Option<u32>)> {
    let notes = state.registrations.get(group).into_iter().flatten();
    notes.filter(|(worker, _)| is_worker_alive(state, worker)).cloned().collect()
}

fn is_worker_alive(state: &WorkingState, worker: &WorkerId) -> bool {
    state.workers.get(worker).is_some_and(|worker| worker.alive_until > state.now)
}

pub(super) fn live_registered_groups(state: &WorkingState) -> Vec<Arc<str>> {
    let is_live = |group: &&Arc<str>| !live_registrations(state, group).is_empty();
    state.registrations.keys().filter(is_live).cloned().collect()
}

pub(super) fn record_kind_registration(state: &mut WorkingState, kind: &Kind, by_worker: bool) {
    let is_workers = match state.kinds.contains_key(&kind.name) {
        true => state.kinds_registered_at.contains_key(&kind.name),
        false => true,
    };
    if by_worker && is_workers {
        state.kinds_registered_at.insert(kind.name.clone(), state.now);
    } else {
        state.kinds_registered_at.remove(&kind.name);
    }
}

pub(super) fn remove_unused_kinds(state: &mut WorkingState, before: Millis) -> Vec<Arc<str>> {
    let old = state.kinds_registered_at.iter().filter(|(_, seen)| **seen < before);
    let old: Vec<Arc<str>> = old.map(|(kind, _)| kind.clone()).collect();
    let (used, unused): (Vec<_>, Vec<_>) =
        old.into_iter().partition(|kind| is_kind_used(state, kind));
    for kind in used {
        state.kinds_registered_at.insert(kind, state.now);
    }
    for kind in &unused {
        state.kinds.remove(kind);
        state.kinds_registered_at.remove(kind);
    }
    unused
}

fn is_kind_used(state: &WorkingState, kind: &Arc<str>) -> bool {
    let mut of_kind = state.lanes.iter().filter(|((_, of), _)| of == kind).map(|(_, lane)| lane);
    let is_served = |lane| {
        let serves = |until: &Millis| *until > state.now;
        state.workers.values().any(|worker| worker.lanes_served_until.get(lane).is_some_and(serves))
    };
    let is_free = |limit: &Limit| {
        let is_registered =
            |source| matches!(source, CapacitySource::Unset | CapacitySource::Registration);
        let base = limit.capacity_without_override.map_or(CapacitySource::Unset, |base| base.1);
        let is_idle = limit.held == 0 && limit.waiting == 0;
        is_registered(limit.source) && is_registered(base) && is_idle
    };
    let limit = state.limit_ids_by_name.get(&*LimitScope::Group.limit_name(kind));
    let limit = limit.and_then(|id| state.limits.get(id));
    !live_registrations(state, kind).is_empty()
        || of_kind.any(is_served)
        || state.tasks.values().any(|task| task.info.kind == *kind)
        || limit.is_some_and(|limit| !is_free(limit))
}
