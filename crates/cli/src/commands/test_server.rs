use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use tidegate_engine::{ShutdownPhase, shutdown_on_signals};
use tidegate_measure::table::counted;

use crate::output::print;
use crate::run::{Server, ServerSeen};
use crate::run_file::ServerPlan;
use crate::stderr::print_message;

/// Runs a small HTTP server to try limits against, until Ctrl-C
///
/// It answers every call after a while, refuses more calls at once than it is told to take, and
/// says at its end how many came and how many of them at once.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate test-server --listen 127.0.0.1:8642 --calls-max 4")]
pub(crate) struct Arguments {
    /// Where it listens; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// With more calls at once it answers 503 [default: any number]
    #[arg(long, value_name = "N")]
    calls_max: Option<u32>,
    /// The quickest answer
    #[arg(long, value_name = "MS", default_value_t = 20)]
    answer_ms_min: u64,
    /// The slowest answer
    #[arg(long, value_name = "MS", default_value_t = 80)]
    answer_ms_max: u64,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { listen, calls_max, answer_ms_min, answer_ms_max } = arguments;
    if answer_ms_max < answer_ms_min {
        bail!("--answer-ms-max {answer_ms_max} is below --answer-ms-min {answer_ms_min}");
    }
    let plan = ServerPlan { calls_max, answer_ms_min, answer_ms_max, fail_every: None, seed: 0 };
    let shutdown = shutdown_on_signals()?;
    let server =
        Server::start_on(listen, plan).await.with_context(|| format!("listen on {listen}"))?;
    print_message!("listening on http://{}; Ctrl-C ends it", server.address());
    shutdown.wait_for_phase(ShutdownPhase::Draining).await;
    print(&format_statistics(server.stats()))?;
    Ok(ExitCode::SUCCESS)
}

fn format_statistics(seen: ServerSeen) -> String {
    let ServerSeen { calls, refused, concurrent_max: most, .. } = seen;
    format!("{}, at most {most} at once, {refused} refused\n", counted(calls, "call"))
}
