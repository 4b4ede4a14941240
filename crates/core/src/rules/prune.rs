use crate::bounds::GATE_STEP;
use crate::tables::Tables;
use crate::{Pruned, Result};

/// Removes finished tasks that were kept long enough, and limits nobody uses.
pub fn prune(tables: &mut dyn Tables) -> Result<Pruned> {
    let tasks = tables.remove_ended(GATE_STEP)?;
    let idle = tables.idle_limits(GATE_STEP)?;
    let limits = idle.len() as u32;
    for id in idle {
        tables.drop_limit(id)?;
    }
    Ok(Pruned { tasks, limits, more: tasks == GATE_STEP || limits == GATE_STEP })
}
