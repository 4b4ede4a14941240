//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tidegate_store::StoreLocation;

use crate::commands::{
    bench, completions, concurrency, config, doctor, job, migrate, prune, queue, reference, run,
    submit, task, test_server, top, verify, worker, workers, workflow,
};
use crate::config::{Config, ConfigFlags, Key, environment_variables, warn_mistyped_variables};
use crate::output::shell_quoted;

/// Durable tasks under exact concurrency limits.
///
/// Data goes to stdout, talk to stderr. The exit code is 0 when all went well, 1 when something
/// is wrong, 2 when the command was not understood. TIDEGATE_LOG=info tells more; `tidegate config`
/// shows every setting and where it comes from.
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
#[derive(Debug, Default, Args)]
pub(crate) struct Global {
    /// Where the tasks are: sqlite:PATH, a path, postgres://..., or memory: (gone at the end of
    /// the command). sqlite:PATH?synchronous=normal is quicker, and may forget the last commits
    /// when the power fails. Default: TIDEGATE_STORE, or `store` of the configuration, or
    /// sqlite:tidegate.db; `bench` makes a store of its own, `verify` needs none
    #[arg(long, value_name = "URL", global = true)]
    store: Option<String>,
    /// The file with the configuration. Default: TIDEGATE_CONFIG, or tidegate.toml if it is there
    #[arg(long = "config", value_name = "FILE", global = true)]
    config_file: Option<PathBuf>,
    /// Send traces and metrics to this OpenTelemetry collector by OTLP over gRPC, such as
    /// http://127.0.0.1:4317. The binary must be built with the feature `otel`. Default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT, or nobody
    #[arg(long, value_name = "URL", global = true)]
    otlp: Option<String>,
    /// What holds, once it is read.
    #[arg(skip)]
    pub(crate) config: Config,
}

impl Global {
    /// Reads the configuration. `profile` is that of the command, if it takes one.
    pub(crate) fn load_config(&mut self, profile: Option<&str>) -> anyhow::Result<()> {
        let variables = environment_variables();
        warn_mistyped_variables(&variables);
        let flags = ConfigFlags {
            file: self.config_file.as_deref(),
            store: self.store.as_deref(),
            profile,
        };
        self.config = Config::load(&flags, &variables)?;
        Ok(())
    }

    /// The collector that traces and metrics go to.
    #[cfg(feature = "otel")]
    pub(crate) fn otlp(&self) -> anyhow::Result<Option<String>> {
        let variable = || std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok();
        Ok(self.otlp.clone().or_else(variable).filter(|url| !url.is_empty()))
    }

    /// Whoever names one is told that this binary knows none. The variable may be meant for others.
    #[cfg(not(feature = "otel"))]
    pub(crate) fn otlp(&self) -> anyhow::Result<Option<String>> {
        if self.otlp.is_some() {
            anyhow::bail!(
                "--otlp needs the feature: cargo install --locked --path crates/cli --features otel"
            );
        }
        Ok(None)
    }

    /// The store's URL.
    pub(crate) fn url(&self) -> &str {
        self.config.text(Key::Store)
    }

    /// The store's URL, if it was named for this command and not for all of them.
    pub(crate) fn explicit_url(&self) -> Option<&str> {
        Some(self.url()).filter(|_| self.config.origin(Key::Store).is_command_specific())
    }

    /// A command that a person can type next, on the same store: what was given is given again,
    /// without a password. What the environment says it says the next time too.
    pub(crate) fn command_line(&self, words: &[&str]) -> String {
        let store = self.store.as_deref().map(|url| match StoreLocation::parse(url) {
            Ok(place @ StoreLocation::Postgres(_)) => place.url_without_password(),
            _ => url.to_owned(),
        });
        let file = self.config_file.as_ref().map(|file| file.display().to_string());
        let mut words: Vec<String> = words.iter().map(|word| shell_quoted(word)).collect();
        for (flag, value) in [("--store", store), ("--config", file)] {
            words.extend(
                value.into_iter().flat_map(|value| [flag.to_owned(), shell_quoted(&value)]),
            );
        }
        format!("tidegate {}", words.join(" "))
    }

    /// Whether the store ends with the command.
    pub(crate) fn is_memory(&self) -> bool {
        StoreLocation::parse(self.url()).is_ok_and(|place| place == StoreLocation::Memory)
    }

    /// The store for people: without a password.
    pub(crate) fn display_url(&self) -> String {
        StoreLocation::parse(self.url())
            .map_or_else(|_| "the store".to_owned(), |place| place.to_string())
    }
}

/// What commands take that go by a profile.
#[derive(Debug, Args)]
pub(crate) struct ProfileArg {
    /// How much a worker takes on where nothing else says so: production, staging or development
    /// [default: TIDEGATE_ENV, or `profile` of the configuration]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::Arguments),
    Submit(submit::Arguments),
    Worker(worker::Arguments),
    Task(task::Arguments),
    Job(job::Arguments),
    Queue(queue::Arguments),
    Workflow(workflow::Arguments),
    Workers(workers::Arguments),
    Concurrency(concurrency::Arguments),
    Top(top::Arguments),
    Doctor(doctor::Arguments),
    Verify(verify::Arguments),
    Bench(bench::Arguments),
    TestServer(test_server::Arguments),
    Migrate(migrate::Arguments),
    Prune(prune::Arguments),
    Config(config::Arguments),
    Completions(completions::Arguments),
    #[command(hide = true)]
    Reference(reference::Arguments),
    /// Runs one command of `exec` and ends what it starts; workers start it
    #[command(hide = true)]
    ExecSupervisor,
}

impl Command {
    /// Whether it goes by the configuration. What does not must not fail by it either: a shell
    /// asks for completions whatever is in the current folder.
    pub(crate) fn uses_config(&self) -> bool {
        !matches!(self, Self::Completions(_) | Self::Reference(_) | Self::ExecSupervisor)
    }

    /// The profile that it is given.
    pub(crate) fn profile(&self) -> Option<&str> {
        let profiled = match self {
            Self::Worker(arguments) => &arguments.profile_arg,
            Self::Config(arguments) => &arguments.profile_arg,
            _ => return None,
        };
        profiled.profile.as_deref()
    }

    /// Whether it draws on the whole terminal: a line of the log would tear a hole into that.
    pub(crate) fn is_full_screen(&self) -> bool {
        matches!(self, Self::Top(_))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::config::SETTINGS;

    #[test]
    fn command_definitions_are_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn suggested_command_uses_same_store_without_password() {
        let next = |store: Option<&str>| {
            let store = store.map(str::to_owned);
            Global { store, ..Global::default() }.command_line(&["run", "a b.toml"])
        };
        assert_eq!(next(None), "tidegate run 'a b.toml'");
        let sqlite = "sqlite:a.db?synchronous=normal";
        assert_eq!(next(Some(sqlite)), format!("tidegate run 'a b.toml' --store '{sqlite}'"));
        assert_eq!(
            next(Some("postgres://me:secret@host:1/db?password=x")),
            "tidegate run 'a b.toml' --store postgres://me@host:1/db"
        );
    }

    /// The flags that the table of settings names can be typed.
    #[test]
    fn every_setting_has_its_flag() {
        let mut root = Cli::command();
        root.build();
        // These two are not flags of these commands yet.
        let flags = SETTINGS.iter().filter_map(|setting| setting.flag);
        for text in flags {
            let (commands, flag) = text.split_once("--").expect("a flag");
            let commands = commands.split(',').map(str::trim).filter(|name| !name.is_empty());
            for name in commands.chain(["task"].into_iter().filter(|_| text.starts_with("--"))) {
                let command = root.find_subcommand(name).expect(name);
                let has_it = command.get_arguments().any(|known| known.get_long() == Some(flag));
                assert!(has_it, "{name} has no --{flag}");
            }
        }
    }

    #[test]
    fn every_command_has_an_example() {
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
