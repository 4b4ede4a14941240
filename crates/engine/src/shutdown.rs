//! Shutdown in two steps: the first drains, the second stops.

use tokio::sync::watch;

use crate::time::{Duration, Instant, now};

/// Signals that come this soon after the first are the first: whoever ends a process may tell both it
/// and its group, as `timeout` does, and a terminal and a wrapper may both pass Ctrl-C on.
const FIRST_SIGNAL: Duration = Duration::from_secs(1);

/// How far a shutdown has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
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
    phase: watch::Sender<Phase>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// One that nobody has asked for yet.
    pub fn new() -> Self {
        Self { phase: watch::Sender::new(Phase::Running) }
    }

    /// Claims nothing new and lets what runs finish.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Aborts what runs and gives it back.
    pub fn stop(&self) {
        self.advance(Phase::Stopping);
    }

    /// What a signal means: the first drains, the second stops.
    pub fn signal(&self) {
        match self.phase() {
            Phase::Running => self.drain(),
            _ => self.stop(),
        }
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits for this phase or a later one.
    pub async fn reached(&self, phase: Phase) {
        let mut receiver = self.phase.subscribe();
        // The sender lives in `self`, so this ends only by the phase.
        let _ = receiver.wait_for(|now| *now >= phase).await;
    }

    fn advance(&self, to: Phase) {
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
pub fn signals() -> std::io::Result<Shutdown> {
    use tokio::signal::unix::{SignalKind, signal};

    let shutdown = Shutdown::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let told = shutdown.clone();
    tokio::spawn(async move {
        let mut received = Received::default();
        loop {
            let signal = tokio::select! {
                signal = interrupt.recv() => signal,
                signal = terminate.recv() => signal,
            };
            if signal.is_none() {
                return;
            }
            if received.counts(now()) {
                told.signal();
            }
        }
    });
    Ok(shutdown)
}

/// The signals so far.
#[derive(Debug, Default)]
struct Received {
    first_at: Option<Instant>,
}

impl Received {
    /// Whether a signal that is received now is one of its own.
    fn counts(&mut self, at: Instant) -> bool {
        match self.first_at {
            Some(first_at) => at >= first_at + FIRST_SIGNAL,
            None => self.first_at.replace(at).is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_forward_only() {
        let shutdown = Shutdown::new();
        shutdown.signal();
        assert_eq!(shutdown.phase(), Phase::Draining);
        shutdown.clone().signal();
        shutdown.drain();
        assert_eq!(shutdown.phase(), Phase::Stopping);
    }

    #[test]
    fn what_comes_with_the_first_signal_is_the_first() {
        let (began, mut received) = (now(), Received::default());
        let mut counts = |after_ms| received.counts(began + Duration::from_millis(after_ms));
        assert_eq!([0, 1, 999, 1000, 1001].map(&mut counts), [true, false, false, true, true]);
    }
}
