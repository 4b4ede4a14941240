//! Cancels all that is left of a job or a workflow.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_core::reader::TaskFilter;
use tidegate_core::{PauseTarget, SetPaused, TaskId};
use tidegate_engine::time;
use tidegate_measure::table::counted;
use tidegate_store::StoreHandle;

use crate::output::STATES_UNFINISHED;
use crate::stderr::print_message;

/// Tasks in one step: the store does other things between two of them.
const TASKS_PER_BATCH: u32 = 500;

/// How often it is looked whether what runs has stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Looks after which somebody is told what is waited for.
const POLLS_BEFORE_NOTICE: u32 = 10;

/// Pauses it, cancels its unfinished tasks until there are none, also those that handlers add while
/// they stop, and lets it go on: what is submitted later begins anew. Whoever is interrupted leaves it
/// paused, and can do it again.
pub(super) async fn cancel_all(
    opened: &StoreHandle,
    what: PauseTarget,
    filter: TaskFilter,
) -> anyhow::Result<CancelAllReport> {
    let pause = |paused| opened.store.set_paused(SetPaused { target: what.clone(), paused });
    let stood_still = !pause(true).await?;
    let (mut told, mut looks) = (BTreeSet::new(), 0);
    loop {
        let states = STATES_UNFINISHED.to_vec();
        let left = TaskFilter { states, tasks_max: TASKS_PER_BATCH, ..filter.clone() };
        let left = opened.reader.tasks(left).await?;
        if left.is_empty() {
            break;
        }
        let ids = left.iter().map(|task| task.id);
        let new: Vec<TaskId> = ids.filter(|task| told.insert(*task)).collect();
        if !new.is_empty() {
            opened.store.cancel(new).await?;
            continue;
        }
        looks += 1;
        if looks == POLLS_BEFORE_NOTICE {
            print_message!("waiting for {} to stop", counted(left.len() as u64, "running task"));
        }
        // Where no worker lives nobody else finds out that one has died.
        opened.store.reap().await?;
        time::sleep(POLL_INTERVAL).await;
    }
    pause(false).await?;
    Ok(CancelAllReport { tasks: told.len() as u64, was_paused: stood_still })
}

/// What was ended.
#[derive(Debug)]
pub(super) struct CancelAllReport {
    /// Cancelled, or told to stop.
    tasks: u64,
    was_paused: bool,
}

impl CancelAllReport {
    /// What became of it, in words.
    pub(super) fn describe(&self, what: &str, noun: &str) -> String {
        let words = match self.tasks {
            0 => format!("{what} had no unfinished {noun}s; nothing was cancelled"),
            tasks => {
                format!("{what}: {} cancelled, nothing is unfinished now", counted(tasks, noun))
            }
        };
        match self.was_paused {
            true => format!("{words}; it stood still and goes on"),
            false => words,
        }
    }
}
