//! What can be typed.

use clap::{Args, Parser, Subcommand};
use tidegate_store::Place;

use crate::commands::{bench, concurrency, doctor, migrate, run, submit, task, verify, worker};
use crate::output::quoted;

/// The store when nothing is said: a file in the current folder.
const STORE: &str = "sqlite:tidegate.db";

/// The variable that names the store where the command does not.
const STORE_VARIABLE: &str = "TIDEGATE_STORE";

/// Durable tasks under exact concurrency limits.
///
/// Data goes to stdout, talk to stderr. The exit code is 0 when all went well, 1 when something
/// is wrong, 2 when the command was not understood. TIDEGATE_LOG=info tells more.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
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
    /// when the power fails. Default: sqlite:tidegate.db; `bench` makes a store of its own, `verify`
    /// needs none
    #[arg(long, value_name = "URL", env = STORE_VARIABLE, hide_env_values = true, global = true)]
    pub(crate) store: Option<String>,
}

impl Global {
    /// The store's URL.
    pub(crate) fn url(&self) -> &str {
        self.store.as_deref().unwrap_or(STORE)
    }

    /// A command that a person can type next, on the same store: what was given is given again,
    /// without a password. What the environment says it says the next time too.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let given = self.store.as_deref();
        let given = given.filter(|url| std::env::var(STORE_VARIABLE).ok().as_deref() != Some(*url));
        let store = given.map(|url| match Place::parse(url) {
            Ok(Place::Postgres(_)) => self.shown(),
            _ => url.to_owned(),
        });
        let mut words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        if let Some(store) = store {
            words.extend(["--store".to_owned(), quoted(&store)]);
        }
        format!("tidegate {}", words.join(" "))
    }

    /// Whether the store ends with the command.
    pub(crate) fn is_memory(&self) -> bool {
        Place::parse(self.url()).is_ok_and(|place| place == Place::Memory)
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
    /// Runs one command of `exec` and ends what it starts; workers start it
    #[command(hide = true)]
    GuardExec,
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
    fn the_next_command_is_on_the_same_store_and_has_no_password() {
        let next = |store: Option<&str>| {
            Global { store: store.map(str::to_owned) }.command(&["run", "a b.toml"])
        };
        assert_eq!(next(None), "tidegate run 'a b.toml'");
        let sqlite = "sqlite:a.db?synchronous=normal";
        assert_eq!(next(Some(sqlite)), format!("tidegate run 'a b.toml' --store '{sqlite}'"));
        assert_eq!(
            next(Some("postgres://me:secret@host:1/db?password=x")),
            "tidegate run 'a b.toml' --store postgres://host:1/db"
        );
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
