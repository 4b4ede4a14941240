//! Changes capacities, and makes kinds known.

use tidegate_core::tables::Tables;
use tidegate_core::{
    Kind, LimitId, Registered, Registration, Result, Scope, SetLimit, Source, check_capacity, name,
    rules,
};

use super::draft::Left;
use super::error::Fault;
use super::flush::flush;
use super::gate::{BUDGET, follow};
use super::load::{Wanted, gather, moment};
use super::rows;
use super::session::Tx;
use super::{Inner, transact};

const VERSION_EXCLUSIVE: &str = include_str!("queries/version_exclusive.sql");
const LIMITS_NAMED: &str = include_str!("queries/limits_named.sql");
const LOCK_RUNNING_IN_GROUP: &str = include_str!("queries/lock_running_in_group.sql");
const PUT_KINDS: &str = include_str!("queries/put_kinds.sql");

pub(super) async fn register(store: &Inner, registration: Registration) -> Result<Registered> {
    for (group, capacity) in &registration.limits {
        name::check("group", group)?;
        check_capacity(group, i64::from(*capacity))?;
    }
    registration.kinds.iter().try_for_each(Kind::check)?;
    if !registration.kinds.is_empty() {
        transact!(store, tx => put_kinds(&tx, &registration.kinds));
    }
    let mut registered = Registered::default();
    for (group, capacity) in registration.limits {
        let source = registration.source.unwrap_or(Source::Registration);
        let name = Scope::Group.name(&group);
        let set = SetLimit { name: name.clone(), capacity: Some(capacity), source };
        if set_limit(store, set).await?.is_some() {
            continue;
        }
        let limit = transact!(store, tx => named(&tx, &name));
        if let Some(limit) = limit.filter(|limit| limit.capacity != Some(capacity)) {
            registered.overruled.push((group, limit.capacity, limit.source));
        }
    }
    Ok(registered)
}

async fn put_kinds(tx: &Tx<'_>, kinds: &[Kind]) -> Result<(), Fault> {
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
        ],
    )
    .await?;
    Ok(())
}

async fn named(tx: &Tx<'_>, name: &str) -> Result<Option<tidegate_core::Limit>, Fault> {
    let rows = tx.query(LIMITS_NAMED, &[&[name].as_slice()]).await?;
    Ok(rows.first().map(rows::limit))
}

pub(super) async fn set_limit(store: &Inner, set: SetLimit) -> Result<Option<i64>> {
    let (_, of) = set.name.split_once(':').unwrap_or_default();
    name::check("name of the limit", of)?;
    let (version, left) = transact!(store, tx => set_one(store, &tx, &set));
    follow(store, left).await?;
    Ok(version)
}

async fn set_one(store: &Inner, tx: &Tx<'_>, set: &SetLimit) -> Result<(Option<i64>, Left), Fault> {
    if let Some(limit) = named(tx, &set.name).await? {
        return change(store, tx, set, limit.id).await;
    }
    tx.query(VERSION_EXCLUSIVE, &[]).await?;
    // Somebody may have begun it while this transaction waited.
    if named(tx, &set.name).await?.is_some() {
        return Err(Fault::Again);
    }
    begin(store, tx, set).await
}

async fn change(
    store: &Inner,
    tx: &Tx<'_>,
    set: &SetLimit,
    id: LimitId,
) -> Result<(Option<i64>, Left), Fault> {
    let moment = moment(store, tx).await?;
    let wanted = Wanted { limits: vec![id], budget: BUDGET, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    draft.seal();
    // It may have gone away before the lock.
    if draft.limit(id)?.is_none() {
        return Err(Fault::Again);
    }
    let version = rules::set_limit(&mut draft, set)?;
    flush(tx, &draft).await?;
    Ok((version, draft.left()))
}

/// A limit where none was. No claim is under way; what runs in the group is locked, so that
/// nothing of it ends unseen, and adopted.
async fn begin(store: &Inner, tx: &Tx<'_>, set: &SetLimit) -> Result<(Option<i64>, Left), Fault> {
    let group = set.name.strip_prefix("group:").unwrap_or_default();
    let running = match set.capacity {
        Some(_) => tx.query(LOCK_RUNNING_IN_GROUP, &[&group]).await?,
        None => Vec::new(),
    };
    let running: Vec<_> = running.iter().map(rows::running).collect();
    let moment = moment(store, tx).await?;
    let tasks = running.iter().map(|(task, _, _)| *task).collect();
    let wanted = Wanted { tasks, budget: BUDGET, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    for (task, token, running) in running {
        draft.run(task, token, running);
    }
    draft.seal();
    let version = rules::set_limit(&mut draft, set)?;
    flush(tx, &draft).await?;
    Ok((version, draft.left()))
}
