//! Shutdown in two steps: the first drains, the second stops.

use tokio::sync::watch;

use crate::time::{Duration, Instant, now};

/// Signals that come this soon after the first are the first: whoever ends a process may tell both it
/// and its group, as `timeout` does, and a terminal and a wrapper may both pass Ctrl-C on.
const DUPLICATE_SIGNAL_WINDOW: Duration = Duration::from_secs(1);

/// How far a shutdown has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShutdownPhase {
    /// Work as usual.
    Running,
    /// Nothing new is claimed; what runs finishes.
    Draining,
    /// What runs is aborted and given back.
    Stopping,
}

/// Tells workers and keepers to end. Clones share one state.
#[derive(Debug, Clone)]
pub struct Shutdown {
    phase: watch::Sender<ShutdownPhase>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// One that nobody has asked for yet.
    pub fn new() -> Self {
        Self { phase: watch::Sender::new(ShutdownPhase::Running) }
    }

    /// Claims nothing new and lets what runs finish.
    pub fn drain(&self) {
        self.advance_to(ShutdownPhase::Draining);
    }

    /// Aborts what runs and gives it back.
    pub fn stop(&self) {
        self.advance_to(ShutdownPhase::Stopping);
    }

    /// What a signal means: the first drains, the second stops.
    pub fn on_signal(&self) {
        match self.phase() {
            ShutdownPhase::Running => self.drain(),
            _ => self.stop(),
        }
    }

    /// How far it has come.
    pub fn phase(&self) -> ShutdownPhase {
        *self.phase.borrow()
    }

    /// Waits for this phase or a later one.
    pub async fn wait_for_phase(&self, phase: ShutdownPhase) {
        let mut receiver = self.phase.subscribe();
        // The sender lives in `self`, so this ends only by the phase.
        let _ = receiver.wait_for(|now| *now >= phase).await;
    }

    fn advance_to(&self, to: ShutdownPhase) {
        self.phase.send_if_modified(|phase| {
            let moves = *phase < to;
            *phase = (*phase).max(to);
            moves
        });
    }
}

/// A shutdown that listens to the signals of a terminal and of a service manager: the first
/// SIGINT or SIGTERM drains, the second stops. Whatever comes within a second of the first counts as
/// the first. Needs a tokio runtime.
#[cfg(unix)]
pub fn shutdown_on_signals() -> std::io::Result<Shutdown> {
    use tokio::signal::unix::{SignalKind, signal};

    let shutdown = Shutdown::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let signalled = shutdown.clone();
    tokio::spawn(async move {
        let mut received = SignalFilter::default();
        loop {
            let signal = tokio::select! {
                signal = interrupt.recv() => signal,
                signal = terminate.recv() => signal,
            };
            if signal.is_none() {
                return;
            }
            if received.accept_signal(now()) {
                signalled.on_signal();
            }
        }
    });
    Ok(shutdown)
}

/// The signals so far.
#[derive(Debug, Default)]
struct SignalFilter {
    first_signal_at: Option<Instant>,
}

impl SignalFilter {
    /// Whether a signal that is received now is one of its own.
    fn accept_signal(&mut self, received_at: Instant) -> bool {
        match self.first_signal_at {
            Some(first_at) => received_at >= first_at + DUPLICATE_SIGNAL_WINDOW,
            None => self.first_signal_at.replace(received_at).is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shutdown_phase_only_advances() {
        let shutdown = Shutdown::new();
        shutdown.on_signal();
        assert_eq!(shutdown.phase(), ShutdownPhase::Draining);
        shutdown.clone().on_signal();
        shutdown.drain();
        assert_eq!(shutdown.phase(), ShutdownPhase::Stopping);
    }

    #[test]
    fn signals_within_one_second_count_as_one() {
        let (began, mut received) = (now(), SignalFilter::default());
        let mut counts = |after_ms| received.accept_signal(began + Duration::from_millis(after_ms));
        assert_eq!([0, 1, 999, 1000, 1001].map(&mut counts), [true, false, false, true, true]);
    }
}
