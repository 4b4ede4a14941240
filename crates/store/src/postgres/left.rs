//! What is left to do when a transaction is committed.

use tidegate_core::LimitId;
use tidegate_core::tables::ReadyRow;

/// What a transaction leaves to those that follow it.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Limits that somebody should look at again.
    pub(super) dirty: Vec<LimitId>,
    /// Jobs whose windows were filled, or of which tasks were claimed: after the commit somebody
    /// should look whether both happened.
    pub(super) windows: Vec<LimitId>,
    /// The first of each lane that is new to claim.
    pub(super) new: Vec<ReadyRow>,
    /// Whether somebody else should look: there is something new to claim, or at the gate.
    pub(super) ready: bool,
}
