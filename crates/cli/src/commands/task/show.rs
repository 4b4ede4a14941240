//! A task for people, and for programs.

use serde::Serialize;
use serde_json::value::RawValue;
use tidegate_core::Millis;
use tidegate_core::reader::TaskView;
use tidegate_measure::table::{Table, printable};

use crate::output::{format_date, format_duration, or_dash};

pub(super) fn table(tasks: &[TaskView], now: Millis) -> Table {
    let heads =
        ["id", "kind", "state", "queue", "job", "workflow", "failed attempts", "age", "error"];
    let mut table = Table::new(&heads);
    for task in tasks {
        table.row(vec![
            task.id.to_string(),
            task.kind.to_string(),
            task.state.to_string(),
            task.queue.to_string(),
            or_dash(task.job.as_deref()),
            or_dash(task.workflow.as_deref()),
            format!("{} of {}", task.attempts_used, task.max_attempts),
            format_duration((now - task.created_at).max(0)),
            or_dash(task.error.as_deref().map(first_line)),
        ]);
    }
    table
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// A task with its payload and its result, byte by byte as they are stored.
#[derive(Debug, Serialize)]
pub(super) struct TaskDetails<'a> {
    #[serde(flatten)]
    task: &'a TaskView,
    payload: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
}

/// Payload and result as JSON beside the rest.
pub(super) fn task_details(task: &TaskView) -> anyhow::Result<TaskDetails<'_>> {
    let payload = task.payload.as_deref().map(serde_json::from_slice).transpose()?;
    let result = task.result.as_deref().map(serde_json::from_slice).transpose()?;
    Ok(TaskDetails { task, payload, result })
}

pub(super) fn format_task(task: &TaskView) -> String {
    let bytes = |bytes: &Option<Vec<u8>>| bytes.as_deref().map(json_line);
    let progress = task
        .progress
        .as_ref()
        .map(|progress| format!("{} %, {}", progress.percent, progress.message));
    let group = task.group.as_ref().unwrap_or(&task.kind).to_string();
    let rows = [
        ("id", Some(task.id.to_string())),
        ("kind", Some(task.kind.to_string())),
        ("state", Some(task.state.to_string())),
        ("queue", Some(task.queue.to_string())),
        ("group", Some(group)),
        ("job", task.job.as_ref().map(ToString::to_string)),
        ("workflow", task.workflow.as_ref().map(ToString::to_string)),
        ("unique key", task.unique_key.as_ref().map(ToString::to_string)),
        ("weight", Some(task.weight.to_string())),
        ("priority", Some(task.priority.to_string())),
        ("failed", Some(format!("{} of {} attempts", task.attempts_used, task.max_attempts))),
        ("crashes", (task.crashes > 0).then(|| task.crashes.to_string())),
        ("submitted", Some(format_date(task.created_at))),
        ("due", task.run_at.map(format_date)),
        ("ended", task.finished_at.map(format_date)),
        ("progress", progress),
        ("error", task.error.clone()),
        ("payload", bytes(&task.payload)),
        ("result", bytes(&task.result)),
    ];
    let row =
        |(name, value): (&str, Option<String>)| Some(format!("{name:<11}{}\n", printable(&value?)));
    rows.into_iter().filter_map(row).collect()
}

/// A result as a line of its own.
pub(super) fn format_result(task: &TaskView) -> String {
    let result = task.result.as_deref().map_or_else(|| "null".to_owned(), json_line);
    format!("{result}\n")
}

/// JSON as it is stored; what is not JSON is no text either.
fn json_line(bytes: &[u8]) -> String {
    serde_json::from_slice::<&RawValue>(bytes)
        .map_or_else(|_| format!("{} bytes", bytes.len()), |raw| raw.get().to_owned())
}
