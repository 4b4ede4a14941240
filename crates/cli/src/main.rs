//! The `tidegate` binary. What was typed is in [`cli`], what each command does in [`commands`].

mod cli;
mod commands;
mod file;
mod kinds;
mod output;
mod run;
mod suggest;
mod tell;
mod worker;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(commands::run(cli)));
    outcome.unwrap_or_else(|error| output::report(&error))
}
