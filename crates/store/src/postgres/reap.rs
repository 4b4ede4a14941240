//! Ends what its worker left behind, and removes what nobody needs.

use tidegate_core::bounds::{ADMISSION_BATCH_MAX, DAY_MS, LEASE_MS_DEFAULT};
use tidegate_core::tables::{Position, ReadyRow};
use tidegate_core::{Millis, PruneReply, ReapReply, Result, rules};

use super::admission::{ADMISSION_BUDGET, run_follow_ups};
use super::call;
use super::claim::lock_limits_version_shared;
use super::error::TxError;
use super::lease_expansion::expand_expired_leases;
use super::reconcile_registrations::reconcile_registrations;
use super::rows;
use super::transaction::{Params, Tx, with_autocommit};
use super::working_set::FollowUp;
use super::working_set_load::{LoadRequest, lock_and_load, read_tx_start};
use super::working_set_write::write_changes;
use super::{InjectedBug, PostgresInner, in_transaction};

const IS_REAP_NEEDED: &str = include_str!("queries/is_reap_needed.sql");
const EXPIRED_LEASES: &str = include_str!("queries/expired_leases.sql");
const LOCK_LEASES: &str = include_str!("queries/lock_leases.sql");
const LOCK_READY_IN_UNSERVED_LANES: &str = include_str!("queries/lock_ready_in_unserved_lanes.sql");
const LOCK_RUNNING_OF_LEASES: &str = include_str!("queries/lock_running_of_leases.sql");
const DELETE_DEAD_WORKERS: &str = include_str!("queries/delete_dead_workers.sql");
const ROTATE_PARTITIONS: &str = include_str!("queries/rotate_partitions.sql");
const DELETE_EXPIRED_TASKS: &str = include_str!("queries/delete_expired_tasks.sql");
const DELETE_STALE_FENCED_ATTEMPTS: &str = include_str!("queries/delete_stale_fenced_attempts.sql");
const DELETE_OLD_RUN_TIMES: &str = include_str!("queries/delete_old_run_times.sql");
const DELETE_IDLE_LIMITS: &str = include_str!("queries/delete_idle_limits.sql");

/// Leases in one transaction, as its statement has it.
const LEASES_MAX: usize = 100;

/// How long the name of a dead worker is kept.
const WORKER_RETENTION_MS: i64 = 60 * 60 * 1000;

pub(super) async fn reap(store: &PostgresInner) -> Result<ReapReply> {
    let now = store.options.now_override();
    let asked: Params<'_> = &[&now, &LEASE_MS_DEFAULT, &WORKER_RETENTION_MS];
    // Mostly there is nothing, and every keeper of a fleet asks.
    let look = with_autocommit!(store, tx => tx.query_one(IS_REAP_NEEDED, asked));
    if !look.get::<_, bool>("is_any") {
        return Ok(ReapReply::default());
    }
    let attempts_max = store.step_size.attempts_max();
    let step = reap_step(store, look.get("now"), attempts_max).await;
    if step.is_ok() {
        store.step_size.grow(attempts_max);
    } else if call::take_missed_deadline() {
        store.step_size.reduce(attempts_max);
    }
    let (reaped, follow_up) = step?;
    run_follow_ups(store, follow_up).await?;
    in_transaction!(store, tx => forget_dead_workers(store, &tx));
    Ok(reaped)
}

async fn reap_step(
    store: &PostgresInner,
    now: Millis,
    attempts_max: u32,
) -> Result<(ReapReply, FollowUp)> {
    let has_more = expand_expired_leases(store, now, attempts_max).await?;
    let (mut reaped, left) = in_transaction!(store, tx => reap_batch(store, &tx, attempts_max));
    reaped.has_more |= has_more;
    Ok((reaped, left))
}

async fn reap_batch(
    store: &PostgresInner,
    tx: &Tx<'_>,
    attempts_max: u32,
) -> Result<(ReapReply, FollowUp), TxError> {
    lock_limits_version_shared(store, tx).await?;
    let start = read_tx_start(store, tx).await?;
    let expired = tx.query(EXPIRED_LEASES, &[&start.now]).await?;
    let expired: Vec<_> = expired.iter().map(rows::lease_row).collect();
    let before = start.now - LEASE_MS_DEFAULT;
    let unserved = tx.query(LOCK_READY_IN_UNSERVED_LANES, &[&before, &start.now]).await?;
    let unserved: Vec<ReadyRow> = unserved.iter().map(rows::ready_row).collect();
    let tokens: Vec<i64> = expired.iter().map(|lease| lease.token.0).collect();
    let running = tx.query(LOCK_RUNNING_OF_LEASES, &[&tokens, &i64::from(attempts_max)]).await?;
    let running: Vec<_> = running.iter().map(rows::running_row).collect();
    let tasks = running.iter().map(|(task, _, _)| *task);
    let wanted = LoadRequest {
        tasks: tasks.chain(unserved.iter().map(|row| row.task)).collect(),
        admission_budget: ADMISSION_BUDGET + running.len() as u32 + unserved.len() as u32,
        ..LoadRequest::default()
    };
    let mut working_set = lock_and_load(store, tx, start, wanted).await?;
    let more = expired.len() == LEASES_MAX || running.len() == attempts_max as usize;
    let leases = if store.options.is_injected(InjectedBug::ReapUnlocked) {
        expired
    } else {
        tx.query(LOCK_LEASES, &[&tokens]).await?.iter().map(rows::lease_row).collect()
    };
    // One that was renewed before the lock is not to be touched.
    if leases.iter().any(|lease| lease.expires_at > start.now) {
        return Err(TxError::Retry);
    }
    // The draft has no heartbeats, so the rule ends every lease that the statement returned.
    leases.into_iter().for_each(|lease| working_set.add_lease(lease));
    unserved.into_iter().for_each(|row| working_set.set_position(row.task, Position::Ready(row)));
    for (task, token, running) in running {
        working_set.set_running(task, token, running);
    }
    working_set.finish_loading();
    let mut reaped = rules::reap(&mut working_set)?;
    write_changes(tx, &working_set).await?;
    let follow_up = working_set.follow_up();
    reaped.has_more = more;
    Ok((reaped, follow_up))
}

async fn forget_dead_workers(store: &PostgresInner, tx: &Tx<'_>) -> Result<(), TxError> {
    let now = read_tx_start(store, tx).await?.now;
    tx.execute(DELETE_DEAD_WORKERS, &[&(now - WORKER_RETENTION_MS)]).await?;
    Ok(())
}

pub(super) async fn prune(store: &PostgresInner) -> Result<PruneReply> {
    // A transaction of its own: it may lock whole tables, and then ends at once.
    let days = in_transaction!(store, tx => rotate_partitions(store, &tx));
    let tasks = in_transaction!(store, tx => prune_finished_tasks(store, &tx));
    let kinds = reconcile_registrations(store).await?;
    let none: Params<'_> = &[];
    let limits = in_transaction!(store, tx => tx.execute(DELETE_IDLE_LIMITS, none)) as u32;
    let more = tasks == ADMISSION_BATCH_MAX || limits == ADMISSION_BATCH_MAX;
    Ok(PruneReply { tasks: tasks + days, limits, kinds, has_more: more })
}

/// Drops the days that tasks were kept for, and makes those to come; gives how many tasks went.
pub(super) async fn rotate_partitions(store: &PostgresInner, tx: &Tx<'_>) -> Result<u32, TxError> {
    let now = read_tx_start(store, tx).await?.now;
    let tasks: i64 = tx.query_one(ROTATE_PARTITIONS, &[&now]).await?.get("tasks");
    Ok(u32::try_from(tasks).unwrap_or(u32::MAX))
}

async fn prune_finished_tasks(store: &PostgresInner, tx: &Tx<'_>) -> Result<u32, TxError> {
    let now = read_tx_start(store, tx).await?.now;
    let today = i32::try_from(now / DAY_MS).unwrap_or(i32::MAX);
    let tasks = tx.execute(DELETE_EXPIRED_TASKS, &[&today]).await? as u32;
    tx.execute(DELETE_STALE_FENCED_ATTEMPTS, &[]).await?;
    tx.execute(DELETE_OLD_RUN_TIMES, &[&(now - rules::RUN_TIMES_RETENTION_MS)]).await?;
    Ok(tasks)
}
