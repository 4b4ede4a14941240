use super::admission;
use super::register::{clear_registered_capacity, resolve_registered_capacity};
use crate::bounds::{ADMISSION_BATCH_MAX, DAY_MS};
use crate::tables::Tables;
use crate::{PruneReply, Result};

/// How long the pace of a group is remembered of which nothing is heard.
pub const RUN_TIMES_RETENTION_MS: i64 = 7 * DAY_MS;

/// How long a kind is remembered that no worker registers any more. Whoever submits from SQL
/// needs kinds to be known, also while nobody serves them.
pub const UNUSED_KIND_RETENTION_MS: i64 = 30 * DAY_MS;

/// Removes finished tasks that were kept long enough, limits nobody uses, what workers registered
/// that are gone, and what was noted of leases and groups that are gone.
pub fn prune(tables: &mut dyn Tables) -> Result<PruneReply> {
    let tasks = tables.delete_expired_tasks(ADMISSION_BATCH_MAX)?;
    let kinds = prune_registrations(tables)?;
    let idle = tables.unused_limits(ADMISSION_BATCH_MAX)?;
    let limits = idle.len() as u32;
    for id in idle {
        tables.delete_limit(id)?;
    }
    tables.delete_obsolete_fenced_attempts()?;
    tables.delete_run_time_stats(tables.now() - RUN_TIMES_RETENTION_MS)?;
    Ok(PruneReply {
        tasks,
        limits,
        kinds,
        has_more: tasks == ADMISSION_BATCH_MAX || limits == ADMISSION_BATCH_MAX,
    })
}

/// Brings what is registered up to what live workers say, and forgets kinds that are gone.
fn prune_registrations(tables: &mut dyn Tables) -> Result<u32> {
    let mut is_changed = false;
    for group in tables.registered_groups()? {
        is_changed |= resolve_registered_capacity(tables, &group)?.is_some();
    }
    let forgotten = tables.delete_unused_kinds(tables.now() - UNUSED_KIND_RETENTION_MS)?;
    for kind in &forgotten {
        clear_registered_capacity(tables, kind)?;
    }
    if is_changed {
        let mut budget = tables.admission_budget();
        admission::admit_from_dirty_limits(tables, &mut budget)?;
    }
    Ok(forgotten.len() as u32)
}
