//! The `tidegate` binary. What was typed is in [`cli`], what each command does in [`commands`].

mod cli;
mod commands;
mod config;
mod explain;
mod file;
mod flags;
mod kinds;
#[cfg(feature = "otel")]
mod otel;
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
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::Key;

/// What hears of spans.
type Spans = Box<dyn Layer<Registry> + Send + Sync>;

fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => start(cli).unwrap_or_else(|error| output::report(&error)),
        Err(error) if error.use_stderr() => output::not_understood(&error),
        Err(help) => help.exit(),
    }
}

fn start(mut cli: cli::Cli) -> anyhow::Result<ExitCode> {
    let mut collector = None;
    if cli.command.is_configured() {
        cli.global.configure(cli.command.profile())?;
        collector = cli.global.otlp()?;
    }
    let is_terminal = std::io::stderr().is_terminal();
    let filter = EnvFilter::try_new(cli.global.config.text(Key::Log))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let _entered = runtime.enter();
    // What is left of the traces is sent as this is dropped, while the runtime is still there.
    #[cfg(feature = "otel")]
    let traces = collector.as_deref().map(otel::Traces::start).transpose()?;
    #[cfg(feature = "otel")]
    let spans = traces.as_ref().map(otel::Traces::layer);
    #[cfg(not(feature = "otel"))]
    let spans = collector.and(None);
    if !(is_terminal && cli.command.is_drawn()) {
        log(filter, is_terminal, spans);
    }
    runtime.block_on(commands::run(cli))
}

/// What the engine notes goes to stderr, as much of it as is asked for, and its spans where they are
/// traced.
fn log(filter: EnvFilter, is_terminal: bool, spans: Option<Spans>) {
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(is_terminal)
        .with_writer(std::io::stderr)
        .with_filter(filter);
    tracing_subscriber::registry().with(spans).with(lines).init();
}
