use super::finish::{kind_of, move_on};
use super::gate;
use crate::tables::{Position, Tables};
use crate::{Hold, Release, ReleaseOutcome, Result, after_fence};

/// Takes a slot away from the attempt that holds it. The way out is the one of every attempt, so
/// all its slots are handed on.
pub fn release(tables: &mut dyn Tables, release: &Release) -> Result<ReleaseOutcome> {
    let Some(id) = tables.limit_named(&release.limit)? else {
        return Ok(ReleaseOutcome::NoLimit);
    };
    let (Some(limit), Some(task)) = (tables.limit(id)?, tables.holder(id, release.slot)?) else {
        return Ok(ReleaseOutcome::Free);
    };
    if limit.scope().hold() == Hold::Lifetime {
        return Ok(ReleaseOutcome::ForLife(task));
    }
    let Some(Position::Running(token)) = tables.position(task)? else {
        return Ok(ReleaseOutcome::NotRunning(task));
    };
    let (Some(stopped), Some(tags)) = (tables.stop(task, token)?, tables.tags(task)?) else {
        return Ok(ReleaseOutcome::Free);
    };
    tables.fence(task, token)?;
    let (kind, now) = (kind_of(tables, &tags)?, tables.now());
    move_on(tables, &tags, &kind, stopped, |ledger| after_fence(ledger, now))?;
    tables.end_leases(&[token])?;
    let mut budget = tables.gate_budget();
    gate::settle(tables, &mut budget)?;
    Ok(ReleaseOutcome::Released(task))
}
