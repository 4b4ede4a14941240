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
const FULL_SCAN_INTERVAL: Duration = Duration::from_millis(100);

/// While the quickest of the last few took no longer than this, it may be made at any time.
const CHEAP_SCAN_MAX: Duration = Duration::from_millis(5);
const SCAN_COSTS_KEPT: usize = 8;

/// Dear ones are so many times as far apart as they take.
const SCAN_PAUSE_FACTOR: u32 = 20;

/// So many claims after one that met tasks that are not plain reckon with more of them.
const GENERAL_CLAIMS_AFTER_SPECIAL: u32 = 4;

/// So many lanes are reckoned with before any were seen.
const LANES_DEFAULT: usize = 16;

/// Lanes whose cursors are kept, and sent with a claim, at most: as many as one claim reads. Without a
/// cursor a claim reads a lane from its start.
const CURSORS_MAX: usize = 512;

/// A place in the order of a lane: rank, tag, task.
pub(super) type LaneKey = (i64, i64, i64);

/// Nothing comes before it.
const LANE_START: LaneKey = (i64::MIN, 0, 0);

pub(super) fn lane_key(row: &ReadyRow) -> LaneKey {
    (row.rank, row.tag, row.task.0)
}

/// Of ready rows in their order, the first of each lane.
pub(super) fn first_of_each_lane<'a>(rows: impl Iterator<Item = &'a ReadyRow>) -> Vec<ReadyRow> {
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
pub(super) struct ClaimCursors(Mutex<CursorState>);

#[derive(Debug, Default)]
struct CursorState {
    lanes: HashMap<LaneId, LaneCursor>,
    /// The claims under way, and what was lowered since they began.
    claims_in_progress: HashMap<u64, HashMap<LaneId, LaneKey>>,
    next_claim_id: u64,
    /// How long the last looks from the start took on the server.
    scan_costs: [Duration; SCAN_COSTS_KEPT],
    /// How many claims still reckon with tasks that are not plain.
    general_claims_left: u32,
    /// How often somebody has said that there is something somewhere.
    notifications: u64,
    /// Nothing had come to the gate below this.
    inbox_watermark: Option<InboxWatermark>,
    /// How often this process has brought something there.
    inbox_writes: u64,
    /// The most lanes that were open for anybody.
    open_lanes_max: usize,
    /// How often some of them were left out.
    lane_rotations: usize,
}

/// What is known of those who come to the gate.
#[derive(Debug, Clone, Copy)]
struct InboxWatermark {
    empty_below: i64,
    read_at: Instant,
    notifications: u64,
}

/// What is known of a lane.
#[derive(Debug)]
struct LaneCursor {
    position: LaneKey,
    /// When it was looked at from the start, and after how many notices that began.
    scanned_at: Instant,
    notifications: u64,
    /// Whether fewer were found than were wanted, from the floor.
    found_too_few: bool,
}

impl CursorState {
    fn may_scan_from_start(&self, lane: &LaneCursor, now: Instant) -> bool {
        // Whatever else made one of them slow, the dead are in all of them.
        let cost = self.scan_costs.into_iter().min().unwrap_or_default();
        cost <= CHEAP_SCAN_MAX || now >= lane.scanned_at + cost * SCAN_PAUSE_FACTOR
    }

    fn must_scan_from_start(&self, lane: &LaneCursor, now: Instant) -> bool {
        let is_due = now >= lane.scanned_at + FULL_SCAN_INTERVAL;
        (is_due || lane.found_too_few || lane.notifications < self.notifications)
            && self.may_scan_from_start(lane, now)
    }

    /// Drops the cursors that were longest not read from the start, down to three quarters of the bound.
    fn trim_cursors(&mut self) {
        if self.lanes.len() <= CURSORS_MAX {
            return;
        }
        let mut ages: Vec<(Instant, LaneId)> =
            self.lanes.iter().map(|(id, lane)| (lane.scanned_at, *id)).collect();
        ages.sort_unstable();
        for (_, id) in ages.drain(..self.lanes.len() - CURSORS_MAX * 3 / 4) {
            self.lanes.remove(&id);
        }
    }

    /// Where to begin, without the lanes for which `is_from_start` holds.
    fn lane_starts(&self, is_from_start: impl Fn(&LaneId, &LaneCursor) -> bool) -> LaneStarts {
        let mut from = LaneStarts::default();
        for (id, lane) in self.lanes.iter().filter(|(id, lane)| !is_from_start(id, lane)) {
            from.push(*id, lane.position);
        }
        from
    }
}

impl ClaimCursors {
    /// Somebody else has made tasks ready.
    pub(super) fn on_notification(&self) {
        self.lock_state().notifications += 1;
    }

    /// This process has brought something to the gate.
    pub(super) fn on_inbox_write(&self) {
        let mut state = self.lock_state();
        state.inbox_watermark = None;
        state.inbox_writes += 1;
    }

    /// Nothing is known any more.
    pub(super) fn clear(&self) {
        let mut state = self.lock_state();
        state.lanes.clear();
        state.inbox_watermark = None;
    }

    /// These have become ready, and are committed.
    pub(super) fn move_back<'a>(&self, rows: impl IntoIterator<Item = &'a ReadyRow>) {
        let mut state = self.lock_state();
        let CursorState { lanes, claims_in_progress: under_way, .. } = &mut *state;
        for row in rows {
            let lower = |floor: &mut LaneKey| *floor = (*floor).min(lane_key(row));
            lanes.entry(row.lane).and_modify(|lane| lower(&mut lane.position));
            for lowered in under_way.values_mut() {
                lowered.entry(row.lane).and_modify(lower).or_insert_with(|| lane_key(row));
            }
        }
    }

    /// A claim begins.
    pub(super) fn start_scan(&self) -> ClaimScan<'_> {
        let now = now();
        let mut state = self.lock_state();
        let from = state.lane_starts(|_, lane| state.must_scan_from_start(lane, now));
        let ticket = state.next_claim_id;
        state.next_claim_id += 1;
        state.claims_in_progress.insert(ticket, HashMap::new());
        let lanes = if state.open_lanes_max == 0 { LANES_DEFAULT } else { state.open_lanes_max };
        let notices = state.notifications;
        let is_plain = state.general_claims_left == 0;
        let is_known = |arrived: &InboxWatermark| {
            arrived.notifications == notices && now < arrived.read_at + FULL_SCAN_INTERVAL
        };
        let arrived_from =
            state.inbox_watermark.filter(is_known).map_or(0, |arrived| arrived.empty_below);
        let arrivals = state.inbox_writes;
        let floors = self;
        ClaimScan {
            cursors: floors,
            claim_id: ticket,
            starts: from,
            notifications: notices,
            lanes_expected: lanes,
            expects_fast_only: is_plain,
            inbox_from: arrived_from,
            inbox_writes: arrivals,
        }
    }

    /// A claim has met tasks that are not plain.
    pub(super) fn expect_general_claims(&self) {
        self.lock_state().general_claims_left = GENERAL_CLAIMS_AFTER_SPECIAL;
    }

    /// So many lanes are open for somebody.
    pub(super) fn observe_lane_count(&self, number: usize) {
        let mut state = self.lock_state();
        state.open_lanes_max = state.open_lanes_max.max(number);
    }

    fn lock_state(&self) -> MutexGuard<'_, CursorState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The floors as columns of a statement; none where it looks from the start.
#[derive(Debug, Clone, Default)]
pub(super) struct LaneStarts {
    pub(super) lanes: Vec<i64>,
    pub(super) ranks: Vec<i64>,
    pub(super) tags: Vec<i64>,
    pub(super) tasks: Vec<i64>,
}

impl LaneStarts {
    /// All of these lanes and no others.
    pub(super) fn for_lanes(&self, lanes: &[i64]) -> Self {
        let mut of = Self::default();
        for lane in lanes {
            let at = self.lanes.iter().position(|other| other == lane);
            of.push(
                LaneId(*lane),
                at.map_or(LANE_START, |at| (self.ranks[at], self.tags[at], self.tasks[at])),
            );
        }
        of
    }

    fn push(&mut self, lane: LaneId, (rank, tag, task): LaneKey) {
        self.lanes.push(lane.0);
        self.ranks.push(rank);
        self.tags.push(tag);
        self.tasks.push(task);
    }

    /// The same, and not above these rows.
    pub(super) fn not_after(&self, rows: &[ReadyRow]) -> Self {
        let mut from = self.clone();
        for row in rows {
            let Some(at) = from.lanes.iter().position(|lane| *lane == row.lane.0) else {
                continue;
            };
            let floor = (from.ranks[at], from.tags[at], from.tasks[at]);
            (from.ranks[at], from.tags[at], from.tasks[at]) = floor.min(lane_key(row));
        }
        from
    }
}

/// What a claim found.
#[derive(Debug, Default)]
pub(super) struct ScanResult {
    /// The lanes it read.
    pub(super) open_lanes: Vec<LaneId>,
    /// The last of each lane.
    pub(super) last_keys: BTreeMap<LaneId, LaneKey>,
    /// Whether there were no more.
    pub(super) is_exhausted: bool,
    /// Whether some are not plain.
    pub(super) has_special: bool,
    /// The last task that anybody had begun to submit, if nothing waited at the gate.
    pub(super) last_submitted_task: Option<i64>,
    /// How long it took on the server.
    pub(super) server_time: Duration,
}

/// A claim under way.
#[derive(Debug)]
pub(super) struct ClaimScan<'a> {
    cursors: &'a ClaimCursors,
    claim_id: u64,
    pub(super) starts: LaneStarts,
    notifications: u64,
    /// How many lanes there may be.
    pub(super) lanes_expected: usize,
    /// Whether it reckons with plain tasks only: such that hold no slots and no limit began to
    /// apply to since they are ready.
    pub(super) expects_fast_only: bool,
    /// From which task on it looks for what has come to the gate.
    pub(super) inbox_from: i64,
    inbox_writes: u64,
}

impl ClaimScan<'_> {
    /// With which of so many lanes a claim begins that reads only some of them: another each time.
    pub(super) fn next_lane_rotation(&self, all: usize, some: usize) -> usize {
        let mut state = self.cursors.lock_state();
        state.lane_rotations += 1;
        state.lane_rotations * some % all.max(1)
    }

    /// Whether it looks at a lane from the start.
    fn scans_from_start(&self, lane: LaneId) -> bool {
        !self.starts.lanes.contains(&lane.0)
    }

    /// Whether what was not found in these lanes is not there.
    pub(super) fn is_complete(&self, open: &[LaneId]) -> bool {
        self.inbox_from == 0 && open.iter().all(|lane| self.scans_from_start(*lane))
    }

    /// The same as far as one may look.
    pub(super) fn is_thorough(&self, open: &[LaneId]) -> bool {
        let (state, now) = (self.cursors.lock_state(), now());
        let may = |lane: &LaneId| {
            state.lanes.get(lane).is_some_and(|lane| state.may_scan_from_start(lane, now))
        };
        open.iter().all(|lane| self.scans_from_start(*lane) || !may(lane))
    }

    /// Nothing was found in these lanes: whether to look again, from their start.
    pub(super) fn rescan_from_start(&mut self, open: &[LaneId]) -> bool {
        let is_again = !self.is_thorough(open);
        if is_again {
            let (state, now) = (self.cursors.lock_state(), now());
            self.starts = state.lane_starts(|id, lane| {
                open.contains(id) && state.may_scan_from_start(lane, now)
                    || self.scans_from_start(*id)
            });
        }
        is_again
    }

    /// It was told that nothing waits at the gate.
    fn record_empty_inbox(&self, state: &mut CursorState, last_submitted_task: i64, now: Instant) {
        if self.inbox_from == 0 && state.inbox_writes == self.inbox_writes {
            state.inbox_watermark = Some(InboxWatermark {
                empty_below: last_submitted_task,
                read_at: now,
                notifications: self.notifications,
            });
        }
    }

    /// Nothing was taken; in these lanes this is ready first, if anything.
    pub(super) fn record_first_ready(
        &self,
        open: &[LaneId],
        first_ready: &BTreeMap<LaneId, LaneKey>,
        last_submitted_task: i64,
    ) {
        let now = now();
        let mut state = self.cursors.lock_state();
        self.record_empty_inbox(&mut state, last_submitted_task, now);
        let CursorState { lanes, claims_in_progress: under_way, .. } = &mut *state;
        let Some(lowered) = under_way.get(&self.claim_id) else {
            return;
        };
        for id in open.iter().filter(|lane| self.scans_from_start(**lane)) {
            let floor =
                first_ready.get(id).map(|key| lowered.get(id).map_or(*key, |low| *key.min(low)));
            let floor = floor.or_else(|| lanes.get(id).map(|lane| lane.position));
            if let Some(floor) = floor {
                let notices = self.notifications;
                lanes.insert(
                    *id,
                    LaneCursor {
                        position: floor,
                        scanned_at: now,
                        notifications: notices,
                        found_too_few: false,
                    },
                );
            }
        }
        state.trim_cursors();
    }

    /// What was found is committed.
    pub(super) fn record_result(&self, result: ScanResult) {
        let ScanResult {
            open_lanes: open,
            last_keys: last,
            is_exhausted: is_all,
            has_special: is_special,
            last_submitted_task: last_task,
            server_time: took,
        } = result;
        let now = now();
        let mut state = self.cursors.lock_state();
        if is_all {
            // Who finds too little has to look at all that has come, and so will the next.
            state.inbox_watermark = None;
        } else if let Some(last_task) = last_task {
            self.record_empty_inbox(&mut state, last_task, now);
        }
        state.general_claims_left = if is_special {
            GENERAL_CLAIMS_AFTER_SPECIAL
        } else {
            state.general_claims_left.saturating_sub(1)
        };
        let from_start = || open.iter().filter(|lane| self.scans_from_start(**lane));
        if from_start().next().is_some() {
            state.scan_costs.rotate_left(1);
            state.scan_costs[SCAN_COSTS_KEPT - 1] = took;
        }
        let CursorState { lanes, claims_in_progress: under_way, .. } = &mut *state;
        for id in &open {
            let is_from_start = self.scans_from_start(*id);
            if let Some(lane) = lanes.get_mut(id) {
                lane.found_too_few = is_all && !is_from_start;
                if is_from_start {
                    (lane.scanned_at, lane.notifications) = (now, self.notifications);
                }
            }
        }
        let Some(lowered) = under_way.get(&self.claim_id) else {
            return;
        };
        for (id, key) in last {
            let floor = lowered.get(&id).map_or(key, |lowered| key.min(*lowered));
            let new = LaneCursor {
                position: floor,
                scanned_at: now,
                notifications: self.notifications,
                found_too_few: false,
            };
            lanes.entry(id).and_modify(|lane| lane.position = floor).or_insert(new);
        }
        state.trim_cursors();
    }
}

impl Drop for ClaimScan<'_> {
    fn drop(&mut self) {
        self.cursors.lock_state().claims_in_progress.remove(&self.claim_id);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::TaskId;

    use super::*;

    fn ready_row(task: i64) -> ReadyRow {
        ReadyRow {
            task: TaskId(task),
            lane: LaneId(1),
            rank: 0,
            tag: 0,
            limits_version: 0,
            holds_slots: false,
            ready_at: 0,
        }
    }

    const LANE: [LaneId; 1] = [LaneId(1)];

    fn scan_result(task: i64) -> ScanResult {
        let last = [(LaneId(1), lane_key(&ready_row(task)))].into();
        ScanResult { open_lanes: LANE.to_vec(), last_keys: last, ..ScanResult::default() }
    }

    fn claim_up_to(floors: &ClaimCursors, task: i64) {
        floors.start_scan().record_result(scan_result(task));
    }

    #[test]
    fn claim_cursor_starts_where_last_claim_stopped() {
        let floors = ClaimCursors::default();
        assert!(floors.start_scan().starts.lanes.is_empty());
        claim_up_to(&floors, 5);
        assert_eq!(floors.start_scan().starts.tasks, [5]);
    }

    #[test]
    fn claim_cursor_is_lowered_by_ready_row_below_it() {
        let floors = ClaimCursors::default();
        claim_up_to(&floors, 5);
        floors.move_back(&[ready_row(7)]);
        assert_eq!(floors.start_scan().starts.tasks, [5]);
        floors.move_back(&[ready_row(3)]);
        assert_eq!(floors.start_scan().starts.tasks, [3]);
    }

    #[test]
    fn claim_cursor_does_not_skip_row_that_becomes_ready_during_claim() {
        let floors = ClaimCursors::default();
        claim_up_to(&floors, 5);
        let look = floors.start_scan();
        floors.move_back(&[ready_row(6)]);
        look.record_result(scan_result(9));
        drop(look);
        assert_eq!(floors.start_scan().starts.tasks, [6]);
    }

    #[test]
    fn claim_cursor_is_unchanged_after_failed_claim() {
        let floors = ClaimCursors::default();
        claim_up_to(&floors, 5);
        drop(floors.start_scan());
        assert_eq!(floors.start_scan().starts.tasks, [5]);
    }

    #[test]
    fn claim_cursor_restarts_after_notification_or_short_claim() {
        let floors = ClaimCursors::default();
        claim_up_to(&floors, 5);
        floors.on_notification();
        assert!(floors.start_scan().starts.lanes.is_empty());
        claim_up_to(&floors, 6);
        assert_eq!(floors.start_scan().starts.tasks, [6]);
        let mut look = floors.start_scan();
        assert!(look.rescan_from_start(&LANE));
        assert!(!look.rescan_from_start(&LANE));
        floors.start_scan().record_result(ScanResult { is_exhausted: true, ..scan_result(7) });
        assert!(floors.start_scan().starts.lanes.is_empty());
    }

    #[test]
    fn claim_cursor_of_empty_claim_moves_to_first_ready_row() {
        let floors = ClaimCursors::default();
        floors.start_scan().record_first_ready(&LANE, &BTreeMap::new(), 0);
        assert!(floors.start_scan().starts.lanes.is_empty(), "nothing is known of it");
        floors.start_scan().record_first_ready(
            &LANE,
            &[(LaneId(1), lane_key(&ready_row(7)))].into(),
            0,
        );
        assert_eq!(floors.start_scan().starts.tasks, [7]);
        let look = floors.start_scan();
        look.record_first_ready(&LANE, &[(LaneId(1), lane_key(&ready_row(9)))].into(), 0);
        assert_eq!(floors.start_scan().starts.tasks, [7], "it began there");
        floors.on_notification();
        let look = floors.start_scan();
        floors.move_back(&[ready_row(3)]);
        look.record_first_ready(&LANE, &[(LaneId(1), lane_key(&ready_row(9)))].into(), 0);
        drop(look);
        assert_eq!(floors.start_scan().starts.tasks, [3], "that came meanwhile");
    }

    #[test]
    fn inbox_cursor_starts_after_last_empty_range() {
        let floors = ClaimCursors::default();
        let empty = || ScanResult { last_submitted_task: Some(40), ..scan_result(5) };
        floors.start_scan().record_result(scan_result(5));
        assert_eq!(floors.start_scan().inbox_from, 0, "something waited there");
        floors.start_scan().record_result(empty());
        let look = floors.start_scan();
        assert_eq!(look.inbox_from, 40);
        assert!(!look.is_complete(&[]), "that is not all");
        floors.on_notification();
        assert_eq!(floors.start_scan().inbox_from, 0, "somebody has said so");
        let look = floors.start_scan();
        floors.on_inbox_write();
        look.record_result(empty());
        assert_eq!(floors.start_scan().inbox_from, 0, "it came meanwhile");
        floors.start_scan().record_result(empty());
        floors.start_scan().record_result(ScanResult { is_exhausted: true, ..empty() });
        assert_eq!(floors.start_scan().inbox_from, 0, "there is less than was wanted");
    }

    #[test]
    fn claim_cursors_are_separate_for_each_lane() {
        let floors = ClaimCursors::default();
        claim_up_to(&floors, 5);
        let other = || ScanResult { open_lanes: vec![LaneId(2)], ..ScanResult::default() };
        floors
            .start_scan()
            .record_result(ScanResult { last_keys: [(LaneId(2), (0, 0, 8))].into(), ..other() });
        floors.on_notification();
        floors.start_scan().record_result(other());
        assert_eq!(floors.start_scan().starts.lanes, [2], "the first has not been looked at yet");
    }

    #[test]
    fn expensive_scan_from_start_is_rare() {
        let floors = ClaimCursors::default();
        let dear = || ScanResult { server_time: Duration::from_secs(60), ..scan_result(5) };
        for _ in 0..SCAN_COSTS_KEPT {
            floors.on_notification();
            let look = floors.start_scan();
            assert!(look.starts.lanes.is_empty(), "one of the last was quick");
            look.record_result(dear());
        }
        floors.on_notification();
        let mut look = floors.start_scan();
        assert_eq!(look.starts.tasks, [5]);
        assert!(!look.rescan_from_start(&LANE));
        assert!(!look.is_complete(&LANE));
    }

    #[test]
    fn claim_cursors_of_many_lanes_are_trimmed_to_latest() {
        let floors = ClaimCursors::default();
        for lane in 1..=5000 {
            let last = [(LaneId(lane), (0, 0, lane))].into();
            let open = vec![LaneId(lane)];
            floors.start_scan().record_result(ScanResult {
                open_lanes: open,
                last_keys: last,
                ..ScanResult::default()
            });
        }
        let from = floors.start_scan().starts.clone();
        assert!(from.lanes.len() <= 512, "a claim sends {} cursors", from.lanes.len());
        assert!(from.lanes.contains(&5000), "the latest is kept");
        assert!(floors.lock_state().lanes.len() <= 512);
    }
}
