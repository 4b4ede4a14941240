//! The order in which tasks start: priority, raised by waiting; then the fair tag; then age.

use crate::Millis;
use crate::bounds::AGEING_INTERVAL_MS;

/// One task of a job of weight 1, in units of the fair tag. A job's tag advances by
/// `SHARE_SCALE / weight` per task, so weights up to 1000 stay exact to a per mille.
pub const FAIR_TAG_SCALE: i64 = 1_000_000;

/// The fair tag of a task that came back: before every other of its rank.
pub(crate) const RETURNED_TASK_TAG: i64 = -1;

/// The rank of a task that is to get a slot of its job's reserve: before every other, whatever the
/// priority.
pub const GUARANTEED_SLOT_RANK: i64 = i64::MIN / 4;

/// The rank of a task that became due at `arrival`: lower goes first. One step of
/// priority is worth one ageing interval of waiting. The key never changes, and still a task
/// is overtaken only by tasks that came less than its lack of priority later.
pub fn ready_rank(due_at: Millis, priority: i32) -> i64 {
    due_at.div_euclid(AGEING_INTERVAL_MS) - i64::from(priority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_rank_of_older_task_overtakes_higher_priority() {
        let low = ready_rank(0, 0);
        assert!(ready_rank(0, 3) < low, "a higher priority goes first");
        assert!(ready_rank(2 * AGEING_INTERVAL_MS, 3) < low);
        assert!(ready_rank(4 * AGEING_INTERVAL_MS, 3) > low, "but not for ever");
    }
}
