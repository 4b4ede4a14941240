//! The `tidegate` binary. What was typed is in [`cli`], what each command does in [`commands`].

mod cli;
mod commands;
mod explain;
mod file;
mod kinds;
mod output;
mod run;
mod suggest;
mod tell;
mod worker;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    log();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(commands::run(cli)));
    outcome.unwrap_or_else(|error| output::report(&error))
}

/// What the engine notes goes to stderr: warnings, or as much as `TIDEGATE_LOG` asks for.
fn log() {
    let filter = EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}
