//! The `tidegate` binary. What was typed is in [`cli`], what each command does in [`commands`].

mod cli;
mod commands;
mod config;
mod explain;
mod file;
mod kinds;
mod output;
mod reference;
mod run;
mod submit;
mod suggest;
mod tell;
#[cfg(feature = "top")]
mod top;
mod worker;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

use crate::config::Key;

fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => start(cli).unwrap_or_else(|error| output::report(&error)),
        Err(error) if error.use_stderr() => output::not_understood(&error),
        Err(help) => help.exit(),
    }
}

fn start(mut cli: cli::Cli) -> anyhow::Result<ExitCode> {
    if cli.command.is_configured() {
        cli.global.configure()?;
    }
    let is_terminal = std::io::stderr().is_terminal();
    let filter = EnvFilter::try_new(cli.global.config.text(Key::Log))?;
    if !(is_terminal && cli.command.is_drawn()) {
        log(filter, is_terminal);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(commands::run(cli))
}

/// What the engine notes goes to stderr, as much of it as is asked for.
fn log(filter: EnvFilter, is_terminal: bool) {
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(is_terminal)
        .with_writer(std::io::stderr)
        .init();
}
