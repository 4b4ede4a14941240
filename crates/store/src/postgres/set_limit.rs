//! Changes capacities, and makes kinds known.

use tidegate_core::{
    Kind, Limit, LimitScope, Millis, RegisterReply, Registration, Result, SetLimit, WorkerId, name,
    rules,
};

use super::admission::{ADMISSION_BUDGET, run_follow_ups};
use super::claim::record_worker_alive;
use super::error::TxError;
use super::lease_expansion::expand_leases_of_groups;
use super::reap::rotate_partitions;
use super::rows;
use super::transaction::Tx;
use super::working_set::{FollowUp, WorkingSet};
use super::working_set_load::{LoadRequest, lock_and_load, read_tx_start};
use super::working_set_write::write_changes;
use super::{PostgresInner, in_transaction, migrate};
use crate::memory::WorkingState;

const LOCK_LIMITS_VERSION_EXCLUSIVE: &str =
    include_str!("queries/lock_limits_version_exclusive.sql");
const LIMITS_BY_NAME: &str = include_str!("queries/limits_by_name.sql");
const LOCK_RUNNING_IN_GROUPS: &str = include_str!("queries/lock_running_in_groups.sql");
const LOCK_NAME_CREATION: &str = include_str!("queries/lock_name_creation.sql");
const INSERT_LANES: &str = include_str!("queries/insert_lanes.sql");
const DELETE_WORKER_REGISTRATIONS: &str = include_str!("queries/delete_worker_registrations.sql");
const INSERT_REGISTRATIONS: &str = include_str!("queries/insert_registrations.sql");
const SET_WORKER_SCHEMA_VERSION: &str = include_str!("queries/set_worker_schema_version.sql");
const LIVE_REGISTRATIONS_OF_GROUPS: &str = include_str!("queries/live_registrations_of_groups.sql");
const PUT_KINDS: &str = include_str!("queries/put_kinds.sql");

pub(super) async fn register(
    store: &PostgresInner,
    registration: Registration,
) -> Result<RegisterReply> {
    // Refusals come before any lock: the rule is asked over empty tables.
    rules::register(&mut WorkingState::default(), &registration)?;
    let names: Vec<String> =
        registration.limits.iter().map(|(group, _)| LimitScope::Group.limit_name(group)).collect();
    let said = registration.group_capacities();
    let said: Vec<&str> = said.keys().copied().collect();
    let rule = |working_set: &mut WorkingSet| rules::register(working_set, &registration);
    let Registration { kinds, default_kinds: defaults, .. } = &registration;
    let register = async |tx: &Tx<'_>| {
        let set = run_limit_rule(store, tx, &names, &said, rule).await?;
        put_worker_registrations(store, tx, &registration).await?;
        let seen_at = registration.worker.is_some().then_some(read_tx_start(store, tx).await?.now);
        put_kinds(tx, kinds, seen_at, true).await?;
        put_kinds(tx, defaults, seen_at, false).await?;
        Ok(set)
    };
    let (registered, follow_up) = in_transaction!(store, tx => register(&tx));
    run_follow_ups(store, follow_up).await?;
    // Whoever submits from SQL makes no names.
    let kinds: Vec<&Kind> = kinds.iter().chain(defaults).collect();
    in_transaction!(store, tx => make_lanes(&tx, &kinds));
    in_transaction!(store, tx => rotate_partitions(store, &tx));
    Ok(registered)
}

/// Notes that the worker lives, and what it says of groups.
async fn put_worker_registrations(
    store: &PostgresInner,
    tx: &Tx<'_>,
    registration: &Registration,
) -> Result<(), TxError> {
    let Some(WorkerId(worker)) = &registration.worker else {
        return Ok(());
    };
    let alive_until = read_tx_start(store, tx).await?.now + registration.lease_ms;
    record_worker_alive(tx, worker, alive_until).await?;
    tx.execute(SET_WORKER_SCHEMA_VERSION, &[&&**worker, &migrate::SCHEMA_VERSION]).await?;
    let said = registration.group_capacities();
    let groups: Vec<&str> = said.keys().copied().collect();
    let capacities: Vec<Option<i64>> = said.values().map(|brings| brings.map(i64::from)).collect();
    tx.execute(DELETE_WORKER_REGISTRATIONS, &[&&**worker]).await?;
    tx.execute(INSERT_REGISTRATIONS, &[&&**worker, &groups, &capacities]).await?;
    Ok(())
}

/// Lets kinds be used in their queues.
async fn make_lanes(tx: &Tx<'_>, kinds: &[&Kind]) -> Result<(), TxError> {
    let queues: Vec<&str> = kinds.iter().map(|kind| &*kind.queue).collect();
    let names: Vec<&str> = kinds.iter().map(|kind| &*kind.name).collect();
    tx.query(LOCK_NAME_CREATION, &[]).await?;
    tx.execute(INSERT_LANES, &[&queues, &names]).await?;
    Ok(())
}

pub(super) async fn set_limit(store: &PostgresInner, request: SetLimit) -> Result<Option<i64>> {
    let (_, of) = request.name.split_once(':').unwrap_or_default();
    name::check("name of the limit", of)?;
    let names = [request.name.clone()];
    let rule = |draft: &mut WorkingSet| rules::set_limit(draft, &request);
    let (version, left) =
        in_transaction!(store, tx => run_limit_rule(store, &tx, &names, &[], rule));
    run_follow_ups(store, left).await?;
    Ok(version)
}

/// Runs a rule that sets capacities, in one transaction. Where one of the limits is new, no claim
/// is under way: what runs in its group is locked, so that nothing of it ends unseen, and
/// adopted. Of `said`, the groups whose workers are asked, a limit is looked at where it is registered.
pub(super) async fn run_limit_rule<T>(
    store: &PostgresInner,
    tx: &Tx<'_>,
    names: &[String],
    registered_groups: &[&str],
    rule: impl Fn(&mut WorkingSet) -> Result<T>,
) -> Result<(T, FollowUp), TxError> {
    let mut known = read_limits(tx, names).await?;
    let is_new = |known: &[Limit], name: &str| known.iter().all(|limit| &*limit.name != name);
    if names.iter().any(|name| is_new(&known, name)) {
        tx.query(LOCK_LIMITS_VERSION_EXCLUSIVE, &[]).await?;
        // Somebody may have begun it while this transaction waited.
        known = read_limits(tx, names).await?;
    }
    let new = names.iter().filter(|name| is_new(&known, name));
    let new: Vec<&str> = new.filter_map(|name| name.strip_prefix("group:")).collect();
    let running = match new.as_slice() {
        [] => Vec::new(),
        new => {
            expand_leases_of_groups(tx, new).await?;
            tx.query(LOCK_RUNNING_IN_GROUPS, &[&new]).await?
        }
    };
    let running: Vec<_> = running.iter().map(rows::running_row).collect();
    let asked: Vec<String> =
        registered_groups.iter().map(|group| LimitScope::Group.limit_name(group)).collect();
    let asked = read_limits(tx, &asked).await?;
    let is_other = |limit: &Limit| !names.iter().any(|name| *name == *limit.name);
    known.extend(asked.into_iter().filter(|l| is_other(l) && l.registered_capacity().is_some()));
    let wanted = LoadRequest {
        tasks: running.iter().map(|(task, _, _)| *task).collect(),
        limits: known.iter().map(|limit| limit.id).collect(),
        admission_budget: ADMISSION_BUDGET,
        ..LoadRequest::default()
    };
    let start = read_tx_start(store, tx).await?;
    let mut working_set = lock_and_load(store, tx, start, wanted).await?;
    // One may have gone away before the lock.
    if known.iter().any(|limit| !working_set.state.limits.contains_key(&limit.id)) {
        return Err(TxError::Retry);
    }
    for (task, token, running) in running {
        working_set.set_running(task, token, running);
    }
    load_registrations(tx, &mut working_set, registered_groups, start.now).await?;
    working_set.finish_loading();
    let done = rule(&mut working_set)?;
    write_changes(tx, &working_set).await?;
    Ok((done, working_set.follow_up()))
}

/// What live workers say of groups.
async fn load_registrations(
    tx: &Tx<'_>,
    draft: &mut WorkingSet,
    groups: &[&str],
    now: Millis,
) -> Result<(), TxError> {
    if groups.is_empty() {
        return Ok(());
    }
    for row in tx.query(LIVE_REGISTRATIONS_OF_GROUPS, &[&groups, &now]).await? {
        let worker = WorkerId(row.get::<_, &str>("worker").into());
        let brings = rows::read_optional_unsigned(&row, "registrations", "capacity")?;
        draft.add_registration(row.get("group_name"), worker, brings);
    }
    Ok(())
}

pub(super) async fn read_limits(tx: &Tx<'_>, names: &[String]) -> Result<Vec<Limit>, TxError> {
    Ok(tx
        .query(LIMITS_BY_NAME, &[&names])
        .await?
        .iter()
        .map(rows::limit_without_held)
        .collect::<Result<_>>()?)
}

async fn put_kinds(
    tx: &Tx<'_>,
    kinds: &[Kind],
    seen_at: Option<Millis>,
    overwrite: bool,
) -> Result<(), TxError> {
    if kinds.is_empty() {
        return Ok(());
    }
    // A kind that is named twice is what it was said to be last.
    let kinds: std::collections::BTreeMap<&str, &Kind> =
        kinds.iter().map(|kind| (&*kind.name, kind)).collect();
    let kinds: Vec<&Kind> = kinds.into_values().collect();
    let days = |days: Option<u32>| days.map(i64::from);
    tx.execute(
        PUT_KINDS,
        &[
            &kinds.iter().map(|kind| &*kind.name).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| &*kind.queue).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| i64::from(kind.max_attempts)).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.timeout_ms).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.day_window.map(|w| w.start_ms)).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.day_window.map(|w| w.end_ms)).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.backoff.base_ms).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.backoff.cap_ms).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| days(kind.remove_on_completed_days)).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| days(kind.remove_on_failed_days)).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| i64::from(kind.max_crashes)).collect::<Vec<_>>(),
            &overwrite,
            &seen_at,
        ],
    )
    .await?;
    Ok(())
}
