use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use tidegate_core::inspect::{Inspect, TaskFilter, TaskView, WorkflowView};
use tidegate_core::{Halt, Pausable, Pause, RetryOutcome, State};
use tidegate_measure::table::Table;
use tidegate_store::Opened;

use super::end_all::end_all;
use crate::cli::Global;
use crate::output::{date, or_dash, print, print_json, state_counts};
use crate::suggest::no_such;
use crate::tell::tell;

/// Shows workflows, tasks that run one after another, and says how one goes on that has halted
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lists workflows and their steps by state
    #[command(after_help = "Example:\n  tidegate workflow list")]
    List {
        /// One JSON object per workflow
        #[arg(long)]
        json: bool,
    },
    /// Shows the steps of one workflow in their order
    #[command(after_help = "Example:\n  tidegate workflow show order-1001")]
    Show {
        /// The workflow's name
        workflow: String,
        /// At most so many steps
        #[arg(long, value_name = "N", default_value_t = 100)]
        max: u32,
        /// One JSON object per step
        #[arg(long)]
        json: bool,
    },
    /// Lets no further step of a workflow begin; what runs goes on
    ///
    /// A step whose turn it was already, and that waits for a worker, still begins.
    #[command(after_help = "Example:\n  tidegate workflow pause order-1001")]
    Pause(One),
    /// Lets a workflow go on: the step that failed is tried anew, and the others follow
    #[command(after_help = "Example:\n  tidegate workflow resume order-1001")]
    Resume(One),
    /// Lets a workflow go on without the step that failed
    #[command(after_help = "Example:\n  tidegate workflow skip order-1001")]
    Skip(One),
    /// Cancels all unfinished steps of a workflow, and waits until one that runs has stopped
    ///
    /// Steps that are submitted later begin anew. Interrupted, it leaves the workflow paused and can
    /// be called again.
    #[command(after_help = "Example:\n  tidegate workflow cancel order-1001")]
    Cancel(One),
}

#[derive(Debug, Args)]
struct One {
    /// The workflow's name
    workflow: String,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let opened = super::open_to_read(global).await?;
    let workflows = opened.inspect.workflows().await?;
    match arguments.verb {
        Verb::List { json: true } => print_json(&workflows)?,
        Verb::List { .. } if workflows.is_empty() => {
            tell!("no workflows; `tidegate submit --workflow` makes one");
        }
        Verb::List { .. } => print(&table(&workflows).to_string())?,
        Verb::Show { workflow, max, json } => {
            let found = find(&workflows, &workflow)?;
            let steps = steps(&*opened.inspect, workflow, max).await?;
            if json {
                print_json(&steps)?
            } else {
                print(&steps_table(&steps).to_string())?
            }
            tell_halt(global, found);
        }
        Verb::Pause(One { workflow }) => {
            let changed = pause(&opened, &workflow, true).await?;
            let already = if changed { "" } else { " already" };
            let resume = global.command(&["workflow", "resume", &workflow]);
            tell!(
                "workflow {workflow:?} begins no further step{already}; `{resume}` lets it go on"
            );
        }
        Verb::Resume(One { workflow }) => {
            resume(global, &opened, find(&workflows, &workflow)?).await?;
        }
        Verb::Skip(One { workflow }) => skip(&opened, find(&workflows, &workflow)?).await?,
        Verb::Cancel(One { workflow }) => {
            find(&workflows, &workflow)?;
            let filter = TaskFilter { workflow: Some(workflow.clone()), ..TaskFilter::default() };
            let ended = end_all(&opened, Pausable::Workflow(workflow.clone()), filter).await?;
            tell!("{}", ended.words(&format!("workflow {workflow:?}"), "step"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn find<'a>(workflows: &'a [WorkflowView], name: &str) -> anyhow::Result<&'a WorkflowView> {
    let Some(workflow) = workflows.iter().find(|workflow| *workflow.name == *name) else {
        let names: Vec<&str> = workflows.iter().map(|workflow| &*workflow.name).collect();
        bail!("{}", no_such("workflow", name, &names, "workflow list"));
    };
    Ok(workflow)
}

async fn pause(opened: &Opened, name: &str, paused: bool) -> anyhow::Result<bool> {
    let what = Pausable::Workflow(name.to_owned());
    Ok(opened.store.pause(Pause { what, paused }).await?)
}

/// Tries the step anew that failed. It keeps its turn before all others.
async fn resume(global: &Global, opened: &Opened, workflow: &WorkflowView) -> anyhow::Result<()> {
    let name = &workflow.name;
    let Some(Halt::Step(step)) = workflow.halt else {
        match pause(opened, name, false).await? {
            true => tell!("workflow {name:?} goes on"),
            false => tell!("workflow {name:?} was not halted"),
        }
        return Ok(());
    };
    let outcome = opened.store.retry(vec![step]).await?;
    if outcome.first() != Some(&RetryOutcome::Retried) {
        let skip = global.command(&["workflow", "skip", name]);
        bail!(
            "step {step} of workflow {name:?} cannot be tried again; `{skip}` goes on without it"
        );
    }
    tell!("workflow {name:?} goes on with task {step}, which is tried anew");
    Ok(())
}

async fn skip(opened: &Opened, workflow: &WorkflowView) -> anyhow::Result<()> {
    let name = &workflow.name;
    match (pause(opened, name, false).await?, workflow.halt) {
        (true, Some(Halt::Step(step))) => tell!("workflow {name:?} goes on without task {step}"),
        (true, _) => tell!("workflow {name:?} goes on"),
        (false, _) => tell!("workflow {name:?} was not halted"),
    }
    Ok(())
}

/// Says why it goes no further, and what can be done.
fn tell_halt(global: &Global, workflow: &WorkflowView) {
    let name = &*workflow.name;
    let command = |verb: &str| global.command(&["workflow", verb, name]);
    match workflow.halt {
        Some(Halt::Step(step)) => tell!(
            "halted: task {step} has failed; `{}` tries it anew, `{}` goes on without it, `{}` ends \
             the workflow",
            command("resume"),
            command("skip"),
            command("cancel")
        ),
        Some(Halt::Operator) => tell!("paused; `{}` lets it go on", command("resume")),
        None => {}
    }
}

async fn steps(
    inspect: &dyn Inspect,
    name: String,
    tasks_max: u32,
) -> anyhow::Result<Vec<TaskView>> {
    let filter = TaskFilter { workflow: Some(name), tasks_max, ..TaskFilter::default() };
    Ok(inspect.tasks(filter).await?)
}

fn table(workflows: &[WorkflowView]) -> Table {
    let states = State::ALL.map(State::as_str);
    let mut table = Table::new(&[&["workflow", "halted by"], &states[..]].concat());
    for workflow in workflows {
        let halt = workflow.halt.map(|halt| match halt {
            Halt::Step(step) => format!("task {step}"),
            Halt::Operator => "operator".to_owned(),
        });
        let mut row = vec![workflow.name.to_string(), or_dash(halt)];
        row.extend(state_counts(&workflow.tasks, &State::ALL));
        table.row(row);
    }
    table
}

fn steps_table(steps: &[TaskView]) -> Table {
    let mut table = Table::new(&["step", "task", "kind", "state", "ended", "error"]);
    for (place, step) in steps.iter().enumerate() {
        table.row(vec![
            (place + 1).to_string(),
            step.id.to_string(),
            step.kind.to_string(),
            step.state.to_string(),
            or_dash(step.finished_at.map(date)),
            or_dash(step.error.as_deref().and_then(|error| error.lines().next())),
        ]);
    }
    table
}
