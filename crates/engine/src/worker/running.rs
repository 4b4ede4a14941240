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
    Stopping = 2,
    /// The lease could not be renewed and is about to end.
    Unrenewed = 3,
    /// The store says that the lease is gone.
    Lost = 4,
}

const REASON: u8 = 0b0111;
const ABORT: u8 = 0b1000;

/// A lease as this worker sees it. One claim takes one lease for all its attempts.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) token: Token,
    /// What `renewed_ns` counts from.
    claimed_at: Instant,
    length: Duration,
    renewed_ns: AtomicU64,
    /// Attempts whose end the store has not taken yet.
    open: AtomicU32,
    given_up: AtomicBool,
}

impl Lease {
    /// `sent_at` is read before the request leaves: the store's lease begins later than that.
    pub(crate) fn new(token: Token, sent_at: Instant, length: Duration, open: u32) -> Self {
        Self {
            token,
            claimed_at: sent_at,
            length,
            renewed_ns: AtomicU64::new(0),
            open: AtomicU32::new(open),
            given_up: AtomicBool::new(false),
        }
    }

    pub(crate) fn renew(&self, sent_at: Instant) {
        let since = sent_at.saturating_duration_since(self.claimed_at);
        self.renewed_ns.store(since.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The store's time now, where its clock showed `expires_at` as the end of the lease when that began.
    pub(crate) fn store_now(&self, expires_at: Millis) -> Millis {
        let since = time::now().saturating_duration_since(self.claimed_at);
        expires_at - time::millis(self.length) + time::millis(since)
    }

    pub(crate) fn ends_at(&self) -> Instant {
        self.renewed_at() + self.length
    }

    /// When handlers must be told to stop, so that they are gone before the lease ends.
    pub(crate) fn give_up_at(&self) -> Instant {
        self.renewed_at() + self.length * 4 / 5
    }

    /// Whether this call gave it up.
    pub(crate) fn give_up(&self) -> bool {
        !self.given_up.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// One attempt has ended. Returns whether it was the last.
    pub(crate) fn close_one(&self) -> bool {
        self.open.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn renewed_at(&self) -> Instant {
        self.claimed_at + Duration::from_nanos(self.renewed_ns.load(Ordering::Relaxed))
    }
}

/// One attempt while it runs. Everything the handler, the pump and the heartbeat share about
/// it is in this one allocation.
#[derive(Debug)]
pub(crate) struct Running {
    /// The attempt; its payload has gone to the handler.
    pub(crate) attempt: Attempt,
    pub(crate) lease: Arc<Lease>,
    /// Which handler.
    pub(crate) handler: usize,
    /// Its place on the board.
    pub(crate) place: usize,
    pub(crate) started_at: Instant,
    stop: AtomicU8,
    stop_changed: Notify,
    progress: Mutex<Option<Progress>>,
}

impl Running {
    pub(crate) fn new(attempt: Attempt, lease: Arc<Lease>, handler: usize, place: usize) -> Self {
        Self {
            attempt,
            lease,
            handler,
            place,
            started_at: time::now(),
            stop: AtomicU8::new(0),
            stop_changed: Notify::new(),
            progress: Mutex::new(None),
        }
    }

    /// Tells the handler to stop. Returns whether this is news.
    pub(crate) fn tell_to_stop(&self, reason: StopReason) -> bool {
        let raise = |stop| (stop & REASON < reason as u8).then_some(stop & ABORT | reason as u8);
        let news = self.stop.fetch_update(Ordering::AcqRel, Ordering::Acquire, raise).is_ok();
        if news {
            self.stop_changed.notify_waiters();
        }
        news
    }

    /// Drops the handler at its next await.
    pub(crate) fn abort(&self, reason: StopReason) {
        self.tell_to_stop(reason);
        self.stop.fetch_or(ABORT, Ordering::AcqRel);
        self.stop_changed.notify_waiters();
    }

    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        match self.stop.load(Ordering::Acquire) & REASON {
            1 => Some(StopReason::Cancelled),
            2 => Some(StopReason::Stopping),
            3 => Some(StopReason::Unrenewed),
            4 => Some(StopReason::Lost),
            _ => None,
        }
    }

    /// Returns when the handler should stop.
    pub(crate) async fn told_to_stop(&self) {
        self.stopped_by(REASON).await;
    }

    /// Returns when the handler is to be dropped.
    pub(crate) async fn aborted(&self) {
        self.stopped_by(ABORT).await;
    }

    async fn stopped_by(&self, bits: u8) {
        loop {
            let changed = self.stop_changed.notified();
            if self.stop.load(Ordering::Acquire) & bits != 0 {
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
    pub(crate) fn judged(&self, outcome: Outcome) -> Outcome {
        match (&outcome, self.stop_reason()) {
            (Outcome::Cancelled, Some(_)) => self.aborted_outcome(),
            _ => outcome,
        }
    }

    pub(crate) fn report(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    pub(crate) fn take_progress(&self) -> Option<Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts a report back that could not be sent, unless a newer one is there.
    pub(crate) fn put_back(&self, progress: Progress) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(progress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    fn running() -> Running {
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
            arrived_at: 0,
            ready_at: 0,
            trace: None,
        };
        let lease = Lease::new(Token(1), time::now(), Duration::from_secs(1), 1);
        Running::new(attempt, lease.into(), 0, 0)
    }

    #[test]
    fn a_stronger_reason_overrides_a_weaker_one() {
        let running = running();
        assert!(running.tell_to_stop(StopReason::Cancelled));
        assert!(!running.tell_to_stop(StopReason::Cancelled));
        assert!(running.tell_to_stop(StopReason::Lost));
        assert!(!running.tell_to_stop(StopReason::Stopping));
        assert_eq!(running.stop_reason(), Some(StopReason::Lost));
    }

    #[test]
    fn only_a_cancelled_task_ends_by_stopping() {
        let outcome = |reason: Option<StopReason>| {
            let running = running();
            reason.map(|reason| running.tell_to_stop(reason));
            running.judged(Outcome::Cancelled)
        };
        assert_eq!(outcome(None), Outcome::Cancelled, "the handler's own decision");
        assert_eq!(outcome(Some(StopReason::Cancelled)), Outcome::Cancelled);
        assert_eq!(outcome(Some(StopReason::Stopping)), Outcome::Released);
        assert_eq!(outcome(Some(StopReason::Unrenewed)), Outcome::Released);
    }

    #[test]
    fn a_newer_report_is_not_overwritten_by_one_put_back() {
        let running = running();
        let report = |percent| Progress { percent, message: String::new() };
        running.report(report(1));
        let unsent = running.take_progress().unwrap();
        running.report(report(2));
        running.put_back(unsent);
        assert_eq!(running.take_progress(), Some(report(2)));
    }

    #[test]
    fn a_lease_is_counted_from_before_the_request() {
        let sent_at = time::now();
        let lease = Lease::new(Token(1), sent_at, Duration::from_secs(10), 1);
        assert_eq!(lease.ends_at(), sent_at + Duration::from_secs(10));
        lease.renew(sent_at + Duration::from_secs(3));
        assert_eq!(lease.give_up_at(), sent_at + Duration::from_secs(11));
    }
}
