//! The `tidegate` binary. What was typed is in [`cli`], what each command does in [`commands`].

mod cli;
mod commands;
mod config;
mod explain;
mod flags;
mod kinds;
#[cfg(feature = "otel")]
mod otel;
mod output;
mod reference;
mod run;
mod run_file;
mod stderr;
mod submit;
mod suggest;
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
type SpanLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => {
            let code = run_cli(cli).unwrap_or_else(|error| output::print_error(&error));
            // The end of the process would cut off the connections of stores that were just dropped.
            tidegate_store::postgres::wait_until_closed();
            code
        }
        Err(error) if error.use_stderr() => output::print_usage_error(&error),
        Err(help) => help.exit(),
    }
}

fn run_cli(mut cli: cli::Cli) -> anyhow::Result<ExitCode> {
    let mut collector = None;
    if cli.command.uses_config() {
        cli.global.load_config(cli.command.profile())?;
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
    if !(is_terminal && cli.command.is_full_screen()) {
        init_logging(filter, of_requests, is_terminal, spans);
    }
    runtime.block_on(commands::run(cli))
}

/// Writes the events of the engine and the store to stderr, as many as the filter admits, and one line for each
/// request to the store when it ends. Sends spans where they are traced.
fn init_logging(
    filter: EnvFilter,
    of_requests: EnvFilter,
    is_terminal: bool,
    spans: Option<SpanLayer>,
) {
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
