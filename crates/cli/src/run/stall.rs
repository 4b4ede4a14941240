//! Notices that a run stands still, so that it can say why.

use std::time::{Duration, Instant};

use tidegate_core::inspect::Reason;
use tidegate_engine::time;

/// How long nothing happens before somebody wonders.
const QUIET: Duration = Duration::from_secs(3);

/// Between two looks at the reason.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Between two times that the same reason is told.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// What was seen to happen: attempts that run, tasks that ended here, tasks that are left.
pub(crate) type Moves = (usize, usize, usize);

/// Watches whether anything moves.
#[derive(Debug)]
pub(crate) struct Stall {
    moves: Moves,
    quiet_since: Instant,
    looked: Instant,
    told: Option<(Instant, Reason)>,
}

impl Stall {
    /// Begins to watch.
    pub(crate) fn new() -> Self {
        let now = time::now();
        Self { moves: (0, 0, 0), quiet_since: now, looked: now, told: None }
    }

    /// Whether nothing has moved for so long that the reason is worth a look.
    pub(crate) fn is_due(&mut self, moves: Moves) -> bool {
        let now = time::now();
        let (running, ..) = moves;
        if running > 0 || moves != self.moves {
            self.moves = moves;
            self.quiet_since = now;
        }
        let is_due = now - self.quiet_since >= QUIET && now - self.looked >= LOOK_INTERVAL;
        if is_due {
            self.looked = now;
        }
        is_due
    }

    /// Whether a reason is to be told: it is another one, or it was told long ago.
    pub(crate) fn is_news(&mut self, reason: &Reason) -> bool {
        let now = time::now();
        let is_old = |(told, before): &(Instant, Reason)| {
            now - *told < TELL_INTERVAL && is_same(before, reason)
        };
        if self.told.as_ref().is_some_and(is_old) {
            return false;
        }
        self.told = Some((now, reason.clone()));
        true
    }
}

/// Whether a person would call it the same reason: places, holders and leases change all the time.
fn is_same(one: &Reason, other: &Reason) -> bool {
    match (one, other) {
        (
            Reason::InLine { limit, capacity, .. },
            Reason::InLine { limit: other_limit, capacity: other_capacity, .. },
        ) => limit == other_limit && capacity == other_capacity,
        (Reason::NotDue { run_at }, Reason::NotDue { run_at: other }) => run_at == other,
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_reason_is_told_once_in_a_while() {
        let mut stall = Stall::new();
        let due = |run_at| Reason::NotDue { run_at };
        assert!(stall.is_news(&due(5)));
        assert!(!stall.is_news(&due(5)));
        assert!(stall.is_news(&due(6)));
        assert!(stall.is_news(&Reason::AtGate { is_served: true }));
    }

    #[test]
    fn what_moves_is_not_stalled() {
        let mut stall = Stall::new();
        assert!(!stall.is_due((0, 0, 1)));
        stall.quiet_since -= QUIET;
        stall.looked -= QUIET;
        assert!(stall.is_due((0, 0, 1)));
        assert!(!stall.is_due((0, 0, 1)), "not twice in a second");
        stall.looked -= QUIET;
        assert!(!stall.is_due((1, 0, 1)), "it runs");
    }
}
