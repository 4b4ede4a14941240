//! Submits a file in parts, so that the same file can be run again after it was interrupted.
//!
//! Every part is one submission, all or none, and brings a mark with it: a task that is never
//! due and whose unique key names the file's content and the part. A part whose mark is there was
//! submitted, and only what is unfinished of it is worked off. When nothing is left the marks are
//! taken away, and the next run of the file begins anew.

use std::collections::BTreeMap;

use tidegate_core::bounds::DURATION_MS_MAX;
use tidegate_core::reader::TaskFilter;
use tidegate_core::{
    Kind, NewTask, Registration, Result, Store, StoreReader, Submission, TaskId, TaskState,
};

use crate::run_file::Plan;

/// Tasks in one part.
const CHUNK_TASKS: usize = 2000;

/// Tasks in one page of a list.
const PAGE_TASKS: u32 = 5000;

/// The kind of the marks. Nobody serves it.
const CHECKPOINT_KIND: &str = "tidegate:run";

/// What became of a file.
#[derive(Debug)]
pub(crate) struct SubmitReport {
    /// Tasks stored by this run.
    pub(crate) stored: usize,
    /// Whether an earlier run had stored parts of it.
    pub(crate) continued: bool,
    /// The first of the tasks stored by this run.
    pub(crate) first: Option<TaskId>,
}

/// Submits every part of a plan that is not yet there.
pub(crate) async fn submit(
    store: &dyn Store,
    inspect: &dyn StoreReader,
    plan: &Plan,
) -> Result<SubmitReport> {
    let mut mark = Kind::new(CHECKPOINT_KIND);
    mark.remove_on_completed_days = Some(0);
    mark.remove_on_failed_days = Some(0);
    store.register(Registration { kinds: vec![mark], ..Registration::default() }).await?;
    let marks = checkpoints(inspect, &plan.run_id).await?;
    let now = inspect.now().await?;
    let (mut stored, mut first) = (0, None);
    for (number, part) in plan.tasks.chunks(CHUNK_TASKS).enumerate() {
        let key = checkpoint_key(&plan.run_id, number);
        if marks.contains_key(&key) {
            continue;
        }
        let mut tasks = vec![NewTask {
            unique_key: Some(key),
            run_at: Some(now + DURATION_MS_MAX),
            ..NewTask::new(CHECKPOINT_KIND, "null")
        }];
        for (place, planned) in part.iter().enumerate() {
            let mut task = planned.task.clone();
            task.unique_key = Some(task_key(&plan.run_id, number * CHUNK_TASKS + place));
            task.run_at = planned.delay_ms.map(|delay| now + delay);
            tasks.push(task);
        }
        let jobs = plan.jobs.clone();
        let submitted = store.submit(Submission { jobs, tasks, ..Submission::default() }).await?;
        let new: Vec<TaskId> =
            submitted.iter().skip(1).filter(|task| task.is_new).map(|task| task.task).collect();
        stored += new.len();
        first = first.or(new.first().copied());
    }
    Ok(SubmitReport { stored, continued: !marks.is_empty(), first })
}

/// The unfinished tasks of a run, by job or else by kind.
pub(crate) async fn remaining_tasks(
    inspect: &dyn StoreReader,
    run: &str,
) -> Result<BTreeMap<TaskId, String>> {
    let prefix = task_prefix(run);
    let mut remaining = BTreeMap::new();
    let is_ours = |key: &str| key.starts_with(&prefix);
    for_each_unfinished(inspect, None, |task| {
        if task.unique_key.as_deref().is_some_and(is_ours) {
            let heading = task_heading(task.job.as_deref(), &task.kind);
            remaining.insert(task.id, heading);
        }
    })
    .await?;
    Ok(remaining)
}

/// Whether a run was worked off before and its tasks are kept: a task that ended, of a run whose
/// marks are taken away, was part of it. Looks back over so many ids before `first` and no more:
/// it is a courtesy, and a store may keep millions of tasks that ended.
pub(crate) async fn was_run_before(
    inspect: &dyn StoreReader,
    plan: &Plan,
    first: TaskId,
) -> Result<bool> {
    const LOOK_BACK: i64 = 100_000;
    let Some(planned) = plan.tasks.first() else {
        return Ok(false);
    };
    let prefix = task_prefix(&plan.run_id);
    let mut filter = TaskFilter {
        states: TaskState::ALL.into_iter().filter(|state| state.is_final()).collect(),
        kind: Some(planned.task.kind.clone()),
        job: planned.task.job.clone(),
        after_task: Some(TaskId((first.0 - LOOK_BACK).max(0))),
        tasks_max: PAGE_TASKS,
        ..TaskFilter::default()
    };
    loop {
        let page = inspect.tasks(filter.clone()).await?;
        let is_ours = |key: &str| key.starts_with(&prefix);
        let mut before = page.iter().filter(|task| task.id < first);
        if before.any(|task| task.unique_key.as_deref().is_some_and(is_ours)) {
            return Ok(true);
        }
        match page.last() {
            Some(last) if page.len() == PAGE_TASKS as usize && last.id < first => {
                filter.after_task = Some(last.id);
            }
            _ => return Ok(false),
        }
    }
}

/// Whether a kind is that of the marks, which nobody works on.
pub(crate) fn is_checkpoint_kind(kind: &str) -> bool {
    kind == CHECKPOINT_KIND
}

/// Takes the marks away.
pub(crate) async fn remove_checkpoints(
    store: &dyn Store,
    reader: &dyn StoreReader,
    run: &str,
) -> Result<()> {
    let marks: Vec<TaskId> = checkpoints(reader, run).await?.into_values().collect();
    store.cancel(marks).await.map(drop)
}

/// What a task is counted under: its job, or its kind where it has none.
pub(crate) fn task_heading(job: Option<&str>, kind: &str) -> String {
    job.map_or_else(|| format!("kind {kind}"), |job| format!("job {job}"))
}

fn checkpoint_key(run: &str, part: usize) -> String {
    format!("run:{run}:part:{part}")
}

fn task_prefix(run: &str) -> String {
    format!("run:{run}:task:")
}

fn task_key(run: &str, place: usize) -> String {
    format!("{}{place}", task_prefix(run))
}

/// The marks of a run by their keys.
async fn checkpoints(reader: &dyn StoreReader, run: &str) -> Result<BTreeMap<String, TaskId>> {
    let prefix = format!("run:{run}:part:");
    let mut marks = BTreeMap::new();
    for_each_unfinished(reader, Some(CHECKPOINT_KIND), |task| {
        if let Some(key) = task.unique_key.as_deref().filter(|key| key.starts_with(&prefix)) {
            marks.insert(key.to_owned(), task.id);
        }
    })
    .await?;
    Ok(marks)
}

/// Unfinished tasks, so many at a time.
fn unfinished_filter(tasks_max: u32) -> TaskFilter {
    let states = TaskState::ALL.into_iter().filter(|state| !state.is_final()).collect();
    TaskFilter { states, tasks_max, ..TaskFilter::default() }
}

async fn for_each_unfinished(
    inspect: &dyn StoreReader,
    kind: Option<&str>,
    mut look: impl FnMut(&tidegate_core::reader::TaskView),
) -> Result<()> {
    let mut filter = TaskFilter { kind: kind.map(str::to_owned), ..unfinished_filter(PAGE_TASKS) };
    loop {
        let page = inspect.tasks(filter.clone()).await?;
        page.iter().for_each(&mut look);
        match page.last() {
            Some(last) if page.len() == PAGE_TASKS as usize => filter.after_task = Some(last.id),
            _ => return Ok(()),
        }
    }
}
