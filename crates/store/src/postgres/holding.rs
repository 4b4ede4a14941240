//! What this process remembers for hand-offs: its attempts that hold one slot, and how far it has come
//! in the wait queues of their limits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    attempts: BTreeMap<(Token, TaskId), LimitId>,
    lines: HashMap<LimitId, Line>,
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
            if let [slot] = attempt.slots.as_slice()
                && attempt.job.is_none()
                && attempt.workflow.is_none()
            {
                state.attempts.insert((attempt.token, attempt.task), slot.limit);
                let line = state.lines.entry(slot.limit).or_default();
                if !line.kinds.contains(&attempt.kind) {
                    line.kinds.insert(attempt.kind.clone());
                }
            }
        }
        if state.lines.len() > LINES_MAX {
            state.lines.clear();
        }
        // Evicts the oldest entries: attempts that never reported completion, because their worker lost its lease.
        while state.attempts.len() > ATTEMPTS_MAX {
            state.attempts.pop_first();
        }
    }

    /// Removes attempts that got rows of their own, or that have ended.
    pub(super) fn forget(&self, attempts: impl Iterator<Item = (Token, TaskId)>) {
        let mut state = self.state();
        for attempt in attempts {
            state.attempts.remove(&attempt);
        }
    }

    /// Takes off those that end; gives which of them hold a slot of which limit.
    pub(super) fn take(&self, exits: &[Exit]) -> BTreeMap<TaskId, LimitId> {
        let mut state = self.state();
        let held = |exit: &Exit| {
            let limit = state.attempts.remove(&(exit.token, exit.task))?;
            Some((exit.task, limit))
        };
        exits.iter().filter_map(held).collect()
    }

    /// Puts back what [`take`](Self::take) removed, for exits that are still to be ended.
    pub(super) fn put_back(&self, exits: &[Exit], held: &BTreeMap<TaskId, LimitId>) {
        let mut state = self.state();
        for exit in exits {
            if let Some(limit) = held.get(&exit.task) {
                state.attempts.insert((exit.token, exit.task), *limit);
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

    /// What stands for the limits in `hold_limits.sql`, in the one order of locks.
    pub(super) fn buckets(&self) -> Vec<i32> {
        let buckets: BTreeSet<i32> = self.limits.iter().map(|id| (id % 256) as i32).collect();
        buckets.into_iter().collect()
    }
}
