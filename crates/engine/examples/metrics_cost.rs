//! What metrics and spans cost a worker: empty tasks on a store in memory, in turn without both, with metrics, and
//! with metrics and a subscriber that writes a line for each request of the store.
//!
//!     cargo run --release -p tidegate-engine --example metrics_cost -- 50000 9
//!
//! The arguments are the tasks of one round and the number of rounds. A store in memory takes less time per
//! task than any other, so the share that it shows is the largest.
//!
//! The statistics of the store cannot be turned off. Their bound is the time of a whole claim that finds nothing, which
//! includes them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_core::{Claim, NewTask, Submission, WorkerId};
use tidegate_engine::{Context, Failure, Metrics, Result, Shutdown, Store, Worker, WorkerConfig};
use tidegate_store::memory::Memory;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Claims of an empty store that are timed together.
const IDLE_CLAIMS: u32 = 1_000_000;

/// Whether the subscriber receives the spans of requests.
static HAS_SPANS: AtomicBool = AtomicBool::new(false);

/// Lines that the subscriber has formatted.
static LINES: AtomicU64 = AtomicU64::new(0);

/// Counts lines and drops them.
struct Counter;

impl io::Write for Counter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LINES.fetch_add(1, Ordering::Relaxed);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn now() -> Instant {
    Instant::now()
}

/// The time in which one worker works off so many empty tasks.
async fn round(tasks: u32, metrics: Option<&Metrics>) -> Result<Duration> {
    let store = Arc::new(Memory::new());
    for part in (0..tasks).collect::<Vec<_>>().chunks(1000) {
        let tasks = vec![NewTask::new("empty", "null"); part.len()];
        store.submit(Submission { tasks, ..Submission::default() }).await?;
    }
    let (shutdown, left) = (Shutdown::new(), Arc::new(AtomicU32::new(tasks)));
    let handler = {
        let (shutdown, left) = (shutdown.clone(), left);
        move |_: Context, (): ()| {
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                shutdown.drain();
            }
            std::future::ready(Ok::<(), Failure>(()))
        }
    };
    let options =
        WorkerConfig { concurrency: 200, claim_batch_size: 100, ..WorkerConfig::default() };
    let mut worker = Worker::builder(store).config(options).handle("empty", handler);
    if let Some(metrics) = metrics {
        worker = worker.metrics(metrics);
    }
    let worker = worker.build()?;
    let began = now();
    worker.run(shutdown).await?;
    Ok(now() - began)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Installs a subscriber that formats the spans of requests as the binary does, and drops the lines.
fn subscribe() {
    let is_request = dynamic_filter_fn(|metadata, _| {
        metadata.target() == "tidegate_store::request" && HAS_SPANS.load(Ordering::Relaxed)
    });
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| Counter)
        .with_span_events(FmtSpan::CLOSE)
        .with_filter(is_request);
    tracing_subscriber::registry().with(lines).init();
}

/// The time of one claim that finds nothing.
async fn idle_claim() -> Result<Duration> {
    let store = Memory::new();
    let claim = Claim {
        worker: WorkerId("worker".into()),
        queues: ["default".into()].into(),
        kinds: ["empty".into()].into(),
        tasks_max: 1,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    };
    let began = now();
    for _ in 0..IDLE_CLAIMS {
        store.claim(claim.clone()).await?;
    }
    Ok((now() - began) / IDLE_CLAIMS)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map_while(|argument| argument.parse().ok());
    let (tasks, rounds) = (arguments.next().unwrap_or(50_000), arguments.next().unwrap_or(9));
    println!("idle claim:                 {:?}", idle_claim().await?);
    subscribe();
    let metrics = Metrics::new();
    let (mut with, mut with_spans, mut without) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let rate = |took: Duration| f64::from(tasks) / took.as_secs_f64();
        without.push(rate(round(tasks, None).await?));
        with.push(rate(round(tasks, Some(&metrics)).await?));
        HAS_SPANS.store(true, Ordering::Relaxed);
        with_spans.push(rate(round(tasks, Some(&metrics)).await?));
        HAS_SPANS.store(false, Ordering::Relaxed);
    }
    let ratio = |rates: &[f64]| median(rates.iter().zip(&without).map(|(a, b)| a / b).collect());
    println!("without metrics and spans:  {:.0} tasks/s", median(without.clone()));
    println!("with metrics:               {:.3} of it (median of {rounds} rounds)", ratio(&with));
    let lines = LINES.load(Ordering::Relaxed);
    println!("with metrics and spans:     {:.3} of it, {lines} lines", ratio(&with_spans));
    Ok(())
}
