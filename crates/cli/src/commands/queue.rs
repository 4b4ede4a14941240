use std::process::ExitCode;

use clap::{Args, Subcommand};
use tidegate_core::inspect::QueueView;
use tidegate_core::{Millis, Pausable, Pause};
use tidegate_measure::table::Table;

use crate::cli::Global;
use crate::output::{STATES_OPEN, duration, print, print_json, state_counts};
use crate::tell::tell;

/// Shows queues, pauses them and lets them go on
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
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
    Pause(One),
    /// Lets a paused queue go on
    #[command(after_help = "Example:\n  tidegate queue resume mail")]
    Resume(One),
}

#[derive(Debug, Args)]
struct One {
    /// The queue's name
    queue: String,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let opened = super::open_to_read(global).await?;
    match arguments.verb {
        Verb::List { json } => {
            let queues = opened.inspect.queues().await?;
            if json {
                print_json(&queues)?;
            } else if queues.is_empty() {
                tell!("no queue has unfinished tasks");
            } else {
                print(&table(&queues, opened.inspect.now().await?).to_string())?;
            }
        }
        Verb::Pause(One { queue }) => {
            let is_known = opened.inspect.queues().await?.iter().any(|one| *one.name == *queue);
            let changed = opened
                .store
                .pause(Pause { what: Pausable::Queue(queue.clone()), paused: true })
                .await?;
            let already = if changed { "" } else { " already" };
            let resume = global.command(&["queue", "resume", &queue]);
            tell!("queue {queue:?} is paused{already}; `{resume}` lets it go on");
            if !is_known {
                tell!("note: no unfinished task and no worker uses queue {queue:?}");
            }
        }
        Verb::Resume(One { queue }) => {
            let changed = opened
                .store
                .pause(Pause { what: Pausable::Queue(queue.clone()), paused: false })
                .await?;
            match changed {
                true => tell!("queue {queue:?} goes on"),
                false => tell!("queue {queue:?} was not paused"),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(queues: &[QueueView], now: Millis) -> Table {
    let heads = STATES_OPEN.map(|state| state.as_str());
    let mut table = Table::new(&[&["queue"], &heads[..], &["workers", "paused for"]].concat());
    for queue in queues {
        let paused = queue.paused_at.map(|at| duration((now - at).max(0)));
        let mut row = vec![queue.name.to_string()];
        row.extend(state_counts(&queue.tasks, &STATES_OPEN));
        row.extend([queue.workers.to_string(), paused.unwrap_or_else(|| "-".to_owned())]);
        table.row(row);
    }
    table
}
