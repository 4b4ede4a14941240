//! Everything the invariants speak of, in one committed state.

use std::collections::BTreeMap;

use tidegate_core::reader::{Snapshot, SnapshotSlot, SnapshotTask};
use tidegate_core::tables::{Counters, Position};
use tidegate_core::{Limit, LimitId, Result, TaskId};

use super::error::TxError;
use super::rows;
use super::transaction::Tx;
use super::{PostgresInner, in_transaction};

const SNAPSHOT_BEGIN: &str = include_str!("queries/snapshot_begin.sql");
const SNAPSHOT_COUNTERS: &str = include_str!("queries/snapshot_counters.sql");
const SNAPSHOT_TASKS: &str = include_str!("queries/snapshot_tasks.sql");
const FINISHED_COUNTS_BY_STATE: &str = include_str!("queries/finished_counts_by_state.sql");
const ALL_LIMITS_BY_NAME: &str = include_str!("queries/all_limits_by_name.sql");
const SNAPSHOT_SLOTS: &str = include_str!("queries/snapshot_slots.sql");
const SNAPSHOT_SLOT_GROUPS: &str = include_str!("queries/snapshot_slot_groups.sql");
const SNAPSHOT_UNIQUE_KEYS: &str = include_str!("queries/snapshot_unique_keys.sql");
const SNAPSHOT_LEASES: &str = include_str!("queries/snapshot_leases.sql");
const SNAPSHOT_SCHEDULED: &str = include_str!("queries/snapshot_scheduled.sql");
const SNAPSHOT_INBOX: &str = include_str!("queries/snapshot_inbox.sql");
const SNAPSHOT_READY: &str = include_str!("queries/snapshot_ready.sql");
const SNAPSHOT_WAITERS: &str = include_str!("queries/snapshot_waiters.sql");
const SNAPSHOT_RUNNING: &str = include_str!("queries/snapshot_running.sql");

pub(super) async fn snapshot(store: &PostgresInner) -> Result<Snapshot> {
    Ok(in_transaction!(reader store, tx => read_in_snapshot(store, &tx)))
}

async fn read_in_snapshot(store: &PostgresInner, tx: &Tx<'_>) -> Result<Snapshot, TxError> {
    tx.execute(SNAPSHOT_BEGIN, &[]).await?;
    read_snapshot(store, tx).await
}

/// Reads within a transaction that sees one state throughout.
pub(super) async fn read_snapshot(store: &PostgresInner, tx: &Tx<'_>) -> Result<Snapshot, TxError> {
    let row = tx.query_one(SNAPSHOT_COUNTERS, &[]).await?;
    let counters = Counters {
        last_token: row.get("last_token"),
        last_admission_seq: row.get("last_admission_seq"),
        virtual_time: row.get("virtual_time"),
        limits_version: row.get("limits_version"),
    };
    let now = store.options.now_override().unwrap_or_else(|| row.get("now"));
    let mut tasks: BTreeMap<TaskId, SnapshotTask> = BTreeMap::new();
    for row in tx.query(SNAPSHOT_TASKS, &[]).await? {
        let task = task_row(&row)?;
        tasks.insert(task.id, task);
    }
    read_positions(tx, &mut tasks).await?;
    let limits = tx.query(ALL_LIMITS_BY_NAME, &[]).await?;
    let mut limits = limits.iter().map(rows::limit_for_repair).collect::<Result<Vec<Limit>>>()?;
    limits.sort_unstable_by_key(|limit| limit.id);
    let slots = tx.query(SNAPSHOT_SLOTS, &[]).await?;
    let leases = tx.query(SNAPSHOT_LEASES, &[]).await?;
    let keys = tx.query(SNAPSHOT_UNIQUE_KEYS, &[]).await?;
    let finished = tx.query(FINISHED_COUNTS_BY_STATE, &[]).await?;
    let groups = tx.query(SNAPSHOT_SLOT_GROUPS, &[]).await?;
    let slot = |row: &tokio_postgres::Row| {
        Ok(SnapshotSlot {
            limit: LimitId(row.get("limit_id")),
            number: rows::read_unsigned(row, "slots", "number")?,
            task: TaskId(row.get("task")),
        })
    };
    Ok(Snapshot {
        now,
        counters,
        last_task_id: TaskId(row.get("last_task")),
        highest_task_id: TaskId(row.get("highest_task")),
        tasks: tasks.into_values().collect(),
        limits,
        slots: slots.iter().map(slot).collect::<Result<_>>()?,
        leases: leases.iter().map(rows::lease_row).collect(),
        unique_keys: keys
            .iter()
            .map(|row| (row.get::<_, &str>("key").into(), TaskId(row.get("task"))))
            .collect(),
        finished: finished
            .iter()
            .map(|row| {
                Ok((rows::state_from_code(row.get("state"))?, row.get::<_, i64>("tasks") as u64))
            })
            .collect::<Result<_>>()?,
        store_faults: groups.iter().map(slot_group_fault).collect(),
    })
}

/// What is wrong with a group of slots, in words.
fn slot_group_fault(row: &tokio_postgres::Row) -> String {
    let side = |is_there: &str, capacity: &str, taken: &str| match row.get(is_there) {
        false => "nothing".to_owned(),
        true => {
            let capacity: Option<i64> = row.get(capacity);
            let capacity = capacity.map_or("no capacity".to_owned(), |n| format!("capacity {n}"));
            format!("{capacity}, taken {}", row.get::<_, &str>(taken))
        }
    };
    let (name, number): (&str, i32) = (row.get("name"), row.get("number"));
    let is_so = side("is_there", "capacity", "taken");
    let must_be = side("is_due", "due_capacity", "due_taken");
    format!("group {number} of the slots of {name} says {is_so}; it must be {must_be}")
}

fn task_row(row: &tokio_postgres::Row) -> Result<SnapshotTask> {
    Ok(SnapshotTask {
        id: TaskId(row.get("id")),
        kind: row.get::<_, &str>("kind").into(),
        group: rows::optional_name(row, "group_name"),
        job: rows::optional_name(row, "job"),
        workflow: rows::optional_name(row, "workflow"),
        unique_key: rows::optional_name(row, "unique_key"),
        weight: rows::read_unsigned(row, "tasks", "weight")?,
        attempts_used: rows::read_unsigned(row, "tasks", "attempts_used")?,
        crashes: rows::read_unsigned(row, "tasks", "crashes")?,
        positions: Vec::new(),
        holds_slots: false,
    })
}

/// A task that stands in two places shows both; one that stands somewhere without being there
/// shows up as well.
async fn read_positions(
    tx: &Tx<'_>,
    tasks: &mut BTreeMap<TaskId, SnapshotTask>,
) -> Result<(), TxError> {
    let mut stand = |task: i64, position: Position, gated: bool| {
        let row = tasks.entry(TaskId(task)).or_insert_with(|| SnapshotTask::orphan(TaskId(task)));
        row.positions.push(position);
        row.holds_slots |= gated;
    };
    for row in tx.query(SNAPSHOT_SCHEDULED, &[]).await? {
        stand(row.get("task"), Position::Scheduled(row.get("run_at")), false);
    }
    for row in tx.query(SNAPSHOT_INBOX, &[]).await? {
        stand(row.get("task"), Position::Inbox, false);
    }
    for row in tx.query(SNAPSHOT_READY, &[]).await? {
        stand(row.get("task"), Position::Ready(rows::ready_row(&row)), false);
    }
    for row in tx.query(SNAPSHOT_WAITERS, &[]).await? {
        stand(row.get("task"), Position::Waiting(rows::waiter_row(&row, "due_at")?), false);
    }
    for row in tx.query(SNAPSHOT_RUNNING, &[]).await? {
        let (task, token, running) = rows::running_row(&row);
        stand(task.0, Position::Running(token), running.holds_slots);
    }
    Ok(())
}
