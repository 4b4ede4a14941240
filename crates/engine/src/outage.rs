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
/// heartbeat interval. It ends with the first call that succeeds. An error that is not retryable counts as a
/// success, because it shows that the store can be reached.
#[derive(Debug)]
pub(crate) struct OutageTracker {
    /// How often workers send heartbeats.
    heartbeat_interval: Duration,
    state: Mutex<OutageState>,
    outage_began: Notify,
}

#[derive(Debug)]
struct OutageState {
    /// When a call last succeeded.
    last_success_at: Instant,
    is_unavailable: bool,
    /// This process may reap from this time on.
    reap_from: Instant,
}

impl OutageTracker {
    pub(crate) fn new(heartbeat_interval: Duration) -> Self {
        let now = time::now();
        let state = OutageState { last_success_at: now, is_unavailable: false, reap_from: now };
        Self { heartbeat_interval, state: Mutex::new(state), outage_began: Notify::new() }
    }

    /// Records the result of a call. Any result but a retryable error shows that the store can be reached. Prefer
    /// calls that always ask the server: a call that the store answers from memory proves nothing.
    pub(crate) fn record_result<T>(&self, result: &Result<T>) {
        // A store that refuses all writes for a while, such as a read-only server, renews no leases either.
        let is_failure = result.as_ref().is_err_and(Error::is_retryable);
        self.record_result_at(!is_failure, time::now());
    }

    fn record_result_at(&self, has_succeeded: bool, now: Instant) {
        let mut state = self.lock_state();
        if !has_succeeded {
            if !state.is_unavailable && now >= state.last_success_at + self.heartbeat_interval / 2 {
                state.is_unavailable = true;
                self.outage_began.notify_waiters();
            }
            return;
        }
        state.last_success_at = now;
        if std::mem::take(&mut state.is_unavailable) {
            state.reap_from = now + self.heartbeat_interval;
        }
    }

    /// Returns whether this process may reap now.
    pub(crate) fn may_reap(&self) -> bool {
        self.may_reap_at(time::now())
    }

    fn may_reap_at(&self, now: Instant) -> bool {
        let state = self.lock_state();
        !state.is_unavailable && now >= state.reap_from
    }

    /// Runs a call that reaps, and cancels it when an outage begins: the store might execute it as
    /// the first call after the outage.
    pub(crate) async fn run_unless_outage<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        let begun = self.outage_began.notified();
        if !self.may_reap() {
            return None;
        }
        tokio::select! {
            biased;
            () = begun => None,
            answer = request => Some(answer),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, OutageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::ErrorKind;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn new_tracker() -> (OutageTracker, impl Fn(u64) -> Instant) {
        let outage = OutageTracker::new(INTERVAL);
        let began_at = outage.lock_state().last_success_at;
        (outage, move |seconds| began_at + Duration::from_secs(seconds))
    }

    #[test]
    fn reaping_waits_one_interval_after_an_outage() {
        let (outage, at) = new_tracker();
        assert!(outage.may_reap_at(at(1)));
        outage.record_result_at(false, at(6));
        assert!(!outage.may_reap_at(at(6)), "the store is away");
        outage.record_result_at(false, at(60));
        outage.record_result_at(true, at(61));
        assert!(!outage.may_reap_at(at(70)));
        assert!(outage.may_reap_at(at(71)));
    }

    #[test]
    fn single_failures_between_successes_are_no_outage() {
        let (outage, at) = new_tracker();
        for second in 0..100 {
            outage.record_result_at(second % 4 == 0, at(second));
            assert!(outage.may_reap_at(at(second)));
        }
    }

    #[test]
    fn only_retryable_errors_count_as_outage() {
        for kind in [ErrorKind::Unavailable, ErrorKind::Refused] {
            let outage = OutageTracker::new(Duration::ZERO);
            outage.record_result::<()>(&Err(Error::invalid("no")));
            assert!(outage.may_reap());
            outage.record_result::<()>(&Err(Error::new(kind, "away")));
            assert!(!outage.may_reap(), "{kind:?}");
        }
    }

    #[tokio::test]
    async fn pending_request_is_cancelled_when_outage_begins() {
        let outage = OutageTracker::new(INTERVAL);
        let later = outage.lock_state().last_success_at + INTERVAL;
        let (given_up, ()) =
            tokio::join!(outage.run_unless_outage(std::future::pending::<()>()), async {
                outage.record_result_at(false, later)
            },);
        assert_eq!(given_up, None);
        assert_eq!(outage.run_unless_outage(async {}).await, None, "it does not even begin");
    }
}
