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
use tidegate_core::{Error, ErrorKind, Extend, Extended, Result, Token};
use tokio::sync::oneshot;

use super::Shared;
use super::board::Beat;
use crate::time;

/// How often memory is read.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the heartbeat going until it is dropped.
#[derive(Debug)]
pub(crate) struct Pulse {
    _stop: oneshot::Sender<()>,
}

/// Starts the heartbeat.
pub(crate) fn start(shared: Arc<Shared>) -> Result<Pulse> {
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
                () = Heartbeat::new(shared).beat_for_ever() => {}
            }
        });
        // A store may have tasks of its own on this runtime; nobody waits for them.
        runtime.shutdown_background();
    };
    thread::Builder::new().name("tidegate-heartbeat".into()).spawn(work).map_err(failed)?;
    Ok(Pulse { _stop: stop })
}

/// Says that the worker leaves, and what ran since the last heartbeat. Where it does not arrive,
/// the worker is missed when its last lease is over.
pub(crate) async fn leave(shared: &Shared) {
    let ran = shared.board.beat().ran;
    let extend = Extend {
        worker: shared.worker.clone(),
        tokens: Vec::new(),
        lease_ms: 0,
        progress: Vec::new(),
        ran,
        report: None,
    };
    let latest = time::now() + shared.options.heartbeat_interval();
    if let Some(Err(error)) = time::until(latest, shared.store.extend(extend)).await {
        tracing::debug!(%error, "the store was not told that the worker leaves");
    }
}

struct Heartbeat {
    shared: Arc<Shared>,
    interval: Duration,
    beat_at: Instant,
    /// When it last said something.
    said_at: Option<Instant>,
    sample_at: Instant,
}

impl Heartbeat {
    fn new(shared: Arc<Shared>) -> Self {
        let interval = shared.options.heartbeat_interval();
        // The first beat says at once how much room there is, and learns who else has some.
        let now = time::now();
        Self { shared, interval, beat_at: now, said_at: None, sample_at: now }
    }

    async fn beat_for_ever(mut self) {
        loop {
            let now = time::now();
            self.watch(now);
            if now >= self.sample_at {
                self.shared.controller.sample();
                self.sample_at = now + SAMPLE_INTERVAL;
            }
            if now >= self.beat_at {
                self.beat().await;
                continue;
            }
            let deadline = self.shared.board.next_deadline();
            let wake_at = self.beat_at.min(self.sample_at);
            let wake_at = deadline.map_or(wake_at, |at| at.min(wake_at));
            tokio::select! {
                () = time::sleep_until(wake_at) => {}
                () = self.shared.old_lease.notified() => {}
            }
        }
    }

    /// What the clock alone decides.
    fn watch(&self, now: Instant) {
        let given_up = self.shared.board.give_up(now, self.drop_lost_at(now));
        if given_up > 0 {
            tracing::error!(leases = given_up, "cannot renew, so the handlers are stopped");
        }
        self.shared.board.drop_overdue(now);
    }

    async fn beat(&mut self) {
        let sent_at = time::now();
        let mut beat = self.shared.board.beat();
        if beat.is_empty() && self.said_at.is_some_and(|at| sent_at < at + self.interval * 3 / 2) {
            // Who is idle reports half as often: little changes, and there may be many of them.
            self.beat_at = sent_at + self.interval;
            return;
        }
        let renewed = self.renew(&mut beat, sent_at).await;
        self.shared.outage.note(&renewed);
        match renewed {
            Ok(extended) => {
                self.beat_at = sent_at + self.interval;
                // The first beat may come before those of others that start at the same time.
                if self.said_at.replace(sent_at).is_some() {
                    self.shared.peers.store(extended.peers, Ordering::Relaxed);
                }
                self.learn(&beat, &extended, sent_at);
                // The store may have more expired leases of this worker, and the reaper leaves them to the worker
                // for one lease length only.
                if extended.released >= RELEASED_LEASES_MAX {
                    (self.beat_at, self.said_at) = (time::now(), None);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the heartbeat failed, it tries again");
                self.beat_at = time::now() + time::jittered(self.interval / 8);
                beat.progress.into_iter().for_each(|(running, report)| running.put_back(report));
            }
        }
    }

    /// Renews, without the progress if the store refuses that: one handler's report must not
    /// cost every attempt of the worker its lease.
    async fn renew(&self, beat: &mut Beat, sent_at: Instant) -> Result<Extended> {
        match self.extend(beat, sent_at).await {
            Err(error) if error.kind() == ErrorKind::Invalid && !beat.progress.is_empty() => {
                tracing::warn!(%error, "the store refuses a report of progress, all are dropped");
                beat.progress.clear();
                self.extend(beat, sent_at).await
            }
            answer => answer,
        }
    }

    /// Asks the store. An answer that comes too late to act upon is not waited for.
    async fn extend(&self, beat: &Beat, sent_at: Instant) -> Result<Extended> {
        let extend = Extend {
            worker: self.shared.worker.clone(),
            tokens: beat.tokens.iter().chain(&beat.unreported).copied().collect(),
            lease_ms: time::millis(self.shared.options.lease),
            progress: beat
                .progress
                .iter()
                .map(|(running, report)| {
                    (running.attempt.task, running.attempt.token, report.clone())
                })
                .collect(),
            ran: beat.ran.clone(),
            report: Some(self.shared.report()),
        };
        // Not the interval: on a busy store an answer may take longer than a short interval.
        let latest = sent_at + self.shared.options.lease / 3;
        let latest = self.shared.board.next_deadline().map_or(latest, |at| at.min(latest));
        let call = AssertUnwindSafe(self.shared.store.extend(extend)).catch_unwind();
        let cut_off = |what| Error::new(ErrorKind::Unavailable, what);
        match time::until(latest, call).await {
            Some(Ok(answer)) => answer,
            // The store's fault must not end the thread: nobody would renew.
            Some(Err(_)) => Err(cut_off("the store panicked")),
            None => Err(cut_off("the store does not answer")),
        }
    }

    fn learn(&self, beat: &Beat, extended: &Extended, sent_at: Instant) {
        let board = &self.shared.board;
        let renewed: Vec<Token> = extended.renewed(&beat.tokens).collect();
        board.renewed(&renewed, sent_at);
        let now = time::now();
        if extended.released > 0 {
            let attempts = extended.released;
            tracing::info!(attempts, "released attempts whose lease this worker did not know");
        }
        let lost = lost_of_handlers(beat, extended);
        // A lease that ended with its last attempt is gone too, if this beat met the finish. Its
        // attempts were taken down before they were told, so there is nobody to stop.
        if !lost.is_empty() {
            board.lose(&lost, self.drop_lost_at(now));
        }
        if !extended.cancelled.is_empty() {
            board.cancel(&extended.cancelled, now + self.shared.options.cancel_grace);
        }
    }

    /// A handler without a lease gets a moment to stop by itself, no more.
    fn drop_lost_at(&self, now: Instant) -> Instant {
        now + (self.shared.options.lease / 10).min(Duration::from_secs(1))
    }
}

/// Returns the lost leases under which handlers may run. Whether a lease is gone of which only reports are left is
/// answered to the reports.
fn lost_of_handlers(beat: &Beat, extended: &Extended) -> Vec<Token> {
    let unreported: HashSet<Token> = beat.unreported.iter().copied().collect();
    extended.lost.iter().filter(|token| !unreported.contains(token)).copied().collect()
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
        let beat = Beat { unreported: tokens(2), ..Beat::default() };
        let extended = Extended { lost: tokens(1), ..Extended::default() };
        let began = time::now();
        let lost = lost_of_handlers(&beat, &extended);
        let renewed = extended.renewed(&beat.unreported).count();
        let took = time::now() - began;
        assert_eq!(renewed, LEASES as usize / 2);
        assert_eq!(lost.len(), LEASES as usize / 2);
        assert!(lost.iter().all(|token| token.0 % 2 == 1));
        assert!(took < LOOKUP_MAX, "{took:?}");
    }
}
