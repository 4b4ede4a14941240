//! What the writer remembers between commands. All of it equals what the file says: it is
//! dropped when another connection has committed and when anything was rolled back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use tidegate_core::tables::{Counters, Lane, TaskInfo};
use tidegate_core::{Kind, LaneId, Limit, LimitId, Millis, TaskId, Token, WorkerId};

/// Entries a map may have before it is emptied; it fills again with what is in use.
const CACHE_ENTRIES_MAX: usize = 100_000;

/// The row of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CountersRow {
    pub(super) last_task_id: i64,
    pub(super) last_limit_id: i64,
    pub(super) counters: Counters,
    /// Steps that made something claimable.
    pub(super) notifications: i64,
}

/// What the file says of a worker.
#[derive(Debug)]
pub(super) struct CachedWorker {
    pub(super) alive_until: Option<Millis>,
    /// Until when it serves which lanes.
    pub(super) lanes_served_until: HashMap<LaneId, Option<Millis>>,
}

/// A task that this connection started, so that its finish need not read it again.
#[derive(Debug, Clone)]
pub(super) struct CachedTask {
    pub(super) info: TaskInfo,
    /// Where it runs, until it is stopped.
    pub(super) running: Option<CachedRun>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CachedRun {
    pub(super) token: Token,
    pub(super) holds_slots: bool,
    pub(super) cancel_requested: bool,
}

/// Hashes the numbers the store itself gives: every task of every batch is looked up several
/// times, and nobody can choose them so that they collide.
pub(super) type BuildIntegerHasher = BuildHasherDefault<IntegerHasher>;

#[derive(Debug, Default)]
pub(super) struct IntegerHasher(u64);

impl Hasher for IntegerHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_i64(i64::from(*byte)));
    }

    fn write_i64(&mut self, number: i64) {
        // Multiplying carries upwards only, and the map takes its bucket from the low bits.
        let mixed = (self.0 ^ number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug, Default)]
pub(super) struct RowCache {
    /// The numbers, and whether they are yet to be written.
    pub(super) counters_row: Option<(CountersRow, bool)>,
    pub(super) kinds: HashMap<Arc<str>, Arc<Kind>>,
    /// Every lane, once they are loaded.
    pub(super) lanes: Option<LaneIndex>,
    /// Paused queues and since when, once they are loaded.
    pub(super) paused_queues: Option<HashMap<Arc<str>, Millis>>,
    pub(super) limits: HashMap<LimitId, Limit>,
    /// Limits that are yet to be written.
    pub(super) unwritten_limits: BTreeSet<LimitId>,
    pub(super) limit_ids_by_name: HashMap<Arc<str>, Option<LimitId>>,
    /// Every limit whose line is to be looked at, and from when on, once they are loaded.
    pub(super) limits_to_recheck: Option<BTreeMap<LimitId, Millis>>,
    pub(super) workers: HashMap<WorkerId, CachedWorker>,
    pub(super) tasks: HashMap<TaskId, CachedTask, BuildIntegerHasher>,
    /// Leases all of whose attempts are known, and how many still run.
    pub(super) running_by_lease: HashMap<Token, usize, BuildIntegerHasher>,
    /// Whether nothing stands at the gate.
    pub(super) is_inbox_empty: bool,
    /// A time before which nothing on the schedule is due.
    pub(super) no_task_due_before: Option<Millis>,
    /// Lanes of which nothing is parked for want of a worker.
    pub(super) lanes_without_parked_tasks: HashSet<LaneId>,
    /// Of the running transaction only, since it depends on the time.
    pub(super) served_by_lane: HashMap<LaneId, bool>,
    /// Of the running transaction only: where every task runs.
    pub(super) tokens_by_task: Option<HashMap<TaskId, Token>>,
}

impl RowCache {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// When the next task of the schedule is due or the next line is to be looked at, as far as that
    /// is known.
    pub(super) fn next_due_at(&self) -> Option<Millis> {
        let lines = self.limits_to_recheck.iter().flat_map(|dirty| dirty.values());
        self.no_task_due_before.iter().chain(lines).min().copied()
    }

    /// Forgets what holds for one transaction only, and whatever has grown too large.
    pub(super) fn begin_transaction(&mut self) {
        self.served_by_lane.clear();
        self.tokens_by_task = None;
        let largest = [self.limits.len(), self.limit_ids_by_name.len(), self.workers.len()];
        if largest.into_iter().any(|entries| entries > CACHE_ENTRIES_MAX) {
            self.limits.clear();
            self.limit_ids_by_name.clear();
            self.workers.clear();
        }
        if self.tasks.len().max(self.running_by_lease.len()) > CACHE_ENTRIES_MAX {
            self.tasks.clear();
            self.running_by_lease.clear();
        }
    }
}

/// Every lane. There are as many as pairs of a queue and a kind in use.
#[derive(Debug, Default)]
pub(super) struct LaneIndex {
    by_id: HashMap<LaneId, Lane>,
    by_name: HashMap<Arc<str>, HashMap<Arc<str>, LaneId>>,
}

impl LaneIndex {
    pub(super) fn insert(&mut self, lane: Lane) {
        let of_queue = self.by_name.entry(lane.queue.clone()).or_default();
        of_queue.insert(lane.kind.clone(), lane.id);
        self.by_id.insert(lane.id, lane);
    }

    pub(super) fn get(&self, id: LaneId) -> Option<&Lane> {
        self.by_id.get(&id)
    }

    pub(super) fn find_id(&self, queue: &str, kind: &str) -> Option<LaneId> {
        self.by_name.get(queue)?.get(kind).copied()
    }

    /// Every lane, ascending.
    pub(super) fn sorted_ids(&self) -> Vec<LaneId> {
        let mut ids: Vec<LaneId> = self.by_id.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// The lanes that exist of these queues and kinds, ascending.
    pub(super) fn find_lanes(&self, queues: &[Arc<str>], kinds: &[Arc<str>]) -> Vec<Lane> {
        let of_queue = queues.iter().filter_map(|queue| self.by_name.get(queue));
        let ids = of_queue.flat_map(|lanes| kinds.iter().filter_map(|kind| lanes.get(kind)));
        let mut lanes: Vec<Lane> = ids.filter_map(|id| self.by_id.get(id)).cloned().collect();
        lanes.sort_by_key(|lane| lane.id);
        lanes.dedup_by_key(|lane| lane.id);
        lanes
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }
}
