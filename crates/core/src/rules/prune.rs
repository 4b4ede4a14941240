use crate::bounds::GATE_STEP;
use crate::tables::Tables;
use crate::{Pruned, Result};

/// How long the pace of a group is remembered of which nothing is heard.
pub const PACE_KEPT_MS: i64 = 7 * 24 * 60 * 60 * 1000;

/// Removes finished tasks that were kept long enough, limits nobody uses, and what was noted of
/// leases and groups that are gone.
pub fn prune(tables: &mut dyn Tables) -> Result<Pruned> {
    let tasks = tables.remove_ended(GATE_STEP)?;
    let idle = tables.idle_limits(GATE_STEP)?;
    let limits = idle.len() as u32;
    for id in idle {
        tables.drop_limit(id)?;
    }
    tables.forget_fenced()?;
    tables.forget_paces(tables.now() - PACE_KEPT_MS)?;
    Ok(Pruned { tasks, limits, more: tasks == GATE_STEP || limits == GATE_STEP })
}
