//! Tasks on their way into the store: one, or one for each line of standard input.

mod bulk;
mod lines;
mod template;

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_core::{JobSpec, LimitScope, SubmittedTask, TaskId};
use tidegate_engine::Task;

pub(crate) use bulk::BulkSubmit;
pub(crate) use template::{LINE_PLACEHOLDER, PayloadTemplate};

/// A task that is ready to be submitted.
pub(crate) struct PreparedTask {
    pub(crate) task: Task,
    pub(crate) job: Option<String>,
    /// The size of its payload.
    pub(crate) bytes: usize,
}

/// What is told about a submitted task.
#[derive(Debug, Serialize)]
pub(crate) struct SubmitRecord {
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    task: TaskId,
    is_new: bool,
}

impl SubmitRecord {
    pub(crate) fn new(submitted: &SubmittedTask, line: Option<u64>) -> Self {
        Self { line, task: submitted.task, is_new: submitted.is_new }
    }
}

/// A line for each task: its id, or JSON.
pub(crate) fn format_records(
    lines: impl Iterator<Item = SubmitRecord>,
    json: bool,
) -> anyhow::Result<String> {
    let mut text = String::new();
    for told in lines {
        match json {
            true => text.push_str(&serde_json::to_string(&told)?),
            false => text.push_str(&told.task.to_string()),
        }
        text.push('\n');
    }
    Ok(text)
}

/// Jobs that do not exist yet begin with the limit that the configuration gives them.
pub(crate) fn job_specs(tasks: &[PreparedTask], limits: &BTreeMap<String, u32>) -> Vec<JobSpec> {
    let mut names: Vec<&String> = tasks.iter().filter_map(|made| made.job.as_ref()).collect();
    names.sort_unstable();
    names.dedup();
    let spec = |name: &String| {
        let capacity = *limits.get(&LimitScope::Job.limit_name(name))?;
        Some(JobSpec { concurrency: Some(capacity), ..JobSpec::new(name.clone()) })
    };
    names.into_iter().filter_map(spec).collect()
}
