//! What this process remembers for hand-offs: its attempts that hold slots or have rows of their own, and how far
//! it has come in the wait queues of their limits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::requests::FallbackReason;
use tidegate_core::{Attempt, Exit, LimitId, TaskId, Token};

/// Attempts that are remembered at most.
const ATTEMPTS_MAX: usize = 100_000;

/// Limits whose lines are remembered at most.
const LINES_MAX: usize = 10_000;

/// A wait queue is read from its start again after so long: a hand-off that was rolled back may have
/// left a waiter before the cursor.
const DUE: Duration = Duration::from_millis(100);

/// What this process runs and could hand on, and how far it has come in the lines of the limits. A
/// guess: the server says what is so.
#[derive(Debug, Default)]
pub(super) struct Holding(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    attempts: BTreeMap<(Token, TaskId), Kept>,
    lines: HashMap<LimitId, Line>,
}

/// Where the server keeps an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// Its lease lists it with one slot of this limit.
    Listed(LimitId),
    /// It has had rows of its own since its claim: it has a job or a workflow, or holds several slots.
    Rows,
    /// It got rows of its own later, because it reported progress.
    Expanded,
}

/// What is known of the line of a limit.
#[derive(Debug, Default)]
struct Line {
    reached: Option<Reached>,
    /// Of which kinds tasks came out of it.
    kinds: BTreeSet<Arc<str>>,
}

/// The last waiter that this process took from a wait queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reached {
    /// How many had come to the line by then.
    pub(super) refused: i64,
    /// Its place there: rank, tag, place.
    pub(super) key: (i64, i64, i64),
    pub(super) looked_at: Instant,
}

#[expect(clippy::disallowed_methods, reason = "a place in line is a guess; nothing depends on it")]
pub(super) fn now() -> Instant {
    Instant::now()
}

impl Holding {
    /// These were claimed.
    pub(super) fn add(&self, attempts: &[Attempt]) {
        let mut state = self.state();
        for attempt in attempts {
            let id = (attempt.token, attempt.task);
            if let [slot] = attempt.slots.as_slice()
                && attempt.job.is_none()
                && attempt.workflow.is_none()
            {
                state.attempts.insert(id, Kept::Listed(slot.limit));
                let line = state.lines.entry(slot.limit).or_default();
                if !line.kinds.contains(&attempt.kind) {
                    line.kinds.insert(attempt.kind.clone());
                }
            } else if !attempt.slots.is_empty() {
                state.attempts.insert(id, Kept::Rows);
            }
        }
        if state.lines.len() > LINES_MAX {
            state.lines.clear();
        }
        state.evict();
    }

    /// Notes that attempts get rows of their own. Their slots cannot be handed on.
    pub(super) fn expand(&self, attempts: impl Iterator<Item = (Token, TaskId)>) {
        let mut state = self.state();
        for attempt in attempts {
            let kept = state.attempts.entry(attempt).or_insert(Kept::Expanded);
            if *kept != Kept::Rows {
                *kept = Kept::Expanded;
            }
        }
        state.evict();
    }

    /// Splits off the attempts that have rows of their own, as far as this process knows, and returns why.
    pub(super) fn split_off_rows(
        &self,
        exits: Vec<Exit>,
    ) -> (Vec<Exit>, Vec<Exit>, Option<FallbackReason>) {
        let state = self.state();
        let kept = |exit: &Exit| state.attempts.get(&(exit.token, exit.task)).copied();
        let is_listed = |exit: &Exit| !matches!(kept(exit), Some(Kept::Rows | Kept::Expanded));
        let (listed, rows): (Vec<_>, Vec<_>) = exits.into_iter().partition(is_listed);
        let is_expanded = rows.iter().any(|exit| kept(exit) == Some(Kept::Expanded));
        let reason = match is_expanded {
            true => Some(FallbackReason::LeaseExpanded),
            false => (!rows.is_empty()).then_some(FallbackReason::TasksHoldSlots),
        };
        (listed, rows, reason)
    }

    /// Returns why the fast path did not end these attempts.
    pub(super) fn reason(&self, exits: &[Exit]) -> FallbackReason {
        let state = self.state();
        let is_known = |exit: &Exit| state.attempts.contains_key(&(exit.token, exit.task));
        match exits.iter().any(is_known) {
            true => FallbackReason::TasksHoldSlots,
            // Another process, or a cancel, gave them rows of their own.
            false => FallbackReason::LeaseExpanded,
        }
    }

    /// Removes attempts that end on the general path. Returns whether all of them have rows of their own, as far
    /// as this process knows.
    pub(super) fn forget(&self, exits: &[Exit]) -> bool {
        let mut state = self.state();
        let mut have_rows = true;
        for exit in exits {
            let kept = state.attempts.remove(&(exit.token, exit.task));
            have_rows &= matches!(kept, Some(Kept::Rows | Kept::Expanded));
        }
        have_rows
    }

    /// Returns the number of attempts.
    pub(super) fn len(&self) -> usize {
        self.state().attempts.len()
    }

    /// Takes off those that end; gives which of them hold a slot of which limit.
    pub(super) fn take(&self, exits: &[Exit]) -> BTreeMap<TaskId, LimitId> {
        let mut state = self.state();
        let held = |exit: &Exit| match state.attempts.remove(&(exit.token, exit.task))? {
            Kept::Listed(limit) => Some((exit.task, limit)),
            Kept::Rows | Kept::Expanded => None,
        };
        exits.iter().filter_map(held).collect()
    }

    /// Puts back what [`take`](Self::take) removed, for exits that are still to be ended.
    pub(super) fn put_back(&self, exits: &[Exit], held: &BTreeMap<TaskId, LimitId>) {
        let mut state = self.state();
        for exit in exits {
            if let Some(limit) = held.get(&exit.task) {
                state.attempts.insert((exit.token, exit.task), Kept::Listed(*limit));
            }
        }
    }

    /// Gives the lines of the limits of which these exits hold slots.
    pub(super) fn lines(&self, exits: &[Exit], held: &BTreeMap<TaskId, LimitId>) -> Lines {
        let limits: BTreeSet<LimitId> =
            exits.iter().filter_map(|exit| held.get(&exit.task)).copied().collect();
        let state = self.state();
        let now = now();
        let mut lines = Lines::default();
        for limit in limits {
            let line = state.lines.get(&limit);
            let reached = line.and_then(|line| line.reached.as_ref());
            lines.push(limit, reached.filter(|reached| now < reached.looked_at + DUE));
            lines.kinds.extend(line.into_iter().flat_map(|line| &line.kinds).cloned());
        }
        lines
    }

    /// Some have left their lines, which were read from there on.
    pub(super) fn reached(&self, furthest: BTreeMap<LimitId, Reached>, from: &Lines) {
        let mut state = self.state();
        for (limit, new) in furthest {
            let is_from_start = from.is_from_start(limit);
            let line = state.lines.entry(limit).or_default();
            let reached = line.reached.get_or_insert(new);
            if is_from_start || new.refused > reached.refused {
                *reached = new;
            } else if new.refused == reached.refused {
                reached.key = reached.key.max(new.key);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Evicts the oldest entries: attempts that never reported completion, because their worker lost its lease.
    fn evict(&mut self) {
        while self.attempts.len() > ATTEMPTS_MAX {
            self.attempts.pop_first();
        }
    }
}

/// How far this process has come in lines, as columns of a statement.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) limits: Vec<i64>,
    /// [`NEVER`] where the line is read from its start.
    pub(super) refused: Vec<i64>,
    pub(super) ranks: Vec<i64>,
    pub(super) tags: Vec<i64>,
    pub(super) places: Vec<i64>,
    /// The kinds of which tasks are expected there.
    pub(super) kinds: BTreeSet<Arc<str>>,
}

/// No line has been come to so often.
const NEVER: i64 = -1;

impl Lines {
    fn push(&mut self, limit: LimitId, reached: Option<&Reached>) {
        let (rank, tag, place) = reached.map(|reached| reached.key).unwrap_or_default();
        self.limits.push(limit.0);
        self.refused.push(reached.map_or(NEVER, |reached| reached.refused));
        self.ranks.push(rank);
        self.tags.push(tag);
        self.places.push(place);
    }

    fn is_from_start(&self, limit: LimitId) -> bool {
        let mut lines = self.limits.iter().zip(&self.refused);
        lines.any(|(id, refused)| *id == limit.0 && *refused == NEVER)
    }

    /// What stands for the limits in `lock_limits_shared_then_leases.sql`, in the one order of locks.
    pub(super) fn buckets(&self) -> Vec<i32> {
        let buckets: BTreeSet<i32> = self.limits.iter().map(|id| (id % 256) as i32).collect();
        buckets.into_iter().collect()
    }
}
