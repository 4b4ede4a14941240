//! Locks limits and loads what the gate may touch under them.

use std::collections::BTreeSet;

use tidegate_core::tables::{LineRow, Position};
use tidegate_core::{LaneId, LimitId, Millis, TaskId};

use super::Inner;
use super::draft::Draft;
use super::error::Fault;
use super::rows::{self, Known};
use super::session::Tx;

const COUNTERS: &str = include_str!("queries/counters.sql");
const TAGS: &str = include_str!("queries/tags.sql");
const HEADS: &str = include_str!("queries/heads.sql");
const LOCK_LIMITS: &str = include_str!("queries/lock_limits.sql");
const LOCK_LIMITS_FREE: &str = include_str!("queries/lock_limits_free.sql");
const READ_LIMITS: &str = include_str!("queries/read_limits.sql");
const LINE_PAGE: &str = include_str!("queries/line_page.sql");
const LINE_ROWS: &str = include_str!("queries/line_rows.sql");
const SLOTS_OF: &str = include_str!("queries/slots_of.sql");
const SLOTS_USED: &str = include_str!("queries/slots_used.sql");
const SERVED: &str = include_str!("queries/served.sql");
const KINDS_NAMED: &str = include_str!("queries/kinds_named.sql");

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
    /// Leave out limits that somebody else has locked.
    pub(super) free_only: bool,
}

/// The counters and the time, before anything else is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Millis,
    pub(super) virtual_time: i64,
    pub(super) limits_version: i64,
}

pub(super) async fn moment(store: &Inner, tx: &Tx<'_>) -> Result<Moment, Fault> {
    let row = tx.one(COUNTERS, &[]).await?;
    Ok(Moment {
        now: store.options.clock.as_ref().map_or_else(|| row.get("now"), |clock| clock()),
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
    let own = known(tx, &wanted.tasks).await?;
    let mut ids: BTreeSet<i64> = wanted.limits.iter().map(|id| id.0).collect();
    ids.extend(needs_of(&own)?);
    if !ids.is_empty() {
        let first: Vec<i64> = ids.iter().copied().collect();
        let heads = tx.query(HEADS, &[&first, &i64::from(wanted.budget.min(16))]).await?;
        ids.extend(heads.iter().map(|row| row.get::<_, i64>("id")));
        lock(store, tx, &mut draft, ids.into_iter().collect(), wanted.free_only).await?;
    }
    under_lock(tx, &mut draft, &wanted, own).await?;
    Ok(draft)
}

async fn lock(
    store: &Inner,
    tx: &Tx<'_>,
    draft: &mut Draft,
    ids: Vec<i64>,
    free_only: bool,
) -> Result<(), Fault> {
    let sql = match (store.options.is_unlocked(), free_only) {
        (true, _) => READ_LIMITS,
        (false, true) => LOCK_LIMITS_FREE,
        (false, false) => LOCK_LIMITS,
    };
    for row in tx.query(sql, &[&ids]).await? {
        draft.add_limit(rows::limit(&row));
    }
    Ok(())
}

async fn under_lock(
    tx: &Tx<'_>,
    draft: &mut Draft,
    wanted: &Wanted,
    own: Vec<Known>,
) -> Result<(), Fault> {
    let locked: Vec<i64> = draft.state.limits.keys().map(|id| id.0).collect();
    let mut lines: Vec<LineRow> = Vec::new();
    let own_ids: BTreeSet<i64> = own.iter().map(|known| known.task.tags.task.0).collect();
    let mut tasks = own;
    if !locked.is_empty() {
        // Tasks that are asked for may be taken out of the line beside those the gate takes.
        let page = i64::from(wanted.budget) + own_ids.len() as i64 + 1;
        let rows = tx.query(LINE_PAGE, &[&locked, &page]).await?;
        lines = rows.iter().map(rows::line).collect();
        draft.add_page(&lines, page as usize);
        if !own_ids.is_empty() {
            let own: Vec<i64> = own_ids.iter().copied().collect();
            let rows = tx.query(LINE_ROWS, &[&own]).await?;
            lines.extend(rows.iter().map(rows::line).filter(|row| locked.contains(&row.limit.0)));
        }
        let ids: BTreeSet<i64> =
            lines.iter().map(|row| row.task.0).chain(own_ids.iter().copied()).collect();
        let ids: Vec<i64> = ids.into_iter().collect();
        // Names are looked up again: a limit may have gone or begun before the lock.
        tasks = query_known(tx, &ids).await?;
        load_slots(tx, draft, &ids, &locked).await?;
        let served = tx.query(SERVED, &[&draft.state.now]).await?;
        draft.add_served(served.iter().map(|row| LaneId(row.get("lane"))).collect());
    }
    let is_own = |known: &&Known| own_ids.contains(&known.task.tags.task.0);
    let own: Vec<Known> = tasks.iter().filter(is_own).cloned().collect();
    let needed = needs_of(&own)?;
    if needed.iter().any(|id| !locked.contains(id)) {
        return Err(Fault::Again);
    }
    load_kinds(tx, draft, &own).await?;
    for known in tasks {
        for (name, id) in known.needs {
            draft.add_name(name, id);
        }
        draft.add_task(known.task);
    }
    for row in lines {
        draft.stand(row.task, Position::Line(row));
    }
    Ok(())
}

async fn load_slots(
    tx: &Tx<'_>,
    draft: &mut Draft,
    tasks: &[i64],
    locked: &[i64],
) -> Result<(), Fault> {
    for row in tx.query(SLOTS_USED, &[&locked]).await? {
        draft.add_used(LimitId(row.get("limit_id")), &row.get::<_, Vec<i64>>("numbers"));
    }
    for row in tx.query(SLOTS_OF, &[&tasks]).await? {
        let limit = LimitId(row.get("limit_id"));
        draft.add_held(TaskId(row.get("task")), limit, rows::number(&row, "number"));
    }
    Ok(())
}

async fn load_kinds(tx: &Tx<'_>, draft: &mut Draft, own: &[Known]) -> Result<(), Fault> {
    if own.is_empty() {
        return Ok(());
    }
    let names: BTreeSet<&str> = own.iter().map(|known| &*known.task.tags.kind).collect();
    let names: Vec<&str> = names.into_iter().collect();
    for row in tx.query(KINDS_NAMED, &[&names]).await? {
        draft.add_kind(rows::kind(&row));
    }
    Ok(())
}

/// What is known of tasks; nothing is asked where there are none.
pub(super) async fn known(tx: &Tx<'_>, tasks: &[TaskId]) -> Result<Vec<Known>, Fault> {
    let ids: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    query_known(tx, &ids).await
}

async fn query_known(tx: &Tx<'_>, ids: &[i64]) -> Result<Vec<Known>, Fault> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    Ok(tx.query(TAGS, &[&ids]).await?.iter().map(rows::known).collect())
}

/// The limits that tasks need; a workflow without one needs it made first.
fn needs_of(known: &[Known]) -> Result<BTreeSet<i64>, Fault> {
    let homeless: BTreeSet<String> =
        known.iter().filter_map(|known| known.homeless.clone()).collect();
    if !homeless.is_empty() {
        return Err(Fault::NoLimit(homeless.into_iter().collect()));
    }
    let needs = known.iter().flat_map(|known| known.needs.iter().map(|(_, id)| id.0));
    Ok(needs.collect())
}

pub(super) async fn slots_of(
    tx: &Tx<'_>,
    tasks: &[i64],
) -> Result<Vec<tokio_postgres::Row>, Fault> {
    tx.query(SLOTS_OF, &[&tasks]).await
}

pub(super) async fn kinds_named(
    tx: &Tx<'_>,
    names: &[&str],
) -> Result<Vec<tidegate_core::Kind>, Fault> {
    Ok(tx.query(KINDS_NAMED, &[&names]).await?.iter().map(rows::kind).collect())
}
