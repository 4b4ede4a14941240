//! One file per command: what it takes, and what it does.

pub(crate) mod bench;
pub(crate) mod concurrency;
pub(crate) mod doctor;
pub(crate) mod migrate;
pub(crate) mod run;
pub(crate) mod submit;
pub(crate) mod task;
pub(crate) mod verify;
pub(crate) mod worker;

use std::process::ExitCode;

use tidegate_store::{OpenOptions, Opened};

use crate::cli::{Cli, Command, Global};
use crate::kinds::exec;

/// Runs the command that was typed.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let global = &cli.global;
    match cli.command {
        Command::Run(arguments) => run::run(global, arguments).await,
        Command::Submit(arguments) => submit::run(global, arguments).await,
        Command::Worker(arguments) => worker::run(global, arguments).await,
        Command::Task(arguments) => task::run(global, arguments).await,
        Command::Concurrency(arguments) => concurrency::run(global, arguments).await,
        Command::Doctor(arguments) => doctor::run(global, arguments).await,
        Command::Verify(arguments) => verify::run(arguments),
        Command::Bench(arguments) => bench::run(global, arguments).await,
        Command::Migrate(_) => migrate::run(global).await,
        Command::GuardExec => exec::guard::run().await,
    }
}

/// Opens the store to write to it. It is made where there is none, and brought up to date.
pub(crate) async fn open_to_write(global: &Global) -> anyhow::Result<Opened> {
    let opened = tidegate_store::open(global.url(), OpenOptions::default()).await?;
    opened.store.migrate().await?;
    Ok(opened)
}

/// Opens a store that must be there.
pub(crate) async fn open_to_read(global: &Global) -> anyhow::Result<Opened> {
    let options = OpenOptions { must_exist: true, ..OpenOptions::default() };
    Ok(tidegate_store::open(global.url(), options).await?)
}
