//! Locks limits and loads what the gate may touch under them.

use std::collections::BTreeSet;

use tidegate_core::tables::{Position, ReadyRow};
use tidegate_core::{LaneId, LimitId, Millis, RANK_RESERVED, TaskId};
use tokio_postgres::Row;

use super::draft::Draft;
use super::error::Fault;
use super::groups::Group;
use super::paged::Paged;
use super::rows::{self, Known};
use super::session::{Params, Tx};
use super::{Bug, Inner};

const COUNTERS: &str = include_str!("queries/counters.sql");
const TAGS: &str = include_str!("queries/tasks_with_limits.sql");
const HEADS: &str = include_str!("queries/limits_of_queue_heads.sql");
const LIMITS_ALONE: &str = include_str!("queries/lock_limits_exclusive.sql");
const LOCK_LIMITS: &str = include_str!("queries/lock_limits.sql");
const LOCK_LIMITS_FREE: &str = include_str!("queries/try_lock_limits.sql");
const READ_LIMITS: &str = include_str!("queries/limits_unlocked.sql");
static UNDER_LOCK: Paged = Paged::new(include_str!("queries/queue_heads_and_tasks.sql"));
const LOCK_AHEAD: &str = include_str!("queries/lock_ready_in_window.sql");
const SLOTS_OF: &str = include_str!("queries/slots_of_tasks.sql");
const SLOTS_OF_READY: &str = include_str!("queries/slot_rows_of_tasks.sql");
const TAKE_PASSES: &str = include_str!("queries/take_limit_deltas.sql");
const SLOT_GROUPS: &str = include_str!("queries/slot_groups_of_limits.sql");
const SERVED: &str = include_str!("queries/served_lanes.sql");
const KINDS_OF: &str = include_str!("queries/kinds_of_tasks.sql");
const KINDS_NAMED: &str = include_str!("queries/kinds_by_name.sql");

/// What a transaction is about.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Tasks it holds the lock of: their place's row, or for those in line the limit's, which
    /// must be in `limits`.
    pub(super) tasks: Vec<TaskId>,
    /// Further limits to lock.
    pub(super) limits: Vec<LimitId>,
    /// Tasks the gate may look at.
    pub(super) budget: u32,
    /// How many of the tasks may stand in a line.
    pub(super) in_line: usize,
    /// Leave out limits that somebody else has locked.
    pub(super) free_only: bool,
    /// The tasks end without an admission, so a workflow whose limit is missing does not need it.
    pub(super) is_ending: bool,
}

impl Wanted {
    /// Returns the limits that tasks of this request need. A workflow without a limit needs it made first.
    fn needs_of<'a>(&self, tasks: impl Iterator<Item = &'a Known>) -> Result<BTreeSet<i64>, Fault> {
        let (mut needs, mut missing) = (BTreeSet::new(), BTreeSet::new());
        for known in tasks {
            needs.extend(known.needs.iter().map(|(_, id)| id.0));
            missing.extend(known.homeless.clone());
        }
        if !missing.is_empty() && !self.is_ending {
            return Err(Fault::NoLimit(missing.into_iter().collect()));
        }
        Ok(needs)
    }
}

/// The counters and the time, before anything else is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Millis,
    pub(super) virtual_time: i64,
    pub(super) limits_version: i64,
}

impl Moment {
    pub(super) fn of(row: &Row) -> Self {
        Self {
            now: row.get("now"),
            virtual_time: row.get("virtual_time"),
            limits_version: row.get("limits_version"),
        }
    }
}

pub(super) async fn moment(store: &Inner, tx: &Tx<'_>) -> Result<Moment, Fault> {
    let row = tx.one(COUNTERS, &[]).await?;
    Ok(Moment {
        now: store.options.now().unwrap_or_else(|| row.get("now")),
        virtual_time: row.get("virtual_time"),
        limits_version: row.get("limits_version"),
    })
}

/// Locks the limits of the given tasks, the given limits, and those that the first of their
/// lines need; in one statement, ascending. Then loads under the lock.
pub(super) async fn gather(
    store: &Inner,
    tx: &Tx<'_>,
    moment: Moment,
    wanted: Wanted,
) -> Result<Draft, Fault> {
    let mut draft =
        Draft::new(moment.now, moment.virtual_time, moment.limits_version, wanted.budget);
    let (own, heads) = look_up(tx, &mut draft, &wanted).await?;
    let mut ids: BTreeSet<i64> = wanted.limits.iter().map(|id| id.0).collect();
    ids.extend(wanted.needs_of(own.iter())?);
    if ids.is_empty() {
        own.into_iter().for_each(|known| draft.add_known(known));
        return Ok(draft);
    }
    ids.extend(heads);
    // In a box, as all that sends statements together.
    Box::pin(lock(store, tx, &mut draft, &wanted, own, ids)).await?;
    Ok(draft)
}

/// Reads the tasks, their kinds, and the limits that the first of the lines need, in one round trip.
async fn look_up(
    tx: &Tx<'_>,
    draft: &mut Draft,
    wanted: &Wanted,
) -> Result<(Vec<Known>, Vec<i64>), Fault> {
    let tasks: Vec<i64> = wanted.tasks.iter().map(|task| task.0).collect();
    let limits: Vec<i64> = wanted.limits.iter().map(|limit| limit.0).collect();
    if tasks.is_empty() && limits.is_empty() {
        return Ok(Default::default());
    }
    let (of_tasks, of_all): (Params<'_>, Params<'_>) = (&[&tasks], &[&limits, &tasks]);
    let kinds = async {
        match tasks.is_empty() {
            true => Ok(Vec::new()),
            false => tx.query(KINDS_OF, of_tasks).await,
        }
    };
    let (own, kinds, heads) = tokio::try_join!(biased;
        known(tx, &wanted.tasks),
        kinds,
        tx.query(HEADS, of_all),
    )?;
    for row in &kinds {
        draft.add_kind(rows::kind(row)?);
    }
    Ok((own, heads.iter().map(|row| row.get("id")).collect()))
}

/// Locks limits and loads their lines and slots, and the tasks in question as they are under
/// the lock.
async fn lock(
    store: &Inner,
    tx: &Tx<'_>,
    draft: &mut Draft,
    wanted: &Wanted,
    own: Vec<Known>,
    ids: BTreeSet<i64>,
) -> Result<(), Fault> {
    let own: Vec<i64> = own.iter().map(|known| known.task.tags.task.0).collect();
    let mut limits: Vec<i64> = ids.into_iter().collect();
    if wanted.free_only {
        let free = tx.query(LOCK_LIMITS_FREE, &[&limits]).await?;
        limits = free.iter().map(|row| row.get("id")).collect();
    }
    // Tasks that are asked for may be taken out of the line beside those the gate takes.
    let (sql, page) = UNDER_LOCK.of(wanted.budget as usize + wanted.in_line + 1);
    let (of_limits, of_all, of_now): (Params<'_>, Params<'_>, Params<'_>) =
        (&[&limits], &[&limits, &own], &[&draft.state.now]);
    let (_, locked, passes, found, groups, served) = tokio::try_join!(biased;
        have_alone(store, tx, of_limits),
        tx.query(lock_sql(store), of_limits),
        tx.query(TAKE_PASSES, of_limits),
        tx.query(sql, of_all),
        tx.query(SLOT_GROUPS, of_limits),
        tx.query(SERVED, of_now),
    )?;
    for row in &locked {
        draft.add_limit(rows::limit(row)?);
    }
    for row in passes {
        draft.add_passed(LimitId(row.get("limit_id")), rows::passed(&row)?);
    }
    draft.add_served(served.iter().map(|row| LaneId(row.get("lane"))).collect());
    under_lock(draft, wanted, &own, &found, page)?;
    for row in groups {
        let (limit, number, group) = Group::of(&row)?;
        draft.add_group(limit, number, group);
    }
    add_ahead(tx, draft).await
}

/// Loads who may get a slot of a job's reserve though it is past the job's line, where nobody stands there.
async fn add_ahead(tx: &Tx<'_>, draft: &mut Draft) -> Result<(), Fault> {
    let (mut jobs, mut slots) = (Vec::new(), Vec::new());
    for limit in draft.state.limits.values().filter(|limit| limit.waiting == limit.aside) {
        let share = limit.share.filter(|share| share.min_concurrency > 0 && share.ahead > 0);
        jobs.extend(share.map(|_| limit.id.0));
        slots.extend(share.map(|share| i64::from(share.min_concurrency)));
    }
    if jobs.is_empty() {
        return Ok(());
    }
    let ready = tx.query(LOCK_AHEAD, &[&jobs, &slots, &RANK_RESERVED]).await?;
    let ready: Vec<ReadyRow> = ready.iter().map(rows::ready).collect();
    let tasks: Vec<TaskId> = ready.iter().map(|row| row.task).collect();
    let ids: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    let is_locked = |(_, id): &(String, LimitId)| draft.state.limits.contains_key(id);
    let mut known = known(tx, &tasks).await?;
    known.retain(|known| known.needs.iter().all(is_locked));
    known.into_iter().for_each(|known| draft.add_known(known));
    for row in tx.query(SLOTS_OF_READY, &[&ids]).await? {
        let (task, limit) = (TaskId(row.get("task")), LimitId(row.get("limit_id")));
        if draft.state.tasks.contains_key(&task) {
            draft.add_held(task, limit, rows::number(&row, "slots", "number")?);
        }
    }
    for row in ready {
        if draft.state.tasks.contains_key(&row.task) {
            draft.stand(row.task, Position::Ready(row));
        }
    }
    Ok(())
}

/// Nobody hands slots of these limits on meanwhile.
async fn have_alone(store: &Inner, tx: &Tx<'_>, limits: Params<'_>) -> Result<(), Fault> {
    if store.options.is_planted(Bug::LimitsUnlocked) {
        return Ok(());
    }
    tx.query(LIMITS_ALONE, limits).await.map(drop)
}

fn lock_sql(store: &Inner) -> &'static str {
    if store.options.is_planted(Bug::LimitsUnlocked) { READ_LIMITS } else { LOCK_LIMITS }
}

/// Takes up what was found under the locks. Names were looked up again: a limit may have gone
/// or begun before the lock.
fn under_lock(
    draft: &mut Draft,
    wanted: &Wanted,
    own: &[i64],
    found: &[Row],
    page: usize,
) -> Result<(), Fault> {
    let tasks = found.iter().map(rows::known).collect::<tidegate_core::Result<Vec<Known>>>()?;
    let own: BTreeSet<i64> = own.iter().copied().collect();
    let is_own = |known: &&Known| own.contains(&known.task.tags.task.0);
    let needed = wanted.needs_of(tasks.iter().filter(is_own))?;
    if needed.iter().any(|id| !draft.state.limits.contains_key(&LimitId(*id))) {
        return Err(Fault::Again);
    }
    tasks.into_iter().for_each(|known| draft.add_known(known));
    let (mut heads, mut lines) = (Vec::new(), Vec::new());
    for row in found {
        add_held(draft, row)?;
        let is_locked = |id| draft.state.limits.contains_key(&LimitId(id));
        if row.get::<_, Option<i64>>("limit_id").is_some_and(is_locked) {
            let is_head: bool = row.get("is_head");
            let line = rows::line(row, "waiter_due_at")?;
            heads.extend(is_head.then_some(line));
            lines.push(line);
        }
    }
    draft.add_page(&heads, page);
    for row in lines {
        draft.stand(row.task, Position::Line(row));
    }
    Ok(())
}

/// The slots that a task holds of limits whose locks this transaction has.
fn add_held(draft: &mut Draft, row: &Row) -> Result<(), Fault> {
    let list = |column: &str| row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default();
    let task = TaskId(row.get("id"));
    for (limit, number) in list("held_limits").into_iter().zip(list("held_numbers")) {
        if draft.state.limits.contains_key(&LimitId(limit)) {
            draft.add_held(task, LimitId(limit), rows::unsigned("slots", "number", number)?);
        }
    }
    Ok(())
}

/// What is known of tasks; nothing is asked where there are none.
async fn known(tx: &Tx<'_>, tasks: &[TaskId]) -> Result<Vec<Known>, Fault> {
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    Ok(tx
        .query(TAGS, &[&ids])
        .await?
        .iter()
        .map(rows::known)
        .collect::<tidegate_core::Result<_>>()?)
}

pub(super) async fn slots_of(tx: &Tx<'_>, tasks: &[i64]) -> Result<Vec<Row>, Fault> {
    tx.query(SLOTS_OF, &[&tasks]).await
}

pub(super) async fn kinds_named(
    tx: &Tx<'_>,
    names: &[&str],
) -> Result<Vec<tidegate_core::Kind>, Fault> {
    Ok(tx
        .query(KINDS_NAMED, &[&names])
        .await?
        .iter()
        .map(rows::kind)
        .collect::<tidegate_core::Result<_>>()?)
}
