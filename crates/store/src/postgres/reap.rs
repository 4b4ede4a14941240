//! Ends what its worker left behind, and removes what nobody needs.

use tidegate_core::bounds::{DAY_MS, GATE_STEP, LEASE_MS};
use tidegate_core::tables::{Position, ReadyRow};
use tidegate_core::{Millis, Pruned, Reaped, Result, rules};

use super::call;
use super::claim::share_version;
use super::draft::Left;
use super::error::Fault;
use super::flush::flush;
use super::gate::{BUDGET, follow};
use super::load::{Wanted, gather, moment};
use super::registered::prune_registered;
use super::rows;
use super::session::{Params, Tx, glimpse};
use super::unpack::unpack_expired;
use super::{Bug, Inner, transact};

const HAS_LEFT_BEHIND: &str = include_str!("queries/is_reap_needed.sql");
const EXPIRED: &str = include_str!("queries/expired_leases.sql");
const LOCK_LEASES: &str = include_str!("queries/lock_leases.sql");
const UNSERVED: &str = include_str!("queries/lock_ready_in_unserved_lanes.sql");
const LOCK_RUNNING_UNDER: &str = include_str!("queries/lock_running_of_leases.sql");
const FORGET_WORKERS: &str = include_str!("queries/delete_dead_workers.sql");
const TURN_DAYS: &str = include_str!("queries/rotate_partitions.sql");
const REMOVE_ENDED: &str = include_str!("queries/delete_expired_tasks.sql");
const FORGET_FENCED: &str = include_str!("queries/delete_stale_fenced_attempts.sql");
const FORGET_PACES: &str = include_str!("queries/delete_old_run_times.sql");
const DROP_IDLE_LIMITS: &str = include_str!("queries/delete_idle_limits.sql");

/// Leases in one transaction, as its statement has it.
const LEASES_MAX: usize = 100;

/// How long the name of a dead worker is kept.
const WORKER_KEPT_MS: i64 = 60 * 60 * 1000;

pub(super) async fn reap(store: &Inner) -> Result<Reaped> {
    let now = store.options.now();
    let asked: Params<'_> = &[&now, &LEASE_MS, &WORKER_KEPT_MS];
    // Mostly there is nothing, and every keeper of a fleet asks.
    let look = glimpse!(store, tx => tx.one(HAS_LEFT_BEHIND, asked));
    if !look.get::<_, bool>("is_any") {
        return Ok(Reaped::default());
    }
    let attempts_max = store.step_size.attempts_max();
    let step = reap_step(store, look.get("now"), attempts_max).await;
    if step.is_ok() {
        store.step_size.grow(attempts_max);
    } else if call::take_missed_deadline() {
        store.step_size.reduce(attempts_max);
    }
    let (reaped, left) = step?;
    follow(store, left).await?;
    transact!(store, tx => forget(store, &tx));
    Ok(reaped)
}

async fn reap_step(store: &Inner, now: Millis, attempts_max: u32) -> Result<(Reaped, Left)> {
    let has_more = unpack_expired(store, now, attempts_max).await?;
    let (mut reaped, left) = transact!(store, tx => reap_some(store, &tx, attempts_max));
    reaped.more |= has_more;
    Ok((reaped, left))
}

async fn reap_some(store: &Inner, tx: &Tx<'_>, attempts_max: u32) -> Result<(Reaped, Left), Fault> {
    share_version(store, tx).await?;
    let moment = moment(store, tx).await?;
    let expired = tx.query(EXPIRED, &[&moment.now]).await?;
    let expired: Vec<_> = expired.iter().map(rows::lease).collect();
    let before = moment.now - LEASE_MS;
    let unserved = tx.query(UNSERVED, &[&before, &moment.now]).await?;
    let unserved: Vec<ReadyRow> = unserved.iter().map(rows::ready).collect();
    let tokens: Vec<i64> = expired.iter().map(|lease| lease.token.0).collect();
    let running = tx.query(LOCK_RUNNING_UNDER, &[&tokens, &i64::from(attempts_max)]).await?;
    let running: Vec<_> = running.iter().map(rows::running).collect();
    let tasks = running.iter().map(|(task, _, _)| *task);
    let wanted = Wanted {
        tasks: tasks.chain(unserved.iter().map(|row| row.task)).collect(),
        budget: BUDGET + running.len() as u32 + unserved.len() as u32,
        ..Wanted::default()
    };
    let mut draft = gather(store, tx, moment, wanted).await?;
    let more = expired.len() == LEASES_MAX || running.len() == attempts_max as usize;
    let leases = if store.options.is_planted(Bug::ReapUnlocked) {
        expired
    } else {
        tx.query(LOCK_LEASES, &[&tokens]).await?.iter().map(rows::lease).collect()
    };
    // One that was renewed before the lock is not to be touched.
    if leases.iter().any(|lease| lease.expires_at > moment.now) {
        return Err(Fault::Again);
    }
    // The draft has no heartbeats, so the rule ends every lease that the statement returned.
    leases.into_iter().for_each(|lease| draft.add_lease(lease));
    unserved.into_iter().for_each(|row| draft.stand(row.task, Position::Ready(row)));
    for (task, token, running) in running {
        draft.run(task, token, running);
    }
    draft.seal();
    let mut reaped = rules::reap(&mut draft)?;
    flush(tx, &draft).await?;
    let left = draft.left();
    reaped.more = more;
    Ok((reaped, left))
}

async fn forget(store: &Inner, tx: &Tx<'_>) -> Result<(), Fault> {
    let now = moment(store, tx).await?.now;
    tx.execute(FORGET_WORKERS, &[&(now - WORKER_KEPT_MS)]).await?;
    Ok(())
}

pub(super) async fn prune(store: &Inner) -> Result<Pruned> {
    // A transaction of its own: it may lock whole tables, and then ends at once.
    let days = transact!(store, tx => turn_days(store, &tx));
    let tasks = transact!(store, tx => prune_tasks(store, &tx));
    let kinds = prune_registered(store).await?;
    let none: Params<'_> = &[];
    let limits = transact!(store, tx => tx.execute(DROP_IDLE_LIMITS, none)) as u32;
    let more = tasks == GATE_STEP || limits == GATE_STEP;
    Ok(Pruned { tasks: tasks + days, limits, kinds, more })
}

/// Drops the days that tasks were kept for, and makes those to come; gives how many tasks went.
pub(super) async fn turn_days(store: &Inner, tx: &Tx<'_>) -> Result<u32, Fault> {
    let now = moment(store, tx).await?.now;
    let tasks: i64 = tx.one(TURN_DAYS, &[&now]).await?.get("tasks");
    Ok(u32::try_from(tasks).unwrap_or(u32::MAX))
}

async fn prune_tasks(store: &Inner, tx: &Tx<'_>) -> Result<u32, Fault> {
    let now = moment(store, tx).await?.now;
    let today = i32::try_from(now / DAY_MS).unwrap_or(i32::MAX);
    let tasks = tx.execute(REMOVE_ENDED, &[&today]).await? as u32;
    tx.execute(FORGET_FENCED, &[]).await?;
    tx.execute(FORGET_PACES, &[&(now - rules::PACE_KEPT_MS)]).await?;
    Ok(tasks)
}
