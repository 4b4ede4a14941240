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
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::Key;

/// What hears of spans.
type Spans = Box<dyn Layer<Registry> + Send + Sync>;

fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => {
            let code = start(cli).unwrap_or_else(|error| output::report(&error));
            // The end of the process would cut off the connections of stores that were just dropped.
            tidegate_store::postgres::wait_until_closed();
            code
        }
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
    let levels = cli.global.config.text(Key::Log);
    let (filter, of_requests) = (EnvFilter::try_new(levels)?, EnvFilter::try_new(levels)?);
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
        log(filter, of_requests, is_terminal, spans);
    }
    runtime.block_on(commands::run(cli))
}

/// Writes the events of the engine and the store to stderr, as many as the filter admits, and one line for each
/// request to the store when it ends. Sends spans where they are traced.
fn log(filter: EnvFilter, of_requests: EnvFilter, is_terminal: bool, spans: Option<Spans>) {
    // Two layers that see the same span would write its fields twice.
    let is_request = filter_fn(|metadata| metadata.target() == "tidegate_store::request");
    let filter = filter.and(is_request.clone().not());
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(is_terminal)
        .with_writer(std::io::stderr)
        .with_filter(filter);
    let requests = tracing_subscriber::fmt::layer()
        .with_ansi(is_terminal)
        .with_writer(std::io::stderr)
        .with_span_events(FmtSpan::CLOSE)
        .with_filter(of_requests.and(is_request));
    tracing_subscriber::registry().with(spans).with(lines).with(requests).init();
}
