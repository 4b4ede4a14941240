use crate::repair::Repair;
use crate::tables::{Position, Tables};
use crate::{Result, Source};

/// Takes the steps of a plan.
pub fn repair(tables: &mut dyn Tables, plan: &[Repair]) -> Result<()> {
    plan.iter().try_for_each(|step| take(tables, step))
}

fn take(tables: &mut dyn Tables, step: &Repair) -> Result<()> {
    match step {
        Repair::Leave { task, position } => match *position {
            Position::Scheduled(run_at) => tables.take_scheduled(*task, run_at),
            Position::Arrived => tables.take_arrived_one(*task),
            Position::Ready(row) => tables.take_ready(row),
            Position::Line(row) => tables.take_line(row),
            Position::Running(token) => tables.stop(*task, token).map(drop),
            Position::Final(_) => Ok(()),
        },
        Repair::Arrive { task } => tables.put_arrived(*task),
        Repair::MakeLimit { name } => {
            tables.make_limit(name, Some(1), Source::Unset, 0, None).map(drop)
        }
        Repair::RaiseTaskIds { last_task } => tables.set_last_task(*last_task),
        Repair::EndLease { token } => tables.drop_lease(*token),
        Repair::FreeSlot { limit, number, .. } => tables.free_slot(*limit, *number),
        Repair::TakeSlots { task, limit, weight, .. } => tables.take_slots(*task, *limit, *weight),
        Repair::SetGated { task, token } => tables.set_gated(*task, *token),
        Repair::Count { limit } => tables.put_limit(limit),
        Repair::PutKey { key, task } => tables.put_key(key, *task),
        // Whoever keeps such a thing writes it anew.
        Repair::Renew { .. } => Ok(()),
        Repair::SetCounters { counters } => tables.set_counters(*counters),
    }
}
