//! The heartbeat: renews leases, carries progress, and brings back what was cancelled or lost.
//!
//! It has an OS thread and a runtime of its own, so that handlers which block every thread of
//! the worker's runtime do not cost it its leases. A worker that cannot renew tells its
//! handlers to stop before the leases end, by its own monotonic clock: after that the store
//! may give their tasks, and their slots, to somebody else.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tidegate_core::bounds::RELEASED_LEASES_MAX;
use tidegate_core::{Error, ErrorKind, Heartbeat, HeartbeatReply, Result, Token};
use tokio::sync::oneshot;

use super::WorkerShared;
use super::in_flight::HeartbeatPayload;
use crate::time;

/// How often memory is read.
const MEMORY_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the heartbeat going until it is dropped.
#[derive(Debug)]
pub(crate) struct HeartbeatGuard {
    _stop: oneshot::Sender<()>,
}

/// Starts the heartbeat.
pub(crate) fn start(shared: Arc<WorkerShared>) -> Result<HeartbeatGuard> {
    let failed = |cause| {
        Error::new(ErrorKind::Refused, format!("the heartbeat's thread does not start: {cause}"))
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let work = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = stopped => {}
                () = HeartbeatLoop::new(shared).run() => {}
            }
        });
        // A store may have tasks of its own on this runtime; nobody waits for them.
        runtime.shutdown_background();
    };
    thread::Builder::new().name("tidegate-heartbeat".into()).spawn(work).map_err(failed)?;
    Ok(HeartbeatGuard { _stop: stop })
}

/// Says that the worker leaves, and what ran since the last heartbeat. Where it does not arrive,
/// the worker is missed when its last lease is over.
pub(crate) async fn deregister(shared: &WorkerShared) {
    let ran = shared.in_flight.heartbeat_payload().run_times;
    let extend = Heartbeat {
        worker: shared.worker_id.clone(),
        tokens: Vec::new(),
        lease_ms: 0,
        progress: Vec::new(),
        run_times: ran,
        report: None,
    };
    let latest = time::now() + shared.config.heartbeat_interval();
    if let Some(Err(error)) = time::timeout_at(latest, shared.store.heartbeat(extend)).await {
        tracing::debug!(%error, "the store was not told that the worker leaves");
    }
}

struct HeartbeatLoop {
    shared: Arc<WorkerShared>,
    interval: Duration,
    next_heartbeat_at: Instant,
    /// When it last said something.
    last_sent_at: Option<Instant>,
    next_sample_at: Instant,
}

impl HeartbeatLoop {
    fn new(shared: Arc<WorkerShared>) -> Self {
        let interval = shared.config.heartbeat_interval();
        // The first beat says at once how much room there is, and learns who else has some.
        let now = time::now();
        Self { shared, interval, next_heartbeat_at: now, last_sent_at: None, next_sample_at: now }
    }

    async fn run(mut self) {
        loop {
            let now = time::now();
            self.enforce_deadlines(now);
            if now >= self.next_sample_at {
                self.shared.worker_pool.sample_memory();
                self.next_sample_at = now + MEMORY_SAMPLE_INTERVAL;
            }
            if now >= self.next_heartbeat_at {
                self.send_heartbeat().await;
                continue;
            }
            let deadline = self.shared.in_flight.next_deadline();
            let wake_at = self.next_heartbeat_at.min(self.next_sample_at);
            let wake_at = deadline.map_or(wake_at, |at| at.min(wake_at));
            tokio::select! {
                () = time::sleep_until(wake_at) => {}
                () = self.shared.old_lease_claimed.notified() => {}
            }
        }
    }

    /// What the clock alone decides.
    fn enforce_deadlines(&self, now: Instant) {
        let given_up =
            self.shared.in_flight.give_up_expiring(now, self.lost_handlers_deadline(now));
        if given_up > 0 {
            tracing::error!(leases = given_up, "cannot renew, so the handlers are stopped");
        }
        self.shared.in_flight.abort_overdue(now);
    }

    async fn send_heartbeat(&mut self) {
        let sent_at = time::now();
        let mut beat = self.shared.in_flight.heartbeat_payload();
        if beat.is_empty()
            && self.last_sent_at.is_some_and(|at| sent_at < at + self.interval * 3 / 2)
        {
            // Who is idle reports half as often: little changes, and there may be many of them.
            self.next_heartbeat_at = sent_at + self.interval;
            return;
        }
        let renewed = self.renew_leases(&mut beat, sent_at).await;
        self.shared.outage_tracker.record_result(&renewed);
        match renewed {
            Ok(extended) => {
                self.next_heartbeat_at = sent_at + self.interval;
                // The first beat may come before those of others that start at the same time.
                if self.last_sent_at.replace(sent_at).is_some() {
                    self.shared
                        .peers_with_capacity
                        .store(extended.peers_with_capacity, Ordering::Relaxed);
                }
                self.apply_reply(&beat, &extended, sent_at);
                // The store may have more expired leases of this worker, and the reaper leaves them to the worker
                // for one lease length only.
                if extended.released_attempts >= RELEASED_LEASES_MAX {
                    (self.next_heartbeat_at, self.last_sent_at) = (time::now(), None);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the heartbeat failed, it tries again");
                self.next_heartbeat_at = time::now() + time::jittered(self.interval / 8);
                beat.progress
                    .into_iter()
                    .for_each(|(running, report)| running.restore_progress(report));
            }
        }
    }

    /// Renews, without the progress if the store refuses that: one handler's report must not
    /// cost every attempt of the worker its lease.
    async fn renew_leases(
        &self,
        payload: &mut HeartbeatPayload,
        sent_at: Instant,
    ) -> Result<HeartbeatReply> {
        match self.request_renewal(payload, sent_at).await {
            Err(error) if error.kind() == ErrorKind::Invalid && !payload.progress.is_empty() => {
                tracing::warn!(%error, "the store refuses a report of progress, all are dropped");
                payload.progress.clear();
                self.request_renewal(payload, sent_at).await
            }
            answer => answer,
        }
    }

    /// Asks the store. An answer that comes too late to act upon is not waited for.
    async fn request_renewal(
        &self,
        payload: &HeartbeatPayload,
        sent_at: Instant,
    ) -> Result<HeartbeatReply> {
        let extend = Heartbeat {
            worker: self.shared.worker_id.clone(),
            tokens: payload.tokens.iter().chain(&payload.unreported_tokens).copied().collect(),
            lease_ms: time::millis(self.shared.config.lease),
            progress: payload
                .progress
                .iter()
                .map(|(running, report)| {
                    (running.attempt.task, running.attempt.token, report.clone())
                })
                .collect(),
            run_times: payload.run_times.clone(),
            report: Some(self.shared.worker_report()),
        };
        // Not the interval: on a busy store an answer may take longer than a short interval.
        let latest = sent_at + self.shared.config.lease / 3;
        let latest = self.shared.in_flight.next_deadline().map_or(latest, |at| at.min(latest));
        let call = AssertUnwindSafe(self.shared.store.heartbeat(extend)).catch_unwind();
        let cut_off = |what| Error::new(ErrorKind::Unavailable, what);
        match time::timeout_at(latest, call).await {
            Some(Ok(answer)) => answer,
            // The store's fault must not end the thread: nobody would renew.
            Some(Err(_)) => Err(cut_off("the store panicked")),
            None => Err(cut_off("the store does not answer")),
        }
    }

    fn apply_reply(&self, payload: &HeartbeatPayload, reply: &HeartbeatReply, sent_at: Instant) {
        let board = &self.shared.in_flight;
        let renewed: Vec<Token> = reply.renewed(&payload.tokens).collect();
        board.mark_renewed(&renewed, sent_at);
        let now = time::now();
        if reply.released_attempts > 0 {
            let attempts = reply.released_attempts;
            tracing::info!(attempts, "released attempts whose lease this worker did not know");
        }
        let lost = lost_of_handlers(payload, reply);
        // A lease that ended with its last attempt is gone too, if this beat met the finish. Its
        // attempts were taken down before they were told, so there is nobody to stop.
        if !lost.is_empty() {
            board.mark_lost(&lost, self.lost_handlers_deadline(now));
        }
        if !reply.attempts_to_stop.is_empty() {
            board.mark_cancelled(&reply.attempts_to_stop, now + self.shared.config.cancel_grace);
        }
    }

    /// A handler without a lease gets a moment to stop by itself, no more.
    fn lost_handlers_deadline(&self, now: Instant) -> Instant {
        now + (self.shared.config.lease / 10).min(Duration::from_secs(1))
    }
}

/// Returns the lost leases under which handlers may run. Whether a lease is gone of which only reports are left is
/// answered to the reports.
fn lost_of_handlers(beat: &HeartbeatPayload, extended: &HeartbeatReply) -> Vec<Token> {
    let unreported: HashSet<Token> = beat.unreported_tokens.iter().copied().collect();
    extended.lost_leases.iter().filter(|token| !unreported.contains(token)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASES: i64 = 100_000;

    /// The time in which a debug build looks every lease up once, many times over. A comparison of every
    /// lost lease with every unreported one takes minutes.
    const LOOKUP_MAX: Duration = Duration::from_secs(60);

    #[test]
    fn loss_of_many_leases_looks_each_up_once() {
        let tokens = |step: i64| (0..LEASES).map(move |number| Token(step * number)).collect();
        let beat = HeartbeatPayload { unreported_tokens: tokens(2), ..HeartbeatPayload::default() };
        let extended = HeartbeatReply { lost_leases: tokens(1), ..HeartbeatReply::default() };
        let began = time::now();
        let lost = lost_of_handlers(&beat, &extended);
        let renewed = extended.renewed(&beat.unreported_tokens).count();
        let took = time::now() - began;
        assert_eq!(renewed, LEASES as usize / 2);
        assert_eq!(lost.len(), LEASES as usize / 2);
        assert!(lost.iter().all(|token| token.0 % 2 == 1));
        assert!(took < LOOKUP_MAX, "{took:?}");
    }
}
