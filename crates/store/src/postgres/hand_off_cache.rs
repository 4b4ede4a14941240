//! What this process remembers for hand-offs: its attempts that hold slots or have rows of their own, and how far
//! it has come in the wait queues of their limits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::request_stats::FallbackReason;
use tidegate_core::{Attempt, Completion, LimitId, TaskId, Token};

/// Attempts that are remembered at most.
const ATTEMPTS_MAX: usize = 100_000;

/// Limits whose lines are remembered at most.
const WAIT_QUEUES_MAX: usize = 10_000;

/// A wait queue is read from its start again after so long: a hand-off that was rolled back may have
/// left a waiter before the cursor.
const CURSOR_AGE_MAX: Duration = Duration::from_millis(100);

/// What this process runs and could hand on, and how far it has come in the lines of the limits. A
/// guess: the server says what is so.
#[derive(Debug, Default)]
pub(super) struct HandOffCache(Mutex<HandOffCacheState>);

#[derive(Debug, Default)]
struct HandOffCacheState {
    attempts: BTreeMap<(Token, TaskId), AttemptStorage>,
    wait_queues: HashMap<LimitId, WaitQueueHint>,
}

/// Where the server keeps an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttemptStorage {
    /// Its lease lists it with one slot of this limit.
    Listed(LimitId),
    /// It has had rows of its own since its claim: it has a job or a workflow, or holds several slots.
    OwnRows,
    /// It got rows of its own later, because it reported progress.
    Expanded,
}

/// What is known of the line of a limit.
#[derive(Debug, Default)]
struct WaitQueueHint {
    cursor: Option<WaitCursor>,
    /// Of which kinds tasks came out of it.
    kinds: BTreeSet<Arc<str>>,
}

/// The last waiter that this process took from a wait queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitCursor {
    /// How many had come to the line by then.
    pub(super) parked_total: i64,
    /// Its place there: rank, tag, place.
    pub(super) key: (i64, i64, i64),
    pub(super) read_at: Instant,
}

#[expect(clippy::disallowed_methods, reason = "a place in line is a guess; nothing depends on it")]
pub(super) fn now() -> Instant {
    Instant::now()
}

impl HandOffCache {
    /// These were claimed.
    pub(super) fn add_claimed(&self, attempts: &[Attempt]) {
        let mut state = self.lock_state();
        for attempt in attempts {
            let id = (attempt.token, attempt.task);
            if let [slot] = attempt.slots.as_slice()
                && attempt.job.is_none()
                && attempt.workflow.is_none()
            {
                state.attempts.insert(id, AttemptStorage::Listed(slot.limit));
                let line = state.wait_queues.entry(slot.limit).or_default();
                if !line.kinds.contains(&attempt.kind) {
                    line.kinds.insert(attempt.kind.clone());
                }
            } else if !attempt.slots.is_empty() {
                state.attempts.insert(id, AttemptStorage::OwnRows);
            }
        }
        if state.wait_queues.len() > WAIT_QUEUES_MAX {
            state.wait_queues.clear();
        }
        state.evict_oldest();
    }

    /// Notes that attempts get rows of their own. Their slots cannot be handed on.
    pub(super) fn mark_expanded(&self, attempts: impl Iterator<Item = (Token, TaskId)>) {
        let mut state = self.lock_state();
        for attempt in attempts {
            let storage = state.attempts.entry(attempt).or_insert(AttemptStorage::Expanded);
            if *storage != AttemptStorage::OwnRows {
                *storage = AttemptStorage::Expanded;
            }
        }
        state.evict_oldest();
    }

    /// Splits off the attempts that have rows of their own, as far as this process knows, and returns why.
    pub(super) fn split_off_own_rows(
        &self,
        completions: Vec<Completion>,
    ) -> (Vec<Completion>, Vec<Completion>, Option<FallbackReason>) {
        let state = self.lock_state();
        let kept = |completion: &Completion| {
            state.attempts.get(&(completion.token, completion.task)).copied()
        };
        let is_listed = |exit: &Completion| {
            !matches!(kept(exit), Some(AttemptStorage::OwnRows | AttemptStorage::Expanded))
        };
        let (listed, rows): (Vec<_>, Vec<_>) = completions.into_iter().partition(is_listed);
        let is_expanded =
            rows.iter().any(|completion| kept(completion) == Some(AttemptStorage::Expanded));
        let reason = match is_expanded {
            true => Some(FallbackReason::LeaseExpanded),
            false => (!rows.is_empty()).then_some(FallbackReason::TasksHoldSlots),
        };
        (listed, rows, reason)
    }

    /// Returns why the fast path did not end these attempts.
    pub(super) fn fallback_reason(&self, exits: &[Completion]) -> FallbackReason {
        let state = self.lock_state();
        let is_known = |exit: &Completion| state.attempts.contains_key(&(exit.token, exit.task));
        match exits.iter().any(is_known) {
            true => FallbackReason::TasksHoldSlots,
            // Another process, or a cancel, gave them rows of their own.
            false => FallbackReason::LeaseExpanded,
        }
    }

    /// Removes attempts that end on the general path. Returns whether all of them have rows of their own, as far
    /// as this process knows.
    pub(super) fn remove_completed(&self, exits: &[Completion]) -> bool {
        let mut state = self.lock_state();
        let mut have_rows = true;
        for completion in exits {
            let kept = state.attempts.remove(&(completion.token, completion.task));
            have_rows &= matches!(kept, Some(AttemptStorage::OwnRows | AttemptStorage::Expanded));
        }
        have_rows
    }

    /// Returns the number of attempts.
    pub(super) fn len(&self) -> usize {
        self.lock_state().attempts.len()
    }

    /// Takes off those that end; gives which of them hold a slot of which limit.
    pub(super) fn take_held_slots(&self, exits: &[Completion]) -> BTreeMap<TaskId, LimitId> {
        let mut state = self.lock_state();
        let held = |exit: &Completion| match state.attempts.remove(&(exit.token, exit.task))? {
            AttemptStorage::Listed(limit) => Some((exit.task, limit)),
            AttemptStorage::OwnRows | AttemptStorage::Expanded => None,
        };
        exits.iter().filter_map(held).collect()
    }

    /// Puts back what [`take`](Self::take) removed, for exits that are still to be ended.
    pub(super) fn restore_held_slots(
        &self,
        exits: &[Completion],
        held: &BTreeMap<TaskId, LimitId>,
    ) {
        let mut state = self.lock_state();
        for exit in exits {
            if let Some(limit) = held.get(&exit.task) {
                state.attempts.insert((exit.token, exit.task), AttemptStorage::Listed(*limit));
            }
        }
    }

    /// Gives the lines of the limits of which these exits hold slots.
    pub(super) fn wait_cursors(
        &self,
        exits: &[Completion],
        held: &BTreeMap<TaskId, LimitId>,
    ) -> WaitCursors {
        let limits: BTreeSet<LimitId> =
            exits.iter().filter_map(|exit| held.get(&exit.task)).copied().collect();
        let state = self.lock_state();
        let now = now();
        let mut lines = WaitCursors::default();
        for limit in limits {
            let line = state.wait_queues.get(&limit);
            let reached = line.and_then(|line| line.cursor.as_ref());
            lines.push(limit, reached.filter(|reached| now < reached.read_at + CURSOR_AGE_MAX));
            lines.kinds.extend(line.into_iter().flat_map(|line| &line.kinds).cloned());
        }
        lines
    }

    /// Some have left their lines, which were read from there on.
    pub(super) fn advance_cursors(
        &self,
        furthest: BTreeMap<LimitId, WaitCursor>,
        read_from: &WaitCursors,
    ) {
        let mut state = self.lock_state();
        for (limit, new) in furthest {
            let is_from_start = read_from.is_from_start(limit);
            let line = state.wait_queues.entry(limit).or_default();
            let reached = line.cursor.get_or_insert(new);
            if is_from_start || new.parked_total > reached.parked_total {
                *reached = new;
            } else if new.parked_total == reached.parked_total {
                reached.key = reached.key.max(new.key);
            }
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, HandOffCacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HandOffCacheState {
    /// Evicts the oldest entries: attempts that never reported completion, because their worker lost its lease.
    fn evict_oldest(&mut self) {
        while self.attempts.len() > ATTEMPTS_MAX {
            self.attempts.pop_first();
        }
    }
}

/// How far this process has come in lines, as columns of a statement.
#[derive(Debug, Default)]
pub(super) struct WaitCursors {
    pub(super) limits: Vec<i64>,
    /// [`NEVER`] where the line is read from its start.
    pub(super) parked_totals: Vec<i64>,
    pub(super) ranks: Vec<i64>,
    pub(super) tags: Vec<i64>,
    pub(super) places: Vec<i64>,
    /// The kinds of which tasks are expected there.
    pub(super) kinds: BTreeSet<Arc<str>>,
}

/// No line has been come to so often.
const NO_CURSOR: i64 = -1;

impl WaitCursors {
    fn push(&mut self, limit: LimitId, cursor: Option<&WaitCursor>) {
        let (rank, tag, place) = cursor.map(|reached| reached.key).unwrap_or_default();
        self.limits.push(limit.0);
        self.parked_totals.push(cursor.map_or(NO_CURSOR, |reached| reached.parked_total));
        self.ranks.push(rank);
        self.tags.push(tag);
        self.places.push(place);
    }

    fn is_from_start(&self, limit: LimitId) -> bool {
        let mut lines = self.limits.iter().zip(&self.parked_totals);
        lines.any(|(id, refused)| *id == limit.0 && *refused == NO_CURSOR)
    }

    /// What stands for the limits in `lock_limits_shared_then_leases.sql`, in the one order of locks.
    pub(super) fn lock_buckets(&self) -> Vec<i32> {
        let buckets: BTreeSet<i32> = self.limits.iter().map(|id| (id % 256) as i32).collect();
        buckets.into_iter().collect()
    }
}
