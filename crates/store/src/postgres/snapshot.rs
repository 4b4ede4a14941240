//! Everything the invariants speak of, in one committed state.

use std::collections::BTreeMap;

use tidegate_core::inspect::{SlotRow, Snapshot, TaskRow};
use tidegate_core::tables::{Counters, Position};
use tidegate_core::{Limit, LimitId, Result, TaskId};

use super::error::Fault;
use super::rows;
use super::session::Tx;
use super::{Inner, transact};

const BEGIN: &str = include_str!("queries/snapshot_begin.sql");
const COUNTERS: &str = include_str!("queries/snapshot_counters.sql");
const TASKS: &str = include_str!("queries/snapshot_tasks.sql");
const FINISHED: &str = include_str!("queries/finished_counts_by_state.sql");
const LIMITS: &str = include_str!("queries/all_limits_by_name.sql");
const SLOTS: &str = include_str!("queries/snapshot_slots.sql");
const SLOT_GROUPS: &str = include_str!("queries/snapshot_slot_groups.sql");
const KEYS: &str = include_str!("queries/snapshot_unique_keys.sql");
const LEASES: &str = include_str!("queries/snapshot_leases.sql");
const SCHEDULED: &str = include_str!("queries/snapshot_scheduled.sql");
const ARRIVED: &str = include_str!("queries/snapshot_inbox.sql");
const READY: &str = include_str!("queries/snapshot_ready.sql");
const LINE: &str = include_str!("queries/snapshot_waiters.sql");
const RUNNING: &str = include_str!("queries/snapshot_running.sql");

pub(super) async fn snapshot(store: &Inner) -> Result<Snapshot> {
    Ok(transact!(reading store, tx => read_committed(store, &tx)))
}

async fn read_committed(store: &Inner, tx: &Tx<'_>) -> Result<Snapshot, Fault> {
    tx.execute(BEGIN, &[]).await?;
    read(store, tx).await
}

/// Reads within a transaction that sees one state throughout.
pub(super) async fn read(store: &Inner, tx: &Tx<'_>) -> Result<Snapshot, Fault> {
    let row = tx.one(COUNTERS, &[]).await?;
    let counters = Counters {
        token: row.get("last_token"),
        place: row.get("last_admission_seq"),
        virtual_time: row.get("virtual_time"),
        limits_version: row.get("limits_version"),
    };
    let now = store.options.now().unwrap_or_else(|| row.get("now"));
    let mut tasks: BTreeMap<TaskId, TaskRow> = BTreeMap::new();
    for row in tx.query(TASKS, &[]).await? {
        let task = task_row(&row)?;
        tasks.insert(task.id, task);
    }
    positions(tx, &mut tasks).await?;
    let limits = tx.query(LIMITS, &[]).await?;
    let mut limits = limits.iter().map(rows::limit_to_repair).collect::<Result<Vec<Limit>>>()?;
    limits.sort_unstable_by_key(|limit| limit.id);
    let slots = tx.query(SLOTS, &[]).await?;
    let leases = tx.query(LEASES, &[]).await?;
    let keys = tx.query(KEYS, &[]).await?;
    let finished = tx.query(FINISHED, &[]).await?;
    let groups = tx.query(SLOT_GROUPS, &[]).await?;
    let slot = |row: &tokio_postgres::Row| {
        Ok(SlotRow {
            limit: LimitId(row.get("limit_id")),
            number: rows::number(row, "slots", "number")?,
            task: TaskId(row.get("task")),
        })
    };
    Ok(Snapshot {
        now,
        counters,
        last_task: TaskId(row.get("last_task")),
        highest_task: TaskId(row.get("highest_task")),
        tasks: tasks.into_values().collect(),
        limits,
        slots: slots.iter().map(slot).collect::<Result<_>>()?,
        leases: leases.iter().map(rows::lease).collect(),
        keys: keys
            .iter()
            .map(|row| (row.get::<_, &str>("key").into(), TaskId(row.get("task"))))
            .collect(),
        finished: finished
            .iter()
            .map(|row| Ok((rows::state(row.get("state"))?, row.get::<_, i64>("tasks") as u64)))
            .collect::<Result<_>>()?,
        faults: groups.iter().map(group_fault).collect(),
    })
}

/// What is wrong with a group of slots, in words.
fn group_fault(row: &tokio_postgres::Row) -> String {
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

fn task_row(row: &tokio_postgres::Row) -> Result<TaskRow> {
    Ok(TaskRow {
        id: TaskId(row.get("id")),
        kind: row.get::<_, &str>("kind").into(),
        group: rows::text(row, "group_name"),
        job: rows::text(row, "job"),
        workflow: rows::text(row, "workflow"),
        unique_key: rows::text(row, "unique_key"),
        weight: rows::number(row, "tasks", "weight")?,
        spent: rows::number(row, "tasks", "attempts_used")?,
        deaths: rows::number(row, "tasks", "crashes")?,
        positions: Vec::new(),
        gated: false,
    })
}

/// A task that stands in two places shows both; one that stands somewhere without being there
/// shows up as well.
async fn positions(tx: &Tx<'_>, tasks: &mut BTreeMap<TaskId, TaskRow>) -> Result<(), Fault> {
    let mut stand = |task: i64, position: Position, gated: bool| {
        let row = tasks.entry(TaskId(task)).or_insert_with(|| TaskRow::orphan(TaskId(task)));
        row.positions.push(position);
        row.gated |= gated;
    };
    for row in tx.query(SCHEDULED, &[]).await? {
        stand(row.get("task"), Position::Scheduled(row.get("run_at")), false);
    }
    for row in tx.query(ARRIVED, &[]).await? {
        stand(row.get("task"), Position::Arrived, false);
    }
    for row in tx.query(READY, &[]).await? {
        stand(row.get("task"), Position::Ready(rows::ready(&row)), false);
    }
    for row in tx.query(LINE, &[]).await? {
        stand(row.get("task"), Position::Line(rows::line(&row, "due_at")?), false);
    }
    for row in tx.query(RUNNING, &[]).await? {
        let (task, token, running) = rows::running(&row);
        stand(task.0, Position::Running(token), running.gated);
    }
    Ok(())
}
