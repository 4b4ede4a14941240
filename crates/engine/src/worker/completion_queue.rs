//! The outbox: attempts whose handlers are gone, until the pump collects them.

use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::{Completion, Outcome};
use tokio::sync::Notify;

use super::running_attempt::RunningAttempt;

/// An attempt whose handler is gone.
#[derive(Debug)]
pub(crate) struct PendingCompletion {
    pub(crate) running: Arc<RunningAttempt>,
    pub(crate) outcome: Outcome,
    /// Whether a handler ever began.
    pub(crate) has_started: bool,
    /// Whether the store may have taken it already: the call that told it was cut off.
    pub(crate) is_resent: bool,
}

impl PendingCompletion {
    pub(crate) fn to_completion(&self) -> Completion {
        Completion {
            task: self.running.attempt.task,
            token: self.running.attempt.token,
            outcome: self.outcome.clone(),
        }
    }
}

/// Holds at most one entry per permit: whoever puts one in has held a permit, and it is free
/// again only when the entry is collected.
#[derive(Debug, Default)]
pub(crate) struct CompletionQueue {
    pending: Mutex<Vec<PendingCompletion>>,
    pushed: Notify,
}

impl CompletionQueue {
    pub(crate) fn push(&self, completion: PendingCompletion) {
        let mut all = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = all.is_empty();
        all.push(completion);
        drop(all);
        if was_empty {
            self.pushed.notify_one();
        }
    }

    /// Moves everything to the end of `to`.
    pub(crate) fn drain_into(&self, destination: &mut Vec<PendingCompletion>) {
        destination.append(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns when something may have come in since the last wait.
    pub(crate) async fn wait_until_filled(&self) {
        self.pushed.notified().await;
    }
}
