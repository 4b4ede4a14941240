//! Leases that list what runs under them, and rows for those of which more must be known.

use tidegate_core::{Millis, Result, TaskId};

use super::error::Fault;
use super::session::{Tx, at_once};
use super::{Inner, transact};

const UNPACK: &str = include_str!("queries/unpack.sql");
const PACKED_WITH: &str = include_str!("queries/packed_with.sql");
const PACKED_IN_GROUPS: &str = include_str!("queries/packed_in_groups.sql");
const PACKED_EXPIRED: &str = include_str!("queries/packed_expired.sql");

/// Unpacks tasks of leases, or all tasks of the leases, in a transaction of its own, before one that
/// has to find their attempts.
pub(super) async fn unpack(store: &Inner, tokens: &[i64], tasks: Option<&[i64]>) -> Result<()> {
    if !tokens.is_empty() {
        at_once!(store, tx => unpack_and_commit(&tx, tokens, tasks));
    }
    Ok(())
}

/// The same in one round trip.
async fn unpack_and_commit(
    tx: &Tx<'_>,
    tokens: &[i64],
    tasks: Option<&[i64]>,
) -> Result<(), Fault> {
    tokio::try_join!(biased; unpack_in(tx, Some(tokens), tasks), tx.commit()).map(drop)
}

/// Unpacks tasks (or all) of leases (or of all leases). The other tasks of the leases stay listed.
pub(super) async fn unpack_in(
    tx: &Tx<'_>,
    tokens: Option<&[i64]>,
    tasks: Option<&[i64]>,
) -> Result<(), Fault> {
    tx.execute(UNPACK, &[&tokens, &tasks]).await.map(drop)
}

/// Unpacks these tasks, whichever leases list them.
pub(super) async fn unpack_tasks(store: &Inner, tasks: &[TaskId]) -> Result<()> {
    let tasks: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    let find = async |tx: &Tx<'_>| tokens(tx, PACKED_WITH, &[&tasks]).await;
    let found = transact!(store, tx => find(&tx));
    unpack(store, &found, Some(&tasks)).await
}

/// Unpacks the leases that have run out, as many as one step of the reaper takes; gives how many.
pub(super) async fn unpack_expired(store: &Inner, now: Millis) -> Result<usize> {
    let find = async |tx: &Tx<'_>| tokens(tx, PACKED_EXPIRED, &[&now]).await;
    let found = transact!(store, tx => find(&tx));
    let leases = found.len();
    unpack(store, &found, None).await.map(|()| leases)
}

/// Unpacks the leases that list tasks of these groups. The caller has the version of the limits
/// alone, so nobody who has locked a limit waits for a lease, and nothing is claimed meanwhile.
pub(super) async fn unpack_groups(tx: &Tx<'_>, groups: &[&str]) -> Result<(), Fault> {
    let found = tokens(tx, PACKED_IN_GROUPS, &[&groups]).await?;
    unpack_in(tx, Some(&found), None).await
}

async fn tokens(
    tx: &Tx<'_>,
    sql: &'static str,
    params: super::session::Params<'_>,
) -> Result<Vec<i64>, Fault> {
    Ok(tx.query(sql, params).await?.iter().map(|row| row.get("token")).collect())
}
