//! Changes capacities, and makes kinds known.

use tidegate_core::{
    Kind, Limit, Millis, Registered, Registration, Result, Scope, SetLimit, WorkerId, name, rules,
};

use super::claim::see_worker;
use super::draft::{Draft, Left};
use super::error::Fault;
use super::flush::flush;
use super::gate::{BUDGET, follow};
use super::load::{Wanted, gather, moment};
use super::reap::turn_days;
use super::rows;
use super::session::Tx;
use super::unpack::unpack_groups;
use super::{Inner, migrate, transact};
use crate::memory::State;

const VERSION_EXCLUSIVE: &str = include_str!("queries/lock_limits_version_exclusive.sql");
const LIMITS_NAMED: &str = include_str!("queries/limits_by_name.sql");
const LOCK_RUNNING_IN_GROUPS: &str = include_str!("queries/lock_running_in_groups.sql");
const NAMES_LOCK: &str = include_str!("queries/lock_name_creation.sql");
const MAKE_LANES: &str = include_str!("queries/insert_lanes.sql");
const LEAVE_REGISTRATIONS: &str = include_str!("queries/delete_worker_registrations.sql");
const PUT_REGISTRATIONS: &str = include_str!("queries/insert_registrations.sql");
const PUT_SCHEMA_VERSION: &str = include_str!("queries/set_worker_schema_version.sql");
const REGISTRATIONS: &str = include_str!("queries/live_registrations_of_groups.sql");
const PUT_KINDS: &str = include_str!("queries/put_kinds.sql");

pub(super) async fn register(store: &Inner, registration: Registration) -> Result<Registered> {
    // Refusals come before any lock: the rule is asked over empty tables.
    rules::register(&mut State::default(), &registration)?;
    let names: Vec<String> =
        registration.limits.iter().map(|(group, _)| Scope::Group.name(group)).collect();
    let said = registration.said();
    let said: Vec<&str> = said.keys().copied().collect();
    let rule = |draft: &mut Draft| rules::register(draft, &registration);
    let Registration { kinds, defaults, .. } = &registration;
    let register = async |tx: &Tx<'_>| {
        let set = set(store, tx, &names, &said, rule).await?;
        put_worker(store, tx, &registration).await?;
        let seen_at = registration.worker.is_some().then_some(moment(store, tx).await?.now);
        put_kinds(tx, kinds, seen_at, true).await?;
        put_kinds(tx, defaults, seen_at, false).await?;
        Ok(set)
    };
    let (registered, left) = transact!(store, tx => register(&tx));
    follow(store, left).await?;
    // Whoever submits from SQL makes no names.
    let kinds: Vec<&Kind> = kinds.iter().chain(defaults).collect();
    transact!(store, tx => make_lanes(&tx, &kinds));
    transact!(store, tx => turn_days(store, &tx));
    Ok(registered)
}

/// Notes that the worker lives, and what it says of groups.
async fn put_worker(store: &Inner, tx: &Tx<'_>, registration: &Registration) -> Result<(), Fault> {
    let Some(WorkerId(worker)) = &registration.worker else {
        return Ok(());
    };
    let alive_until = moment(store, tx).await?.now + registration.lease_ms;
    see_worker(tx, worker, alive_until).await?;
    tx.execute(PUT_SCHEMA_VERSION, &[&&**worker, &migrate::KNOWN]).await?;
    let said = registration.said();
    let groups: Vec<&str> = said.keys().copied().collect();
    let capacities: Vec<Option<i64>> = said.values().map(|brings| brings.map(i64::from)).collect();
    tx.execute(LEAVE_REGISTRATIONS, &[&&**worker]).await?;
    tx.execute(PUT_REGISTRATIONS, &[&&**worker, &groups, &capacities]).await?;
    Ok(())
}

/// Lets kinds be used in their queues.
async fn make_lanes(tx: &Tx<'_>, kinds: &[&Kind]) -> Result<(), Fault> {
    let queues: Vec<&str> = kinds.iter().map(|kind| &*kind.queue).collect();
    let names: Vec<&str> = kinds.iter().map(|kind| &*kind.name).collect();
    tx.query(NAMES_LOCK, &[]).await?;
    tx.execute(MAKE_LANES, &[&queues, &names]).await?;
    Ok(())
}

pub(super) async fn set_limit(store: &Inner, wanted: SetLimit) -> Result<Option<i64>> {
    let (_, of) = wanted.name.split_once(':').unwrap_or_default();
    name::check("name of the limit", of)?;
    let names = [wanted.name.clone()];
    let rule = |draft: &mut Draft| rules::set_limit(draft, &wanted);
    let (version, left) = transact!(store, tx => set(store, &tx, &names, &[], rule));
    follow(store, left).await?;
    Ok(version)
}

/// Runs a rule that sets capacities, in one transaction. Where one of the limits is new, no claim
/// is under way: what runs in its group is locked, so that nothing of it ends unseen, and
/// adopted. Of `said`, the groups whose workers are asked, a limit is looked at where it is registered.
pub(super) async fn set<T>(
    store: &Inner,
    tx: &Tx<'_>,
    names: &[String],
    said: &[&str],
    rule: impl Fn(&mut Draft) -> Result<T>,
) -> Result<(T, Left), Fault> {
    let mut known = named(tx, names).await?;
    let is_new = |known: &[Limit], name: &str| known.iter().all(|limit| &*limit.name != name);
    if names.iter().any(|name| is_new(&known, name)) {
        tx.query(VERSION_EXCLUSIVE, &[]).await?;
        // Somebody may have begun it while this transaction waited.
        known = named(tx, names).await?;
    }
    let new = names.iter().filter(|name| is_new(&known, name));
    let new: Vec<&str> = new.filter_map(|name| name.strip_prefix("group:")).collect();
    let running = match new.as_slice() {
        [] => Vec::new(),
        new => {
            unpack_groups(tx, new).await?;
            tx.query(LOCK_RUNNING_IN_GROUPS, &[&new]).await?
        }
    };
    let running: Vec<_> = running.iter().map(rows::running).collect();
    let asked: Vec<String> = said.iter().map(|group| Scope::Group.name(group)).collect();
    let asked = named(tx, &asked).await?;
    let is_other = |limit: &Limit| !names.iter().any(|name| *name == *limit.name);
    known.extend(asked.into_iter().filter(|l| is_other(l) && l.registered().is_some()));
    let wanted = Wanted {
        tasks: running.iter().map(|(task, _, _)| *task).collect(),
        limits: known.iter().map(|limit| limit.id).collect(),
        budget: BUDGET,
        ..Wanted::default()
    };
    let moment = moment(store, tx).await?;
    let mut draft = gather(store, tx, moment, wanted).await?;
    // One may have gone away before the lock.
    if known.iter().any(|limit| !draft.state.limits.contains_key(&limit.id)) {
        return Err(Fault::Again);
    }
    for (task, token, running) in running {
        draft.run(task, token, running);
    }
    load_said(tx, &mut draft, said, moment.now).await?;
    draft.seal();
    let done = rule(&mut draft)?;
    flush(tx, &draft).await?;
    Ok((done, draft.left()))
}

/// What live workers say of groups.
async fn load_said(
    tx: &Tx<'_>,
    draft: &mut Draft,
    groups: &[&str],
    now: Millis,
) -> Result<(), Fault> {
    if groups.is_empty() {
        return Ok(());
    }
    for row in tx.query(REGISTRATIONS, &[&groups, &now]).await? {
        let worker = WorkerId(row.get::<_, &str>("worker").into());
        let brings = rows::number_or_none(&row, "registrations", "capacity")?;
        draft.add_registration(row.get("group_name"), worker, brings);
    }
    Ok(())
}

pub(super) async fn named(tx: &Tx<'_>, names: &[String]) -> Result<Vec<Limit>, Fault> {
    Ok(tx.query(LIMITS_NAMED, &[&names]).await?.iter().map(rows::limit).collect::<Result<_>>()?)
}

async fn put_kinds(
    tx: &Tx<'_>,
    kinds: &[Kind],
    seen_at: Option<Millis>,
    overwrite: bool,
) -> Result<(), Fault> {
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
            &kinds.iter().map(|kind| kind.window.map(|w| w.start_ms)).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.window.map(|w| w.end_ms)).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.backoff.base_ms).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.backoff.cap_ms).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| days(kind.remove_on_completed_days)).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| days(kind.remove_on_failed_days)).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| i64::from(kind.max_deaths)).collect::<Vec<_>>(),
            &overwrite,
            &seen_at,
        ],
    )
    .await?;
    Ok(())
}
