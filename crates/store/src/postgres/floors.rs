//! Where the claims of this process begin to look.
//!
//! What was claimed stays in the index as a dead entry until the server has cleaned up, and a long
//! transaction of anybody's can put that off for hours. So a claim begins where the last one of its
//! process ended, lane by lane.
//!
//! Rows that become ready below such a floor are not missed for long. What this process puts there
//! itself lowers the floor at once. For what others put there, and for claims that were undone, a
//! claim looks from the start every now and then, after a notice, and before it says that there is
//! no more. Only where the dead are so many that such a look is dear, it is made for a small part of
//! the time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::LaneId;
use tidegate_core::tables::ReadyRow;

/// A look from the start is due after so long.
const DUE: Duration = Duration::from_millis(100);

/// While the quickest of the last few took no longer than this, it may be made at any time.
const CHEAP: Duration = Duration::from_millis(5);
const LAST: usize = 8;

/// Dear ones are so many times as far apart as they take.
const APART: u32 = 20;

/// So many claims after one that met tasks that are not plain reckon with more of them.
const SPECIAL: u32 = 4;

/// So many lanes are reckoned with before any were seen.
const LANES: usize = 16;

/// Lanes whose cursors are kept, and sent with a claim, at most: as many as one claim reads. Without a
/// cursor a claim reads a lane from its start.
const CURSORS_MAX: usize = 512;

/// A place in the order of a lane: rank, tag, task.
pub(super) type Key = (i64, i64, i64);

/// Nothing comes before it.
const START: Key = (i64::MIN, 0, 0);

pub(super) fn key(row: &ReadyRow) -> Key {
    (row.rank, row.tag, row.task.0)
}

/// Of ready rows in their order, the first of each lane.
pub(super) fn first_of_lanes<'a>(rows: impl Iterator<Item = &'a ReadyRow>) -> Vec<ReadyRow> {
    let mut firsts: Vec<ReadyRow> = Vec::new();
    for row in rows {
        if firsts.last().is_none_or(|last| last.lane != row.lane) {
            firsts.push(*row);
        }
    }
    firsts
}

#[expect(clippy::disallowed_methods, reason = "a floor is a guess; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

#[derive(Debug, Default)]
pub(super) struct Floors(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lanes: HashMap<LaneId, Lane>,
    /// The claims under way, and what was lowered since they began.
    under_way: HashMap<u64, HashMap<LaneId, Key>>,
    next: u64,
    /// How long the last looks from the start took on the server.
    costs: [Duration; LAST],
    /// How many claims still reckon with tasks that are not plain.
    special: u32,
    /// How often somebody has said that there is something somewhere.
    notices: u64,
    /// Nothing had come to the gate below this.
    arrived: Option<Arrived>,
    /// How often this process has brought something there.
    arrivals: u64,
    /// The most lanes that were open for anybody.
    lanes_open: usize,
    /// How often some of them were left out.
    parts: usize,
}

/// What is known of those who come to the gate.
#[derive(Debug, Clone, Copy)]
struct Arrived {
    floor: i64,
    looked_at: Instant,
    notices: u64,
}

/// What is known of a lane.
#[derive(Debug)]
struct Lane {
    floor: Key,
    /// When it was looked at from the start, and after how many notices that began.
    looked_at: Instant,
    notices: u64,
    /// Whether fewer were found than were wanted, from the floor.
    is_short: bool,
}

impl State {
    fn may_look_from_start(&self, lane: &Lane, now: Instant) -> bool {
        // Whatever else made one of them slow, the dead are in all of them.
        let cost = self.costs.into_iter().min().unwrap_or_default();
        cost <= CHEAP || now >= lane.looked_at + cost * APART
    }

    fn must_look_from_start(&self, lane: &Lane, now: Instant) -> bool {
        let is_due = now >= lane.looked_at + DUE;
        (is_due || lane.is_short || lane.notices < self.notices)
            && self.may_look_from_start(lane, now)
    }

    /// Drops the cursors that were longest not read from the start, down to three quarters of the bound.
    fn trim(&mut self) {
        if self.lanes.len() <= CURSORS_MAX {
            return;
        }
        let mut ages: Vec<(Instant, LaneId)> =
            self.lanes.iter().map(|(id, lane)| (lane.looked_at, *id)).collect();
        ages.sort_unstable();
        for (_, id) in ages.drain(..self.lanes.len() - CURSORS_MAX * 3 / 4) {
            self.lanes.remove(&id);
        }
    }

    /// Where to begin, without the lanes for which `is_from_start` holds.
    fn from(&self, is_from_start: impl Fn(&LaneId, &Lane) -> bool) -> From {
        let mut from = From::default();
        for (id, lane) in self.lanes.iter().filter(|(id, lane)| !is_from_start(id, lane)) {
            from.push(*id, lane.floor);
        }
        from
    }
}

impl Floors {
    /// Somebody else has made tasks ready.
    pub(super) fn ask(&self) {
        self.state().notices += 1;
    }

    /// This process has brought something to the gate.
    pub(super) fn arrive(&self) {
        let mut state = self.state();
        state.arrived = None;
        state.arrivals += 1;
    }

    /// Nothing is known any more.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.lanes.clear();
        state.arrived = None;
    }

    /// These have become ready, and are committed.
    pub(super) fn lower<'a>(&self, rows: impl IntoIterator<Item = &'a ReadyRow>) {
        let mut state = self.state();
        let State { lanes, under_way, .. } = &mut *state;
        for row in rows {
            let lower = |floor: &mut Key| *floor = (*floor).min(key(row));
            lanes.entry(row.lane).and_modify(|lane| lower(&mut lane.floor));
            for lowered in under_way.values_mut() {
                lowered.entry(row.lane).and_modify(lower).or_insert_with(|| key(row));
            }
        }
    }

    /// A claim begins.
    pub(super) fn look(&self) -> Look<'_> {
        let now = now();
        let mut state = self.state();
        let from = state.from(|_, lane| state.must_look_from_start(lane, now));
        let ticket = state.next;
        state.next += 1;
        state.under_way.insert(ticket, HashMap::new());
        let lanes = if state.lanes_open == 0 { LANES } else { state.lanes_open };
        let notices = state.notices;
        let is_plain = state.special == 0;
        let is_known =
            |arrived: &Arrived| arrived.notices == notices && now < arrived.looked_at + DUE;
        let arrived_from = state.arrived.filter(is_known).map_or(0, |arrived| arrived.floor);
        let arrivals = state.arrivals;
        let floors = self;
        Look { floors, ticket, from, notices, lanes, is_plain, arrived_from, arrivals }
    }

    /// A claim has met tasks that are not plain.
    pub(super) fn meet_special(&self) {
        self.state().special = SPECIAL;
    }

    /// So many lanes are open for somebody.
    pub(super) fn meet_lanes(&self, number: usize) {
        let mut state = self.state();
        state.lanes_open = state.lanes_open.max(number);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The floors as columns of a statement; none where it looks from the start.
#[derive(Debug, Clone, Default)]
pub(super) struct From {
    pub(super) lanes: Vec<i64>,
    pub(super) ranks: Vec<i64>,
    pub(super) tags: Vec<i64>,
    pub(super) tasks: Vec<i64>,
}

impl From {
    /// All of these lanes and no others.
    pub(super) fn of(&self, lanes: &[i64]) -> Self {
        let mut of = Self::default();
        for lane in lanes {
            let at = self.lanes.iter().position(|other| other == lane);
            of.push(
                LaneId(*lane),
                at.map_or(START, |at| (self.ranks[at], self.tags[at], self.tasks[at])),
            );
        }
        of
    }

    fn push(&mut self, lane: LaneId, (rank, tag, task): Key) {
        self.lanes.push(lane.0);
        self.ranks.push(rank);
        self.tags.push(tag);
        self.tasks.push(task);
    }

    /// The same, and not above these rows.
    pub(super) fn not_above(&self, rows: &[ReadyRow]) -> Self {
        let mut from = self.clone();
        for row in rows {
            let Some(at) = from.lanes.iter().position(|lane| *lane == row.lane.0) else {
                continue;
            };
            let floor = (from.ranks[at], from.tags[at], from.tasks[at]);
            (from.ranks[at], from.tags[at], from.tasks[at]) = floor.min(key(row));
        }
        from
    }
}

/// What a claim found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The lanes it read.
    pub(super) open: Vec<LaneId>,
    /// The last of each lane.
    pub(super) last: BTreeMap<LaneId, Key>,
    /// Whether there were no more.
    pub(super) is_all: bool,
    /// Whether some are not plain.
    pub(super) is_special: bool,
    /// The last task that anybody had begun to submit, if nothing waited at the gate.
    pub(super) last_task: Option<i64>,
    /// How long it took on the server.
    pub(super) took: Duration,
}

/// A claim under way.
#[derive(Debug)]
pub(super) struct Look<'a> {
    floors: &'a Floors,
    ticket: u64,
    pub(super) from: From,
    notices: u64,
    /// How many lanes there may be.
    pub(super) lanes: usize,
    /// Whether it reckons with plain tasks only: such that hold no slots and no limit began to
    /// apply to since they are ready.
    pub(super) is_plain: bool,
    /// From which task on it looks for what has come to the gate.
    pub(super) arrived_from: i64,
    arrivals: u64,
}

impl Look<'_> {
    /// With which of so many lanes a claim begins that reads only some of them: another each time.
    pub(super) fn first_of(&self, all: usize, some: usize) -> usize {
        let mut state = self.floors.state();
        state.parts += 1;
        state.parts * some % all.max(1)
    }

    /// Whether it looks at a lane from the start.
    fn is_from_start(&self, lane: LaneId) -> bool {
        !self.from.lanes.contains(&lane.0)
    }

    /// Whether what was not found in these lanes is not there.
    pub(super) fn is_complete(&self, open: &[LaneId]) -> bool {
        self.arrived_from == 0 && open.iter().all(|lane| self.is_from_start(*lane))
    }

    /// The same as far as one may look.
    pub(super) fn is_thorough(&self, open: &[LaneId]) -> bool {
        let (state, now) = (self.floors.state(), now());
        let may = |lane: &LaneId| {
            state.lanes.get(lane).is_some_and(|lane| state.may_look_from_start(lane, now))
        };
        open.iter().all(|lane| self.is_from_start(*lane) || !may(lane))
    }

    /// Nothing was found in these lanes: whether to look again, from their start.
    pub(super) fn again(&mut self, open: &[LaneId]) -> bool {
        let is_again = !self.is_thorough(open);
        if is_again {
            let (state, now) = (self.floors.state(), now());
            self.from = state.from(|id, lane| {
                open.contains(id) && state.may_look_from_start(lane, now) || self.is_from_start(*id)
            });
        }
        is_again
    }

    /// It was told that nothing waits at the gate.
    fn gate_was_empty(&self, state: &mut State, last_task: i64, now: Instant) {
        if self.arrived_from == 0 && state.arrivals == self.arrivals {
            state.arrived =
                Some(Arrived { floor: last_task, looked_at: now, notices: self.notices });
        }
    }

    /// Nothing was taken; in these lanes this is ready first, if anything.
    pub(super) fn looked(&self, open: &[LaneId], first: &BTreeMap<LaneId, Key>, last_task: i64) {
        let now = now();
        let mut state = self.floors.state();
        self.gate_was_empty(&mut state, last_task, now);
        let State { lanes, under_way, .. } = &mut *state;
        let Some(lowered) = under_way.get(&self.ticket) else {
            return;
        };
        for id in open.iter().filter(|lane| self.is_from_start(**lane)) {
            let floor = first.get(id).map(|key| lowered.get(id).map_or(*key, |low| *key.min(low)));
            let floor = floor.or_else(|| lanes.get(id).map(|lane| lane.floor));
            if let Some(floor) = floor {
                let notices = self.notices;
                lanes.insert(*id, Lane { floor, looked_at: now, notices, is_short: false });
            }
        }
        state.trim();
    }

    /// What was found is committed.
    pub(super) fn found(&self, found: Found) {
        let Found { open, last, is_all, is_special, last_task, took } = found;
        let now = now();
        let mut state = self.floors.state();
        if is_all {
            // Who finds too little has to look at all that has come, and so will the next.
            state.arrived = None;
        } else if let Some(last_task) = last_task {
            self.gate_was_empty(&mut state, last_task, now);
        }
        state.special = if is_special { SPECIAL } else { state.special.saturating_sub(1) };
        let from_start = || open.iter().filter(|lane| self.is_from_start(**lane));
        if from_start().next().is_some() {
            state.costs.rotate_left(1);
            state.costs[LAST - 1] = took;
        }
        let State { lanes, under_way, .. } = &mut *state;
        for id in &open {
            let is_from_start = self.is_from_start(*id);
            if let Some(lane) = lanes.get_mut(id) {
                lane.is_short = is_all && !is_from_start;
                if is_from_start {
                    (lane.looked_at, lane.notices) = (now, self.notices);
                }
            }
        }
        let Some(lowered) = under_way.get(&self.ticket) else {
            return;
        };
        for (id, key) in last {
            let floor = lowered.get(&id).map_or(key, |lowered| key.min(*lowered));
            let new = Lane { floor, looked_at: now, notices: self.notices, is_short: false };
            lanes.entry(id).and_modify(|lane| lane.floor = floor).or_insert(new);
        }
        state.trim();
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.floors.state().under_way.remove(&self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::TaskId;

    use super::*;

    fn row(task: i64) -> ReadyRow {
        ReadyRow {
            task: TaskId(task),
            lane: LaneId(1),
            rank: 0,
            tag: 0,
            stamp: 0,
            gated: false,
            since: 0,
        }
    }

    const LANE: [LaneId; 1] = [LaneId(1)];

    fn found(task: i64) -> Found {
        let last = [(LaneId(1), key(&row(task)))].into();
        Found { open: LANE.to_vec(), last, ..Found::default() }
    }

    fn take(floors: &Floors, task: i64) {
        floors.look().found(found(task));
    }

    #[test]
    fn a_claim_begins_where_the_last_one_ended() {
        let floors = Floors::default();
        assert!(floors.look().from.lanes.is_empty());
        take(&floors, 5);
        assert_eq!(floors.look().from.tasks, [5]);
    }

    #[test]
    fn what_becomes_ready_below_lowers_the_floor() {
        let floors = Floors::default();
        take(&floors, 5);
        floors.lower(&[row(7)]);
        assert_eq!(floors.look().from.tasks, [5]);
        floors.lower(&[row(3)]);
        assert_eq!(floors.look().from.tasks, [3]);
    }

    #[test]
    fn what_becomes_ready_during_a_claim_is_not_jumped_over() {
        let floors = Floors::default();
        take(&floors, 5);
        let look = floors.look();
        floors.lower(&[row(6)]);
        look.found(found(9));
        drop(look);
        assert_eq!(floors.look().from.tasks, [6]);
    }

    #[test]
    fn a_claim_that_failed_moves_nothing() {
        let floors = Floors::default();
        take(&floors, 5);
        drop(floors.look());
        assert_eq!(floors.look().from.tasks, [5]);
    }

    #[test]
    fn after_a_notice_and_when_too_few_are_found_it_looks_from_the_start() {
        let floors = Floors::default();
        take(&floors, 5);
        floors.ask();
        assert!(floors.look().from.lanes.is_empty());
        take(&floors, 6);
        assert_eq!(floors.look().from.tasks, [6]);
        let mut look = floors.look();
        assert!(look.again(&LANE));
        assert!(!look.again(&LANE));
        floors.look().found(Found { is_all: true, ..found(7) });
        assert!(floors.look().from.lanes.is_empty());
    }

    #[test]
    fn who_took_nothing_knows_where_the_first_stands() {
        let floors = Floors::default();
        floors.look().looked(&LANE, &BTreeMap::new(), 0);
        assert!(floors.look().from.lanes.is_empty(), "nothing is known of it");
        floors.look().looked(&LANE, &[(LaneId(1), key(&row(7)))].into(), 0);
        assert_eq!(floors.look().from.tasks, [7]);
        let look = floors.look();
        look.looked(&LANE, &[(LaneId(1), key(&row(9)))].into(), 0);
        assert_eq!(floors.look().from.tasks, [7], "it began there");
        floors.ask();
        let look = floors.look();
        floors.lower(&[row(3)]);
        look.looked(&LANE, &[(LaneId(1), key(&row(9)))].into(), 0);
        drop(look);
        assert_eq!(floors.look().from.tasks, [3], "that came meanwhile");
    }

    #[test]
    fn what_comes_to_the_gate_is_looked_for_from_where_nothing_was() {
        let floors = Floors::default();
        let empty = || Found { last_task: Some(40), ..found(5) };
        floors.look().found(found(5));
        assert_eq!(floors.look().arrived_from, 0, "something waited there");
        floors.look().found(empty());
        let look = floors.look();
        assert_eq!(look.arrived_from, 40);
        assert!(!look.is_complete(&[]), "that is not all");
        floors.ask();
        assert_eq!(floors.look().arrived_from, 0, "somebody has said so");
        let look = floors.look();
        floors.arrive();
        look.found(empty());
        assert_eq!(floors.look().arrived_from, 0, "it came meanwhile");
        floors.look().found(empty());
        floors.look().found(Found { is_all: true, ..empty() });
        assert_eq!(floors.look().arrived_from, 0, "there is less than was wanted");
    }

    #[test]
    fn who_looks_at_one_lane_has_not_looked_at_another() {
        let floors = Floors::default();
        take(&floors, 5);
        let other = || Found { open: vec![LaneId(2)], ..Found::default() };
        floors.look().found(Found { last: [(LaneId(2), (0, 0, 8))].into(), ..other() });
        floors.ask();
        floors.look().found(other());
        assert_eq!(floors.look().from.lanes, [2], "the first has not been looked at yet");
    }

    #[test]
    fn a_dear_look_from_the_start_is_rare() {
        let floors = Floors::default();
        let dear = || Found { took: Duration::from_secs(60), ..found(5) };
        for _ in 0..LAST {
            floors.ask();
            let look = floors.look();
            assert!(look.from.lanes.is_empty(), "one of the last was quick");
            look.found(dear());
        }
        floors.ask();
        let mut look = floors.look();
        assert_eq!(look.from.tasks, [5]);
        assert!(!look.again(&LANE));
        assert!(!look.is_complete(&LANE));
    }

    #[test]
    fn cursors_of_many_lanes_are_trimmed_to_the_latest() {
        let floors = Floors::default();
        for lane in 1..=5000 {
            let last = [(LaneId(lane), (0, 0, lane))].into();
            let open = vec![LaneId(lane)];
            floors.look().found(Found { open, last, ..Found::default() });
        }
        let from = floors.look().from.clone();
        assert!(from.lanes.len() <= 512, "a claim sends {} cursors", from.lanes.len());
        assert!(from.lanes.contains(&5000), "the latest is kept");
        assert!(floors.state().lanes.len() <= 512);
    }
}
