use crate::repair::Repair;
use crate::tables::{Position, Tables};
use crate::{CapacitySource, Result};

/// Takes the steps of a plan.
pub fn repair(tables: &mut dyn Tables, plan: &[Repair]) -> Result<()> {
    plan.iter().try_for_each(|step| apply_step(tables, step))
}

fn apply_step(tables: &mut dyn Tables, step: &Repair) -> Result<()> {
    match step {
        Repair::RemovePosition { task, position } => match *position {
            Position::Scheduled(run_at) => tables.remove_scheduled(*task, run_at),
            Position::Inbox => tables.remove_inbox(*task),
            Position::Ready(row) => tables.remove_ready(row),
            Position::Waiting(row) => tables.remove_waiter(row),
            Position::Running(token) => tables.remove_running(*task, token).map(drop),
            Position::Finished(_) => Ok(()),
        },
        Repair::PutInInbox { task } => tables.put_inbox(*task),
        Repair::CreateWorkflowLimit { name } => {
            tables.insert_limit(name, Some(1), CapacitySource::Unset, 0, None).map(drop)
        }
        Repair::RaiseTaskIds { last_task } => tables.set_last_task_id(*last_task),
        Repair::DeleteLease { token } => tables.delete_lease(*token),
        Repair::FreeSlot { limit, number, .. } => tables.free_slot(*limit, *number),
        Repair::AcquireSlots { task, limit, weight, .. } => {
            tables.acquire_slots(*task, *limit, *weight)
        }
        Repair::SetHoldsSlots { task, token } => tables.set_holds_slots(*task, *token),
        Repair::RecountLimit { limit } => tables.put_limit(limit),
        Repair::SetUniqueKeyOwner { key, task } => tables.set_unique_key_owner(key, *task),
        // Whoever keeps such a thing writes it anew.
        Repair::RepairStoreFault { .. } => Ok(()),
        Repair::SetCounters { counters } => tables.set_counters(*counters),
    }
}
