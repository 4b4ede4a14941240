use std::process::ExitCode;

use clap::{Args, Subcommand};
use tidegate_core::reader::QueueView;
use tidegate_core::{Millis, PauseTarget, SetPaused};
use tidegate_measure::table::Table;

use crate::cli::Global;
use crate::output::{STATES_UNFINISHED, format_duration, print, print_json, state_counts};
use crate::stderr::print_message;

/// Shows queues, pauses them and lets them go on
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists queues that have unfinished tasks or are paused
    #[command(after_help = "Example:\n  tidegate queue list")]
    List {
        /// One JSON object per queue
        #[arg(long)]
        json: bool,
    },
    /// Stops claims from a queue; what runs goes on
    ///
    /// It holds for every worker until `resume`. Submits go on. Slots that its tasks were given
    /// and do not use go to others after a lease.
    #[command(after_help = "Example:\n  tidegate queue pause mail")]
    Pause(QueueNameArg),
    /// Lets a paused queue go on
    #[command(after_help = "Example:\n  tidegate queue resume mail")]
    Resume(QueueNameArg),
}

#[derive(Debug, Args)]
struct QueueNameArg {
    /// The queue's name
    queue: String,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let opened = super::open_to_read(global).await?;
    match arguments.action {
        Action::List { json } => {
            let queues = opened.reader.queues().await?;
            if json {
                print_json(&queues)?;
            } else if queues.is_empty() {
                print_message!("no queue has unfinished tasks");
            } else {
                print(&table(&queues, opened.reader.now().await?).to_string())?;
            }
        }
        Action::Pause(QueueNameArg { queue }) => {
            let is_known = opened.reader.queues().await?.iter().any(|one| *one.name == *queue);
            let changed = opened
                .store
                .set_paused(SetPaused { target: PauseTarget::Queue(queue.clone()), paused: true })
                .await?;
            let already = if changed { "" } else { " already" };
            let resume = global.command_line(&["queue", "resume", &queue]);
            print_message!("queue {queue:?} is paused{already}; `{resume}` lets it go on");
            if !is_known {
                print_message!("note: no unfinished task and no worker uses queue {queue:?}");
            }
        }
        Action::Resume(QueueNameArg { queue }) => {
            let changed = opened
                .store
                .set_paused(SetPaused { target: PauseTarget::Queue(queue.clone()), paused: false })
                .await?;
            match changed {
                true => print_message!("queue {queue:?} goes on"),
                false => print_message!("queue {queue:?} was not paused"),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(queues: &[QueueView], now: Millis) -> Table {
    let heads = STATES_UNFINISHED.map(|state| state.as_str());
    let mut table = Table::new(&[&["queue"], &heads[..], &["workers", "paused for"]].concat());
    for queue in queues {
        let paused = queue.paused_at.map(|at| format_duration((now - at).max(0)));
        let mut row = vec![queue.name.to_string()];
        row.extend(state_counts(&queue.tasks, &STATES_UNFINISHED));
        row.extend([queue.workers.to_string(), paused.unwrap_or_else(|| "-".to_owned())]);
        table.row(row);
    }
    table
}
