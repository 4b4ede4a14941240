//! Outages of the store, as this process records them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::{Error, Result};
use tokio::sync::Notify;

use crate::time;

/// Decides when this process may reap. Workers whose heartbeats failed during an outage are alive, and
/// their leases have expired: a process that reaped them at once would count crashes. After an outage the
/// process therefore waits one heartbeat interval before it reaps: the workers renew or release their leases
/// first. An outage begins when a call fails with a retryable error and none has succeeded for half a
/// heartbeat interval. It ends with the first call that succeeds.
#[derive(Debug)]
pub(crate) struct Outage {
    /// How often workers send heartbeats.
    interval: Duration,
    state: Mutex<State>,
    begun: Notify,
}

#[derive(Debug)]
struct State {
    /// When a call last succeeded.
    succeeded_at: Instant,
    is_lost: bool,
    /// This process may reap from this time on.
    reap_from: Instant,
}

impl Outage {
    pub(crate) fn new(interval: Duration) -> Self {
        let now = time::now();
        let state = State { succeeded_at: now, is_lost: false, reap_from: now };
        Self { interval, state: Mutex::new(state), begun: Notify::new() }
    }

    /// Records the result of a call that cannot be answered without the store.
    pub(crate) fn note<T>(&self, result: &Result<T>) {
        // A store that refuses all writes for a while, such as a read-only server, renews no leases either.
        let is_failure = result.as_ref().is_err_and(Error::is_retryable);
        self.note_at(!is_failure, time::now());
    }

    fn note_at(&self, has_succeeded: bool, now: Instant) {
        let mut state = self.state();
        if !has_succeeded {
            if !state.is_lost && now >= state.succeeded_at + self.interval / 2 {
                state.is_lost = true;
                self.begun.notify_waiters();
            }
            return;
        }
        state.succeeded_at = now;
        if std::mem::take(&mut state.is_lost) {
            state.reap_from = now + self.interval;
        }
    }

    /// Returns whether this process may reap now.
    pub(crate) fn may_reap(&self) -> bool {
        self.may_reap_at(time::now())
    }

    fn may_reap_at(&self, now: Instant) -> bool {
        let state = self.state();
        !state.is_lost && now >= state.reap_from
    }

    /// Runs a call that reaps, and cancels it when an outage begins: the store might execute it as
    /// the first call after the outage.
    pub(crate) async fn unless_begun<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let begun = self.begun.notified();
        if !self.may_reap() {
            return None;
        }
        tokio::select! {
            biased;
            () = begun => None,
            answer = call => Some(answer),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::ErrorKind;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn started() -> (Outage, impl Fn(u64) -> Instant) {
        let outage = Outage::new(INTERVAL);
        let began_at = outage.state().succeeded_at;
        (outage, move |seconds| began_at + Duration::from_secs(seconds))
    }

    #[test]
    fn reaping_waits_one_interval_after_an_outage() {
        let (outage, at) = started();
        assert!(outage.may_reap_at(at(1)));
        outage.note_at(false, at(6));
        assert!(!outage.may_reap_at(at(6)), "the store is away");
        outage.note_at(false, at(60));
        outage.note_at(true, at(61));
        assert!(!outage.may_reap_at(at(70)));
        assert!(outage.may_reap_at(at(71)));
    }

    #[test]
    fn single_failures_between_successes_are_no_outage() {
        let (outage, at) = started();
        for second in 0..100 {
            outage.note_at(second % 4 == 0, at(second));
            assert!(outage.may_reap_at(at(second)));
        }
    }

    #[test]
    fn only_errors_that_may_pass_are_an_outage() {
        for kind in [ErrorKind::Unavailable, ErrorKind::Refused] {
            let outage = Outage::new(Duration::ZERO);
            outage.note::<()>(&Err(Error::invalid("no")));
            assert!(outage.may_reap());
            outage.note::<()>(&Err(Error::new(kind, "away")));
            assert!(!outage.may_reap(), "{kind:?}");
        }
    }

    #[tokio::test]
    async fn call_under_way_is_given_up_when_an_outage_begins() {
        let outage = Outage::new(INTERVAL);
        let later = outage.state().succeeded_at + INTERVAL;
        let (given_up, ()) =
            tokio::join!(outage.unless_begun(std::future::pending::<()>()), async {
                outage.note_at(false, later)
            },);
        assert_eq!(given_up, None);
        assert_eq!(outage.unless_begun(async {}).await, None, "it does not even begin");
    }
}
