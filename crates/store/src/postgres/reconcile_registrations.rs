//! Brings what is registered up to what live workers say, and forgets kinds that are gone.

use tidegate_core::{LimitScope, Millis, Result, rules};

use super::admission::{ADMISSION_BUDGET, run_follow_ups};
use super::error::TxError;
use super::set_limit::{read_limits, run_limit_rule};
use super::transaction::Tx;
use super::working_set::{FollowUp, WorkingSet};
use super::working_set_load::{LoadRequest, lock_and_load, read_tx_start};
use super::working_set_write::write_changes;
use super::{PostgresInner, in_transaction};

const GROUPS_WITH_OUTDATED_REGISTRATION: &str =
    include_str!("queries/groups_with_outdated_registration.sql");
const KINDS_NOT_REGISTERED_SINCE: &str = include_str!("queries/kinds_not_registered_since.sql");
const SET_KINDS_REGISTERED_AT: &str = include_str!("queries/set_kinds_registered_at.sql");
const DELETE_KINDS: &str = include_str!("queries/delete_kinds.sql");

/// Returns how many kinds were forgotten.
pub(super) async fn reconcile_registrations(store: &PostgresInner) -> Result<u32> {
    let wrong = in_transaction!(store, tx => groups_to_reconcile(store, &tx));
    if !wrong.is_empty() {
        let said: Vec<&str> = wrong.iter().map(String::as_str).collect();
        let rule = |working_set: &mut WorkingSet| {
            for group in &said {
                rules::resolve_registered_capacity(working_set, group)?;
            }
            let mut budget = ADMISSION_BUDGET;
            rules::admission::admit_from_dirty_limits(working_set, &mut budget)
        };
        let (_, follow_up) =
            in_transaction!(store, tx => run_limit_rule(store, &tx, &[], &said, rule));
        run_follow_ups(store, follow_up).await?;
    }
    let (unseen, before) = in_transaction!(reader store, tx => read_unseen_kinds(store, &tx));
    if unseen.is_empty() {
        return Ok(0);
    }
    let (forgotten, left) = in_transaction!(store, tx => forget_kinds(store, &tx, &unseen, before));
    run_follow_ups(store, left).await?;
    Ok(forgotten)
}

async fn groups_to_reconcile(store: &PostgresInner, tx: &Tx<'_>) -> Result<Vec<String>, TxError> {
    let now = read_tx_start(store, tx).await?.now;
    let groups = tx.query(GROUPS_WITH_OUTDATED_REGISTRATION, &[&now]).await?;
    Ok(groups.iter().map(|row| row.get("group_name")).collect())
}

/// A kind that was not registered for long.
struct UnseenKind {
    name: String,
    is_used: bool,
}

async fn read_unseen_kinds(
    store: &PostgresInner,
    tx: &Tx<'_>,
) -> Result<(Vec<UnseenKind>, Millis), TxError> {
    let now = read_tx_start(store, tx).await?.now;
    let before = now - rules::UNUSED_KIND_RETENTION_MS;
    let rows = tx.query(KINDS_NOT_REGISTERED_SINCE, &[&before, &now]).await?;
    let kinds =
        rows.iter().map(|row| UnseenKind { name: row.get("name"), is_used: row.get("is_used") });
    Ok((kinds.collect(), before))
}

/// Limits are locked before kinds, as a registration does it.
async fn forget_kinds(
    store: &PostgresInner,
    tx: &Tx<'_>,
    kinds: &[UnseenKind],
    before: Millis,
) -> Result<(u32, FollowUp), TxError> {
    let (used, unused): (Vec<&UnseenKind>, Vec<&UnseenKind>) =
        kinds.iter().partition(|kind| kind.is_used);
    let names = |kinds: Vec<&UnseenKind>| kinds.iter().map(|kind| kind.name.clone()).collect();
    let (used, unused): (Vec<String>, Vec<String>) = (names(used), names(unused));
    let limits: Vec<String> =
        unused.iter().map(|kind| LimitScope::Group.limit_name(kind)).collect();
    let limits = read_limits(tx, &limits).await?;
    let limits = limits.iter().filter(|limit| limit.registered_capacity().is_some());
    let limits = limits.map(|limit| limit.id).collect();
    let start = read_tx_start(store, tx).await?;
    let wanted =
        LoadRequest { limits, admission_budget: ADMISSION_BUDGET, ..LoadRequest::default() };
    let mut working_set = lock_and_load(store, tx, start, wanted).await?;
    working_set.finish_loading();
    tx.execute(SET_KINDS_REGISTERED_AT, &[&used, &before, &start.now]).await?;
    let forgotten = tx.query(DELETE_KINDS, &[&unused, &before]).await?;
    for row in &forgotten {
        rules::clear_registered_capacity(&mut working_set, row.get("name"))?;
    }
    write_changes(tx, &working_set).await?;
    Ok((forgotten.len() as u32, working_set.follow_up()))
}
