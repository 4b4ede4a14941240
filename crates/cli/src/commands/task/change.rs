//! Cancels or retries tasks, named one by one or by filters.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use tidegate_core::inspect::TaskFilter;
use tidegate_core::{CancelOutcome, Inspect, RetryOutcome, State, Store, TaskId};
use tidegate_measure::table::counted;
use tidegate_store::Opened;

use super::filter::Filter;
use super::show;
use crate::output::{print, print_json};
use crate::tell::tell;

/// Tasks in one step: the store does other things between two of them.
const STEP: u32 = 500;

/// Tasks that `--dry-run` lists.
const LISTED_MAX: usize = 20;

#[derive(Debug, Args)]
pub(super) struct Changes {
    /// The tasks' ids
    #[arg(value_name = "ID")]
    ids: Vec<i64>,
    #[command(flatten)]
    filter: Filter,
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
enum Outcome {
    Cancel(CancelOutcome),
    Retry(RetryOutcome),
}

#[derive(Debug, Serialize)]
struct Changed {
    task: TaskId,
    outcome: Outcome,
}

impl Changes {
    pub(super) async fn run(self, opened: &Opened, change: Change) -> anyhow::Result<ExitCode> {
        match (self.ids.is_empty(), self.filter.is_empty() && !self.all) {
            (true, true) => bail!(
                "which tasks? Name ids, or filters such as --kind; --all means every {} task",
                change.default_words()
            ),
            (false, false) => bail!("ids and filters do not go together; leave one of them out"),
            (false, true) if self.dry_run => self.try_named(&*opened.inspect, change).await,
            (false, true) => self.change_named(&*opened.store, change).await,
            (true, false) => self.change_filtered(opened, change).await,
        }
    }

    async fn try_named(self, inspect: &dyn Inspect, change: Change) -> anyhow::Result<ExitCode> {
        let (mut tasks, mut code) = (Vec::new(), ExitCode::SUCCESS);
        for id in &self.ids {
            match inspect.task(TaskId(*id)).await? {
                Some(task) if change.can_change(task.state) => tasks.push(task),
                Some(task) => {
                    tell!("task {id} is {} and would stay so", task.state);
                    code = ExitCode::FAILURE;
                }
                None => {
                    tell!("{}", super::no_task(*id));
                    code = ExitCode::FAILURE;
                }
            }
        }
        match self.json {
            true => print_json(&tasks)?,
            false => print(&show::table(&tasks, inspect.now().await?).to_string())?,
        }
        change.tell(tasks.len(), 0, true);
        Ok(code)
    }

    /// Whoever names a task wants it changed: what could not be is an error.
    async fn change_named(self, store: &dyn Store, change: Change) -> anyhow::Result<ExitCode> {
        let mut is_done = true;
        for ids in self.ids.chunks(STEP as usize) {
            for changed in step(store, change, ids.iter().map(|id| TaskId(*id)).collect()).await? {
                is_done &= changed.outcome.is_done();
                match self.json {
                    true => print_json([&changed])?,
                    false => tell!("{}", changed.words()),
                }
            }
        }
        Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn change_filtered(self, opened: &Opened, change: Change) -> anyhow::Result<ExitCode> {
        let (json, dry_run) = (self.json, self.dry_run);
        let mut filter = TaskFilter { tasks_max: STEP, ..self.filter.meaning()? };
        if filter.states.is_empty() {
            filter.states = change.default_states();
        }
        if dry_run {
            filter.states.retain(|state| change.can_change(*state));
        }
        if filter.states.is_empty() {
            change.tell(0, 0, dry_run);
            return Ok(ExitCode::SUCCESS);
        }
        let (mut met, mut done) = (0, 0);
        loop {
            let tasks = opened.inspect.tasks(filter.clone()).await?;
            let Some(last) = tasks.last() else { break };
            filter.after = Some(last.id);
            if dry_run {
                let left = LISTED_MAX.saturating_sub(met).min(tasks.len());
                match json {
                    true => print_json(&tasks)?,
                    false if left == 0 => {}
                    false => {
                        let now = opened.inspect.now().await?;
                        print(&show::table(&tasks[..left], now).to_string())?;
                    }
                }
                met += tasks.len();
                continue;
            }
            met += tasks.len();
            let ids = tasks.iter().map(|task| task.id).collect();
            let changed = step(&*opened.store, change, ids).await?;
            done += changed.iter().filter(|one| one.outcome.is_done()).count();
            if json {
                print_json(&changed)?;
            }
        }
        change.tell(met, done, dry_run);
        Ok(ExitCode::SUCCESS)
    }
}

async fn step(
    store: &dyn Store,
    change: Change,
    tasks: Vec<TaskId>,
) -> tidegate_core::Result<Vec<Changed>> {
    let outcomes: Vec<Outcome> = match change {
        Change::Cancel => {
            store.cancel(tasks.clone()).await?.into_iter().map(Outcome::Cancel).collect()
        }
        Change::Retry => {
            store.retry(tasks.clone()).await?.into_iter().map(Outcome::Retry).collect()
        }
    };
    Ok(tasks.into_iter().zip(outcomes).map(|(task, outcome)| Changed { task, outcome }).collect())
}

impl Change {
    fn default_states(self) -> Vec<State> {
        match self {
            Self::Cancel => State::ALL.into_iter().filter(|state| !state.is_final()).collect(),
            Self::Retry => vec![State::Failed],
        }
    }

    fn can_change(self, state: State) -> bool {
        match self {
            Self::Cancel => !state.is_final(),
            Self::Retry => {
                matches!(state, State::Failed | State::Cancelled | State::Scheduled)
            }
        }
    }

    fn default_words(self) -> &'static str {
        match self {
            Self::Cancel => "unfinished",
            Self::Retry => "failed",
        }
    }

    fn tell(self, met: usize, done: usize, dry_run: bool) {
        let (words, past) = match self {
            Self::Cancel => ("would be cancelled", "cancelled, or told to stop"),
            Self::Retry => ("would be retried", "brought back"),
        };
        let cut = if met > LISTED_MAX { ", of which the first are listed" } else { "" };
        let met = counted(met as u64, "task");
        match dry_run {
            true => tell!("{met} {words}{cut}; nothing was changed"),
            false => tell!("{met} met the filter, {done} {past}"),
        }
    }
}

impl Outcome {
    fn is_done(self) -> bool {
        use Outcome::{Cancel, Retry};
        matches!(
            self,
            Cancel(CancelOutcome::Cancelled | CancelOutcome::Requested)
                | Retry(RetryOutcome::Retried | RetryOutcome::Hastened)
        )
    }
}

impl Changed {
    fn words(&self) -> String {
        let Self { task, outcome } = self;
        match outcome {
            Outcome::Cancel(CancelOutcome::Cancelled) => format!("task {task} is cancelled"),
            Outcome::Cancel(CancelOutcome::Requested) => {
                format!("task {task} runs; its worker is told with the next heartbeat")
            }
            Outcome::Cancel(CancelOutcome::Finished) => {
                format!("task {task} has ended already; it stays as it is")
            }
            Outcome::Retry(RetryOutcome::Retried) => format!("task {task} starts anew"),
            Outcome::Retry(RetryOutcome::Hastened) => format!("task {task} is due now"),
            Outcome::Retry(RetryOutcome::Unfinished) => {
                format!("task {task} waits for its turn or runs; `tidegate task explain {task}`")
            }
            Outcome::Retry(RetryOutcome::Completed) => {
                format!("task {task} is completed; submit it again to do its work again")
            }
            Outcome::Retry(RetryOutcome::KeyTaken) => {
                format!("task {task} stays: another unfinished task carries its unique key")
            }
            Outcome::Cancel(CancelOutcome::NotFound) | Outcome::Retry(RetryOutcome::NotFound) => {
                super::no_task(task.0)
            }
        }
    }
}
