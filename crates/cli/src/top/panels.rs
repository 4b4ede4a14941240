//! The lists in cells: which columns each has, and what stands in a row.

use std::collections::BTreeMap;

use tidegate_core::reader::{JobView, QueueView, SlotHolder, WaiterView, WorkerView};
use tidegate_core::{Limit, Millis, TaskState};

use super::screen::Panel;
use super::view::{Detail, View, finished_tasks};
use crate::output::{STATES_UNFINISHED, format_duration, or_dash, state_counts};

/// Cells that a bar is wide.
const BAR_WIDTH: u64 = 10;

/// Column heads, the first with the title of the list. The last columns are the first to be left
/// out where the terminal is narrow.
#[derive(Debug)]
pub(super) struct List {
    pub(super) heads: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    /// What is said where there is no row.
    pub(super) empty_text: &'static str,
}

/// How many rows there are.
pub(super) fn row_count(panel: Panel, view: &View) -> usize {
    match panel {
        Panel::Limits => view.limits.len(),
        Panel::Queues => view.queues.len(),
        Panel::Jobs => view.jobs.len(),
        Panel::Workers => view.workers.len(),
    }
}

/// Some rows of a list.
pub(super) fn list(panel: Panel, view: &View, first: usize, rows_max: usize) -> List {
    let now = view.now;
    match panel {
        Panel::Limits => List {
            heads: heads("limits", &["held", "waiting", "use", "refused", "set by"]),
            rows: cells(&view.limits, first, rows_max, limit_row),
            empty_text: "no limits",
        },
        Panel::Queues => List {
            heads: heads("queues", &queue_columns()),
            rows: cells(&view.queues, first, rows_max, |item| queue_row(item, now)),
            empty_text: "no queue has unfinished tasks",
        },
        Panel::Jobs => List {
            heads: heads("jobs", &job_columns()),
            rows: cells(&view.jobs, first, rows_max, job_row),
            empty_text: "no jobs",
        },
        Panel::Workers => List {
            heads: heads("workers", &["running", "seen again within", "queues", "kinds"]),
            rows: cells(&view.workers, first, rows_max, |item| worker_row(item, now)),
            empty_text: "no worker lives",
        },
    }
}

fn heads(title: &str, others: &[&str]) -> Vec<String> {
    std::iter::once(title).chain(others.iter().copied()).map(str::to_owned).collect()
}

fn cells<T>(
    items: &[T],
    first: usize,
    rows_max: usize,
    row: impl Fn(&T) -> Vec<String>,
) -> Vec<Vec<String>> {
    items.iter().skip(first).take(rows_max).map(row).collect()
}

fn limit_row(limit: &Limit) -> Vec<String> {
    let (capacity, full) = match limit.capacity {
        Some(0) => ("/0".to_owned(), "paused".to_owned()),
        Some(capacity) => {
            (format!("/{capacity}"), progress_bar(limit.held.into(), capacity.into()))
        }
        None => (String::new(), "unlimited".to_owned()),
    };
    let held = format!("{}{capacity}", limit.held);
    let (waiting, refused) = (limit.waiting.to_string(), limit.parked_total.to_string());
    vec![limit.name.to_string(), held, waiting, full, refused, limit.source.to_string()]
}

/// How much of a whole there is. It is full only when all is there, and empty only when nothing is.
fn progress_bar(part: u64, whole: u64) -> String {
    let exact = part.min(whole) * BAR_WIDTH / whole.max(1);
    let filled = if part > 0 { exact.max(1) } else { 0 };
    format!("{}{}", "#".repeat(filled as usize), ".".repeat((BAR_WIDTH - filled) as usize))
}

fn queue_columns() -> Vec<&'static str> {
    let states = STATES_UNFINISHED.map(TaskState::as_str);
    [&["paused for"], &states[..], &["workers"]].concat()
}

fn queue_row(queue: &QueueView, now: Millis) -> Vec<String> {
    let paused = queue.paused_at.map(|at| format_duration((now - at).max(0)));
    let mut row = vec![queue.name.to_string(), or_dash(paused)];
    row.extend(state_counts(&queue.tasks, &STATES_UNFINISHED));
    row.push(queue.workers.to_string());
    row
}

/// The states of a job that its bar does not tell.
const JOB_STATES_SHOWN: [TaskState; 4] =
    [TaskState::Processing, TaskState::Blocked, TaskState::Failed, TaskState::Cancelled];

fn job_columns() -> Vec<&'static str> {
    let states = JOB_STATES_SHOWN.map(TaskState::as_str);
    [&["finished", "progress"], &states[..], &["concurrency", "weight"]].concat()
}

fn job_row(job: &JobView) -> Vec<String> {
    let (ended, all) = (finished_tasks(&job.tasks), total_tasks(&job.tasks));
    let mut row = vec![job.name.to_string(), format!("{ended}/{all}"), progress_bar(ended, all)];
    row.extend(state_counts(&job.tasks, &JOB_STATES_SHOWN));
    row.extend([or_dash(job.concurrency), job.weight.to_string()]);
    row
}

fn total_tasks(tasks: &BTreeMap<TaskState, u64>) -> u64 {
    tasks.values().sum()
}

fn worker_row(worker: &WorkerView, now: Millis) -> Vec<String> {
    let names =
        |names: &[std::sync::Arc<str>]| or_dash((!names.is_empty()).then(|| names.join(",")));
    vec![
        worker.id.to_string(),
        worker.running.to_string(),
        format_duration((worker.alive_until - now).max(0)),
        names(&worker.queues),
        names(&worker.kinds),
    ]
}

/// The holders of a limit and the head of its line, in so many rows.
pub(super) fn detail(limit: &Limit, detail: &Detail, now: Millis, rows_max: usize) -> List {
    let waiting = limit.waiting as usize;
    // A third for the line: who waits is asked for as often as who holds.
    let line_min = detail.waiters.len().min((rows_max / 3).max(1));
    let holders_max = rows_max.saturating_sub(line_min);
    let mut rows =
        truncated_rows(&detail.holders, detail.holders.len(), holders_max, "more", |_, item| {
            holder_row(item, now)
        });
    let left = rows_max.saturating_sub(rows.len());
    rows.extend(truncated_rows(
        &detail.waiters,
        waiting.max(detail.waiters.len()),
        left,
        "behind",
        |at, item| waiter_row(at, item, now),
    ));
    List {
        heads: heads(&limit.name, &["task", "lease or wait", "kind", "worker"]),
        rows,
        empty_text: "nobody holds it, nobody waits",
    }
}

/// How many rows the holders and the line would fill.
pub(super) fn detail_length(detail: &Detail) -> usize {
    detail.holders.len() + detail.waiters.len()
}

/// The first of `all` items, and in the last row how many are left out.
fn truncated_rows<T>(
    items: &[T],
    all: usize,
    rows_max: usize,
    word: &str,
    row: impl Fn(usize, &T) -> Vec<String>,
) -> Vec<Vec<String>> {
    let shown = if all > rows_max { rows_max.saturating_sub(1) } else { rows_max };
    let mut rows: Vec<_> =
        items.iter().take(shown).enumerate().map(|(at, item)| row(at, item)).collect();
    if all > rows.len() && rows_max > 0 {
        rows.push(vec![format!("and {} {word}", all - rows.len())]);
    }
    rows
}

fn holder_row(holder: &SlotHolder, now: Millis) -> Vec<String> {
    let left = holder.expires_at.map(|at| format!("{} left", format_duration((at - now).max(0))));
    vec![
        format!("slot {}", holder.slot),
        holder.task.to_string(),
        left.unwrap_or_else(|| "not running".to_owned()),
        holder.kind.to_string(),
        or_dash(holder.worker.as_ref()),
    ]
}

fn waiter_row(at: usize, waiter: &WaiterView, now: Millis) -> Vec<String> {
    vec![
        format!("place {}", at + 1),
        waiter.task.to_string(),
        format!("{} in line", format_duration((now - waiter.due_at).max(0))),
        waiter.kind.to_string(),
        "-".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_is_full_only_at_capacity() {
        let bars = [(0, 3), (1, 1000), (999, 1000), (3, 3), (5, 3), (0, 0)];
        let bars = bars.map(|(part, whole)| progress_bar(part, whole));
        let full = "##########";
        assert_eq!(bars, ["..........", "#.........", "#########.", full, full, ".........."]);
    }

    #[test]
    fn omitted_rows_are_counted() {
        let rows = |all, rows_max| {
            let rows = truncated_rows(&[1, 2, 3], all, rows_max, "more", |_, item: &i32| {
                vec![item.to_string()]
            });
            rows.concat().join(", ")
        };
        assert_eq!(rows(3, 3), "1, 2, 3");
        assert_eq!(rows(3, 2), "1, and 2 more");
        assert_eq!(rows(9, 9), "1, 2, 3, and 6 more");
        assert_eq!([rows(3, 1), rows(3, 0), rows(0, 1)], ["and 3 more", "", "1"]);
    }
}
