//! `--until-idle`: ends the worker when nothing is left that it serves.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::reader::{TaskFilter, TaskView};
use tidegate_core::{Kind, StoreReader, TaskId, TaskState};
use tidegate_engine::{Shutdown, ShutdownPhase, time};
use tidegate_measure::table::counted;
use tokio::task::AbortHandle;

use crate::cli::Global;
use crate::explain;
use crate::output::STATES_UNFINISHED;
use crate::run::{StallDetector, is_checkpoint_kind};
use crate::stderr::print_message;

/// How often it looks.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Tasks in the first page of a look, which as a rule has one that is served.
const FIRST_PAGE_TASKS: u32 = 16;

/// Tasks in the pages after it.
const PAGE_TASKS: u32 = 500;

/// What a worker takes.
#[derive(Debug)]
pub(super) struct ServedScope {
    queues: Vec<String>,
    kinds: Vec<String>,
}

impl ServedScope {
    /// The queues are those of the kinds where none is named.
    pub(super) fn new(queues: &[String], kinds: &[Kind]) -> Self {
        let queues = match queues {
            [] => kinds.iter().map(|kind| kind.queue.to_string()).collect(),
            named => named.to_vec(),
        };
        Self { queues, kinds: kinds.iter().map(|kind| kind.name.to_string()).collect() }
    }

    fn includes(&self, task: &TaskView) -> bool {
        self.queues.iter().any(|queue| **queue == *task.queue)
            && self.kinds.iter().any(|kind| **kind == *task.kind)
    }
}

/// What is unfinished.
enum UnfinishedTasks {
    /// The first task that it serves.
    Served(TaskId),
    /// Tasks of others only: how many, and the first.
    Others(u64, Option<TaskId>),
}

/// Waits for the end of all work that a worker serves.
pub(super) struct UntilIdle {
    reader: Arc<dyn StoreReader>,
    shutdown: Shutdown,
    served: ServedScope,
    /// The first task that it serves, as of the last look. Those before it are of others, however many.
    first: Option<TaskId>,
}

impl UntilIdle {
    pub(super) fn new(
        reader: Arc<dyn StoreReader>,
        shutdown: Shutdown,
        served: ServedScope,
    ) -> Self {
        Self { reader, shutdown, served, first: None }
    }

    /// Drains without the talk of signals: there was none.
    pub(super) async fn drain_when_idle(mut self, global: &Global, told: AbortHandle) {
        let mut stall = StallDetector::new();
        loop {
            time::sleep(POLL_INTERVAL).await;
            match self.find_unfinished().await {
                Ok(UnfinishedTasks::Others(tasks, first)) => {
                    if self.shutdown.phase() == ShutdownPhase::Running {
                        told.abort();
                        self.print_idle(global, tasks, first).await;
                    }
                    return self.shutdown.drain();
                }
                Ok(UnfinishedTasks::Served(first)) => {
                    if let Err(error) = self.print_stall(global, &mut stall, first).await {
                        print_message!("warning: cannot see why nothing runs: {error}");
                    }
                }
                Err(error) => print_message!("warning: cannot see whether work is left: {error}"),
            }
        }
    }

    /// Looks from the first one of the last look on. Where there is none, somebody may have brought back
    /// one that is before it.
    async fn find_unfinished(&mut self) -> tidegate_core::Result<UnfinishedTasks> {
        let mut left =
            self.find_unfinished_after(self.first.map_or(0, |first| first.0 - 1)).await?;
        if self.first.is_some() && matches!(left, UnfinishedTasks::Others(..)) {
            left = self.find_unfinished_after(0).await?;
        }
        self.first = match left {
            UnfinishedTasks::Served(first) => Some(first),
            UnfinishedTasks::Others(..) => None,
        };
        Ok(left)
    }

    async fn find_unfinished_after(&self, id: i64) -> tidegate_core::Result<UnfinishedTasks> {
        let (states, after) = (STATES_UNFINISHED.to_vec(), Some(TaskId(id)));
        let mut filter = TaskFilter {
            states,
            after_task: after,
            tasks_max: FIRST_PAGE_TASKS,
            ..TaskFilter::default()
        };
        let (mut others, mut first_other) = (0, None);
        loop {
            let page = self.reader.tasks(filter.clone()).await?;
            if let Some(task) = page.iter().find(|task| self.served.includes(task)) {
                return Ok(UnfinishedTasks::Served(task.id));
            }
            let mut of_others =
                page.iter().filter(|task| !is_checkpoint_kind(&task.kind)).map(|task| task.id);
            others += of_others.clone().count() as u64;
            first_other = first_other.or_else(|| of_others.next());
            let Some(last) = page.last() else {
                return Ok(UnfinishedTasks::Others(others, first_other));
            };
            (filter.after_task, filter.tasks_max) = (Some(last.id), PAGE_TASKS);
        }
    }

    /// Says that it ends, and what becomes of the rest.
    async fn print_idle(&self, global: &Global, tasks: u64, first: Option<TaskId>) {
        let Some(first) = first else {
            return print_message!("idle: no unfinished task is left");
        };
        let why = explain::explain_task(&*self.reader, first).await.ok().flatten();
        let why = why.map(|why| format!(": {}", why.summary(global))).unwrap_or_default();
        let tasks = counted(tasks, "task");
        print_message!(
            "idle: nothing is left that this worker serves; {tasks} left for others{why}"
        );
    }

    /// Says why it does not end, where nothing runs for a while.
    async fn print_stall(
        &self,
        global: &Global,
        stall: &mut StallDetector,
        first: TaskId,
    ) -> tidegate_core::Result<()> {
        let counts = self.reader.task_counts().await?;
        let number = |is_meant: fn(TaskState) -> bool| {
            counts.iter().filter(|(state, _)| is_meant(**state)).map(|(_, n)| *n as usize).sum()
        };
        let left: usize = number(|state| !state.is_final());
        if !stall.is_due((number(|state| state == TaskState::Processing), 0, left)) {
            return Ok(());
        }
        if let Some(why) = explain::explain_task(&*self.reader, first).await?
            && stall.should_report(&why.explanation.reason)
        {
            print_message!(
                "nothing runs, {} left; {}",
                counted(left as u64, "task"),
                why.summary(global)
            );
        }
        Ok(())
    }
}
