//! What a worker did from start to end.

use crate::AttemptOutcome;

/// Attempts by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerSummary {
    /// Handlers that returned a result.
    pub completed: u64,
    /// Handlers that failed for good.
    pub failed: u64,
    /// Handlers that failed and will be tried again.
    pub retried: u64,
    /// Handlers that asked to be called later.
    pub snoozed: u64,
    /// Attempts given back unspent.
    pub released: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
    /// Attempts whose lease was gone.
    pub lost: u64,
}

impl WorkerSummary {
    pub(crate) fn count(&mut self, outcome: AttemptOutcome) {
        *match outcome {
            AttemptOutcome::Completed => &mut self.completed,
            AttemptOutcome::Failed => &mut self.failed,
            AttemptOutcome::Retry => &mut self.retried,
            AttemptOutcome::Snoozed => &mut self.snoozed,
            AttemptOutcome::Released => &mut self.released,
            AttemptOutcome::Cancelled => &mut self.cancelled,
            AttemptOutcome::Lost => &mut self.lost,
        } += 1;
    }
}
