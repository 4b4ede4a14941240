use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use tidegate_core::State;
use tidegate_core::inspect::{Inspect, TaskFilter, TaskView, WorkflowView};
use tidegate_measure::table::Table;

use crate::cli::Global;
use crate::output::{date, or_dash, print, print_json, state_counts};
use crate::suggest::no_such;
use crate::tell::tell;

/// Shows workflows: tasks that run one after another
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
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let inspect = super::open_to_read(global).await?.inspect;
    let workflows = inspect.workflows().await?;
    match arguments.verb {
        Verb::List { json: true } => print_json(&workflows)?,
        Verb::List { .. } if workflows.is_empty() => {
            tell!("no workflows; `tidegate submit --workflow` makes one");
        }
        Verb::List { .. } => print(&table(&workflows).to_string())?,
        Verb::Show { workflow, max, json } => {
            let steps = steps(&*inspect, &workflows, workflow, max).await?;
            if json { print_json(&steps)? } else { print(&steps_table(&steps).to_string())? }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn steps(
    inspect: &dyn Inspect,
    workflows: &[WorkflowView],
    name: String,
    tasks_max: u32,
) -> anyhow::Result<Vec<TaskView>> {
    if !workflows.iter().any(|workflow| *workflow.name == *name) {
        let names: Vec<&str> = workflows.iter().map(|workflow| &*workflow.name).collect();
        bail!("{}", no_such("workflow", &name, &names, "workflow list"));
    }
    let filter = TaskFilter { workflow: Some(name), tasks_max, ..TaskFilter::default() };
    Ok(inspect.tasks(filter).await?)
}

fn table(workflows: &[WorkflowView]) -> Table {
    let states = State::ALL.map(State::as_str);
    let mut table = Table::new(&[&["workflow"], &states[..]].concat());
    for workflow in workflows {
        let mut row = vec![workflow.name.to_string()];
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
