//! Cancels or retries tasks, named one by one or by filters.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use tidegate_core::reader::TaskFilter;
use tidegate_core::{CancelOutcome, RetryOutcome, Store, StoreReader, TaskId, TaskState};
use tidegate_measure::table::counted;
use tidegate_store::StoreHandle;

use super::filter::FilterArgs;
use super::show;
use crate::output::{print, print_json};
use crate::stderr::print_message;

/// Tasks in one step: the store does other things between two of them.
const TASKS_PER_BATCH: u32 = 500;

/// Tasks that `--dry-run` lists.
const TASKS_LISTED_MAX: usize = 20;

#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    /// The tasks' ids
    #[arg(value_name = "ID")]
    ids: Vec<i64>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Every task that this can be done to
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Say which tasks are meant, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// One JSON object per task
    #[arg(long)]
    json: bool,
}

/// What is done to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Cancel,
    Retry,
}

/// What became of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum ChangeOutcome {
    Cancel(CancelOutcome),
    Retry(RetryOutcome),
}

#[derive(Debug, Serialize)]
struct ChangedTask {
    task: TaskId,
    outcome: ChangeOutcome,
}

impl ChangeArgs {
    pub(super) async fn run(
        self,
        opened: &StoreHandle,
        change: Change,
    ) -> anyhow::Result<ExitCode> {
        match (self.ids.is_empty(), self.filter.is_empty() && !self.all) {
            (true, true) => bail!(
                "which tasks? Name ids, or filters such as --kind; --all means every {} task",
                change.default_state_name()
            ),
            (false, false) => bail!("ids and filters do not go together; leave one of them out"),
            (false, true) if self.dry_run => self.preview_named(&*opened.reader, change).await,
            (false, true) => self.change_named(&*opened.store, change).await,
            (true, false) => self.change_filtered(opened, change).await,
        }
    }

    async fn preview_named(
        self,
        reader: &dyn StoreReader,
        change: Change,
    ) -> anyhow::Result<ExitCode> {
        let (mut tasks, mut code) = (Vec::new(), ExitCode::SUCCESS);
        for id in &self.ids {
            match reader.task(TaskId(*id)).await? {
                Some(task) if change.can_change(task.state) => tasks.push(task),
                Some(task) => {
                    print_message!("task {id} is {} and would stay so", task.state);
                    code = ExitCode::FAILURE;
                }
                None => {
                    print_message!("{}", super::task_not_found_message(*id));
                    code = ExitCode::FAILURE;
                }
            }
        }
        match self.json {
            true => print_json(&tasks)?,
            false => print(&show::table(&tasks, reader.now().await?).to_string())?,
        }
        change.print_summary(tasks.len(), 0, true);
        Ok(code)
    }

    /// Whoever names a task wants it changed: what could not be is an error.
    async fn change_named(self, store: &dyn Store, change: Change) -> anyhow::Result<ExitCode> {
        let mut is_done = true;
        for ids in self.ids.chunks(TASKS_PER_BATCH as usize) {
            for changed in
                change_batch(store, change, ids.iter().map(|id| TaskId(*id)).collect()).await?
            {
                is_done &= changed.outcome.is_done();
                match self.json {
                    true => print_json([&changed])?,
                    false => print_message!("{}", changed.describe()),
                }
            }
        }
        Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn change_filtered(
        self,
        opened: &StoreHandle,
        change: Change,
    ) -> anyhow::Result<ExitCode> {
        let (json, dry_run) = (self.json, self.dry_run);
        let mut filter = TaskFilter { tasks_max: TASKS_PER_BATCH, ..self.filter.resolve()? };
        if filter.states.is_empty() {
            filter.states = change.default_states();
        }
        if dry_run {
            filter.states.retain(|state| change.can_change(*state));
        }
        if filter.states.is_empty() {
            change.print_summary(0, 0, dry_run);
            return Ok(ExitCode::SUCCESS);
        }
        let (mut met, mut done) = (0, 0);
        loop {
            let tasks = opened.reader.tasks(filter.clone()).await?;
            let Some(last) = tasks.last() else { break };
            filter.after_task = Some(last.id);
            if dry_run {
                let left = TASKS_LISTED_MAX.saturating_sub(met).min(tasks.len());
                match json {
                    true => print_json(&tasks)?,
                    false if left == 0 => {}
                    false => {
                        let now = opened.reader.now().await?;
                        print(&show::table(&tasks[..left], now).to_string())?;
                    }
                }
                met += tasks.len();
                continue;
            }
            met += tasks.len();
            let ids = tasks.iter().map(|task| task.id).collect();
            let changed = change_batch(&*opened.store, change, ids).await?;
            done += changed.iter().filter(|one| one.outcome.is_done()).count();
            if json {
                print_json(&changed)?;
            }
        }
        change.print_summary(met, done, dry_run);
        Ok(ExitCode::SUCCESS)
    }
}

async fn change_batch(
    store: &dyn Store,
    change: Change,
    tasks: Vec<TaskId>,
) -> tidegate_core::Result<Vec<ChangedTask>> {
    let outcomes: Vec<ChangeOutcome> = match change {
        Change::Cancel => {
            store.cancel(tasks.clone()).await?.into_iter().map(ChangeOutcome::Cancel).collect()
        }
        Change::Retry => {
            store.retry(tasks.clone()).await?.into_iter().map(ChangeOutcome::Retry).collect()
        }
    };
    Ok(tasks
        .into_iter()
        .zip(outcomes)
        .map(|(task, outcome)| ChangedTask { task, outcome })
        .collect())
}

impl Change {
    fn default_states(self) -> Vec<TaskState> {
        match self {
            Self::Cancel => TaskState::ALL.into_iter().filter(|state| !state.is_final()).collect(),
            Self::Retry => vec![TaskState::Failed],
        }
    }

    fn can_change(self, state: TaskState) -> bool {
        match self {
            Self::Cancel => !state.is_final(),
            Self::Retry => {
                matches!(state, TaskState::Failed | TaskState::Cancelled | TaskState::Scheduled)
            }
        }
    }

    fn default_state_name(self) -> &'static str {
        match self {
            Self::Cancel => "unfinished",
            Self::Retry => "failed",
        }
    }

    fn print_summary(self, met: usize, done: usize, dry_run: bool) {
        let (words, past) = match self {
            Self::Cancel => ("would be cancelled", "cancelled, or told to stop"),
            Self::Retry => ("would be retried", "brought back"),
        };
        let cut = if met > TASKS_LISTED_MAX { ", of which the first are listed" } else { "" };
        let met = counted(met as u64, "task");
        match dry_run {
            true => print_message!("{met} {words}{cut}; nothing was changed"),
            false => print_message!("{met} met the filter, {done} {past}"),
        }
    }
}

impl ChangeOutcome {
    fn is_done(self) -> bool {
        use ChangeOutcome::{Cancel, Retry};
        matches!(
            self,
            Cancel(CancelOutcome::Cancelled | CancelOutcome::Requested)
                | Retry(RetryOutcome::Retried | RetryOutcome::MadeDue)
        )
    }
}

impl ChangedTask {
    fn describe(&self) -> String {
        let Self { task, outcome } = self;
        match outcome {
            ChangeOutcome::Cancel(CancelOutcome::Cancelled) => format!("task {task} is cancelled"),
            ChangeOutcome::Cancel(CancelOutcome::Requested) => {
                format!("task {task} runs; its worker is told with the next heartbeat")
            }
            ChangeOutcome::Cancel(CancelOutcome::Finished) => {
                format!("task {task} has ended already; it stays as it is")
            }
            ChangeOutcome::Retry(RetryOutcome::Retried) => format!("task {task} starts anew"),
            ChangeOutcome::Retry(RetryOutcome::MadeDue) => format!("task {task} is due now"),
            ChangeOutcome::Retry(RetryOutcome::Unfinished) => {
                format!("task {task} waits for its turn or runs; `tidegate task explain {task}`")
            }
            ChangeOutcome::Retry(RetryOutcome::Completed) => {
                format!("task {task} is completed; submit it again to do its work again")
            }
            ChangeOutcome::Retry(RetryOutcome::UniqueKeyTaken) => {
                format!("task {task} stays: another unfinished task carries its unique key")
            }
            ChangeOutcome::Cancel(CancelOutcome::NotFound)
            | ChangeOutcome::Retry(RetryOutcome::NotFound) => super::task_not_found_message(task.0),
        }
    }
}
