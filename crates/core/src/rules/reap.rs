use super::admission;
use super::admit::admit_or_put_in_inbox;
use super::claim::revoke_admission;
use super::finish::{apply_transition, kind_of_task};
use crate::bounds::{LEASE_MS_DEFAULT, STEP_ATTEMPTS_MAX};
use crate::fault_injection::{InjectedBug, is_injected};
use crate::tables::{ReadyRow, RemovedAttempt, Tables};
use crate::{ReapReply, Result, SlotLifetime, TaskId, Token, transition_after_crash};

/// Leases looked at in one step.
const REAPED_LEASES_MAX: u32 = 100;

/// How long the name of a dead worker is kept.
const DEAD_WORKER_RETENTION_MS: i64 = 60 * 60 * 1000;

/// Ends the attempts of expired leases whose worker no longer sends heartbeats or has kept the lease
/// for too long, and parks admitted tasks that no worker has asked for. One step takes a bounded number of attempts
/// and may leave a part of a lease to the next one.
pub fn reap(tables: &mut dyn Tables) -> Result<ReapReply> {
    let mut budget = tables.admission_budget();
    let mut reaped = ReapReply::default();
    // The bug: a lease is judged by a reading from before its renewal.
    let stale_ms = if is_injected(InjectedBug::ReapRenewedLease) { 1500 } else { 0 };
    let expired = tables.abandoned_leases(tables.now() + stale_ms, REAPED_LEASES_MAX)?;
    reaped.has_more = expired.len() == REAPED_LEASES_MAX as usize;
    for token in expired {
        let tasks = tables.running_tasks_of_lease(token)?;
        let left = (STEP_ATTEMPTS_MAX - reaped.expired_attempts) as usize;
        for task in tasks.iter().take(left) {
            expire_attempt(tables, *task, token)?;
            reaped.expired_attempts += 1;
        }
        if tasks.len() > left {
            reaped.has_more = true;
            break;
        }
        tables.delete_lease(token)?;
    }
    for row in tables.unserved_ready_tasks(tables.now() - LEASE_MS_DEFAULT, budget)? {
        if needs_attempt_slots(tables, row)? {
            revoke_admission(tables, row)?;
            admit_or_put_in_inbox(tables, row.task)?;
            reaped.unserved_tasks += 1;
        }
    }
    tables.delete_dead_workers(tables.now() - DEAD_WORKER_RETENTION_MS)?;
    reaped.has_more |= admission::admit_from_dirty_limits(tables, &mut budget)?;
    Ok(reaped)
}

/// Whether an admitted task that nobody serves holds slots that others could use. What is
/// its own for life, such as its workflow's, helps nobody else.
fn needs_attempt_slots(tables: &mut dyn Tables, row: ReadyRow) -> Result<bool> {
    let Some(tags) = tables.task_info(row.task)? else { return Ok(false) };
    Ok(admission::required_limits(tables, &tags)?
        .iter()
        .any(|need| need.slot_lifetime == SlotLifetime::Attempt))
}

fn expire_attempt(tables: &mut dyn Tables, task: TaskId, token: Token) -> Result<()> {
    let Some(stopped) = tables.remove_running(task, token)? else {
        return Ok(());
    };
    let Some(tags) = tables.task_info(task)? else {
        return Ok(());
    };
    let kind = kind_of_task(tables, &tags)?;
    let gated = stopped.holds_slots && !is_injected(InjectedBug::ReapKeepsSlots);
    apply_transition(
        tables,
        &tags,
        &kind,
        RemovedAttempt { holds_slots: gated, ..stopped },
        transition_after_crash,
    )
}
