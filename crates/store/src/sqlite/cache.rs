//! What the writer remembers between commands. All of it equals what the file says: it is
//! dropped when another connection has committed and when anything was rolled back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use tidegate_core::tables::{Counters, Lane, Tags};
use tidegate_core::{Kind, LaneId, Limit, LimitId, Millis, TaskId, Token, WorkerId};

/// Entries a map may have before it is emptied; it fills again with what is in use.
const ENTRIES_MAX: usize = 100_000;

/// The row of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) last_task: i64,
    pub(super) last_limit: i64,
    pub(super) counters: Counters,
    /// Steps that made something claimable.
    pub(super) news: i64,
}

/// What the file says of a worker.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) alive_until: Option<Millis>,
    /// Until when it serves which lanes.
    pub(super) lanes: HashMap<LaneId, Option<Millis>>,
}

/// A task that this connection started, so that its finish need not read it again.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) tags: Tags,
    /// Where it runs, until it is stopped.
    pub(super) running: Option<Run>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) token: Token,
    pub(super) gated: bool,
    pub(super) cancel: bool,
}

/// Hashes the numbers the store itself gives: every task of every batch is looked up several
/// times, and nobody can choose them so that they collide.
pub(super) type ByNumber = BuildHasherDefault<NumberHasher>;

#[derive(Debug, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
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
pub(super) struct Cache {
    /// The numbers, and whether they are yet to be written.
    pub(super) meta: Option<(Meta, bool)>,
    pub(super) kinds: HashMap<Arc<str>, Arc<Kind>>,
    /// Every lane, once they are loaded.
    pub(super) lanes: Option<Lanes>,
    /// Paused queues and since when, once they are loaded.
    pub(super) paused: Option<HashMap<Arc<str>, Millis>>,
    pub(super) limits: HashMap<LimitId, Limit>,
    /// Limits that are yet to be written.
    pub(super) changed_limits: BTreeSet<LimitId>,
    pub(super) limit_names: HashMap<Arc<str>, Option<LimitId>>,
    /// Every limit whose line is to be looked at, and from when on, once they are loaded.
    pub(super) dirty: Option<BTreeMap<LimitId, Millis>>,
    pub(super) workers: HashMap<WorkerId, Seen>,
    pub(super) known: HashMap<TaskId, Known, ByNumber>,
    /// Leases all of whose attempts are known, and how many still run.
    pub(super) leases: HashMap<Token, usize, ByNumber>,
    /// Whether nothing stands at the gate.
    pub(super) nothing_arrived: bool,
    /// A time before which nothing on the schedule is due.
    pub(super) nothing_due_before: Option<Millis>,
    /// Lanes of which nothing is parked for want of a worker.
    pub(super) nothing_parked: HashSet<LaneId>,
    /// Of the running transaction only, since it depends on the time.
    pub(super) served: HashMap<LaneId, bool>,
    /// Of the running transaction only: where every task runs.
    pub(super) tokens: Option<HashMap<TaskId, Token>>,
}

impl Cache {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets what holds for one transaction only, and whatever has grown too large.
    pub(super) fn begin(&mut self) {
        self.served.clear();
        self.tokens = None;
        let largest = [self.limits.len(), self.limit_names.len(), self.workers.len()];
        if largest.into_iter().any(|entries| entries > ENTRIES_MAX) {
            self.limits.clear();
            self.limit_names.clear();
            self.workers.clear();
        }
        if self.known.len().max(self.leases.len()) > ENTRIES_MAX {
            self.known.clear();
            self.leases.clear();
        }
    }
}

/// Every lane. There are as many as pairs of a queue and a kind in use.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    by_id: HashMap<LaneId, Lane>,
    by_name: HashMap<Arc<str>, HashMap<Arc<str>, LaneId>>,
}

impl Lanes {
    pub(super) fn insert(&mut self, lane: Lane) {
        let of_queue = self.by_name.entry(lane.queue.clone()).or_default();
        of_queue.insert(lane.kind.clone(), lane.id);
        self.by_id.insert(lane.id, lane);
    }

    pub(super) fn get(&self, id: LaneId) -> Option<&Lane> {
        self.by_id.get(&id)
    }

    pub(super) fn named(&self, queue: &str, kind: &str) -> Option<LaneId> {
        self.by_name.get(queue)?.get(kind).copied()
    }

    /// Every lane, ascending.
    pub(super) fn ids(&self) -> Vec<LaneId> {
        let mut ids: Vec<LaneId> = self.by_id.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// The lanes that exist of these queues and kinds, ascending.
    pub(super) fn of(&self, queues: &[Arc<str>], kinds: &[Arc<str>]) -> Vec<Lane> {
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
