//! Mends what the check finds. Every table is locked, so what is read is all there is.

use tidegate_core::repair::{self, Repair};
use tidegate_core::tables::Position;
use tidegate_core::{Limit, Result};
use tokio_postgres::error::SqlState;

use super::error::Fault;
use super::flush::put_limits;
use super::made::{MAKE_LIMITS, Made, workflows};
use super::session::Tx;
use super::unpack::unpack_all;
use super::{Inner, snapshot, transact};

const TASK_IDS: &str = include_str!("queries/repair_task_ids.sql");
const PATIENCE: &str = include_str!("queries/repair_lock_timeout.sql");
const LOCK: &str = include_str!("queries/repair_lock_tables.sql");
const PASSES: &str = include_str!("queries/repair_limit_deltas.sql");
const LEAVE: &str = include_str!("queries/delete_positions.sql");
const PUT_ARRIVED: &str = include_str!("queries/put_inbox.sql");
const DROP_LEASES: &str = include_str!("queries/delete_leases.sql");
const SLOTS: &str = include_str!("queries/repair_slots.sql");
const SLOT_GROUPS: &str = include_str!("queries/repair_slot_groups.sql");
const GATED: &str = include_str!("queries/repair_holds_slots.sql");
const FREE_KEYS: &str = include_str!("queries/delete_unique_keys.sql");
const KEYS: &str = include_str!("queries/repair_unique_keys.sql");
const CALM: &str = include_str!("queries/repair_allows_hand_off.sql");
const NUMBERS: &str = include_str!("queries/repair_sequences.sql");

pub(super) async fn repair(store: &Inner) -> Result<Vec<Repair>> {
    let plan = transact!(reading store, tx => mend(store, &tx));
    if !plan.is_empty() {
        store.floors.forget();
        store.changed.tell();
    }
    Ok(plan)
}

async fn mend(store: &Inner, tx: &Tx<'_>) -> Result<Vec<Repair>, Fault> {
    lock(tx).await?;
    unpack_all(tx).await?;
    tx.execute(PASSES, &[]).await?;
    let mut steps = Vec::new();
    let plan = loop {
        let plan = repair::plan(&snapshot::read(store, tx).await?);
        if !repair::is_first_part(&plan) {
            break plan;
        }
        make_limits(tx, &plan).await?;
        steps.extend(plan);
    };
    leave(tx, &plan).await?;
    equip(tx, &plan).await?;
    let limits = plan.iter().filter_map(|step| match step {
        Repair::Count { limit } => Some(limit),
        _ => None,
    });
    put_limits(tx, &limits.collect::<Vec<&Limit>>(), |_| false).await?;
    note(tx, &plan).await?;
    if !plan.is_empty() {
        tx.execute(SLOT_GROUPS, &[]).await?;
    }
    tx.execute(CALM, &[]).await?;
    steps.extend(plan);
    Ok(steps)
}

async fn make_limits(tx: &Tx<'_>, plan: &[Repair]) -> Result<(), Fault> {
    let name = |step: &Repair| match step {
        Repair::MakeLimit { name } => Some(name.to_string()),
        _ => None,
    };
    let names: Vec<String> = plan.iter().filter_map(name).collect();
    let limits = workflows(&names);
    tx.execute(MAKE_LIMITS, &Made::of(&limits.iter().collect::<Vec<_>>()).params()).await?;
    Ok(())
}

/// Locks every table. Others lock rows in an order of their own, so each may wait for the other:
/// then it is the repair that gives way and tries again, and no worker's transaction is undone.
async fn lock(tx: &Tx<'_>) -> Result<(), Fault> {
    tx.execute(PATIENCE, &[]).await?;
    match tx.execute(LOCK, &[]).await {
        Err(Fault::Server(error)) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            Err(Fault::Again)
        }
        locked => locked.map(drop),
    }
}

/// Takes tasks out of where they stood, slots out of their hands and leases away; and puts tasks
/// at the gate.
async fn leave(tx: &Tx<'_>, plan: &[Repair]) -> Result<(), Fault> {
    // Scheduled, arrived, ready, line, running: as the statement has them.
    let mut places: [Vec<i64>; 5] = Default::default();
    let (mut limits, mut numbers) = (Vec::new(), Vec::new());
    let (mut arrived, mut leases) = (Vec::new(), Vec::new());
    for step in plan {
        match step {
            Repair::Leave { task, position } => match position {
                Position::Scheduled(_) => places[0].push(task.0),
                Position::Arrived => places[1].push(task.0),
                Position::Ready(_) => places[2].push(task.0),
                Position::Line(_) => places[3].push(task.0),
                Position::Running(_) => places[4].push(task.0),
                Position::Final(_) => {}
            },
            Repair::FreeSlot { limit, number, .. } => {
                limits.push(limit.0);
                numbers.push(i64::from(*number));
            }
            Repair::Arrive { task } => arrived.push(task.0),
            Repair::EndLease { token } => leases.push(token.0),
            _ => {}
        }
    }
    let [scheduled, at_gate, ready, line, running] = &places;
    let any: Option<i64> = None;
    tx.one(LEAVE, &[scheduled, at_gate, ready, line, running, &limits, &numbers, &any]).await?;
    tx.execute(PUT_ARRIVED, &[&arrived]).await?;
    tx.execute(DROP_LEASES, &[&leases]).await?;
    Ok(())
}

/// Gives those that run what they run with.
async fn equip(tx: &Tx<'_>, plan: &[Repair]) -> Result<(), Fault> {
    for step in plan {
        match step {
            Repair::TakeSlots { task, limit, weight, .. } => {
                tx.execute(SLOTS, &[&limit.0, &i64::from(*weight), &task.0]).await?;
            }
            Repair::SetGated { task, .. } => {
                tx.execute(GATED, &[&vec![task.0]]).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

async fn note(tx: &Tx<'_>, plan: &[Repair]) -> Result<(), Fault> {
    let (mut free, mut keys, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
    for step in plan {
        match step {
            Repair::PutKey { key, task: None } => free.push(&**key),
            Repair::PutKey { key, task: Some(task) } => {
                keys.push(&**key);
                tasks.push(task.0);
            }
            Repair::RaiseTaskIds { last_task } => {
                tx.query(TASK_IDS, &[&last_task.0]).await?;
            }
            Repair::SetCounters { counters } => {
                tx.query(NUMBERS, &[&counters.token, &counters.place]).await?;
            }
            _ => {}
        }
    }
    tx.execute(FREE_KEYS, &[&free]).await?;
    tx.execute(KEYS, &[&keys, &tasks]).await?;
    Ok(())
}
