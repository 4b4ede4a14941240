//! What can be typed.

use clap::{Args, Parser, Subcommand};
use tidegate_store::Place;

use crate::commands::{bench, concurrency, doctor, migrate, run, submit, task, verify, worker};

/// The store when nothing is said: a file in the current folder.
const STORE: &str = "sqlite:tidegate.db";

/// Durable tasks under exact concurrency limits.
///
/// Data goes to stdout, talk to stderr. The exit code is 0 when all went well, 1 when something
/// is wrong, 2 when the command was not understood. TIDEGATE_LOG=info tells more.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    after_help = "Example:\n  \
    tidegate run examples/partner-api.toml"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Where the tasks are: sqlite:PATH, a path, postgres://..., or memory: (gone at the end of
    /// the command). sqlite:PATH?synchronous=normal is quicker, and may forget the last commits
    /// when the power fails. Default: sqlite:tidegate.db
    #[arg(long, value_name = "URL", env = "TIDEGATE_STORE", hide_env_values = true, global = true)]
    pub(crate) store: Option<String>,
}

impl Global {
    /// The store's URL.
    pub(crate) fn url(&self) -> &str {
        self.store.as_deref().unwrap_or(STORE)
    }

    /// The store for people: without a password.
    pub(crate) fn shown(&self) -> String {
        Place::parse(self.url()).map_or_else(|_| "the store".to_owned(), |place| place.to_string())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::Arguments),
    Submit(submit::Arguments),
    Worker(worker::Arguments),
    Task(task::Arguments),
    Concurrency(concurrency::Arguments),
    Doctor(doctor::Arguments),
    Verify(verify::Arguments),
    Bench(bench::Arguments),
    Migrate(migrate::Arguments),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        fn check(command: &clap::Command) {
            if command.get_subcommands().next().is_none() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.starts_with("Example"), "{} has no example", command.get_name());
            }
            command.get_subcommands().filter(|command| !command.is_hide_set()).for_each(check);
        }
        check(&Cli::command());
    }
}
