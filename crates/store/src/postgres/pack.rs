//! Leases that list what runs under them, and rows for those of which more must be known.

use tidegate_core::{Millis, Result, TaskId};

use super::error::Fault;
use super::session::Tx;
use super::{Inner, transact};

const UNPACK: &str = include_str!("queries/unpack.sql");
const PACKED_WITH: &str = include_str!("queries/packed_with.sql");
const PACKED_IN_GROUPS: &str = include_str!("queries/packed_in_groups.sql");
const PACKED_EXPIRED: &str = include_str!("queries/packed_expired.sql");

/// Unpacks leases in a transaction of its own, before one that has to find their attempts.
pub(super) async fn unpack(store: &Inner, tokens: Vec<i64>) -> Result<()> {
    if !tokens.is_empty() {
        transact!(store, tx => unpack_in(&tx, Some(&tokens)));
    }
    Ok(())
}

/// Unpacks leases, or all.
pub(super) async fn unpack_in(tx: &Tx<'_>, tokens: Option<&[i64]>) -> Result<(), Fault> {
    tx.execute(UNPACK, &[&tokens]).await.map(drop)
}

/// Unpacks the leases that list some of these tasks.
pub(super) async fn unpack_tasks(store: &Inner, tasks: &[TaskId]) -> Result<()> {
    let tasks: Vec<i64> = tasks.iter().map(|task| task.0).collect();
    let find = async |tx: &Tx<'_>| tokens(tx, PACKED_WITH, &[&tasks]).await;
    let found = transact!(store, tx => find(&tx));
    unpack(store, found).await
}

/// Unpacks the leases that have run out, as many as one step of the reaper takes; gives how many.
pub(super) async fn unpack_expired(store: &Inner, now: Millis) -> Result<usize> {
    let find = async |tx: &Tx<'_>| tokens(tx, PACKED_EXPIRED, &[&now]).await;
    let found = transact!(store, tx => find(&tx));
    let leases = found.len();
    unpack(store, found).await.map(|()| leases)
}

/// Unpacks the leases that list tasks of these groups. The caller has the version of the limits
/// alone, so nobody who has locked a limit waits for a lease, and nothing is claimed meanwhile.
pub(super) async fn unpack_groups(tx: &Tx<'_>, groups: &[&str]) -> Result<(), Fault> {
    let found = tokens(tx, PACKED_IN_GROUPS, &[&groups]).await?;
    unpack_in(tx, Some(&found)).await
}

async fn tokens(
    tx: &Tx<'_>,
    sql: &'static str,
    params: super::session::Params<'_>,
) -> Result<Vec<i64>, Fault> {
    Ok(tx.query(sql, params).await?.iter().map(|row| row.get("token")).collect())
}
