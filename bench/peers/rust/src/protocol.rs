//! What a peer and the driver say to each other, in lines over stdin and stdout.
//!
//! `enqueue` answers with its seconds and `latency` with its milliseconds. `work` says that it is
//! ready, begins when a line comes in, says how many jobs its handlers have done whenever that has
//! changed, and ends when stdin does.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Short beside a drain, and long beside a job.
const SAY_INTERVAL: Duration = Duration::from_millis(5);

/// After so long without its job a worker is asked no more.
const PATIENCE: Duration = Duration::from_secs(60);

static HANDLED: AtomicU64 = AtomicU64::new(0);

static STARTS: OnceLock<UnboundedSender<Instant>> = OnceLock::new();

/// The payload of every job: sixteen bytes as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Noop {
    key: String,
}

impl Noop {
    pub fn new() -> Self {
        Self { key: "bytes.".to_owned() }
    }
}

/// What every handler does.
pub fn handle() {
    if let Some(starts) = STARTS.get() {
        // Nobody listens any more when the measurement is over.
        let _ = starts.send(Instant::now());
    }
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Lets a worker begin and end when the driver says so. `run` is given the end to wait for.
pub async fn work<Run>(run: impl FnOnce(BoxFuture<'static, ()>) -> Run) -> anyhow::Result<()>
where
    Run: Future<Output = anyhow::Result<()>>,
{
    println!("ready");
    let mut stdin = BufReader::new(tokio::io::stdin());
    stdin.read_line(&mut String::new()).await?;
    let end = async move {
        // Also where the driver has died.
        let _ = stdin.read_to_end(&mut Vec::new()).await;
    };
    tokio::select! {
        worked = run(end.boxed()) => worked?,
        () = say_handled() => {}
    }
    println!("{}", HANDLED.load(Ordering::Relaxed));
    Ok(())
}

async fn say_handled() {
    let mut said = 0;
    loop {
        tokio::time::sleep(SAY_INTERVAL).await;
        let handled = HANDLED.load(Ordering::Relaxed);
        if handled != said {
            println!("{handled}");
            said = handled;
        }
    }
}

/// Measures how long calls take that enqueue all jobs, at most `call` of them each.
pub async fn enqueue(
    jobs: usize,
    call: usize,
    mut add: impl AsyncFnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut left = jobs;
    while left > 0 {
        let part = left.min(call);
        add(part).await?;
        left -= part;
    }
    println!("{}", serde_json::json!({ "seconds": begin.elapsed().as_secs_f64() }));
    Ok(())
}

/// Measures how long single jobs wait from the call that enqueues them to the start of the handler.
pub async fn latency(
    jobs: usize,
    mut add: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (tell, mut starts) = unbounded_channel();
    STARTS.set(tell).ok().context("latency is measured once")?;
    // The first is only to see that the worker is there.
    pick_up(&mut add, &mut starts).await?;
    let mut milliseconds = Vec::new();
    for _ in 0..jobs {
        milliseconds.push(1e3 * pick_up(&mut add, &mut starts).await?.as_secs_f64());
    }
    println!("{}", serde_json::json!({ "milliseconds": milliseconds }));
    Ok(())
}

async fn pick_up(
    add: &mut impl AsyncFnMut() -> anyhow::Result<()>,
    starts: &mut UnboundedReceiver<Instant>,
) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    add().await?;
    let start = tokio::time::timeout(PATIENCE, starts.recv()).await.ok().flatten();
    Ok(start.context("the worker has not begun a job")?.duration_since(begin))
}
