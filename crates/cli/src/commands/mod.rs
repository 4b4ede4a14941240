//! One file per command: what it takes, and what it does.

pub(crate) mod bench;
mod cancel_all;
pub(crate) mod completions;
pub(crate) mod concurrency;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod job;
pub(crate) mod migrate;
pub(crate) mod prune;
pub(crate) mod queue;
pub(crate) mod reference;
pub(crate) mod run;
pub(crate) mod submit;
pub(crate) mod task;
pub(crate) mod test_server;
pub(crate) mod top;
pub(crate) mod verify;
pub(crate) mod worker;
pub(crate) mod workers;
pub(crate) mod workflow;

use std::process::ExitCode;

use tidegate_store::{OpenOptions, StoreHandle};

use crate::cli::{Cli, Command, Global};
use crate::config::{apply_limits, print_overridden_limits};
use crate::kinds::exec;

/// Runs the command that was typed.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let global = &cli.global;
    match cli.command {
        Command::Run(arguments) => run::run(global, arguments).await,
        Command::Submit(arguments) => submit::run(global, arguments).await,
        Command::Worker(arguments) => worker::run(global, arguments).await,
        Command::Task(arguments) => task::run(global, arguments).await,
        Command::Job(arguments) => job::run(global, arguments).await,
        Command::Queue(arguments) => queue::run(global, arguments).await,
        Command::Workflow(arguments) => workflow::run(global, arguments).await,
        Command::Workers(arguments) => workers::run(global, arguments).await,
        Command::Concurrency(arguments) => concurrency::run(global, arguments).await,
        Command::Top(arguments) => top::run(global, arguments).await,
        Command::Doctor(arguments) => doctor::run(global, arguments).await,
        Command::Verify(arguments) => verify::run(arguments),
        Command::Bench(arguments) => bench::run(global, arguments).await,
        Command::TestServer(arguments) => test_server::run(arguments).await,
        Command::Migrate(_) => migrate::run(global).await,
        Command::Prune(arguments) => prune::run(global, arguments).await,
        Command::Config(arguments) => config::run(global, &arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Reference(arguments) => reference::run(&arguments),
        Command::ExecSupervisor => exec::supervisor::run().await,
    }
}

/// Opens the store to write to it. It is made where there is none, and brought up to date.
pub(crate) async fn open_to_write(global: &Global) -> anyhow::Result<StoreHandle> {
    let opened = tidegate_store::open(global.url(), options(global)).await?;
    opened.store.migrate().await?;
    Ok(opened)
}

/// Opens the store to work with it: as to write, and the limits of the configuration hold in it.
pub(crate) async fn open_to_work(global: &Global) -> anyhow::Result<StoreHandle> {
    let opened = open_to_write(global).await?;
    print_overridden_limits(apply_limits(&opened, global.config.limits()).await?);
    Ok(opened)
}

/// Opens a store that must be there.
pub(crate) async fn open_to_read(global: &Global) -> anyhow::Result<StoreHandle> {
    let options = OpenOptions { must_exist: true, ..options(global) };
    Ok(tidegate_store::open(global.url(), options).await?)
}

/// Returns how the configuration says to open the store.
fn options(global: &Global) -> OpenOptions {
    let postgres_timeouts = global.config.postgres_timeouts();
    OpenOptions { postgres_timeouts, ..OpenOptions::default() }
}
