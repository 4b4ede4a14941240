//! What is left to do when a transaction is committed.

use tidegate_core::tables::ReadyRow;
use tidegate_core::{Limit, LimitId};

use super::draft::{Draft, fills_window};
use super::floors::first_of_lanes;

/// What a transaction leaves to those that follow it.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Limits that somebody should look at again.
    pub(super) dirty: Vec<LimitId>,
    /// Those of which more slots are held than may be, and jobs that have got a delay: tasks that have not
    /// begun may have to go back.
    pub(super) over: Vec<LimitId>,
    /// Jobs whose windows were filled, or of which tasks were claimed: after the commit somebody
    /// should look whether both happened.
    pub(super) windows: Vec<LimitId>,
    /// The first of each lane that is new to claim.
    pub(super) new: Vec<ReadyRow>,
    /// Whether somebody else should look: there is something new to claim, or at the gate.
    pub(super) ready: bool,
}

impl Draft {
    /// What is still to do when the draft is written and committed.
    pub(super) fn left(&self) -> Left {
        let limits = || self.state.limits.values();
        let is_due = |limit: &&Limit| limit.is_due(self.state.now);
        let is_over = |id: &LimitId| self.has_holders_elsewhere(*id);
        let dirty = limits().filter(is_due).map(|limit| limit.id);
        let (over, dirty) = dirty.partition(is_over);
        Left {
            dirty,
            over,
            windows: limits().filter(|limit| fills_window(limit)).map(|limit| limit.id).collect(),
            new: first_of_lanes(self.new_ready()),
            // Also for who was locked and stays ready: it may have been passed over meanwhile.
            ready: !self.state.ready.is_empty()
                || self.state.arrived.difference(&self.before.arrived).next().is_some(),
        }
    }

    /// Whether ready tasks that are not in the draft may have to go back to the line of a limit. They are
    /// taken back behind the transaction that lowers or pauses it or gives it a delay, and it is dirty until
    /// all are.
    pub(super) fn has_holders_elsewhere(&self, id: LimitId) -> bool {
        let (Some(limit), Some(before)) = (self.state.limits.get(&id), self.before.limits.get(&id))
        else {
            return false;
        };
        if !limit.recalls(self.state.now) {
            return false;
        }
        match self.recalled.get(&id) {
            Some(is_all) => !is_all,
            None => {
                let bounds = |limit: &Limit| {
                    (limit.capacity, limit.halt, limit.share.map(|share| share.delay_ms))
                };
                before.dirty || bounds(limit) != bounds(before)
            }
        }
    }
}
