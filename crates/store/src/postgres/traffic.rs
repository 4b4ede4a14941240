//! Counts what is sent to the server, and how long its answers take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::call;

/// What a store has sent to the server so far. Preparing a statement, and listening, is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Statements, a COMMIT among them; a BEGIN goes with the first.
    pub statements: u64,
    /// Statements that are sent together are one round trip.
    pub round_trips: u64,
    /// From the first of them to the last answer, summed over all round trips.
    pub waited: Duration,
}

impl Traffic {
    /// What was sent since an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            statements: self.statements - earlier.statements,
            round_trips: self.round_trips - earlier.round_trips,
            waited: self.waited - earlier.waited,
        }
    }
}

/// The sums of a store.
#[derive(Debug)]
pub(super) struct Meter {
    since: Instant,
    statements: AtomicU64,
    round_trips: AtomicU64,
    waited_ns: AtomicU64,
    /// When the server last answered a statement.
    answered_ns: AtomicU64,
}

impl Default for Meter {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        let (statements, round_trips, waited_ns) = (zero(), zero(), zero());
        Self { since: now(), statements, round_trips, waited_ns, answered_ns: zero() }
    }
}

impl Meter {
    pub(super) fn read(&self) -> Traffic {
        Traffic {
            statements: self.statements.load(Ordering::Relaxed),
            round_trips: self.round_trips.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed)),
        }
    }

    pub(super) fn now_ns(&self) -> u64 {
        (now() - self.since).as_nanos() as u64
    }

    /// Returns whether any connection has got an answer since `began_ns`.
    pub(super) fn has_answered_since(&self, began_ns: u64) -> bool {
        self.answered_ns.load(Ordering::Relaxed) > began_ns
    }
}

#[expect(clippy::disallowed_methods, reason = "only measures; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

/// The round trips of one transaction. Its statements are sent and answered in their order.
#[derive(Debug)]
pub(super) struct Trips {
    meter: Arc<Meter>,
    unanswered: AtomicU32,
    began_ns: AtomicU64,
}

impl Trips {
    pub(super) fn new(meter: &Arc<Meter>) -> Self {
        let (unanswered, began_ns) = (AtomicU32::new(0), AtomicU64::new(0));
        Self { meter: meter.clone(), unanswered, began_ns }
    }

    /// The server has answered a statement, also if with an error.
    pub(super) fn note_answer(&self) {
        self.meter.answered_ns.fetch_max(self.meter.now_ns(), Ordering::Relaxed);
    }

    /// A statement is sent; it is answered, or given up, when this is dropped.
    pub(super) fn send(&self) -> Sent<'_> {
        self.meter.statements.fetch_add(1, Ordering::Relaxed);
        if self.unanswered.fetch_add(1, Ordering::Relaxed) == 0 {
            self.meter.round_trips.fetch_add(1, Ordering::Relaxed);
            call::note_round_trip();
            self.began_ns.store(self.meter.now_ns(), Ordering::Relaxed);
        }
        Sent(self)
    }
}

/// A statement on its way.
#[derive(Debug)]
pub(super) struct Sent<'a>(&'a Trips);

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Trips { meter, unanswered, began_ns } = self.0;
        if unanswered.fetch_sub(1, Ordering::Relaxed) == 1 {
            let waited = meter.now_ns() - began_ns.load(Ordering::Relaxed);
            meter.waited_ns.fetch_add(waited, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_together_is_one_round_trip() {
        let meter = Arc::new(Meter::default());
        let trips = Trips::new(&meter);
        let (first, second) = (trips.send(), trips.send());
        drop(first);
        drop(second);
        let before = meter.read();
        assert_eq!((before.statements, before.round_trips), (2, 1));
        drop(trips.send());
        let since = meter.read().since(before);
        assert_eq!((since.statements, since.round_trips), (1, 1));
        assert!(since.waited <= meter.read().waited);
    }
}
