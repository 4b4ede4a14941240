//! Which kinds to ask for, and how many: kinds may have a cap on this worker.
//!
//! A claim names kinds and one number. To never get more of a capped kind than there is room
//! for, a kind with less room than the worker has permits is asked for in a claim of its own
//! (the narrow one), no larger than its room. Without caps there is only the wide claim.

use std::sync::Arc;

/// The two sorts of claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimScope {
    AnyKind,
    CappedKinds,
}

/// What to ask for. Room and permits for it are taken before the claim is sent.
#[derive(Debug)]
pub(crate) struct ClaimPlan {
    pub(crate) scope: ClaimScope,
    pub(crate) kinds: Arc<[Arc<str>]>,
    pub(crate) tasks_max: u32,
    capped_handlers: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct ClaimPlanner {
    kinds: Arc<[Arc<str>]>,
    /// By handler.
    capacities: Vec<Option<KindCapacity>>,
    has_caps: bool,
}

#[derive(Debug)]
struct KindCapacity {
    concurrency: u32,
    in_use: u32,
}

impl ClaimPlanner {
    /// Kinds with their caps, by handler.
    pub(crate) fn new(kinds: impl Iterator<Item = (Arc<str>, Option<u32>)>) -> Self {
        let (kinds, capacities): (Vec<_>, Vec<_>) = kinds
            .map(|(kind, max)| (kind, max.map(|max| KindCapacity { concurrency: max, in_use: 0 })))
            .unzip();
        let has_caps = capacities.iter().any(Option::is_some);
        Self { kinds: kinds.into(), capacities, has_caps }
    }

    /// What can be asked for with so many permits.
    pub(crate) fn plan(&self, scope: ClaimScope, budget: u32) -> Option<ClaimPlan> {
        if budget == 0 {
            return None;
        }
        if !self.has_caps {
            let wide = ClaimPlan {
                scope,
                kinds: self.kinds.clone(),
                tasks_max: budget,
                capped_handlers: vec![],
            };
            return (scope == ClaimScope::AnyKind).then_some(wide);
        }
        let wanted = |room: u32| match scope {
            ClaimScope::AnyKind => room >= budget,
            ClaimScope::CappedKinds => (1..budget).contains(&room),
        };
        let chosen: Vec<usize> = (0..self.capacities.len())
            .filter(|handler| wanted(self.free_capacity(*handler)))
            .collect();
        let least = chosen.iter().map(|handler| self.free_capacity(*handler)).min()?;
        Some(ClaimPlan {
            scope,
            kinds: chosen.iter().map(|handler| self.kinds[*handler].clone()).collect(),
            tasks_max: least.min(budget),
            capped_handlers: chosen
                .into_iter()
                .filter(|handler| self.capacities[*handler].is_some())
                .collect(),
        })
    }

    pub(crate) fn reserve(&mut self, plan: &ClaimPlan) {
        plan.capped_handlers.iter().for_each(|handler| self.acquire(*handler, plan.tasks_max));
    }

    pub(crate) fn release_reservation(&mut self, plan: &ClaimPlan) {
        plan.capped_handlers.iter().for_each(|handler| self.release(*handler, plan.tasks_max));
    }

    pub(crate) fn acquire(&mut self, handler_index: usize, tasks: u32) {
        if let Some(room) = &mut self.capacities[handler_index] {
            room.in_use += tasks;
        }
    }

    pub(crate) fn release(&mut self, handler_index: usize, tasks: u32) {
        if let Some(room) = &mut self.capacities[handler_index] {
            room.in_use = room.in_use.saturating_sub(tasks);
        }
    }

    fn free_capacity(&self, handler_index: usize) -> u32 {
        self.capacities[handler_index]
            .as_ref()
            .map_or(u32::MAX, |room| room.concurrency.saturating_sub(room.in_use))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_names(plan: &ClaimPlan) -> Vec<&str> {
        plan.kinds.iter().map(|kind| &**kind).collect()
    }

    #[test]
    fn kind_with_little_free_capacity_is_claimed_alone() {
        let mut rooms =
            ClaimPlanner::new([("free".into(), None), ("capped".into(), Some(2))].into_iter());
        let wide = rooms.plan(ClaimScope::AnyKind, 10).unwrap();
        assert_eq!((kind_names(&wide), wide.tasks_max), (vec!["free"], 10));
        let narrow = rooms.plan(ClaimScope::CappedKinds, 10).unwrap();
        assert_eq!((kind_names(&narrow), narrow.tasks_max), (vec!["capped"], 2));
        let last = rooms.plan(ClaimScope::AnyKind, 2).unwrap();
        assert_eq!(kind_names(&last), ["free", "capped"]);

        rooms.reserve(&narrow);
        assert!(rooms.plan(ClaimScope::CappedKinds, 10).is_none(), "a full kind is left out");
        rooms.release_reservation(&narrow);
        rooms.acquire(1, 1);
        assert_eq!(rooms.plan(ClaimScope::CappedKinds, 10).unwrap().tasks_max, 1);
    }

    #[test]
    fn planner_without_caps_plans_one_claim() {
        let rooms = ClaimPlanner::new([("a".into(), None), ("b".into(), None)].into_iter());
        assert!(rooms.plan(ClaimScope::CappedKinds, 5).is_none());
        assert_eq!(rooms.plan(ClaimScope::AnyKind, 5).unwrap().tasks_max, 5);
        assert!(rooms.plan(ClaimScope::AnyKind, 0).is_none());
    }
}
