use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::value::RawValue;
use tidegate_core::inspect::{Explanation, Reason, TaskFilter, TaskView};
use tidegate_core::tables::Class;
use tidegate_core::{Millis, State, TaskId};
use tidegate_measure::table::Table;

use super::concurrency::holder_words;
use crate::cli::Global;
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
    /// Only this state; may be repeated
    #[arg(long, value_parser = state)]
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
            let Some(explanation) = inspect.explain(TaskId(id)).await? else {
                bail!("{}", no_task(id))
            };
            if json {
                print_json([&explanation])?;
            } else {
                print(&explain(&explanation, inspect.now().await?))?;
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
            after: self.after.map(TaskId),
            tasks_max: self.max,
        }
    }
}

fn table(tasks: &[TaskView], now: Millis) -> Table {
    let heads = ["id", "kind", "state", "queue", "job", "workflow", "attempts", "age", "error"];
    let mut table = Table::new(&heads);
    for task in tasks {
        table.row(vec![
            task.id.to_string(),
            task.kind.to_string(),
            task.state.to_string(),
            task.queue.to_string(),
            or_dash(task.job.as_deref()),
            or_dash(task.workflow.as_deref()),
            format!("{}/{}", task.spent, task.max_attempts),
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
        ("attempts", Some(format!("{} of {} spent", task.spent, task.max_attempts))),
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

/// An explanation in words.
fn explain(explanation: &Explanation, now: Millis) -> String {
    let Explanation { task, state, reason, since } = explanation;
    let mut text = format!("task {task} is {state}: {}", why(reason, now));
    if let Some(since) = since {
        text.push_str(&format!(", since {} ({})", duration((now - since).max(0)), date(*since)));
    }
    text.push('\n');
    if let Reason::InLine { holders, .. } = reason {
        for holder in holders {
            text.push_str(&format!("  {}\n", holder_words(holder, now)));
        }
    }
    text
}

fn why(reason: &Reason, now: Millis) -> String {
    match reason {
        Reason::NotDue { run_at } => {
            format!("it is due in {} ({})", duration((run_at - now).max(0)), date(*run_at))
        }
        Reason::AtGate => "it is at the gate; the next claim of any worker looks at it".to_owned(),
        Reason::InLine { limit, capacity, held, class, place, .. } => {
            let of = capacity.map_or_else(String::new, |capacity| format!(" of {capacity}"));
            format!(
                "it stands at place {place} in the line of {limit} ({held}{of} slots held){}",
                class_words(*class)
            )
        }
        Reason::Ready { kind, is_open: false, .. } => {
            format!("it is ready, and kind {kind:?} is outside its time of day")
        }
        Reason::Ready { queue, kind, is_served: false, .. } => format!(
            "it is ready, and no live worker serves kind {kind:?} in queue {queue:?}; start one \
             with `tidegate worker --queues {queue}`"
        ),
        Reason::Ready { queue, kind, ahead, .. } => format!(
            "it is ready, and {ahead} ready tasks of kind {kind:?} in queue {queue:?} go first"
        ),
        Reason::Running { worker, expires_at, slots } => {
            let slots: Vec<String> =
                slots.iter().map(|slot| format!("{} slot {}", slot.name, slot.number)).collect();
            let slots = if slots.is_empty() { "no slots".to_owned() } else { slots.join(", ") };
            format!(
                "it runs on worker {worker}, lease ends in {} unless renewed, holds {slots}",
                duration((expires_at - now).max(0))
            )
        }
        Reason::Ended => "it has ended".to_owned(),
    }
}

fn class_words(class: Class) -> &'static str {
    match class {
        Class::Waiting => "",
        Class::Reserving => " and collects its slots one after another, before all others",
        Class::Seat => " and will collect its slots one after another when nobody else does",
        Class::TooHeavy => " and is passed over: it takes more slots than the limit has",
        Class::NoWorker => " and is passed over: no live worker serves its queue and kind",
    }
}
