//! What is left to do when a transaction is committed.

use tidegate_core::tables::ReadyRow;
use tidegate_core::{Limit, LimitId};

use super::claim_cursors::first_of_each_lane;
use super::working_set::{WorkingSet, is_blocked_by_window};

/// What a transaction leaves to those that follow it.
#[derive(Debug, Default)]
pub(super) struct FollowUp {
    /// Limits that somebody should look at again.
    pub(super) dirty_limits: Vec<LimitId>,
    /// Those of which more slots are held than may be, and jobs that have got a delay: tasks that have not
    /// begun may have to go back.
    pub(super) over_limits: Vec<LimitId>,
    /// Jobs whose windows were filled, or of which tasks were claimed: after the commit somebody
    /// should look whether both happened.
    pub(super) job_windows: Vec<LimitId>,
    /// The first of each lane that is new to claim.
    pub(super) first_new_ready: Vec<ReadyRow>,
    /// Whether somebody else should look: there is something new to claim, or at the gate.
    pub(super) notify_others: bool,
}

impl WorkingSet {
    /// What is still to do when the draft is written and committed.
    pub(super) fn follow_up(&self) -> FollowUp {
        let limits = || self.state.limits.values();
        let is_due = |limit: &&Limit| limit.needs_recheck(self.state.now);
        let is_over = |id: &LimitId| self.has_unloaded_ready_holders(*id);
        let dirty = limits().filter(is_due).map(|limit| limit.id);
        let (over, dirty) = dirty.partition(is_over);
        FollowUp {
            dirty_limits: dirty,
            over_limits: over,
            job_windows: limits()
                .filter(|limit| is_blocked_by_window(limit))
                .map(|limit| limit.id)
                .collect(),
            first_new_ready: first_of_each_lane(self.newly_ready_rows()),
            // Also for who was locked and stays ready: it may have been passed over meanwhile.
            notify_others: !self.state.ready.is_empty()
                || self.state.inbox.difference(&self.before.inbox).next().is_some(),
        }
    }

    /// Whether ready tasks that are not in the draft may have to go back to the line of a limit. They are
    /// taken back behind the transaction that lowers or pauses it or gives it a delay, and it is dirty until
    /// all are.
    pub(super) fn has_unloaded_ready_holders(&self, id: LimitId) -> bool {
        let (Some(limit), Some(before)) = (self.state.limits.get(&id), self.before.limits.get(&id))
        else {
            return false;
        };
        if !limit.has_excess_admissions(self.state.now) {
            return false;
        }
        match self.ready_holders_loaded.get(&id) {
            Some(is_all) => !is_all,
            None => {
                let bounds = |limit: &Limit| {
                    (limit.capacity, limit.paused_by, limit.fair_share.map(|share| share.delay_ms))
                };
                before.dirty || bounds(limit) != bounds(before)
            }
        }
    }
}
