use crate::bounds::{BATCH_MAX, check_batch_size};
use crate::tables::{Position, Tables};
use crate::{Result, RetryOutcome, TaskId, TaskState};

/// Checks what can be checked without a store.
pub fn check_retry(tasks: &[TaskId]) -> Result<()> {
    check_batch_size("tasks", tasks.len(), BATCH_MAX)
}

/// Brings tasks back to the gate. A completed one stays: it has at most one completion.
pub fn retry(tables: &mut dyn Tables, tasks: &[TaskId]) -> Result<Vec<RetryOutcome>> {
    check_retry(tasks)?;
    tasks.iter().map(|task| retry_task(tables, *task)).collect()
}

fn retry_task(tables: &mut dyn Tables, task: TaskId) -> Result<RetryOutcome> {
    Ok(match tables.position(task)? {
        None => RetryOutcome::NotFound,
        Some(Position::Finished(TaskState::Completed)) => RetryOutcome::Completed,
        Some(Position::Finished(_)) => {
            if !tables.restart_finished_task(task)? {
                return Ok(RetryOutcome::UniqueKeyTaken);
            }
            tables.put_inbox(task)?;
            RetryOutcome::Retried
        }
        Some(Position::Scheduled(run_at)) => {
            tables.remove_scheduled(task, run_at)?;
            tables.set_due_at(task, tables.now())?;
            tables.put_inbox(task)?;
            RetryOutcome::MadeDue
        }
        Some(_) => RetryOutcome::Unfinished,
    })
}
