//! Unpacking: gives attempts that a lease only lists rows of their own in `running` and `slots`. Verbs
//! that need more than the list (such as cancel, progress, general completion, reaping) unpack first.

use tidegate_core::{Error, ErrorKind, Millis, Result, TaskId};
use tokio_postgres::Row;

use super::error::TxError;
use super::transaction::Tx;
use super::{PostgresInner, in_transaction};

const EXPAND_LEASES: &str = include_str!("queries/expand_leases.sql");
const LEASES_LISTING_TASKS: &str = include_str!("queries/leases_listing_tasks.sql");
const LEASES_LISTING_TASKS_OF_GROUPS: &str =
    include_str!("queries/leases_listing_tasks_of_groups.sql");
const LEASES_LISTING_DUPLICATES: &str = include_str!("queries/leases_listing_duplicates.sql");
const EXPIRED_LEASES_LISTING_TASKS: &str = include_str!("queries/expired_leases_listing_tasks.sql");
const PACKED_OF: &str = include_str!("queries/lease_task_counts.sql");

/// Leases that the statement for expired ones returns.
const LEASES_MAX: usize = 100;

/// Unpacks tasks of leases, or all tasks of the leases, in a transaction of its own, before a transaction
/// that needs the rows of their attempts.
pub(super) async fn expand_leases(
    store: &PostgresInner,
    tokens: &[i64],
    tasks: Option<&[i64]>,
) -> Result<()> {
    if !tokens.is_empty() {
        in_transaction!(store, tx => expand_leases_in_tx(&tx, tokens, tasks));
    }
    Ok(())
}

/// Unpacks tasks of leases, or all of their tasks; the others stay listed. A task that runs under another
/// lease as well, or a slot that another task holds, is an error that names it.
pub(super) async fn expand_leases_in_tx(
    tx: &Tx<'_>,
    tokens: &[i64],
    tasks: Option<&[i64]>,
) -> Result<(), TxError> {
    unpack_at_most(tx, tokens, tasks, None).await
}

async fn unpack_at_most(
    tx: &Tx<'_>,
    tokens: &[i64],
    tasks: Option<&[i64]>,
    attempts_max: Option<i64>,
) -> Result<(), TxError> {
    match tx.query(EXPAND_LEASES, &[&Some(tokens), &tasks, &attempts_max]).await?.first() {
        None => Ok(()),
        Some(duplicate) => Err(duplicate_attempt_error(duplicate).into()),
    }
}

/// Unpacks every lease, for a repair. If two leases list one task, one of the attempts is kept. If two tasks
/// hold one slot, the first keeps it. Each dropped entry is logged; the repair continues from these rows.
pub(super) async fn expand_all_leases(tx: &Tx<'_>) -> Result<(), TxError> {
    let all: Option<&[i64]> = None;
    for duplicate in tx.query(EXPAND_LEASES, &[&all, &all, &None::<i64>]).await? {
        tracing::warn!(error = %duplicate_attempt_error(&duplicate), "repaired");
    }
    Ok(())
}

fn duplicate_attempt_error(row: &Row) -> Error {
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
pub(super) async fn expand_tasks(store: &PostgresInner, tasks: &[TaskId]) -> Result<()> {
    let tasks: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    let find = async |tx: &Tx<'_>| read_tokens(tx, LEASES_LISTING_TASKS, &[&tasks]).await;
    let found = in_transaction!(store, tx => find(&tx));
    expand_leases(store, &found, Some(&tasks)).await
}

/// A packed lease, and how many attempts it lists.
struct Packed {
    token: i64,
    attempts: i64,
}

/// Unpacks at most `attempts_max` attempts of these leases. Returns whether there are more.
pub(super) async fn unpack_some(
    store: &PostgresInner,
    tokens: &[i64],
    attempts_max: u32,
) -> Result<bool> {
    let find = async |tx: &Tx<'_>| packed(tx, PACKED_OF, &[&tokens]).await;
    let found = in_transaction!(store, tx => find(&tx));
    unpack_first(store, &found, attempts_max).await
}

/// Unpacks at most `attempts_max` attempts of expired leases. Returns whether there are probably more. Leases that
/// list a task or a slot twice are logged and left to the repair, so they do not block reaping of the others, as
/// long as they are fewer than one page.
pub(super) async fn expand_expired_leases(
    store: &PostgresInner,
    now: Millis,
    attempts_max: u32,
) -> Result<bool> {
    let find = async |tx: &Tx<'_>| packed(tx, EXPIRED_LEASES_LISTING_TASKS, &[&now]).await;
    let found = in_transaction!(store, tx => find(&tx));
    let is_full = found.len() == LEASES_MAX;
    let has_more = match unpack_first(store, &found, attempts_max).await {
        Err(error) if error.kind() == ErrorKind::Incompatible => {
            expand_leases_without_duplicates(store, found, attempts_max, error).await?
        }
        unpacked => Some(unpacked?),
    };
    Ok(has_more.is_some_and(|has_more| has_more || is_full))
}

/// Unpacks the leases that list no task and no slot twice. Returns the original error if no lease lists a task
/// or a slot twice, and none if there are no other leases.
async fn expand_leases_without_duplicates(
    store: &PostgresInner,
    mut found: Vec<Packed>,
    attempts_max: u32,
    error: Error,
) -> Result<Option<bool>> {
    let page: Vec<i64> = found.iter().map(|lease| lease.token).collect();
    let find = async |tx: &Tx<'_>| read_tokens(tx, LEASES_LISTING_DUPLICATES, &[&page]).await;
    let broken = in_transaction!(store, tx => find(&tx));
    if broken.is_empty() {
        return Err(error);
    }
    tracing::error!(%error, leases = broken.len(), "expired leases are not reaped");
    found.retain(|lease| !broken.contains(&lease.token));
    if found.is_empty() {
        return Ok(None);
    }
    unpack_first(store, &found, attempts_max).await.map(Some)
}

/// Unpacks at most `attempts_max` attempts of the first of these leases. Returns whether there are more.
async fn unpack_first(store: &PostgresInner, leases: &[Packed], attempts_max: u32) -> Result<bool> {
    let attempts_max = i64::from(attempts_max);
    let (mut tokens, mut attempts) = (Vec::new(), 0);
    for lease in leases {
        if attempts >= attempts_max {
            break;
        }
        tokens.push(lease.token);
        attempts += lease.attempts;
    }
    if !tokens.is_empty() {
        in_transaction!(store, tx => unpack_at_most(&tx, &tokens, None, Some(attempts_max)));
    }
    Ok(attempts > attempts_max || tokens.len() < leases.len())
}

/// Unpacks the leases that list tasks of these groups. The caller holds the lock of the limits version
/// exclusively. So no transaction that holds a limit waits for a lease, and no claim commits meanwhile.
pub(super) async fn expand_leases_of_groups(tx: &Tx<'_>, groups: &[&str]) -> Result<(), TxError> {
    let found = read_tokens(tx, LEASES_LISTING_TASKS_OF_GROUPS, &[&groups]).await?;
    expand_leases_in_tx(tx, &found, None).await
}

async fn read_tokens(
    tx: &Tx<'_>,
    sql: &'static str,
    params: super::transaction::Params<'_>,
) -> Result<Vec<i64>, TxError> {
    Ok(tx.query(sql, params).await?.iter().map(|row| row.get("token")).collect())
}

async fn packed(
    tx: &Tx<'_>,
    sql: &'static str,
    params: super::transaction::Params<'_>,
) -> Result<Vec<Packed>, TxError> {
    let rows = tx.query(sql, params).await?;
    let lease = |row: &Row| Packed { token: row.get("token"), attempts: row.get("attempts") };
    Ok(rows.iter().map(lease).collect())
}
