//! Counts what is sent to the server, and how long its answers take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::call;

/// What a store has sent to the server so far. Preparing a statement, and listening, is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundTripStats {
    /// Statements, a COMMIT among them; a BEGIN goes with the first.
    pub statements: u64,
    /// Statements that are sent together are one round trip.
    pub round_trips: u64,
    /// From the first of them to the last answer, summed over all round trips.
    pub waited: Duration,
}

impl RoundTripStats {
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
pub(super) struct RoundTripMeter {
    started_at: Instant,
    statements: AtomicU64,
    round_trips: AtomicU64,
    waited_ns: AtomicU64,
    /// When the server last answered a statement.
    last_answer_ns: AtomicU64,
}

impl Default for RoundTripMeter {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        let (statements, round_trips, waited_ns) = (zero(), zero(), zero());
        Self { started_at: now(), statements, round_trips, waited_ns, last_answer_ns: zero() }
    }
}

impl RoundTripMeter {
    pub(super) fn stats(&self) -> RoundTripStats {
        RoundTripStats {
            statements: self.statements.load(Ordering::Relaxed),
            round_trips: self.round_trips.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed)),
        }
    }

    pub(super) fn elapsed_ns(&self) -> u64 {
        (now() - self.started_at).as_nanos() as u64
    }

    /// Returns whether any connection has got an answer since `began_ns`.
    pub(super) fn has_answered_since(&self, began_ns: u64) -> bool {
        self.last_answer_ns.load(Ordering::Relaxed) > began_ns
    }
}

#[expect(clippy::disallowed_methods, reason = "only measures; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

/// The round trips of one transaction. Its statements are sent and answered in their order.
#[derive(Debug)]
pub(super) struct TxRoundTrips {
    meter: Arc<RoundTripMeter>,
    unanswered: AtomicU32,
    began_ns: AtomicU64,
}

impl TxRoundTrips {
    pub(super) fn new(meter: &Arc<RoundTripMeter>) -> Self {
        let (unanswered, began_ns) = (AtomicU32::new(0), AtomicU64::new(0));
        Self { meter: meter.clone(), unanswered, began_ns }
    }

    /// The server has answered a statement, also if with an error.
    pub(super) fn record_answer(&self) {
        self.meter.last_answer_ns.fetch_max(self.meter.elapsed_ns(), Ordering::Relaxed);
    }

    /// A statement is sent; it is answered, or given up, when this is dropped.
    pub(super) fn start_statement(&self) -> InFlightStatement<'_> {
        self.meter.statements.fetch_add(1, Ordering::Relaxed);
        if self.unanswered.fetch_add(1, Ordering::Relaxed) == 0 {
            self.meter.round_trips.fetch_add(1, Ordering::Relaxed);
            call::count_round_trip();
            self.began_ns.store(self.meter.elapsed_ns(), Ordering::Relaxed);
        }
        InFlightStatement(self)
    }
}

/// A statement on its way.
#[derive(Debug)]
pub(super) struct InFlightStatement<'a>(&'a TxRoundTrips);

impl Drop for InFlightStatement<'_> {
    fn drop(&mut self) {
        let TxRoundTrips { meter, unanswered, began_ns } = self.0;
        if unanswered.fetch_sub(1, Ordering::Relaxed) == 1 {
            let waited = meter.elapsed_ns() - began_ns.load(Ordering::Relaxed);
            meter.waited_ns.fetch_add(waited, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipelined_statements_count_as_one_round_trip() {
        let meter = Arc::new(RoundTripMeter::default());
        let trips = TxRoundTrips::new(&meter);
        let (first, second) = (trips.start_statement(), trips.start_statement());
        drop(first);
        drop(second);
        let before = meter.stats();
        assert_eq!((before.statements, before.round_trips), (2, 1));
        drop(trips.start_statement());
        let since = meter.stats().since(before);
        assert_eq!((since.statements, since.round_trips), (1, 1));
        assert!(since.waited <= meter.stats().waited);
    }
}
