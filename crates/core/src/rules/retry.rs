use crate::bounds::{BATCH_MAX, check_number};
use crate::tables::{Position, Tables};
use crate::{Result, RetryOutcome, State, TaskId};

/// Checks what can be checked without a store.
pub fn check_retry(tasks: &[TaskId]) -> Result<()> {
    check_number("tasks", tasks.len(), BATCH_MAX)
}

/// Brings tasks back to the gate. A completed one stays: it has at most one completion.
pub fn retry(tables: &mut dyn Tables, tasks: &[TaskId]) -> Result<Vec<RetryOutcome>> {
    check_retry(tasks)?;
    tasks.iter().map(|task| retry_one(tables, *task)).collect()
}

fn retry_one(tables: &mut dyn Tables, task: TaskId) -> Result<RetryOutcome> {
    Ok(match tables.position(task)? {
        None => RetryOutcome::NotFound,
        Some(Position::Final(State::Completed)) => RetryOutcome::Completed,
        Some(Position::Final(_)) => {
            if !tables.revive_task(task)? {
                return Ok(RetryOutcome::KeyTaken);
            }
            tables.put_arrived(task)?;
            RetryOutcome::Retried
        }
        Some(Position::Scheduled(run_at)) => {
            tables.take_scheduled(task, run_at)?;
            tables.put_arrival(task, tables.now())?;
            tables.put_arrived(task)?;
            RetryOutcome::Hastened
        }
        Some(_) => RetryOutcome::Unfinished,
    })
}
