//! Unpacking: gives attempts that a lease only lists rows of their own in `running` and `slots`. Verbs
//! that need more than the list (such as cancel, progress, general completion, reaping) unpack first.

use tidegate_core::{Error, ErrorKind, Millis, Result, TaskId};
use tokio_postgres::Row;

use super::error::Fault;
use super::session::Tx;
use super::{Inner, transact};

const UNPACK: &str = include_str!("queries/expand_leases.sql");
const PACKED_WITH: &str = include_str!("queries/leases_listing_tasks.sql");
const PACKED_IN_GROUPS: &str = include_str!("queries/leases_listing_tasks_of_groups.sql");
const PACKED_TWICE: &str = include_str!("queries/leases_listing_duplicates.sql");
const PACKED_EXPIRED: &str = include_str!("queries/expired_leases_listing_tasks.sql");

/// Unpacks tasks of leases, or all tasks of the leases, in a transaction of its own, before a transaction
/// that needs the rows of their attempts.
pub(super) async fn unpack(store: &Inner, tokens: &[i64], tasks: Option<&[i64]>) -> Result<()> {
    if !tokens.is_empty() {
        transact!(store, tx => unpack_in(&tx, tokens, tasks));
    }
    Ok(())
}

/// Unpacks tasks of leases, or all of their tasks; the others stay listed. A task that runs under another
/// lease as well, or a slot that another task holds, is an error that names it.
pub(super) async fn unpack_in(
    tx: &Tx<'_>,
    tokens: &[i64],
    tasks: Option<&[i64]>,
) -> Result<(), Fault> {
    match tx.query(UNPACK, &[&Some(tokens), &tasks]).await?.first() {
        None => Ok(()),
        Some(duplicate) => Err(duplicate_error(duplicate).into()),
    }
}

/// Unpacks every lease, for a repair. If two leases list one task, one of the attempts is kept. If two tasks
/// hold one slot, the first keeps it. Each dropped entry is logged; the repair continues from these rows.
pub(super) async fn unpack_all(tx: &Tx<'_>) -> Result<(), Fault> {
    let all: Option<&[i64]> = None;
    for duplicate in tx.query(UNPACK, &[&all, &all]).await? {
        tracing::warn!(error = %duplicate_error(&duplicate), "repaired");
    }
    Ok(())
}

fn duplicate_error(row: &Row) -> Error {
    let task = TaskId(row.get("task"));
    let what =
        match (row.get::<_, Option<String>>("limit_name"), row.get::<_, Option<i64>>("number")) {
            (Some(limit), Some(number)) => {
                format!(
                    "slot {number} of the limit {limit} is held by task {task} and by another task"
                )
            }
            _ => format!("task {task} runs under two leases"),
        };
    let repair =
        "run `tidegate doctor` to see the faults and `tidegate doctor --repair` to repair them";
    Error::new(ErrorKind::Incompatible, format!("{what}: {repair}"))
}

/// Unpacks these tasks, whichever leases list them.
pub(super) async fn unpack_tasks(store: &Inner, tasks: &[TaskId]) -> Result<()> {
    let tasks: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    let find = async |tx: &Tx<'_>| tokens(tx, PACKED_WITH, &[&tasks]).await;
    let found = transact!(store, tx => find(&tx));
    unpack(store, &found, Some(&tasks)).await
}

/// Unpacks expired leases, at most as many as one step of the reaper. Returns how many it found. Leases that list
/// a task or a slot twice are logged and left to the repair, so they do not block reaping of the others, as long
/// as they are fewer than one step takes.
pub(super) async fn unpack_expired(store: &Inner, now: Millis) -> Result<usize> {
    let find = async |tx: &Tx<'_>| tokens(tx, PACKED_EXPIRED, &[&now]).await;
    let found = transact!(store, tx => find(&tx));
    match unpack(store, &found, None).await {
        Err(error) if error.kind() == ErrorKind::Incompatible => {
            unpack_others(store, found, error).await
        }
        unpacked => unpacked.map(|()| found.len()),
    }
}

/// Unpacks the leases that list no task and no slot twice. Returns the original error if no lease lists a task
/// or a slot twice.
async fn unpack_others(store: &Inner, mut found: Vec<i64>, error: Error) -> Result<usize> {
    let find = async |tx: &Tx<'_>| tokens(tx, PACKED_TWICE, &[&found]).await;
    let broken = transact!(store, tx => find(&tx));
    if broken.is_empty() {
        return Err(error);
    }
    tracing::error!(%error, leases = broken.len(), "expired leases are not reaped");
    let page = found.len();
    found.retain(|token| !broken.contains(token));
    if found.is_empty() {
        return Ok(0);
    }
    // The broken leases count, so that a full page is followed by the next one.
    unpack(store, &found, None).await.map(|()| page)
}

/// Unpacks the leases that list tasks of these groups. The caller holds the lock of the limits version
/// exclusively. So no transaction that holds a limit waits for a lease, and no claim commits meanwhile.
pub(super) async fn unpack_groups(tx: &Tx<'_>, groups: &[&str]) -> Result<(), Fault> {
    let found = tokens(tx, PACKED_IN_GROUPS, &[&groups]).await?;
    unpack_in(tx, &found, None).await
}

async fn tokens(
    tx: &Tx<'_>,
    sql: &'static str,
    params: super::session::Params<'_>,
) -> Result<Vec<i64>, Fault> {
    Ok(tx.query(sql, params).await?.iter().map(|row| row.get("token")).collect())
}
