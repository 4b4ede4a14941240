//! Waits for the end of tasks.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tidegate_core::reader::TaskView;
use tidegate_core::{StoreReader, TaskId, TaskState};
use tidegate_engine::time;

use super::show;
use crate::cli::Global;
use crate::explain;
use crate::flags;
use crate::output::{print, print_json};
use crate::stderr::print_message;

/// The first look comes after so long, every next one after twice as long up to the second.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(super) struct WaitArgs {
    /// The tasks' ids
    #[arg(value_name = "ID", required = true)]
    ids: Vec<i64>,
    /// At most so long for all of them, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration)]
    timeout: Option<jiff::SignedDuration>,
    /// One JSON object with everything about each task instead of its result
    #[arg(long)]
    json: bool,
}

impl WaitArgs {
    pub(super) async fn run(
        self,
        inspect: &dyn StoreReader,
        global: &Global,
    ) -> anyhow::Result<ExitCode> {
        let timeout = self.timeout.map(Duration::try_from).transpose();
        let timeout = timeout.context("--timeout cannot be negative")?;
        let deadline = timeout.map(|timeout| time::now() + timeout);
        let mut code = ExitCode::SUCCESS;
        for id in self.ids {
            let id = TaskId(id);
            let Some(task) = wait_until_finished(inspect, id, deadline).await? else {
                let told = explain::explain_task(inspect, id).await?;
                let why =
                    told.map(|told| format!("; {}", told.summary(global))).unwrap_or_default();
                bail!("the time is up{why}");
            };
            if task.state != TaskState::Completed {
                let error = task.error.as_deref().unwrap_or("nobody said why");
                print_message!("task {id} is {}: {error}", task.state);
                code = ExitCode::FAILURE;
            }
            match (self.json, task.state) {
                (true, _) => print_json([show::task_details(&task)?])?,
                // A line for every task, so that the lines are those of the ids.
                (false, _) => print(&show::format_result(&task))?,
            }
        }
        Ok(code)
    }
}

/// The task once it has ended; none if the time was up before.
async fn wait_until_finished(
    inspect: &dyn StoreReader,
    id: TaskId,
    deadline: Option<time::Instant>,
) -> anyhow::Result<Option<TaskView>> {
    let mut pause = POLL_INTERVAL_MIN;
    loop {
        let Some(task) = inspect.task(id).await? else {
            bail!("{}", super::task_not_found_message(id.0))
        };
        if task.state.is_final() {
            return Ok(Some(task));
        }
        let left = deadline.map(|at| at.saturating_duration_since(time::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        time::sleep(left.map_or(pause, |left| left.min(pause))).await;
        pause = (pause * 2).min(POLL_INTERVAL_MAX);
    }
}
