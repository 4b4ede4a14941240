//! Which kinds to ask for, and how many: kinds may have a cap on this worker.
//!
//! A claim names kinds and one number. To never get more of a capped kind than there is room
//! for, a kind with less room than the worker has permits is asked for in a claim of its own
//! (the narrow one), no larger than its room. Without caps there is only the wide claim.

use std::sync::Arc;

/// The two sorts of claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Wide,
    Narrow,
}

/// What to ask for. Room and permits for it are taken before the claim is sent.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) turn: Turn,
    pub(crate) kinds: Arc<[Arc<str>]>,
    pub(crate) tasks_max: u32,
    capped: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Rooms {
    kinds: Arc<[Arc<str>]>,
    /// By handler.
    rooms: Vec<Option<Room>>,
    has_caps: bool,
}

#[derive(Debug)]
struct Room {
    max: u32,
    taken: u32,
}

impl Rooms {
    /// Kinds with their caps, by handler.
    pub(crate) fn new(kinds: impl Iterator<Item = (Arc<str>, Option<u32>)>) -> Self {
        let (kinds, rooms): (Vec<_>, Vec<_>) =
            kinds.map(|(kind, max)| (kind, max.map(|max| Room { max, taken: 0 }))).unzip();
        let has_caps = rooms.iter().any(Option::is_some);
        Self { kinds: kinds.into(), rooms, has_caps }
    }

    /// What can be asked for with so many permits.
    pub(crate) fn plan(&self, turn: Turn, permits: u32) -> Option<Plan> {
        if permits == 0 {
            return None;
        }
        if !self.has_caps {
            let wide = Plan { turn, kinds: self.kinds.clone(), tasks_max: permits, capped: vec![] };
            return (turn == Turn::Wide).then_some(wide);
        }
        let wanted = |room: u32| match turn {
            Turn::Wide => room >= permits,
            Turn::Narrow => (1..permits).contains(&room),
        };
        let chosen: Vec<usize> =
            (0..self.rooms.len()).filter(|handler| wanted(self.room(*handler))).collect();
        let least = chosen.iter().map(|handler| self.room(*handler)).min()?;
        Some(Plan {
            turn,
            kinds: chosen.iter().map(|handler| self.kinds[*handler].clone()).collect(),
            tasks_max: least.min(permits),
            capped: chosen.into_iter().filter(|handler| self.rooms[*handler].is_some()).collect(),
        })
    }

    pub(crate) fn reserve(&mut self, plan: &Plan) {
        plan.capped.iter().for_each(|handler| self.take(*handler, plan.tasks_max));
    }

    pub(crate) fn unreserve(&mut self, plan: &Plan) {
        plan.capped.iter().for_each(|handler| self.give_back(*handler, plan.tasks_max));
    }

    pub(crate) fn take(&mut self, handler: usize, tasks: u32) {
        if let Some(room) = &mut self.rooms[handler] {
            room.taken += tasks;
        }
    }

    pub(crate) fn give_back(&mut self, handler: usize, tasks: u32) {
        if let Some(room) = &mut self.rooms[handler] {
            room.taken = room.taken.saturating_sub(tasks);
        }
    }

    fn room(&self, handler: usize) -> u32 {
        self.rooms[handler].as_ref().map_or(u32::MAX, |room| room.max.saturating_sub(room.taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(plan: &Plan) -> Vec<&str> {
        plan.kinds.iter().map(|kind| &**kind).collect()
    }

    #[test]
    fn a_kind_with_little_room_is_asked_for_alone() {
        let mut rooms = Rooms::new([("free".into(), None), ("capped".into(), Some(2))].into_iter());
        let wide = rooms.plan(Turn::Wide, 10).unwrap();
        assert_eq!((names(&wide), wide.tasks_max), (vec!["free"], 10));
        let narrow = rooms.plan(Turn::Narrow, 10).unwrap();
        assert_eq!((names(&narrow), narrow.tasks_max), (vec!["capped"], 2));
        let last = rooms.plan(Turn::Wide, 2).unwrap();
        assert_eq!(names(&last), ["free", "capped"]);

        rooms.reserve(&narrow);
        assert!(rooms.plan(Turn::Narrow, 10).is_none(), "a full kind is left out");
        rooms.unreserve(&narrow);
        rooms.take(1, 1);
        assert_eq!(rooms.plan(Turn::Narrow, 10).unwrap().tasks_max, 1);
    }

    #[test]
    fn without_caps_there_is_one_claim() {
        let rooms = Rooms::new([("a".into(), None), ("b".into(), None)].into_iter());
        assert!(rooms.plan(Turn::Narrow, 5).is_none());
        assert_eq!(rooms.plan(Turn::Wide, 5).unwrap().tasks_max, 5);
        assert!(rooms.plan(Turn::Wide, 0).is_none());
    }
}
