use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Args;

use crate::cli::Global;
use crate::flags;

/// Shorter, and looking would be all that the store does.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longer, and nobody would call it live.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Shows limits with their holders and lines, queues, jobs and workers, live in the terminal
///
/// Tab goes to the next panel, the arrows to another row; the holders and the line are those of the
/// limit with the mark. q leaves. The binary must be built with the feature `top`: `cargo install
/// --locked --path crates/cli --features top`. Where there is no terminal, the lists tell the same:
/// `concurrency status`, `queue list`, `job list`, `workers`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate top --interval 500ms")]
pub(crate) struct Arguments {
    /// Between two looks at the store, from 100ms to 1h
    #[arg(long, value_name = "DURATION", value_parser = flags::parse_duration, default_value = "1s")]
    interval: jiff::SignedDuration,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    show(global, arguments.interval()?).await
}

impl Arguments {
    fn interval(&self) -> anyhow::Result<Duration> {
        match Duration::try_from(self.interval) {
            Ok(interval) if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) => Ok(interval),
            _ => bail!("--interval is from 100ms to 1h, not {:#}", self.interval),
        }
    }
}

#[cfg(feature = "top")]
async fn show(global: &Global, interval: Duration) -> anyhow::Result<ExitCode> {
    use std::io::IsTerminal as _;

    if !std::io::stdout().is_terminal() {
        let list = global.command_line(&["concurrency", "status", "--json"]);
        bail!("top needs a terminal to draw on; `{list}` and the other lists go anywhere");
    }
    let opened = super::open_to_read(global).await?;
    crate::top::run(opened.reader, global.display_url(), interval).await?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(not(feature = "top"))]
async fn show(_: &Global, _: Duration) -> anyhow::Result<ExitCode> {
    bail!(
        "this binary was built without top; `cargo install --locked --path crates/cli --features \
         top` builds it"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_interval_is_bounded() {
        let good = |text: &str| {
            let interval = text.parse().expect("a duration");
            Arguments { interval }.interval().is_ok()
        };
        assert_eq!(["100ms", "1s", "1h"].map(good), [true; 3]);
        assert_eq!(["99ms", "0s", "-1s", "1h1ms", "1000000h"].map(good), [false; 5]);
    }
}
