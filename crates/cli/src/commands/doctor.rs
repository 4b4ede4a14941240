use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tidegate_core::check::{Violation, check, check_at_rest_but};
use tidegate_core::inspect::Snapshot;
use tidegate_measure::table::counted;
use tidegate_store::Opened;

use crate::cli::Global;
use crate::output::{print, print_json};
use crate::run::is_mark;

/// Checks every rule that one state of a live store can show
///
/// It reads one committed state, changes nothing, and may run beside any number of workers. The
/// exit code is 0 only when every rule holds.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate doctor --store sqlite:tasks.db")]
pub(crate) struct Arguments {
    /// Expect a store at rest: no unfinished task, no held slot. The marks of interrupted runs
    /// may be there
    #[arg(long)]
    at_rest: bool,
    /// One JSON object instead of words
    #[arg(long)]
    json: bool,
}

/// What was looked at and what was found.
#[derive(Debug, Serialize)]
struct Diagnosis {
    clean: bool,
    tasks_unfinished: usize,
    tasks_finished: u64,
    limits: usize,
    slots_held: usize,
    leases: usize,
    violations: Vec<Violation>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let opened: Opened = super::open_to_read(global).await?;
    let snapshot = opened.inspect.snapshot().await?;
    let diagnosis = Diagnosis::of(&snapshot, arguments.at_rest);
    if arguments.json {
        print_json([&diagnosis])?;
    } else {
        print(&diagnosis.words())?;
    }
    Ok(if diagnosis.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Diagnosis {
    fn of(snapshot: &Snapshot, at_rest: bool) -> Self {
        // The mark of a run that was interrupted stays until the run goes on.
        let violations = match at_rest {
            true => check_at_rest_but(snapshot, is_mark),
            false => check(snapshot),
        };
        Self {
            clean: violations.is_empty(),
            tasks_unfinished: snapshot.tasks.len(),
            tasks_finished: snapshot.finished.values().sum(),
            limits: snapshot.limits.len(),
            slots_held: snapshot.slots.len(),
            leases: snapshot.leases.len(),
            violations,
        }
    }

    fn words(&self) -> String {
        let mut text = format!(
            "looked at {} unfinished and {}, {}, {}, {}\n",
            self.tasks_unfinished,
            counted(self.tasks_finished, "finished task"),
            counted(self.limits as u64, "limit"),
            counted(self.slots_held as u64, "held slot"),
            counted(self.leases as u64, "lease")
        );
        for violation in &self.violations {
            text.push_str(&format!("broken: {}: {}\n", violation.rule, violation.found));
        }
        text.push_str(&match self.violations.len() {
            0 => "clean: every rule holds\n".to_owned(),
            number => format!("{}\n", counted(number as u64, "violation")),
        });
        text
    }
}
