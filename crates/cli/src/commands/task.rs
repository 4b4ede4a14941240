use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::value::RawValue;
use tidegate_core::inspect::{Explanation, Reason, TaskFilter, TaskView};
use tidegate_core::{Millis, State, TaskId};
use tidegate_measure::table::Table;

use super::concurrency::holder_words;
use crate::cli::Global;
use crate::explain::{self, Told};
use crate::file::unknown;
use crate::output::{date, duration, print, print_json};

/// Shows tasks, and says why one is not running
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lists tasks in the order of their ids
    #[command(after_help = "Example:\n  tidegate task list --state blocked --kind sleep")]
    List(List),
    /// Shows everything about one task
    #[command(after_help = "Example:\n  tidegate task show 7")]
    Show(One),
    /// Says why a task is not running: limit, holders, place in line, since when
    #[command(after_help = "Example:\n  tidegate task explain 7")]
    Explain(One),
}

#[derive(Debug, Args)]
struct List {
    #[arg(long, value_parser = state, help = state_help())]
    state: Vec<State>,
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only this job
    #[arg(long)]
    job: Option<String>,
    /// Only this workflow
    #[arg(long)]
    workflow: Option<String>,
    /// Only tasks under this limit
    #[arg(long)]
    group: Option<String>,
    /// Only ids above this one
    #[arg(long, value_name = "ID")]
    after: Option<i64>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    max: u32,
    /// One JSON object per task
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct One {
    /// The task's id
    id: i64,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

fn state_help() -> String {
    format!("Only this state; may be repeated: {}", State::ALL.map(State::as_str).join(", "))
}

fn state(word: &str) -> Result<State, String> {
    let known = State::ALL.map(State::as_str);
    State::parse(word).ok_or_else(|| unknown("state", word, &known))
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let inspect = super::open_to_read(global).await?.inspect;
    match arguments.verb {
        Verb::List(list) => {
            let json = list.json;
            let tasks = inspect.tasks(list.filter()).await?;
            if json {
                print_json(&tasks)?;
            } else {
                print(&table(&tasks, inspect.now().await?).to_string())?;
            }
        }
        Verb::Show(One { id, json }) => {
            let Some(task) = inspect.task(TaskId(id)).await? else { bail!("{}", no_task(id)) };
            if json { print_json([whole(&task)?])? } else { print(&words(&task))? }
        }
        Verb::Explain(One { id, json }) => {
            let Some(told) = explain::ask(&*inspect, TaskId(id)).await? else {
                bail!("{}", no_task(id))
            };
            if json {
                print_json([&told.explanation])?;
            } else {
                print(&explain_words(&told, global))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn no_task(id: i64) -> String {
    format!("there is no task {id}, or it has ended and was removed; see `tidegate task list`")
}

impl List {
    fn filter(self) -> TaskFilter {
        TaskFilter {
            states: self.state,
            kind: self.kind,
            queue: self.queue,
            job: self.job,
            workflow: self.workflow,
            group: self.group,
            after: self.after.map(TaskId),
            tasks_max: self.max,
        }
    }
}

fn table(tasks: &[TaskView], now: Millis) -> Table {
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
            format!("{} of {}", task.spent, task.max_attempts),
            duration((now - task.created_at).max(0)),
            or_dash(task.error.as_deref().map(first_line)),
        ]);
    }
    table
}

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Payload and result as JSON beside the rest.
fn whole(task: &TaskView) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(task)?;
    for (key, bytes) in [("payload", &task.payload), ("result", &task.result)] {
        value[key] = match bytes {
            Some(bytes) => serde_json::from_slice(bytes)?,
            None => serde_json::Value::Null,
        };
    }
    Ok(value)
}

fn words(task: &TaskView) -> String {
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
        ("failed", Some(format!("{} of {} attempts", task.spent, task.max_attempts))),
        ("deaths", (task.deaths > 0).then(|| task.deaths.to_string())),
        ("submitted", Some(date(task.created_at))),
        ("due", task.run_at.map(date)),
        ("ended", task.finished_at.map(date)),
        ("progress", progress),
        ("error", task.error.clone()),
        ("payload", bytes(&task.payload)),
        ("result", bytes(&task.result)),
    ];
    let row = |(name, value): (&str, Option<String>)| Some(format!("{name:<11}{}\n", value?));
    rows.into_iter().filter_map(row).collect()
}

/// JSON as it is stored; what is not JSON is no text either.
fn json_line(bytes: &[u8]) -> String {
    serde_json::from_slice::<&RawValue>(bytes)
        .map_or_else(|_| format!("{} bytes", bytes.len()), |raw| raw.get().to_owned())
}

/// An explanation in words, with the holders of the limit it waits for.
fn explain_words(told: &Told, global: &Global) -> String {
    let Explanation { reason, since, .. } = &told.explanation;
    let mut text = told.words(global);
    if let Some(since) = since {
        let ago = duration((told.now - since).max(0));
        text.push_str(&format!(", since {ago} ({})", date(*since)));
    }
    text.push('\n');
    if let Reason::InLine { holders, .. } = reason {
        for holder in holders {
            text.push_str(&format!("  {}\n", holder_words(holder, told.now)));
        }
    }
    text
}
