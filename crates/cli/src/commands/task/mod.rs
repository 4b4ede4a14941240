mod change;
mod filter;
mod show;
mod wait;

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use tidegate_core::TaskId;

use crate::cli::Global;
use crate::explain;
use crate::output::{print, print_json};
use crate::stderr::print_message;
use change::{Change, ChangeArgs};
use filter::ListArgs;

/// Shows tasks, says why one is not running, and cancels, retries or awaits them
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists tasks in the order of their ids
    #[command(after_help = "Examples:\n  \
        tidegate task list --state blocked --kind sleep\n  \
        tidegate task list --group partner --json")]
    List(ListArgs),
    /// Shows everything about one task
    #[command(after_help = "Example:\n  tidegate task show 7")]
    Show(TaskArg),
    /// Says why a task is not running: limit, holders, place in line, since when, how long still
    #[command(after_help = "Example:\n  tidegate task explain 7")]
    Explain(TaskArg),
    /// Cancels tasks: what waits ends at once, what runs is told by its next heartbeat
    ///
    /// Tasks are named by their ids, or by filters. With filters only unfinished tasks are meant.
    #[command(after_help = "Examples:\n  \
        tidegate task cancel 7 8\n  \
        tidegate task cancel --kind http --group partner --dry-run")]
    Cancel(ChangeArgs),
    /// Brings tasks back: what failed or was cancelled starts anew, what is not due becomes due
    ///
    /// Tasks are named by their ids, or by filters. With filters failed tasks are meant, unless
    /// `--state` says otherwise. A completed task stays: submit it again to do its work again.
    #[command(after_help = "Examples:\n  \
        tidegate task retry 7\n  \
        tidegate task retry --job nightly\n  \
        tidegate task retry --state cancelled --queue mail --dry-run")]
    Retry(ChangeArgs),
    /// Waits until tasks have ended and prints their results, one line of JSON each
    ///
    /// The lines are in the order of the ids; a task that is not completed has null. The exit code
    /// is 0 only when every task is completed. What went wrong is told on stderr.
    #[command(after_help = "Examples:\n  \
        tidegate task wait 7\n  \
        tidegate task wait 7 8 9 --timeout 30s")]
    Wait(wait::WaitArgs),
}

#[derive(Debug, Args)]
struct TaskArg {
    /// The task's id
    id: i64,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let opened = super::open_to_read(global).await?;
    let inspect = &*opened.reader;
    match arguments.action {
        Action::List(list) => {
            let (json, filter) = (list.json, list.into_task_filter()?);
            let max = filter.tasks_max as usize;
            let tasks = inspect.tasks(filter).await?;
            match json {
                true => print_json(&tasks)?,
                false => print(&show::table(&tasks, inspect.now().await?).to_string())?,
            }
            match tasks.last() {
                None => print_message!("no task meets the filter"),
                Some(last) if tasks.len() == max => {
                    print_message!(
                        "note: there may be more; --after {} goes on, --max N shows N",
                        last.id
                    );
                }
                Some(_) => {}
            }
        }
        Action::Show(TaskArg { id, json }) => {
            let Some(task) = inspect.task(TaskId(id)).await? else {
                bail!("{}", task_not_found_message(id))
            };
            if json {
                print_json([show::task_details(&task)?])?
            } else {
                print(&show::format_task(&task))?
            }
        }
        Action::Explain(TaskArg { id, json }) => {
            let Some(told) = explain::explain_task(inspect, TaskId(id)).await? else {
                bail!("{}", task_not_found_message(id))
            };
            match json {
                true => print_json([&told.explanation])?,
                false => print(&told.details(global))?,
            }
        }
        Action::Cancel(changes) => return changes.run(&opened, Change::Cancel).await,
        Action::Retry(changes) => return changes.run(&opened, Change::Retry).await,
        Action::Wait(wait) => return wait.run(inspect, global).await,
    }
    Ok(ExitCode::SUCCESS)
}

fn task_not_found_message(id: i64) -> String {
    format!("there is no task {id}, or it has ended and was removed; see `tidegate task list`")
}
