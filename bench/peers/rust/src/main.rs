//! The Rust peers. Each has the same four commands; see `protocol` for what they say.

mod apalis_postgres_peer;
mod graphile_worker_peer;
mod protocol;

use anyhow::{Context as _, bail};

enum Command {
    Setup,
    Enqueue { jobs: usize, call: usize },
    Work,
    Latency { jobs: usize },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [peer, command, url, numbers @ ..] = arguments.as_slice() else {
        bail!("usage: peers PEER COMMAND URL [NUMBER..]");
    };
    let command = command_from(command, numbers)?;
    match peer.as_str() {
        "graphile-worker-rs" => graphile_worker_peer::run(url, command).await,
        "apalis" => apalis_postgres_peer::run(url, command).await,
        _ => bail!("there is no peer {peer}"),
    }
}

fn command_from(name: &str, numbers: &[String]) -> anyhow::Result<Command> {
    let number = |at: usize| -> anyhow::Result<usize> {
        let text = numbers.get(at).with_context(|| format!("{name} needs a number"))?;
        Ok(text.parse()?)
    };
    Ok(match name {
        "setup" => Command::Setup,
        "enqueue" => Command::Enqueue { jobs: number(0)?, call: number(1)? },
        "work" => Command::Work,
        "latency" => Command::Latency { jobs: number(0)? },
        _ => bail!("there is no command {name}"),
    })
}
