//! What a worker did from start to end.

use crate::Ended;

/// Attempts by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
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

impl Summary {
    pub(crate) fn count(&mut self, ended: Ended) {
        *match ended {
            Ended::Completed => &mut self.completed,
            Ended::Failed => &mut self.failed,
            Ended::Retry => &mut self.retried,
            Ended::Snoozed => &mut self.snoozed,
            Ended::Released => &mut self.released,
            Ended::Cancelled => &mut self.cancelled,
            Ended::Lost => &mut self.lost,
        } += 1;
    }
}
