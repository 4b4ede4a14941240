//! Watches the attempts of a run from inside the worker.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::{Attempt, TaskId};
use tidegate_engine::{AttemptOutcome, Observer};
use tidegate_measure::clock::monotonic_ns;

use super::chunked_submit::task_heading;
use crate::worker::history::{History, slots_by_limit};

/// Counts what the worker does, and passes it on to the history.
#[derive(Debug)]
pub(crate) struct RunObserver {
    history: Arc<History>,
    counts: Mutex<RunStats>,
}

/// What was counted.
#[derive(Debug)]
pub(crate) struct RunStats {
    begin_ns: u64,
    /// Tasks that ended for good.
    finished: HashSet<TaskId>,
    /// Tasks under their headings.
    pub(crate) headings: BTreeMap<String, HeadingStats>,
    /// Use of every limit that was held.
    pub(crate) limits: BTreeMap<String, SlotUsage>,
    started_ns: HashMap<TaskId, u64>,
}

/// What became of the tasks of a job, or of a kind where they have no job.
#[derive(Debug, Default)]
pub(crate) struct HeadingStats {
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
pub(crate) struct SlotUsage {
    held: u64,
    /// The most at once.
    pub(crate) held_max: u64,
    first_ns: u64,
    last_ns: u64,
    held_integral: u128,
}

impl SlotUsage {
    fn update(&mut self, now_ns: u64, held: u64) {
        if self.last_ns == 0 {
            self.first_ns = now_ns;
            self.last_ns = now_ns;
        }
        self.held_integral +=
            u128::from(self.held) * u128::from(now_ns.saturating_sub(self.last_ns));
        self.last_ns = self.last_ns.max(now_ns);
        self.held = held;
        self.held_max = self.held_max.max(held);
    }

    /// What was held on average between the first enter and the last leave.
    pub(crate) fn mean(&self) -> f64 {
        let span = self.last_ns.saturating_sub(self.first_ns).max(1);
        self.held_integral as f64 / span as f64
    }
}

impl RunObserver {
    /// Begins to watch.
    pub(crate) fn new(history: Arc<History>) -> Self {
        let counts = RunStats {
            begin_ns: monotonic_ns(),
            finished: HashSet::new(),
            headings: BTreeMap::new(),
            limits: BTreeMap::new(),
            started_ns: HashMap::new(),
        };
        Self { history, counts: Mutex::new(counts) }
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> MutexGuard<'_, RunStats> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attempts that run now, and those that ended for good: while both stay as they are, nothing
    /// happens here.
    pub(crate) fn progress_counts(&self) -> (usize, usize) {
        let counts = self.counts();
        (counts.started_ns.len(), counts.finished.len())
    }

    /// Whether a task was seen to end for good.
    pub(crate) fn is_finished(&self, task: TaskId) -> bool {
        self.counts().finished.contains(&task)
    }
}

impl RunStats {
    fn heading(&mut self, attempt: &Attempt) -> &mut HeadingStats {
        self.headings.entry(task_heading(attempt.job.as_deref(), &attempt.kind)).or_default()
    }

    fn update_slots(&mut self, attempt: &Attempt, now_ns: u64, enters: bool) {
        for (name, weight) in slots_by_limit(attempt) {
            let limit = self.limits.entry(name.to_owned()).or_default();
            let weight = u64::from(weight);
            let held = if enters { limit.held + weight } else { limit.held.saturating_sub(weight) };
            limit.update(now_ns, held);
        }
    }
}

impl Observer for RunObserver {
    fn on_start(&self, attempt: &Attempt) {
        self.history.on_start(attempt);
        let mut counts = self.counts();
        let now_ns = monotonic_ns();
        counts.update_slots(attempt, now_ns, true);
        counts.started_ns.insert(attempt.task, now_ns);
        if attempt.number == 1 {
            let wait_ns = now_ns.saturating_sub(counts.begin_ns);
            counts.heading(attempt).waits_ns.push(wait_ns);
        }
    }

    fn on_handler_done(&self, attempt: &Attempt, ran: Duration) {
        self.history.on_handler_done(attempt, ran);
        let mut counts = self.counts();
        let now_ns = monotonic_ns();
        counts.update_slots(attempt, now_ns, false);
        if let Some(entered_ns) = counts.started_ns.remove(&attempt.task) {
            counts.heading(attempt).runs_ns.push(now_ns.saturating_sub(entered_ns));
        }
    }

    fn on_acknowledged(&self, attempt: &Attempt, ended: AttemptOutcome) {
        self.history.on_acknowledged(attempt, ended);
        let mut counts = self.counts();
        match ended {
            AttemptOutcome::Completed => counts.heading(attempt).completed += 1,
            AttemptOutcome::Failed | AttemptOutcome::Cancelled => {
                counts.heading(attempt).failed += 1
            }
            AttemptOutcome::Retry => counts.heading(attempt).retries += 1,
            AttemptOutcome::Snoozed | AttemptOutcome::Released | AttemptOutcome::Lost => {}
        }
        if matches!(
            ended,
            AttemptOutcome::Completed | AttemptOutcome::Failed | AttemptOutcome::Cancelled
        ) {
            counts.finished.insert(attempt.task);
        }
    }
}
