//! Mends what the check finds. Every table is locked, so what is read is all there is.

use tidegate_core::repair::{self, Repair};
use tidegate_core::tables::Position;
use tidegate_core::{Limit, Result};
use tokio_postgres::error::SqlState;

use super::error::TxError;
use super::lease_expansion::expand_all_leases;
use super::limit_columns::{INSERT_LIMITS, NewLimitColumns, workflow_limits};
use super::transaction::Tx;
use super::working_set_write::put_limits;
use super::{PostgresInner, in_transaction, snapshot};

const REPAIR_TASK_IDS: &str = include_str!("queries/repair_task_ids.sql");
const REPAIR_LOCK_TIMEOUT: &str = include_str!("queries/repair_lock_timeout.sql");
const REPAIR_LOCK_TABLES: &str = include_str!("queries/repair_lock_tables.sql");
const REPAIR_LIMIT_DELTAS: &str = include_str!("queries/repair_limit_deltas.sql");
const DELETE_POSITIONS: &str = include_str!("queries/delete_positions.sql");
const PUT_INBOX: &str = include_str!("queries/put_inbox.sql");
const DELETE_LEASES: &str = include_str!("queries/delete_leases.sql");
const REPAIR_SLOTS: &str = include_str!("queries/repair_slots.sql");
const REPAIR_SLOT_GROUPS: &str = include_str!("queries/repair_slot_groups.sql");
const REPAIR_HOLDS_SLOTS: &str = include_str!("queries/repair_holds_slots.sql");
const DELETE_UNIQUE_KEYS: &str = include_str!("queries/delete_unique_keys.sql");
const REPAIR_UNIQUE_KEYS: &str = include_str!("queries/repair_unique_keys.sql");
const REPAIR_ALLOWS_HAND_OFF: &str = include_str!("queries/repair_allows_hand_off.sql");
const REPAIR_SEQUENCES: &str = include_str!("queries/repair_sequences.sql");

pub(super) async fn repair(store: &PostgresInner) -> Result<Vec<Repair>> {
    let plan = in_transaction!(reader store, tx => repair_in_tx(store, &tx));
    if !plan.is_empty() {
        store.claim_cursors.clear();
        store.notifier.notify_others();
    }
    Ok(plan)
}

async fn repair_in_tx(store: &PostgresInner, tx: &Tx<'_>) -> Result<Vec<Repair>, TxError> {
    lock_tables(tx).await?;
    expand_all_leases(tx).await?;
    tx.execute(REPAIR_LIMIT_DELTAS, &[]).await?;
    let mut steps = Vec::new();
    let plan = loop {
        let plan = repair::plan_repairs(&snapshot::read_snapshot(store, tx).await?);
        if !repair::is_partial_plan(&plan) {
            break plan;
        }
        make_missing_limits(tx, &plan).await?;
        steps.extend(plan);
    };
    remove_positions_and_slots(tx, &plan).await?;
    restore_running_slots(tx, &plan).await?;
    let limits = plan.iter().filter_map(|step| match step {
        Repair::RecountLimit { limit } => Some(limit),
        _ => None,
    });
    put_limits(tx, &limits.collect::<Vec<&Limit>>(), |_| false).await?;
    repair_keys_and_counters(tx, &plan).await?;
    if !plan.is_empty() {
        tx.execute(REPAIR_SLOT_GROUPS, &[]).await?;
    }
    tx.execute(REPAIR_ALLOWS_HAND_OFF, &[]).await?;
    steps.extend(plan);
    Ok(steps)
}

async fn make_missing_limits(tx: &Tx<'_>, plan: &[Repair]) -> Result<(), TxError> {
    let name = |step: &Repair| match step {
        Repair::CreateWorkflowLimit { name } => Some(name.to_string()),
        _ => None,
    };
    let names: Vec<String> = plan.iter().filter_map(name).collect();
    let limits = workflow_limits(&names);
    tx.execute(
        INSERT_LIMITS,
        &NewLimitColumns::from_limits(&limits.iter().collect::<Vec<_>>()).params(),
    )
    .await?;
    Ok(())
}

/// Locks every table. Others lock rows in an order of their own, so each may wait for the other:
/// then it is the repair that gives way and tries again, and no worker's transaction is undone.
async fn lock_tables(tx: &Tx<'_>) -> Result<(), TxError> {
    tx.execute(REPAIR_LOCK_TIMEOUT, &[]).await?;
    match tx.execute(REPAIR_LOCK_TABLES, &[]).await {
        Err(TxError::Server(error)) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            Err(TxError::Retry)
        }
        locked => locked.map(drop),
    }
}

/// Takes tasks out of where they stood, slots out of their hands and leases away; and puts tasks
/// at the gate.
async fn remove_positions_and_slots(tx: &Tx<'_>, plan: &[Repair]) -> Result<(), TxError> {
    // Scheduled, arrived, ready, line, running: as the statement has them.
    let mut places: [Vec<i64>; 5] = Default::default();
    let (mut limits, mut numbers) = (Vec::new(), Vec::new());
    let (mut arrived, mut leases) = (Vec::new(), Vec::new());
    for step in plan {
        match step {
            Repair::RemovePosition { task, position } => match position {
                Position::Scheduled(_) => places[0].push(task.0),
                Position::Inbox => places[1].push(task.0),
                Position::Ready(_) => places[2].push(task.0),
                Position::Waiting(_) => places[3].push(task.0),
                Position::Running(_) => places[4].push(task.0),
                Position::Finished(_) => {}
            },
            Repair::FreeSlot { limit, number, .. } => {
                limits.push(limit.0);
                numbers.push(i64::from(*number));
            }
            Repair::PutInInbox { task } => arrived.push(task.0),
            Repair::DeleteLease { token } => leases.push(token.0),
            _ => {}
        }
    }
    let [scheduled, at_gate, ready, line, running] = &places;
    let any: Option<i64> = None;
    tx.query_one(
        DELETE_POSITIONS,
        &[scheduled, at_gate, ready, line, running, &limits, &numbers, &any],
    )
    .await?;
    tx.execute(PUT_INBOX, &[&arrived]).await?;
    tx.execute(DELETE_LEASES, &[&leases]).await?;
    Ok(())
}

/// Gives those that run what they run with.
async fn restore_running_slots(tx: &Tx<'_>, plan: &[Repair]) -> Result<(), TxError> {
    for step in plan {
        match step {
            Repair::AcquireSlots { task, limit, weight, .. } => {
                tx.execute(REPAIR_SLOTS, &[&limit.0, &i64::from(*weight), &task.0]).await?;
            }
            Repair::SetHoldsSlots { task, .. } => {
                tx.execute(REPAIR_HOLDS_SLOTS, &[&vec![task.0]]).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

async fn repair_keys_and_counters(tx: &Tx<'_>, plan: &[Repair]) -> Result<(), TxError> {
    let (mut free, mut keys, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
    for step in plan {
        match step {
            Repair::SetUniqueKeyOwner { key, task: None } => free.push(&**key),
            Repair::SetUniqueKeyOwner { key, task: Some(task) } => {
                keys.push(&**key);
                tasks.push(task.0);
            }
            Repair::RaiseTaskIds { last_task } => {
                tx.query(REPAIR_TASK_IDS, &[&last_task.0]).await?;
            }
            Repair::SetCounters { counters } => {
                tx.query(REPAIR_SEQUENCES, &[&counters.last_token, &counters.last_admission_seq])
                    .await?;
            }
            _ => {}
        }
    }
    tx.execute(DELETE_UNIQUE_KEYS, &[&free]).await?;
    tx.execute(REPAIR_UNIQUE_KEYS, &[&keys, &tasks]).await?;
    Ok(())
}
