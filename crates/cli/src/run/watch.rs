//! Watches the attempts of a run from inside the worker.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::{Attempt, TaskId};
use tidegate_engine::{Ended, Observer};
use tidegate_measure::clock::monotonic_ns;

use super::parts::heading;
use crate::worker::history::{History, holds};

/// Counts what the worker does, and passes it on to the history.
#[derive(Debug)]
pub(crate) struct Watch {
    history: Arc<History>,
    counts: Mutex<Counts>,
}

/// What was counted.
#[derive(Debug)]
pub(crate) struct Counts {
    begin_ns: u64,
    /// Tasks that ended for good.
    ended: HashSet<TaskId>,
    /// Tasks under their headings.
    pub(crate) headings: BTreeMap<String, Heading>,
    /// Use of every limit that was held.
    pub(crate) limits: BTreeMap<String, Use>,
    entered: HashMap<TaskId, u64>,
}

/// What became of the tasks of a job, or of a kind where they have no job.
#[derive(Debug, Default)]
pub(crate) struct Heading {
    /// Completed tasks.
    pub(crate) completed: u64,
    /// Tasks that failed or were cancelled.
    pub(crate) failed: u64,
    /// Attempts that failed and are tried again.
    pub(crate) retries: u64,
    /// From the beginning of the run to the first attempt of each task, in nanoseconds.
    pub(crate) waits_ns: Vec<u64>,
    /// How long each handler ran, in nanoseconds.
    pub(crate) runs_ns: Vec<u64>,
}

/// How much of a limit was in use.
#[derive(Debug, Default)]
pub(crate) struct Use {
    held: u64,
    /// The most at once.
    pub(crate) most: u64,
    first_ns: u64,
    last_ns: u64,
    area: u128,
}

impl Use {
    fn change(&mut self, now_ns: u64, held: u64) {
        if self.last_ns == 0 {
            self.first_ns = now_ns;
            self.last_ns = now_ns;
        }
        self.area += u128::from(self.held) * u128::from(now_ns.saturating_sub(self.last_ns));
        self.last_ns = self.last_ns.max(now_ns);
        self.held = held;
        self.most = self.most.max(held);
    }

    /// What was held on average between the first enter and the last leave.
    pub(crate) fn mean(&self) -> f64 {
        let span = self.last_ns.saturating_sub(self.first_ns).max(1);
        self.area as f64 / span as f64
    }
}

impl Watch {
    /// Begins to watch.
    pub(crate) fn new(history: Arc<History>) -> Self {
        let counts = Counts {
            begin_ns: monotonic_ns(),
            ended: HashSet::new(),
            headings: BTreeMap::new(),
            limits: BTreeMap::new(),
            entered: HashMap::new(),
        };
        Self { history, counts: Mutex::new(counts) }
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attempts that run now, and those that ended for good: while both stay as they are, nothing
    /// happens here.
    pub(crate) fn moves(&self) -> (usize, usize) {
        let counts = self.counts();
        (counts.entered.len(), counts.ended.len())
    }

    /// Whether a task was seen to end for good.
    pub(crate) fn has_ended(&self, task: TaskId) -> bool {
        self.counts().ended.contains(&task)
    }
}

impl Counts {
    fn heading(&mut self, attempt: &Attempt) -> &mut Heading {
        self.headings.entry(heading(attempt.job.as_deref(), &attempt.kind)).or_default()
    }

    fn hold(&mut self, attempt: &Attempt, now_ns: u64, enters: bool) {
        for (name, weight) in holds(attempt) {
            let limit = self.limits.entry(name.to_owned()).or_default();
            let weight = u64::from(weight);
            let held = if enters { limit.held + weight } else { limit.held.saturating_sub(weight) };
            limit.change(now_ns, held);
        }
    }
}

impl Observer for Watch {
    fn enter(&self, attempt: &Attempt) {
        self.history.enter(attempt);
        let mut counts = self.counts();
        let now_ns = monotonic_ns();
        counts.hold(attempt, now_ns, true);
        counts.entered.insert(attempt.task, now_ns);
        if attempt.number == 1 {
            let wait_ns = now_ns.saturating_sub(counts.begin_ns);
            counts.heading(attempt).waits_ns.push(wait_ns);
        }
    }

    fn leave(&self, attempt: &Attempt, ran: Duration) {
        self.history.leave(attempt, ran);
        let mut counts = self.counts();
        let now_ns = monotonic_ns();
        counts.hold(attempt, now_ns, false);
        if let Some(entered_ns) = counts.entered.remove(&attempt.task) {
            counts.heading(attempt).runs_ns.push(now_ns.saturating_sub(entered_ns));
        }
    }

    fn exit(&self, attempt: &Attempt, ended: Ended) {
        self.history.exit(attempt, ended);
        let mut counts = self.counts();
        match ended {
            Ended::Completed => counts.heading(attempt).completed += 1,
            Ended::Failed | Ended::Cancelled => counts.heading(attempt).failed += 1,
            Ended::Retry => counts.heading(attempt).retries += 1,
            Ended::Snoozed | Ended::Released | Ended::Lost => {}
        }
        if matches!(ended, Ended::Completed | Ended::Failed | Ended::Cancelled) {
            counts.ended.insert(attempt.task);
        }
    }
}
