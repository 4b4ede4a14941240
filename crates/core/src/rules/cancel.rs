use super::admission;
use super::finish::{kind_of_task, removal_time};
use crate::bounds::{BATCH_MAX, check_batch_size};
use crate::fault_injection::{InjectedBug, is_injected};
use crate::tables::{FinishedTask, Position, Tables};
use crate::{CancelOutcome, Result, TaskId, TaskState};

/// Checks what can be checked without a store.
pub fn check_cancel(tasks: &[TaskId]) -> Result<()> {
    check_batch_size("tasks", tasks.len(), BATCH_MAX)
}

/// Cancels tasks: what waits ends at once, what runs is told through its heartbeat.
pub fn cancel(tables: &mut dyn Tables, tasks: &[TaskId]) -> Result<Vec<CancelOutcome>> {
    check_cancel(tasks)?;
    let outcomes = tasks.iter().map(|task| cancel_task(tables, *task)).collect();
    let mut budget = tables.admission_budget();
    admission::admit_from_dirty_limits(tables, &mut budget)?;
    outcomes
}

fn cancel_task(tables: &mut dyn Tables, task: TaskId) -> Result<CancelOutcome> {
    let Some(position) = tables.position(task)? else {
        return Ok(CancelOutcome::NotFound);
    };
    let ahead = match position {
        Position::Finished(_) => return Ok(CancelOutcome::Finished),
        Position::Running(token) => {
            tables.request_cancel(task, token)?;
            return Ok(CancelOutcome::Requested);
        }
        Position::Scheduled(run_at) => {
            tables.remove_scheduled(task, run_at)?;
            false
        }
        Position::Inbox => {
            tables.remove_inbox(task)?;
            false
        }
        Position::Ready(row) => {
            tables.remove_ready(row)?;
            row.holds_slots
        }
        Position::Waiting(row) => {
            admission::unpark(tables, row)?;
            row.in_job_window
        }
    };
    finish_cancelled(tables, task, ahead)?;
    Ok(CancelOutcome::Cancelled)
}

/// Ends a task that no longer stands anywhere.
fn finish_cancelled(tables: &mut dyn Tables, task: TaskId, in_window: bool) -> Result<()> {
    let Some(tags) = tables.task_info(task)? else {
        return Ok(());
    };
    if !is_injected(InjectedBug::CancelKeepsSlot) {
        admission::release_task_slots(tables, &tags, true, in_window)?;
    }
    let kind = kind_of_task(tables, &tags)?;
    let remove_at = removal_time(&kind, TaskState::Cancelled, tables.now());
    let end = FinishedTask { state: TaskState::Cancelled, result: None, error: None, remove_at };
    tables.finish_task(task, &end)
}
