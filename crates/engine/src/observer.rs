//! Hooks that see every attempt come and go.

use std::fmt;
use std::time::Duration;

use tidegate_core::{Attempt, Outcome};

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    /// The handler returned a result.
    Completed,
    /// The handler failed for good.
    Failed,
    /// The handler failed and will be tried again.
    Retry,
    /// The handler asked to be called later.
    Snoozed,
    /// The attempt was given back unspent.
    Released,
    /// The task was cancelled.
    Cancelled,
    /// The lease was gone: whatever the handler did, the store did not take it.
    Lost,
}

impl AttemptOutcome {
    /// Every end.
    pub const ALL: [Self; 7] = [
        Self::Completed,
        Self::Failed,
        Self::Retry,
        Self::Snoozed,
        Self::Released,
        Self::Cancelled,
        Self::Lost,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Retry => "retry",
            Self::Snoozed => "snoozed",
            Self::Released => "released",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }

    pub(crate) fn from_outcome(attempt: &Attempt, outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Completed(_) => Self::Completed,
            Outcome::Failed { retryable, .. } if !retryable => Self::Failed,
            Outcome::Failed { .. } if attempt.number >= attempt.max_attempts => Self::Failed,
            Outcome::Failed { .. } => Self::Retry,
            Outcome::Snoozed { .. } => Self::Snoozed,
            Outcome::Released => Self::Released,
            Outcome::Cancelled => Self::Cancelled,
        }
    }
}

impl fmt::Display for AttemptOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A call to the store for work, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimStats {
    /// Tasks that it asked for at most.
    pub tasks_requested: u32,
    /// Attempts that it ended by the way.
    pub completions_sent: u32,
    /// Tasks that came.
    pub tasks_claimed: u32,
    /// From before the request left to the answer, as the worker saw it.
    pub round_trip: Duration,
}

/// Sees attempts come and go. The hooks run on the handlers' threads and in the worker's
/// loop: they must be quick and must not panic. The payload of the attempt is not in them.
pub trait Observer: Send + Sync + fmt::Debug {
    /// A handler is about to run: comes before its first instruction.
    fn on_start(&self, attempt: &Attempt) {
        let _ = attempt;
    }

    /// A handler has returned, panicked or was dropped: comes when it is really gone, and
    /// before the store is told, so before its slots can go to anybody else. `ran` is how long it
    /// was there.
    fn on_handler_done(&self, attempt: &Attempt, run_time: Duration) {
        let _ = (attempt, run_time);
    }

    /// The store has answered how an attempt ended. Left out where nobody can know: the store
    /// was cut off while it was told, and no longer knew the attempt when asked again.
    fn on_acknowledged(&self, attempt: &Attempt, outcome: AttemptOutcome) {
        let _ = (attempt, outcome);
    }

    /// The store has answered a call for work.
    fn on_claim(&self, stats: &ClaimStats) {
        let _ = stats;
    }
}
