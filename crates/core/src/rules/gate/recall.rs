//! How tasks that are through the gate and have not begun go back to the line of a limit that was
//! lowered or paused.

use super::{Waiter, give_back, locked, needs};
use crate::rules::admit::bring_back;
use crate::rules::claim::withdraw;
use crate::tables::{Class, ReadyRow, Tables};
use crate::{Hold, LimitId, Result};

/// Takes admissions back while more slots of a limit are held than may be, of those with the highest
/// numbers first, for at most `budget` tasks. They stand before all who had not got as far. False where
/// some may be left: then the limit stays marked.
pub(super) fn recall(tables: &mut dyn Tables, id: LimitId, budget: &mut u32) -> Result<bool> {
    if !is_over(tables, id)? {
        return Ok(true);
    }
    let (rows, is_all) = tables.ready_holders(id, *budget)?;
    let mut back = Vec::new();
    for row in rows {
        if !is_over(tables, id)? {
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
    Ok(is_all || !is_over(tables, id)?)
}

fn is_over(tables: &mut dyn Tables, id: LimitId) -> Result<bool> {
    Ok(tables.limit(id)?.is_some_and(|limit| limit.is_over()))
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
    for need in needs(tables, &tags)? {
        if tables.limit(need.limit)?.is_some_and(|limit| limit.dirty && limit.is_over()) {
            return Ok(true);
        }
    }
    Ok(false)
}
