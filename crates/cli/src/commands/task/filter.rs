//! Which tasks are meant.

use clap::Args;
use tidegate_core::reader::TaskFilter;
use tidegate_core::{Result, TaskId, TaskState, name};

use crate::run_file::unknown_word_message;

/// What a task must be like.
#[derive(Debug, Args)]
pub(crate) struct FilterArgs {
    #[arg(long, value_parser = parse_state, help = state_help())]
    pub(crate) state: Vec<TaskState>,
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only tasks that count against the limit of this group
    #[arg(long)]
    group: Option<String>,
    /// Only this job
    #[arg(long)]
    job: Option<String>,
    /// Only this workflow
    #[arg(long)]
    workflow: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only ids above this one
    #[arg(long, value_name = "ID")]
    after: Option<i64>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    max: u32,
    /// One JSON object per task
    #[arg(long)]
    pub(super) json: bool,
}

impl ListArgs {
    pub(super) fn into_task_filter(self) -> Result<TaskFilter> {
        let after = self.after.map(TaskId);
        Ok(TaskFilter { after_task: after, tasks_max: self.max, ..self.filter.resolve()? })
    }
}

impl FilterArgs {
    pub(super) fn is_empty(&self) -> bool {
        let names = [&self.kind, &self.queue, &self.group, &self.job, &self.workflow];
        self.state.is_empty() && names.iter().all(|name| name.is_none())
    }

    /// What it means. A name that nothing can have is a mistake.
    pub(super) fn resolve(self) -> Result<TaskFilter> {
        let names = [
            ("kind", &self.kind),
            ("queue", &self.queue),
            ("group", &self.group),
            ("job", &self.job),
            ("workflow", &self.workflow),
        ];
        for (what, name) in names {
            name.as_deref().map_or(Ok(()), |name| name::check(what, name))?;
        }
        Ok(TaskFilter {
            states: self.state,
            kind: self.kind,
            queue: self.queue,
            group: self.group,
            job: self.job,
            workflow: self.workflow,
            ..TaskFilter::default()
        })
    }
}

fn state_help() -> String {
    format!(
        "Only this state; may be repeated: {}",
        TaskState::ALL.map(TaskState::as_str).join(", ")
    )
}

fn parse_state(word: &str) -> std::result::Result<TaskState, String> {
    let known = TaskState::ALL.map(TaskState::as_str);
    TaskState::parse(word).ok_or_else(|| unknown_word_message("state", word, &known))
}
