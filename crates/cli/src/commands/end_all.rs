//! Cancels all that is left of a job or a workflow.

use std::time::Duration;

use tidegate_core::inspect::{TaskFilter, TaskView};
use tidegate_core::{Pausable, Pause, State, TaskId};
use tidegate_engine::time;
use tidegate_measure::table::counted;
use tidegate_store::Opened;

use crate::output::STATES_OPEN;
use crate::tell::tell;

/// Tasks in one step: the store does other things between two of them.
const STEP: u32 = 500;

/// How often it is looked whether what runs has stopped.
const INTERVAL: Duration = Duration::from_millis(200);

/// Looks after which somebody is told what is waited for.
const PATIENCE: u32 = 10;

/// Pauses it, cancels its unfinished tasks until there are none, also those that handlers add while
/// they stop, and lets it go on: what is submitted later begins anew. Whoever is interrupted leaves it
/// paused, and can do it again. Returns how many were cancelled or told to stop.
pub(super) async fn end_all(
    opened: &Opened,
    what: Pausable,
    filter: TaskFilter,
) -> anyhow::Result<u64> {
    let pause = |paused| opened.store.pause(Pause { what: what.clone(), paused });
    pause(true).await?;
    let (mut ended, mut looks) = (0, 0);
    loop {
        let states = STATES_OPEN.to_vec();
        let left = TaskFilter { states, tasks_max: STEP, ..filter.clone() };
        let tasks = opened.inspect.tasks(left).await?;
        if tasks.is_empty() {
            break;
        }
        let runs = |task: &&TaskView| task.state == State::Processing;
        let running = tasks.iter().filter(runs).count();
        if looks == 0 || running < tasks.len() {
            let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
            ended += ids.len() as u64;
            opened.store.cancel(ids).await?;
        }
        if running == tasks.len() {
            looks += 1;
            if looks == PATIENCE {
                tell!("waiting for {} to stop", counted(running as u64, "running task"));
            }
            // Where no worker lives nobody else finds out that one has died.
            opened.store.reap().await?;
            time::sleep(INTERVAL).await;
        }
    }
    pause(false).await?;
    Ok(ended)
}
