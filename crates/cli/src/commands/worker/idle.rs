//! `--until-idle`: ends the worker when nothing is left that it serves.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::inspect::{TaskFilter, TaskView};
use tidegate_core::{Inspect, Kind, State, TaskId};
use tidegate_engine::{Phase, Shutdown, time};
use tidegate_measure::table::counted;
use tokio::task::AbortHandle;

use crate::cli::Global;
use crate::explain;
use crate::output::STATES_OPEN;
use crate::run::{Stall, is_mark};
use crate::tell::tell;

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(200);

/// Tasks in the first page of a look, which as a rule has one that is served.
const PAGE_FIRST: u32 = 16;

/// Tasks in the pages after it.
const PAGE: u32 = 500;

/// What a worker takes.
#[derive(Debug)]
pub(super) struct Served {
    queues: Vec<String>,
    kinds: Vec<String>,
}

impl Served {
    /// The queues are those of the kinds where none is named.
    pub(super) fn new(queues: &[String], kinds: &[Kind]) -> Self {
        let queues = match queues {
            [] => kinds.iter().map(|kind| kind.queue.to_string()).collect(),
            named => named.to_vec(),
        };
        Self { queues, kinds: kinds.iter().map(|kind| kind.name.to_string()).collect() }
    }

    fn takes(&self, task: &TaskView) -> bool {
        self.queues.iter().any(|queue| **queue == *task.queue)
            && self.kinds.iter().any(|kind| **kind == *task.kind)
    }
}

/// What is unfinished.
enum Left {
    /// The first task that it serves.
    Served(TaskId),
    /// Tasks of others only: how many, and the first.
    Others(u64, Option<TaskId>),
}

/// Waits for the end of all work that a worker serves.
pub(super) struct Idle {
    inspect: Arc<dyn Inspect>,
    shutdown: Shutdown,
    served: Served,
    /// The first task that it serves, as of the last look. Those before it are of others, however many.
    first: Option<TaskId>,
}

impl Idle {
    pub(super) fn new(inspect: Arc<dyn Inspect>, shutdown: Shutdown, served: Served) -> Self {
        Self { inspect, shutdown, served, first: None }
    }

    /// Drains without the talk of signals: there was none.
    pub(super) async fn drain(mut self, global: &Global, told: AbortHandle) {
        let mut stall = Stall::new();
        loop {
            time::sleep(INTERVAL).await;
            match self.look().await {
                Ok(Left::Others(tasks, first)) => {
                    if self.shutdown.phase() == Phase::Running {
                        told.abort();
                        self.tell_idle(global, tasks, first).await;
                    }
                    return self.shutdown.drain();
                }
                Ok(Left::Served(first)) => {
                    if let Err(error) = self.tell_stall(global, &mut stall, first).await {
                        tell!("warning: cannot see why nothing runs: {error}");
                    }
                }
                Err(error) => tell!("warning: cannot see whether work is left: {error}"),
            }
        }
    }

    /// Looks from the first one of the last look on. Where there is none, somebody may have brought back
    /// one that is before it.
    async fn look(&mut self) -> tidegate_core::Result<Left> {
        let mut left = self.look_after(self.first.map_or(0, |first| first.0 - 1)).await?;
        if self.first.is_some() && matches!(left, Left::Others(..)) {
            left = self.look_after(0).await?;
        }
        self.first = match left {
            Left::Served(first) => Some(first),
            Left::Others(..) => None,
        };
        Ok(left)
    }

    async fn look_after(&self, id: i64) -> tidegate_core::Result<Left> {
        let (states, after) = (STATES_OPEN.to_vec(), Some(TaskId(id)));
        let mut filter =
            TaskFilter { states, after, tasks_max: PAGE_FIRST, ..TaskFilter::default() };
        let (mut others, mut first_other) = (0, None);
        loop {
            let page = self.inspect.tasks(filter.clone()).await?;
            if let Some(task) = page.iter().find(|task| self.served.takes(task)) {
                return Ok(Left::Served(task.id));
            }
            let mut of_others = page.iter().filter(|task| !is_mark(&task.kind)).map(|task| task.id);
            others += of_others.clone().count() as u64;
            first_other = first_other.or_else(|| of_others.next());
            let Some(last) = page.last() else { return Ok(Left::Others(others, first_other)) };
            (filter.after, filter.tasks_max) = (Some(last.id), PAGE);
        }
    }

    /// Says that it ends, and what becomes of the rest.
    async fn tell_idle(&self, global: &Global, tasks: u64, first: Option<TaskId>) {
        let Some(first) = first else {
            return tell!("idle: no unfinished task is left");
        };
        let why = explain::ask(&*self.inspect, first).await.ok().flatten();
        let why = why.map(|why| format!(": {}", why.words(global))).unwrap_or_default();
        let tasks = counted(tasks, "task");
        tell!("idle: nothing is left that this worker serves; {tasks} left for others{why}");
    }

    /// Says why it does not end, where nothing runs for a while.
    async fn tell_stall(
        &self,
        global: &Global,
        stall: &mut Stall,
        first: TaskId,
    ) -> tidegate_core::Result<()> {
        let counts = self.inspect.counts().await?;
        let number = |is_meant: fn(State) -> bool| {
            counts.iter().filter(|(state, _)| is_meant(**state)).map(|(_, n)| *n as usize).sum()
        };
        let left: usize = number(|state| !state.is_final());
        if !stall.is_due((number(|state| state == State::Processing), 0, left)) {
            return Ok(());
        }
        if let Some(why) = explain::ask(&*self.inspect, first).await?
            && stall.is_news(&why.explanation.reason)
        {
            tell!("nothing runs, {} left; {}", counted(left as u64, "task"), why.words(global));
        }
        Ok(())
    }
}
