//! The outbox: attempts whose handlers are gone, until the pump collects them.

use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::{Exit, Outcome};
use tokio::sync::Notify;

use super::running::Running;

/// An attempt whose handler is gone.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) running: Arc<Running>,
    pub(crate) outcome: Outcome,
    /// Whether a handler ever began.
    pub(crate) entered: bool,
    /// Whether the store may have taken it already: the call that told it was cut off.
    pub(crate) resent: bool,
}

impl Done {
    pub(crate) fn exit(&self) -> Exit {
        Exit {
            task: self.running.attempt.task,
            token: self.running.attempt.token,
            outcome: self.outcome.clone(),
        }
    }
}

/// Holds at most one entry per permit: whoever puts one in has held a permit, and it is free
/// again only when the entry is collected.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    done: Mutex<Vec<Done>>,
    filled: Notify,
}

impl Outbox {
    pub(crate) fn put(&self, done: Done) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = all.is_empty();
        all.push(done);
        drop(all);
        if was_empty {
            self.filled.notify_one();
        }
    }

    /// Moves everything to the end of `to`.
    pub(crate) fn collect(&self, to: &mut Vec<Done>) {
        to.append(&mut self.done.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns when something may have come in since the last wait.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }
}
