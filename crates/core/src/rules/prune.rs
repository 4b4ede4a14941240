use super::gate;
use super::register::{forget_registered, reconsider};
use crate::bounds::{DAY_MS, GATE_STEP};
use crate::tables::Tables;
use crate::{Pruned, Result};

/// How long the pace of a group is remembered of which nothing is heard.
pub const PACE_KEPT_MS: i64 = 7 * DAY_MS;

/// How long a kind is remembered that no worker registers any more. Whoever submits from SQL
/// needs kinds to be known, also while nobody serves them.
pub const KIND_KEPT_MS: i64 = 30 * DAY_MS;

/// Removes finished tasks that were kept long enough, limits nobody uses, what workers registered
/// that are gone, and what was noted of leases and groups that are gone.
pub fn prune(tables: &mut dyn Tables) -> Result<Pruned> {
    let tasks = tables.remove_ended(GATE_STEP)?;
    let kinds = prune_registered(tables)?;
    let idle = tables.idle_limits(GATE_STEP)?;
    let limits = idle.len() as u32;
    for id in idle {
        tables.drop_limit(id)?;
    }
    tables.forget_fenced()?;
    tables.forget_paces(tables.now() - PACE_KEPT_MS)?;
    Ok(Pruned { tasks, limits, kinds, more: tasks == GATE_STEP || limits == GATE_STEP })
}

/// Brings what is registered up to what live workers say, and forgets kinds that are gone.
fn prune_registered(tables: &mut dyn Tables) -> Result<u32> {
    let mut is_changed = false;
    for group in tables.registered_groups()? {
        is_changed |= reconsider(tables, &group)?.is_some();
    }
    let forgotten = tables.forget_kinds(tables.now() - KIND_KEPT_MS)?;
    for kind in &forgotten {
        forget_registered(tables, kind)?;
    }
    if is_changed {
        let mut budget = tables.gate_budget();
        gate::settle(tables, &mut budget)?;
    }
    Ok(forgotten.len() as u32)
}
