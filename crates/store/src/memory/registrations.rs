//! What workers say of groups, and the kinds that nobody registers any more.

use std::sync::Arc;

use tidegate_core::tables::Said;
use tidegate_core::{Kind, Limit, Millis, Scope, Source, WorkerId};

use super::State;

pub(super) fn put(state: &mut State, worker: &WorkerId, said: &Said<'_>) {
    state.registrations.retain(|_, notes| {
        notes.retain(|(other, _)| other != worker);
        true
    });
    for (group, capacity) in said {
        let notes = state.registrations.get_or_insert_with((*group).into(), Vec::new);
        notes.push((worker.clone(), *capacity));
    }
}

/// Notes go with their workers.
pub(super) fn retain_known(state: &mut State) {
    let workers = &state.workers;
    state.registrations.retain(|_, notes| {
        notes.retain(|(worker, _)| workers.contains_key(worker));
        !notes.is_empty()
    });
}

pub(super) fn live(state: &State, group: &str) -> Vec<(WorkerId, Option<u32>)> {
    let notes = state.registrations.get(group).into_iter().flatten();
    notes.filter(|(worker, _)| is_alive(state, worker)).cloned().collect()
}

fn is_alive(state: &State, worker: &WorkerId) -> bool {
    state.workers.get(worker).is_some_and(|worker| worker.alive_until > state.now)
}

pub(super) fn groups(state: &State) -> Vec<Arc<str>> {
    let is_live = |group: &&Arc<str>| !live(state, group).is_empty();
    state.registrations.keys().filter(is_live).cloned().collect()
}

pub(super) fn see_kind(state: &mut State, kind: &Kind, by_worker: bool) {
    let is_workers = match state.kinds.contains_key(&kind.name) {
        true => state.kinds_seen.contains_key(&kind.name),
        false => true,
    };
    if by_worker && is_workers {
        state.kinds_seen.insert(kind.name.clone(), state.now);
    } else {
        state.kinds_seen.remove(&kind.name);
    }
}

pub(super) fn forget_kinds(state: &mut State, before: Millis) -> Vec<Arc<str>> {
    let old = state.kinds_seen.iter().filter(|(_, seen)| **seen < before);
    let old: Vec<Arc<str>> = old.map(|(kind, _)| kind.clone()).collect();
    let (used, unused): (Vec<_>, Vec<_>) = old.into_iter().partition(|kind| is_used(state, kind));
    for kind in used {
        state.kinds_seen.insert(kind, state.now);
    }
    for kind in &unused {
        state.kinds.remove(kind);
        state.kinds_seen.remove(kind);
    }
    unused
}

fn is_used(state: &State, kind: &Arc<str>) -> bool {
    let mut of_kind = state.lanes.iter().filter(|((_, of), _)| of == kind).map(|(_, lane)| lane);
    let is_served = |lane| {
        let serves = |until: &Millis| *until > state.now;
        state.workers.values().any(|worker| worker.lanes.get(lane).is_some_and(serves))
    };
    let is_free = |limit: &Limit| {
        let is_registered = |source| matches!(source, Source::Unset | Source::Registration);
        let base = limit.base.map_or(Source::Unset, |base| base.1);
        let is_idle = limit.held == 0 && limit.waiting == 0;
        is_registered(limit.source) && is_registered(base) && is_idle
    };
    let limit = state.limit_names.get(&*Scope::Group.name(kind));
    let limit = limit.and_then(|id| state.limits.get(id));
    !live(state, kind).is_empty()
        || of_kind.any(is_served)
        || state.tasks.values().any(|task| task.tags.kind == *kind)
        || limit.is_some_and(|limit| !is_free(limit))
}
