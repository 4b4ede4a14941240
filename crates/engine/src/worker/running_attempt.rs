//! One attempt while it runs, and the lease it runs under.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::{Attempt, Millis, Outcome, Progress, Token};
use tokio::sync::Notify;

use crate::time;

/// Why a handler should stop. A later one of this list overrides an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StopReason {
    /// Somebody cancelled the task.
    Cancelled = 1,
    /// The worker ends.
    WorkerStopping = 2,
    /// The lease could not be renewed and is about to end.
    LeaseExpiring = 3,
    /// The store says that the lease is gone.
    LeaseLost = 4,
}

const STOP_REASON_MASK: u8 = 0b0111;
const ABORT_FLAG: u8 = 0b1000;

/// A lease as this worker sees it. One claim takes one lease for all its attempts.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) token: Token,
    /// What `renewed_ns` counts from.
    claimed_at: Instant,
    duration: Duration,
    renewed_after_ns: AtomicU64,
    /// Attempts whose end the store has not taken yet.
    unacknowledged: AtomicU32,
    given_up: AtomicBool,
}

impl Lease {
    /// `sent_at` is read before the request leaves: the store's lease begins later than that.
    pub(crate) fn new(token: Token, sent_at: Instant, duration: Duration, attempts: u32) -> Self {
        Self {
            token,
            claimed_at: sent_at,
            duration,
            renewed_after_ns: AtomicU64::new(0),
            unacknowledged: AtomicU32::new(attempts),
            given_up: AtomicBool::new(false),
        }
    }

    pub(crate) fn renew(&self, sent_at: Instant) {
        let since = sent_at.saturating_duration_since(self.claimed_at);
        self.renewed_after_ns.store(since.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The store's time now, where its clock showed `expires_at` as the end of the lease when that began.
    pub(crate) fn store_now(&self, expires_at: Millis) -> Millis {
        let since = time::now().saturating_duration_since(self.claimed_at);
        expires_at - time::millis(self.duration) + time::millis(since)
    }

    pub(crate) fn expires_at(&self) -> Instant {
        self.renewed_at() + self.duration
    }

    /// When handlers must be told to stop, so that they are gone before the lease ends.
    pub(crate) fn give_up_at(&self) -> Instant {
        self.renewed_at() + self.duration * 4 / 5
    }

    /// Whether this call gave it up.
    pub(crate) fn give_up(&self) -> bool {
        !self.given_up.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// One attempt has ended. Returns whether it was the last.
    pub(crate) fn acknowledge_attempt(&self) -> bool {
        self.unacknowledged.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn renewed_at(&self) -> Instant {
        self.claimed_at + Duration::from_nanos(self.renewed_after_ns.load(Ordering::Relaxed))
    }
}

/// One attempt while it runs. Everything the handler, the pump and the heartbeat share about
/// it is in this one allocation.
#[derive(Debug)]
pub(crate) struct RunningAttempt {
    /// The attempt; its payload has gone to the handler.
    pub(crate) attempt: Attempt,
    pub(crate) lease: Arc<Lease>,
    /// Which handler.
    pub(crate) handler_index: usize,
    /// Its place on the board.
    pub(crate) in_flight_index: usize,
    pub(crate) started_at: Instant,
    stop_state: AtomicU8,
    stop_changed: Notify,
    progress: Mutex<Option<Progress>>,
}

impl RunningAttempt {
    pub(crate) fn new(
        attempt: Attempt,
        lease: Arc<Lease>,
        handler_index: usize,
        in_flight_index: usize,
    ) -> Self {
        Self {
            attempt,
            lease,
            handler_index,
            in_flight_index,
            started_at: time::now(),
            stop_state: AtomicU8::new(0),
            stop_changed: Notify::new(),
            progress: Mutex::new(None),
        }
    }

    /// Tells the handler to stop. Returns whether this is news.
    pub(crate) fn request_stop(&self, reason: StopReason) -> bool {
        let raise = |stop| {
            (stop & STOP_REASON_MASK < reason as u8).then_some(stop & ABORT_FLAG | reason as u8)
        };
        let is_new =
            self.stop_state.fetch_update(Ordering::AcqRel, Ordering::Acquire, raise).is_ok();
        if is_new {
            self.stop_changed.notify_waiters();
        }
        is_new
    }

    /// Drops the handler at its next await.
    pub(crate) fn abort(&self, reason: StopReason) {
        self.request_stop(reason);
        self.stop_state.fetch_or(ABORT_FLAG, Ordering::AcqRel);
        self.stop_changed.notify_waiters();
    }

    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        match self.stop_state.load(Ordering::Acquire) & STOP_REASON_MASK {
            1 => Some(StopReason::Cancelled),
            2 => Some(StopReason::WorkerStopping),
            3 => Some(StopReason::LeaseExpiring),
            4 => Some(StopReason::LeaseLost),
            _ => None,
        }
    }

    /// Returns when the handler should stop.
    pub(crate) async fn stop_requested(&self) {
        self.wait_for_stop_bits(STOP_REASON_MASK).await;
    }

    /// Returns when the handler is to be dropped.
    pub(crate) async fn aborted(&self) {
        self.wait_for_stop_bits(ABORT_FLAG).await;
    }

    async fn wait_for_stop_bits(&self, stop_bits: u8) {
        loop {
            let changed = self.stop_changed.notified();
            if self.stop_state.load(Ordering::Acquire) & stop_bits != 0 {
                return;
            }
            changed.await;
        }
    }

    /// How an attempt ends whose handler was dropped.
    pub(crate) fn aborted_outcome(&self) -> Outcome {
        match self.stop_reason() {
            Some(StopReason::Cancelled) => Outcome::Cancelled,
            _ => Outcome::Released,
        }
    }

    /// A handler that stopped because its worker had to must not end its task.
    pub(crate) fn outcome_after_stop(&self, outcome: Outcome) -> Outcome {
        match (&outcome, self.stop_reason()) {
            (Outcome::Cancelled, Some(_)) => self.aborted_outcome(),
            _ => outcome,
        }
    }

    pub(crate) fn set_progress(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    pub(crate) fn take_progress(&self) -> Option<Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts a report back that could not be sent, unless a newer one is there.
    pub(crate) fn restore_progress(&self, progress: Progress) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(progress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    fn running_attempt() -> RunningAttempt {
        let attempt = Attempt {
            task: tidegate_core::TaskId(1),
            token: Token(1),
            kind: "k".into(),
            queue: "q".into(),
            group: "k".into(),
            weight: 1,
            payload: Vec::new(),
            number: 1,
            max_attempts: 5,
            timeout_ms: None,
            job: None,
            workflow: None,
            slots: Vec::new(),
            expires_at: 0,
            due_at: 0,
            ready_at: 0,
            trace: None,
        };
        let lease = Lease::new(Token(1), time::now(), Duration::from_secs(1), 1);
        RunningAttempt::new(attempt, lease.into(), 0, 0)
    }

    #[test]
    fn stronger_stop_reason_overrides_weaker_one() {
        let running = running_attempt();
        assert!(running.request_stop(StopReason::Cancelled));
        assert!(!running.request_stop(StopReason::Cancelled));
        assert!(running.request_stop(StopReason::LeaseLost));
        assert!(!running.request_stop(StopReason::WorkerStopping));
        assert_eq!(running.stop_reason(), Some(StopReason::LeaseLost));
    }

    #[test]
    fn cancelled_outcome_after_worker_stop_is_released() {
        let outcome = |reason: Option<StopReason>| {
            let running = running_attempt();
            reason.map(|reason| running.request_stop(reason));
            running.outcome_after_stop(Outcome::Cancelled)
        };
        assert_eq!(outcome(None), Outcome::Cancelled, "the handler's own decision");
        assert_eq!(outcome(Some(StopReason::Cancelled)), Outcome::Cancelled);
        assert_eq!(outcome(Some(StopReason::WorkerStopping)), Outcome::Released);
        assert_eq!(outcome(Some(StopReason::LeaseExpiring)), Outcome::Released);
    }

    #[test]
    fn restored_progress_does_not_overwrite_newer_progress() {
        let running = running_attempt();
        let report = |percent| Progress { percent, message: String::new() };
        running.set_progress(report(1));
        let unsent = running.take_progress().unwrap();
        running.set_progress(report(2));
        running.restore_progress(unsent);
        assert_eq!(running.take_progress(), Some(report(2)));
    }

    #[test]
    fn lease_starts_when_the_request_is_sent() {
        let sent_at = time::now();
        let lease = Lease::new(Token(1), sent_at, Duration::from_secs(10), 1);
        assert_eq!(lease.expires_at(), sent_at + Duration::from_secs(10));
        lease.renew(sent_at + Duration::from_secs(3));
        assert_eq!(lease.give_up_at(), sent_at + Duration::from_secs(11));
    }
}
