//! How tasks that are through the gate and have not begun go back to the line of a limit that was
//! lowered or paused, or of a job that has got a delay.

use super::{Waiter, give_back, locked, needs};
use crate::rules::admit::bring_back;
use crate::rules::claim::withdraw;
use crate::tables::{Class, ReadyRow, Tables};
use crate::{Hold, Limit, LimitId, Millis, Result};

/// Takes admissions back while more slots of a limit are held than may be, or more tasks of a job are about
/// to begin than its delay allows, of those with the highest numbers first, for at most `budget` tasks. They
/// stand before all who had not got as far. False where some may be left: then the limit stays marked.
pub(super) fn recall(tables: &mut dyn Tables, id: LimitId, budget: &mut u32) -> Result<bool> {
    if !recalls(tables, id)? {
        return Ok(true);
    }
    let (rows, is_all) = tables.ready_holders(id, *budget)?;
    let (mut back, number) = (Vec::new(), rows.len());
    for (at, row) in rows.into_iter().enumerate() {
        // The rest has lower numbers, and one of it may stay.
        let left = if is_all { number - at } else { usize::MAX };
        let now = tables.now();
        if !tables.limit(id)?.is_some_and(|limit| must_go(&limit, left, now)) {
            break;
        }
        *budget = budget.saturating_sub(1);
        withdraw(tables, row)?;
        back.push((row.rank, row.tag, row.task));
    }
    // Among each other they keep their order.
    back.sort_unstable();
    for (_, _, task) in back {
        bring_back(tables, task)?;
    }
    Ok(is_all || !recalls(tables, id)?)
}

fn recalls(tables: &mut dyn Tables, id: LimitId) -> Result<bool> {
    let now = tables.now();
    Ok(tables.limit(id)?.is_some_and(|limit| limit.recalls(now)))
}

/// Whether one of so many ready tasks has to go back. Who waits for another limit is not among them, and
/// goes back when its turn comes there.
fn must_go(limit: &Limit, ready: usize, now: Millis) -> bool {
    let most = limit.ready_max(now).filter(|_| limit.is_hasty(now));
    limit.is_over() || most.is_some_and(|most| ready > most as usize)
}

/// Who collects slots lets go of those it has, where one is of a limit of which more are held than may
/// be: it would begin with the last of them.
pub(super) fn let_go(tables: &mut dyn Tables, waiter: &mut Waiter) -> Result<()> {
    if waiter.row.class != Class::Reserving {
        return Ok(());
    }
    for i in 0..waiter.needs.len() {
        let need = waiter.needs[i];
        if need.hold == Hold::Attempt && need.taken && locked(tables, need.limit)?.is_over() {
            return give_back(tables, waiter);
        }
    }
    Ok(())
}

/// Whether a ready task has to go back to the line of one of its limits, and nobody has come to it yet.
pub fn is_recalled(tables: &mut dyn Tables, row: ReadyRow) -> Result<bool> {
    let Some(tags) = tables.tags(row.task)?.filter(|_| row.gated) else {
        return Ok(false);
    };
    let now = tables.now();
    for need in needs(tables, &tags)? {
        if tables.limit(need.limit)?.is_some_and(|limit| limit.dirty && limit.recalls(now)) {
            return Ok(true);
        }
    }
    Ok(false)
}
