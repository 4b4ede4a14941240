use super::finish::{kind_of, remove_at};
use super::gate;
use crate::bounds::{BATCH_MAX, check_number};
use crate::planted::{Bug, is_planted};
use crate::tables::{Final, Position, Tables};
use crate::{CancelOutcome, Result, State, TaskId};

/// Checks what can be checked without a store.
pub fn check_cancel(tasks: &[TaskId]) -> Result<()> {
    check_number("tasks", tasks.len(), BATCH_MAX)
}

/// Cancels tasks: what waits ends at once, what runs is told through its heartbeat.
pub fn cancel(tables: &mut dyn Tables, tasks: &[TaskId]) -> Result<Vec<CancelOutcome>> {
    check_cancel(tasks)?;
    let outcomes = tasks.iter().map(|task| cancel_one(tables, *task)).collect();
    let mut budget = tables.gate_budget();
    gate::settle(tables, &mut budget)?;
    outcomes
}

fn cancel_one(tables: &mut dyn Tables, task: TaskId) -> Result<CancelOutcome> {
    let Some(position) = tables.position(task)? else {
        return Ok(CancelOutcome::NotFound);
    };
    let ahead = match position {
        Position::Final(_) => return Ok(CancelOutcome::Finished),
        Position::Running(token) => {
            tables.request_cancel(task, token)?;
            return Ok(CancelOutcome::Requested);
        }
        Position::Scheduled(run_at) => {
            tables.take_scheduled(task, run_at)?;
            false
        }
        Position::Arrived => {
            tables.take_arrived_one(task)?;
            false
        }
        Position::Ready(row) => {
            tables.take_ready(row)?;
            row.gated
        }
        Position::Line(row) => {
            gate::unpark(tables, row)?;
            row.passed
        }
    };
    end(tables, task, ahead)?;
    Ok(CancelOutcome::Cancelled)
}

/// Ends a task that no longer stands anywhere.
fn end(tables: &mut dyn Tables, task: TaskId, ahead: bool) -> Result<()> {
    let Some(tags) = tables.tags(task)? else {
        return Ok(());
    };
    if !is_planted(Bug::CancelKeepsSlot) {
        gate::release(tables, &tags, true, ahead)?;
    }
    let kind = kind_of(tables, &tags)?;
    let remove_at = remove_at(&kind, State::Cancelled, tables.now());
    let end = Final { state: State::Cancelled, result: None, error: None, remove_at };
    tables.end_task(task, &end)
}
