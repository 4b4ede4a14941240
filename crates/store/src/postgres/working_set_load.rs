//! Locks limits and loads what the gate may touch under them.

use std::collections::BTreeSet;

use tidegate_core::tables::{Position, ReadyRow};
use tidegate_core::{GUARANTEED_SLOT_RANK, LaneId, LimitId, Millis, TaskId};
use tokio_postgres::Row;

use super::error::TxError;
use super::rows::{self, TaskWithLimits};
use super::sized_sql::SizedSql;
use super::slot_groups::SlotGroup;
use super::transaction::{Params, Tx};
use super::working_set::WorkingSet;
use super::{InjectedBug, PostgresInner};

const COUNTERS: &str = include_str!("queries/counters.sql");
const TASKS_WITH_LIMITS: &str = include_str!("queries/tasks_with_limits.sql");
const LIMITS_OF_QUEUE_HEADS: &str = include_str!("queries/limits_of_queue_heads.sql");
const LOCK_LIMITS_EXCLUSIVE: &str = include_str!("queries/lock_limits_exclusive.sql");
const LOCK_LIMITS: &str = include_str!("queries/lock_limits.sql");
const TRY_LOCK_LIMITS: &str = include_str!("queries/try_lock_limits.sql");
const LIMITS_UNLOCKED: &str = include_str!("queries/limits_unlocked.sql");
static QUEUE_HEADS_AND_TASKS: SizedSql =
    SizedSql::new(include_str!("queries/queue_heads_and_tasks.sql"));
const LOCK_READY_IN_WINDOW: &str = include_str!("queries/lock_ready_in_window.sql");
const SLOTS_OF_TASKS: &str = include_str!("queries/slots_of_tasks.sql");
const SLOT_ROWS_OF_TASKS: &str = include_str!("queries/slot_rows_of_tasks.sql");
const TAKE_LIMIT_DELTAS: &str = include_str!("queries/take_limit_deltas.sql");
const SLOT_GROUPS_OF_LIMITS: &str = include_str!("queries/slot_groups_of_limits.sql");
const SERVED_LANES: &str = include_str!("queries/served_lanes.sql");
const KINDS_OF_TASKS: &str = include_str!("queries/kinds_of_tasks.sql");
const KINDS_BY_NAME: &str = include_str!("queries/kinds_by_name.sql");

/// What a transaction is about.
#[derive(Debug, Default)]
pub(super) struct LoadRequest {
    /// Tasks it holds the lock of: their place's row, or for those in line the limit's, which
    /// must be in `limits`.
    pub(super) tasks: Vec<TaskId>,
    /// Further limits to lock.
    pub(super) limits: Vec<LimitId>,
    /// Tasks the gate may look at.
    pub(super) admission_budget: u32,
    /// How many of the tasks may stand in a line.
    pub(super) waiting_tasks: usize,
    /// Leave out limits that somebody else has locked.
    pub(super) skip_locked: bool,
    /// The tasks end without an admission, so a workflow whose limit is missing does not need it.
    pub(super) is_finishing: bool,
}

impl LoadRequest {
    /// Returns the limits that tasks of this request need. A workflow without a limit needs it made first.
    fn required_limits<'a>(
        &self,
        tasks: impl Iterator<Item = &'a TaskWithLimits>,
    ) -> Result<BTreeSet<i64>, TxError> {
        let (mut needs, mut missing) = (BTreeSet::new(), BTreeSet::new());
        for known in tasks {
            needs.extend(known.required_limits.iter().map(|(_, id)| id.0));
            missing.extend(known.missing_workflow_limit.clone());
        }
        if !missing.is_empty() && !self.is_finishing {
            return Err(TxError::MissingWorkflowLimits(missing.into_iter().collect()));
        }
        Ok(needs)
    }
}

/// The counters and the time, before anything else is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct TxStart {
    pub(super) now: Millis,
    pub(super) virtual_time: i64,
    pub(super) limits_version: i64,
}

impl TxStart {
    pub(super) fn from_row(row: &Row) -> Self {
        Self {
            now: row.get("now"),
            virtual_time: row.get("virtual_time"),
            limits_version: row.get("limits_version"),
        }
    }
}

pub(super) async fn read_tx_start(store: &PostgresInner, tx: &Tx<'_>) -> Result<TxStart, TxError> {
    let row = tx.query_one(COUNTERS, &[]).await?;
    Ok(TxStart {
        now: store.options.now_override().unwrap_or_else(|| row.get("now")),
        virtual_time: row.get("virtual_time"),
        limits_version: row.get("limits_version"),
    })
}

/// Locks the limits of the given tasks, the given limits, and those that the first of their
/// lines need; in one statement, ascending. Then loads under the lock.
pub(super) async fn lock_and_load(
    store: &PostgresInner,
    tx: &Tx<'_>,
    start: TxStart,
    request: LoadRequest,
) -> Result<WorkingSet, TxError> {
    let mut working_set = WorkingSet::new(
        start.now,
        start.virtual_time,
        start.limits_version,
        request.admission_budget,
    );
    let (own, heads) = read_tasks_and_kinds(tx, &mut working_set, &request).await?;
    let mut ids: BTreeSet<i64> = request.limits.iter().map(|id| id.0).collect();
    ids.extend(request.required_limits(own.iter())?);
    if ids.is_empty() {
        own.into_iter().for_each(|known| working_set.add_task_with_limits(known));
        return Ok(working_set);
    }
    ids.extend(heads);
    // In a box, as all that sends statements together.
    Box::pin(lock_limits_and_load(store, tx, &mut working_set, &request, own, ids)).await?;
    Ok(working_set)
}

/// Reads the tasks, their kinds, and the limits that the first of the lines need, in one round trip.
async fn read_tasks_and_kinds(
    tx: &Tx<'_>,
    working_set: &mut WorkingSet,
    request: &LoadRequest,
) -> Result<(Vec<TaskWithLimits>, Vec<i64>), TxError> {
    let tasks: Vec<i64> = request.tasks.iter().map(|task| task.0).collect();
    let limits: Vec<i64> = request.limits.iter().map(|limit| limit.0).collect();
    if tasks.is_empty() && limits.is_empty() {
        return Ok(Default::default());
    }
    let (of_tasks, of_all): (Params<'_>, Params<'_>) = (&[&tasks], &[&limits, &tasks]);
    let kinds = async {
        match tasks.is_empty() {
            true => Ok(Vec::new()),
            false => tx.query(KINDS_OF_TASKS, of_tasks).await,
        }
    };
    let (own, kinds, heads) = tokio::try_join!(biased;
        read_tasks_with_limits(tx, &request.tasks),
        kinds,
        tx.query(LIMITS_OF_QUEUE_HEADS, of_all),
    )?;
    for row in &kinds {
        working_set.add_kind(rows::kind_row(row)?);
    }
    Ok((own, heads.iter().map(|row| row.get("id")).collect()))
}

/// Locks limits and loads their lines and slots, and the tasks in question as they are under
/// the lock.
async fn lock_limits_and_load(
    store: &PostgresInner,
    tx: &Tx<'_>,
    draft: &mut WorkingSet,
    wanted: &LoadRequest,
    tasks: Vec<TaskWithLimits>,
    limit_ids: BTreeSet<i64>,
) -> Result<(), TxError> {
    let own: Vec<i64> = tasks.iter().map(|known| known.task.info.task.0).collect();
    let mut limits: Vec<i64> = limit_ids.into_iter().collect();
    if wanted.skip_locked {
        let free = tx.query(TRY_LOCK_LIMITS, &[&limits]).await?;
        limits = free.iter().map(|row| row.get("id")).collect();
    }
    // Tasks that are asked for may be taken out of the line beside those the gate takes.
    let (sql, page) =
        QUEUE_HEADS_AND_TASKS.for_size(wanted.admission_budget as usize + wanted.waiting_tasks + 1);
    let (of_limits, of_all, of_now): (Params<'_>, Params<'_>, Params<'_>) =
        (&[&limits], &[&limits, &own], &[&draft.state.now]);
    let (_, locked, passes, found, groups, served) = tokio::try_join!(biased;
        lock_limits_exclusive(store, tx, of_limits),
        tx.query(lock_limits_sql(store), of_limits),
        tx.query(TAKE_LIMIT_DELTAS, of_limits),
        tx.query(sql, of_all),
        tx.query(SLOT_GROUPS_OF_LIMITS, of_limits),
        tx.query(SERVED_LANES, of_now),
    )?;
    for row in &locked {
        draft.add_limit(rows::limit_without_held(row)?);
    }
    for row in passes {
        draft.add_limit_delta(LimitId(row.get("limit_id")), rows::limit_delta(&row)?);
    }
    draft.add_served_lanes(served.iter().map(|row| LaneId(row.get("lane"))).collect());
    add_rows_under_lock(draft, wanted, &own, &found, page)?;
    for row in groups {
        let (limit, number, group) = SlotGroup::from_row(&row)?;
        draft.add_slot_group(limit, number, group);
    }
    load_ready_in_window(tx, draft).await
}

/// Loads who may get a slot of a job's reserve though it is past the job's line, where nobody stands there.
async fn load_ready_in_window(tx: &Tx<'_>, draft: &mut WorkingSet) -> Result<(), TxError> {
    let (mut jobs, mut slots) = (Vec::new(), Vec::new());
    for limit in draft.state.limits.values().filter(|limit| limit.waiting == limit.skipped) {
        let share =
            limit.fair_share.filter(|share| share.min_concurrency > 0 && share.in_window > 0);
        jobs.extend(share.map(|_| limit.id.0));
        slots.extend(share.map(|share| i64::from(share.min_concurrency)));
    }
    if jobs.is_empty() {
        return Ok(());
    }
    let ready = tx.query(LOCK_READY_IN_WINDOW, &[&jobs, &slots, &GUARANTEED_SLOT_RANK]).await?;
    let ready: Vec<ReadyRow> = ready.iter().map(rows::ready_row).collect();
    let tasks: Vec<TaskId> = ready.iter().map(|row| row.task).collect();
    let ids: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    let is_locked = |(_, id): &(String, LimitId)| draft.state.limits.contains_key(id);
    let mut known = read_tasks_with_limits(tx, &tasks).await?;
    known.retain(|known| known.required_limits.iter().all(is_locked));
    known.into_iter().for_each(|known| draft.add_task_with_limits(known));
    for row in tx.query(SLOT_ROWS_OF_TASKS, &[&ids]).await? {
        let (task, limit) = (TaskId(row.get("task")), LimitId(row.get("limit_id")));
        if draft.state.tasks.contains_key(&task) {
            draft.add_held_slot(task, limit, rows::read_unsigned(&row, "slots", "number")?);
        }
    }
    for row in ready {
        if draft.state.tasks.contains_key(&row.task) {
            draft.set_position(row.task, Position::Ready(row));
        }
    }
    Ok(())
}

/// Nobody hands slots of these limits on meanwhile.
async fn lock_limits_exclusive(
    store: &PostgresInner,
    tx: &Tx<'_>,
    limits: Params<'_>,
) -> Result<(), TxError> {
    if store.options.is_injected(InjectedBug::LimitsUnlocked) {
        return Ok(());
    }
    tx.query(LOCK_LIMITS_EXCLUSIVE, limits).await.map(drop)
}

fn lock_limits_sql(store: &PostgresInner) -> &'static str {
    if store.options.is_injected(InjectedBug::LimitsUnlocked) {
        LIMITS_UNLOCKED
    } else {
        LOCK_LIMITS
    }
}

/// Takes up what was found under the locks. Names were looked up again: a limit may have gone
/// or begun before the lock.
fn add_rows_under_lock(
    draft: &mut WorkingSet,
    wanted: &LoadRequest,
    task_ids: &[i64],
    found: &[Row],
    page: usize,
) -> Result<(), TxError> {
    let tasks = found
        .iter()
        .map(rows::task_with_limits)
        .collect::<tidegate_core::Result<Vec<TaskWithLimits>>>()?;
    let own: BTreeSet<i64> = task_ids.iter().copied().collect();
    let is_own = |known: &&TaskWithLimits| own.contains(&known.task.info.task.0);
    let needed = wanted.required_limits(tasks.iter().filter(is_own))?;
    if needed.iter().any(|id| !draft.state.limits.contains_key(&LimitId(*id))) {
        return Err(TxError::Retry);
    }
    tasks.into_iter().for_each(|known| draft.add_task_with_limits(known));
    let (mut heads, mut lines) = (Vec::new(), Vec::new());
    for row in found {
        add_held_slots(draft, row)?;
        let is_locked = |id| draft.state.limits.contains_key(&LimitId(id));
        if row.get::<_, Option<i64>>("limit_id").is_some_and(is_locked) {
            let is_head: bool = row.get("is_head");
            let line = rows::waiter_row(row, "waiter_due_at")?;
            heads.extend(is_head.then_some(line));
            lines.push(line);
        }
    }
    draft.add_wait_queue_page(&heads, page);
    for row in lines {
        draft.set_position(row.task, Position::Waiting(row));
    }
    Ok(())
}

/// The slots that a task holds of limits whose locks this transaction has.
fn add_held_slots(draft: &mut WorkingSet, row: &Row) -> Result<(), TxError> {
    let list = |column: &str| row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default();
    let task = TaskId(row.get("id"));
    for (limit, number) in list("held_limits").into_iter().zip(list("held_numbers")) {
        if draft.state.limits.contains_key(&LimitId(limit)) {
            draft.add_held_slot(
                task,
                LimitId(limit),
                rows::to_unsigned("slots", "number", number)?,
            );
        }
    }
    Ok(())
}

/// What is known of tasks; nothing is asked where there are none.
async fn read_tasks_with_limits(
    tx: &Tx<'_>,
    tasks: &[TaskId],
) -> Result<Vec<TaskWithLimits>, TxError> {
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    Ok(tx
        .query(TASKS_WITH_LIMITS, &[&ids])
        .await?
        .iter()
        .map(rows::task_with_limits)
        .collect::<tidegate_core::Result<_>>()?)
}

pub(super) async fn read_slots(tx: &Tx<'_>, tasks: &[i64]) -> Result<Vec<Row>, TxError> {
    tx.query(SLOTS_OF_TASKS, &[&tasks]).await
}

pub(super) async fn read_kinds(
    tx: &Tx<'_>,
    names: &[&str],
) -> Result<Vec<tidegate_core::Kind>, TxError> {
    Ok(tx
        .query(KINDS_BY_NAME, &[&names])
        .await?
        .iter()
        .map(rows::kind_row)
        .collect::<tidegate_core::Result<_>>()?)
}
