use super::admit::bring;
use super::claim::withdraw;
use super::finish::{kind_of, move_on};
use super::gate;
use crate::bounds::{LEASE_MS, STEP_ATTEMPTS_MAX};
use crate::planted::{Bug, is_planted};
use crate::tables::{ReadyRow, Stopped, Tables};
use crate::{Hold, Reaped, Result, TaskId, Token, after_death};

/// Leases looked at in one step.
const LEASES_MAX: u32 = 100;

/// How long the name of a dead worker is kept.
const WORKER_KEPT_MS: i64 = 60 * 60 * 1000;

/// Ends the attempts of expired leases whose worker no longer sends heartbeats or has kept the lease
/// for too long, and parks admitted tasks that no worker has asked for. One step takes a bounded number of attempts
/// and may leave a part of a lease to the next one.
pub fn reap(tables: &mut dyn Tables) -> Result<Reaped> {
    let mut budget = tables.gate_budget();
    let mut reaped = Reaped::default();
    // The bug: a lease is judged by a reading from before its renewal.
    let stale_ms = if is_planted(Bug::ReapRenewed) { 1500 } else { 0 };
    let expired = tables.abandoned_leases(tables.now() + stale_ms, LEASES_MAX)?;
    reaped.more = expired.len() == LEASES_MAX as usize;
    for token in expired {
        let tasks = tables.running_under(token)?;
        let left = (STEP_ATTEMPTS_MAX - reaped.expired) as usize;
        for task in tasks.iter().take(left) {
            expire(tables, *task, token)?;
            reaped.expired += 1;
        }
        if tasks.len() > left {
            reaped.more = true;
            break;
        }
        tables.drop_lease(token)?;
    }
    for row in tables.ready_unserved(tables.now() - LEASE_MS, budget)? {
        if holds_for_nobody(tables, row)? {
            withdraw(tables, row)?;
            bring(tables, row.task)?;
            reaped.unserved += 1;
        }
    }
    tables.forget_workers(tables.now() - WORKER_KEPT_MS)?;
    reaped.more |= gate::settle(tables, &mut budget)?;
    Ok(reaped)
}

/// Whether an admitted task that nobody serves holds slots that others could use. What is
/// its own for life, such as its workflow's, helps nobody else.
fn holds_for_nobody(tables: &mut dyn Tables, row: ReadyRow) -> Result<bool> {
    let Some(tags) = tables.tags(row.task)? else { return Ok(false) };
    Ok(gate::needs(tables, &tags)?.iter().any(|need| need.hold == Hold::Attempt))
}

fn expire(tables: &mut dyn Tables, task: TaskId, token: Token) -> Result<()> {
    let Some(stopped) = tables.stop(task, token)? else {
        return Ok(());
    };
    let Some(tags) = tables.tags(task)? else {
        return Ok(());
    };
    let kind = kind_of(tables, &tags)?;
    let gated = stopped.gated && !is_planted(Bug::ReapKeepsSlots);
    move_on(tables, &tags, &kind, Stopped { gated, ..stopped }, after_death)
}
