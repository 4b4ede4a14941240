//! What workers say of groups, and the kinds that nobody registers any more.

use std::sync::Arc;

use rusqlite::params;
use tidegate_core::tables::GroupCapacities;
use tidegate_core::{Millis, Result, WorkerId};

use super::{Transaction, limits};
use crate::sqlite::schema;
use crate::sqlite::statements::Query;

pub(super) fn replace_registrations(
    tx: &mut Transaction<'_, '_>,
    worker: &WorkerId,
    capacities: &GroupCapacities<'_>,
) -> Result<()> {
    tx.statements
        .execute(Query::SetWorkerSchemaVersion, params![worker.0, schema::SCHEMA_VERSION])?;
    tx.statements.execute(Query::DeleteWorkerRegistrations, [&worker.0])?;
    for (group, capacity) in capacities {
        tx.statements.execute(Query::PutRegistration, params![worker.0, group, capacity])?;
    }
    Ok(())
}

pub(super) fn live_registrations(
    tx: &mut Transaction<'_, '_>,
    group: &str,
) -> Result<Vec<(WorkerId, Option<u32>)>> {
    let key = params![group, tx.now];
    tx.statements.query_rows(Query::LiveRegistrationsOfGroup, key, |row| {
        Ok((WorkerId(row.get(0)?), row.get(1)?))
    })
}

pub(super) fn live_registered_groups(tx: &mut Transaction<'_, '_>) -> Result<Vec<Arc<str>>> {
    tx.statements.query_rows(Query::RegisteredGroups, [tx.now], |row| row.get(0))
}

pub(super) fn delete_unused_kinds(
    tx: &mut Transaction<'_, '_>,
    before: Millis,
) -> Result<Vec<Arc<str>>> {
    let mut old: Vec<Arc<str>> =
        tx.statements.query_rows(Query::KindsNotRegisteredSince, [before], |row| row.get(0))?;
    if old.is_empty() {
        return Ok(old);
    }
    // The rows of limits are looked at, and what changed in memory counts.
    limits::write_changed_limits(tx)?;
    let mut used = Vec::new();
    for kind in &old {
        let key = params![kind, tx.now];
        used.push(
            tx.statements.query_first(Query::IsKindUsed, key, |row| row.get(0))? == Some(true),
        );
    }
    let mut used = used.into_iter();
    let mut forgotten = Vec::new();
    for kind in old.drain(..) {
        if used.next() == Some(true) {
            tx.statements.execute(Query::SetKindRegisteredAt, params![kind, tx.now])?;
        } else {
            tx.statements.execute(Query::DeleteKind, [&kind])?;
            tx.cache.kinds.remove(&kind);
            forgotten.push(kind);
        }
    }
    Ok(forgotten)
}
