//! Notices that a run stands still, so that it can say why.

use std::time::{Duration, Instant};

use tidegate_core::reader::NotRunningReason;
use tidegate_engine::time;

/// How long nothing happens before somebody wonders.
const STALL_AFTER: Duration = Duration::from_secs(3);

/// Between two looks at the reason.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Between two times that the same reason is told.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// What was seen to happen: attempts that run, tasks that ended here, tasks that are left.
pub(crate) type ProgressCounts = (usize, usize, usize);

/// Watches whether anything moves.
#[derive(Debug)]
pub(crate) struct StallDetector {
    last_counts: ProgressCounts,
    unchanged_since: Instant,
    checked_at: Instant,
    reported: Option<(Instant, NotRunningReason)>,
}

impl StallDetector {
    /// Begins to watch.
    pub(crate) fn new() -> Self {
        let now = time::now();
        Self { last_counts: (0, 0, 0), unchanged_since: now, checked_at: now, reported: None }
    }

    /// Whether nothing has moved for so long that the reason is worth a look.
    pub(crate) fn is_due(&mut self, moves: ProgressCounts) -> bool {
        let now = time::now();
        let (running, ..) = moves;
        if running > 0 || moves != self.last_counts {
            self.last_counts = moves;
            self.unchanged_since = now;
        }
        let is_due =
            now - self.unchanged_since >= STALL_AFTER && now - self.checked_at >= CHECK_INTERVAL;
        if is_due {
            self.checked_at = now;
        }
        is_due
    }

    /// Whether a reason is to be told: it is another one, or it was told long ago.
    pub(crate) fn should_report(&mut self, reason: &NotRunningReason) -> bool {
        let now = time::now();
        let is_old = |(told, before): &(Instant, NotRunningReason)| {
            now - *told < REPEAT_INTERVAL && is_same_reason(before, reason)
        };
        if self.reported.as_ref().is_some_and(is_old) {
            return false;
        }
        self.reported = Some((now, reason.clone()));
        true
    }
}

/// Whether a person would call it the same reason: places, holders and leases change all the time.
fn is_same_reason(one: &NotRunningReason, other: &NotRunningReason) -> bool {
    match (one, other) {
        (
            NotRunningReason::InWaitQueue { limit, capacity, .. },
            NotRunningReason::InWaitQueue { limit: other_limit, capacity: other_capacity, .. },
        ) => limit == other_limit && capacity == other_capacity,
        (NotRunningReason::NotDue { run_at }, NotRunningReason::NotDue { run_at: other }) => {
            run_at == other
        }
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_reason_is_reported_only_when_it_changes() {
        let mut stall = StallDetector::new();
        let due = |run_at| NotRunningReason::NotDue { run_at };
        assert!(stall.should_report(&due(5)));
        assert!(!stall.should_report(&due(5)));
        assert!(stall.should_report(&due(6)));
        assert!(stall.should_report(&NotRunningReason::InInbox { is_served: true }));
    }

    #[test]
    fn run_with_progress_is_not_stalled() {
        let mut stall = StallDetector::new();
        assert!(!stall.is_due((0, 0, 1)));
        stall.unchanged_since -= STALL_AFTER;
        stall.checked_at -= STALL_AFTER;
        assert!(stall.is_due((0, 0, 1)));
        assert!(!stall.is_due((0, 0, 1)), "not twice in a second");
        stall.checked_at -= STALL_AFTER;
        assert!(!stall.is_due((1, 0, 1)), "it runs");
    }
}
