use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use tidegate_core::reader::{StoreReader, TaskFilter, TaskView, WorkflowView};
use tidegate_core::{PauseCause, PauseTarget, RetryOutcome, SetPaused, TaskState};
use tidegate_measure::table::Table;
use tidegate_store::StoreHandle;

use super::cancel_all::cancel_all;
use crate::cli::Global;
use crate::output::{format_date, or_dash, print, print_json, state_counts};
use crate::stderr::print_message;
use crate::suggest::not_found_message;

/// Shows workflows, tasks that run one after another, and says how one goes on that has halted
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
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
    Pause(WorkflowNameArg),
    /// Lets a workflow go on: the step that failed is tried anew, and the others follow
    #[command(after_help = "Example:\n  tidegate workflow resume order-1001")]
    Resume(WorkflowNameArg),
    /// Lets a workflow go on without the step that failed
    #[command(after_help = "Example:\n  tidegate workflow skip order-1001")]
    Skip(WorkflowNameArg),
    /// Cancels all unfinished steps of a workflow, and waits until one that runs has stopped
    ///
    /// Steps that are submitted later begin anew. Interrupted, it leaves the workflow paused and can
    /// be called again.
    #[command(after_help = "Example:\n  tidegate workflow cancel order-1001")]
    Cancel(WorkflowNameArg),
}

#[derive(Debug, Args)]
struct WorkflowNameArg {
    /// The workflow's name
    workflow: String,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let opened = super::open_to_read(global).await?;
    let workflows = opened.reader.workflows().await?;
    match arguments.action {
        Action::List { json: true } => print_json(&workflows)?,
        Action::List { .. } if workflows.is_empty() => {
            print_message!("no workflows; `tidegate submit --workflow` makes one");
        }
        Action::List { .. } => print(&table(&workflows).to_string())?,
        Action::Show { workflow, max, json } => {
            let found = find_workflow(&workflows, &workflow)?;
            let steps = list_steps(&*opened.reader, workflow, max).await?;
            if json {
                print_json(&steps)?
            } else {
                print(&steps_table(&steps).to_string())?
            }
            print_pause_cause(global, found);
        }
        Action::Pause(WorkflowNameArg { workflow }) => {
            let changed = pause(&opened, &workflow, true).await?;
            let already = if changed { "" } else { " already" };
            let resume = global.command_line(&["workflow", "resume", &workflow]);
            print_message!(
                "workflow {workflow:?} begins no further step{already}; `{resume}` lets it go on"
            );
        }
        Action::Resume(WorkflowNameArg { workflow }) => {
            resume(global, &opened, find_workflow(&workflows, &workflow)?).await?;
        }
        Action::Skip(WorkflowNameArg { workflow }) => {
            skip(&opened, find_workflow(&workflows, &workflow)?).await?
        }
        Action::Cancel(WorkflowNameArg { workflow }) => {
            find_workflow(&workflows, &workflow)?;
            let filter = TaskFilter { workflow: Some(workflow.clone()), ..TaskFilter::default() };
            let ended =
                cancel_all(&opened, PauseTarget::Workflow(workflow.clone()), filter).await?;
            print_message!("{}", ended.describe(&format!("workflow {workflow:?}"), "step"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn find_workflow<'a>(
    workflows: &'a [WorkflowView],
    name: &str,
) -> anyhow::Result<&'a WorkflowView> {
    let Some(workflow) = workflows.iter().find(|workflow| *workflow.name == *name) else {
        let names: Vec<&str> = workflows.iter().map(|workflow| &*workflow.name).collect();
        bail!("{}", not_found_message("workflow", name, &names, "workflow list"));
    };
    Ok(workflow)
}

async fn pause(opened: &StoreHandle, name: &str, paused: bool) -> anyhow::Result<bool> {
    let what = PauseTarget::Workflow(name.to_owned());
    Ok(opened.store.set_paused(SetPaused { target: what, paused }).await?)
}

/// Tries the step anew that failed. It keeps its turn before all others.
async fn resume(
    global: &Global,
    opened: &StoreHandle,
    workflow: &WorkflowView,
) -> anyhow::Result<()> {
    let name = &workflow.name;
    let Some(PauseCause::FailedStep(step)) = workflow.paused_by else {
        match pause(opened, name, false).await? {
            true => print_message!("workflow {name:?} goes on"),
            false => print_message!("workflow {name:?} was not halted"),
        }
        return Ok(());
    };
    let outcome = opened.store.retry(vec![step]).await?;
    if outcome.first() != Some(&RetryOutcome::Retried) {
        let skip = global.command_line(&["workflow", "skip", name]);
        bail!(
            "step {step} of workflow {name:?} cannot be tried again; `{skip}` goes on without it"
        );
    }
    print_message!("workflow {name:?} goes on with task {step}, which is tried anew");
    Ok(())
}

async fn skip(opened: &StoreHandle, workflow: &WorkflowView) -> anyhow::Result<()> {
    let name = &workflow.name;
    match (pause(opened, name, false).await?, workflow.paused_by) {
        (true, Some(PauseCause::FailedStep(step))) => {
            print_message!("workflow {name:?} goes on without task {step}")
        }
        (true, _) => print_message!("workflow {name:?} goes on"),
        (false, _) => print_message!("workflow {name:?} was not halted"),
    }
    Ok(())
}

/// Says why it goes no further, and what can be done.
fn print_pause_cause(global: &Global, workflow: &WorkflowView) {
    let name = &*workflow.name;
    let command = |verb: &str| global.command_line(&["workflow", verb, name]);
    match workflow.paused_by {
        Some(PauseCause::FailedStep(step)) => print_message!(
            "halted: task {step} has failed; `{}` tries it anew, `{}` goes on without it, `{}` ends \
             the workflow",
            command("resume"),
            command("skip"),
            command("cancel")
        ),
        Some(PauseCause::Operator) => {
            print_message!("paused; `{}` lets it go on", command("resume"))
        }
        None => {}
    }
}

async fn list_steps(
    inspect: &dyn StoreReader,
    name: String,
    tasks_max: u32,
) -> anyhow::Result<Vec<TaskView>> {
    let filter = TaskFilter { workflow: Some(name), tasks_max, ..TaskFilter::default() };
    Ok(inspect.tasks(filter).await?)
}

fn table(workflows: &[WorkflowView]) -> Table {
    let states = TaskState::ALL.map(TaskState::as_str);
    let mut table = Table::new(&[&["workflow", "halted by"], &states[..]].concat());
    for workflow in workflows {
        let halt = workflow.paused_by.map(|halt| match halt {
            PauseCause::FailedStep(step) => format!("task {step}"),
            PauseCause::Operator => "operator".to_owned(),
        });
        let mut row = vec![workflow.name.to_string(), or_dash(halt)];
        row.extend(state_counts(&workflow.tasks, &TaskState::ALL));
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
            or_dash(step.finished_at.map(format_date)),
            or_dash(step.error.as_deref().and_then(|error| error.lines().next())),
        ]);
    }
    table
}
