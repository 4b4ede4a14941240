//! What metrics cost a worker: empty tasks on a store in memory, with and without metrics in turn.
//!
//!     cargo run --release -p tidegate-engine --example metrics_cost -- 50000 9
//!
//! The arguments are the tasks of one round and the number of rounds. A store in memory takes less time per
//! task than any other, so the share that it shows is the largest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tidegate_core::{NewTask, Submission};
use tidegate_engine::{Context, Failure, Metrics, Options, Result, Shutdown, Store, Worker};
use tidegate_store::memory::Memory;

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
    let options = Options { concurrency: 200, claim_batch: 100, ..Options::default() };
    let mut worker = Worker::builder(store).options(options).handle("empty", handler);
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

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map_while(|argument| argument.parse().ok());
    let (tasks, rounds) = (arguments.next().unwrap_or(50_000), arguments.next().unwrap_or(9));
    let metrics = Metrics::new();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        without.push(f64::from(tasks) / round(tasks, None).await?.as_secs_f64());
        with.push(f64::from(tasks) / round(tasks, Some(&metrics)).await?.as_secs_f64());
    }
    let ratios: Vec<f64> =
        with.iter().zip(&without).map(|(with, without)| with / without).collect();
    println!("without metrics: {:.0} tasks/s", median(without));
    println!("with metrics:    {:.0} tasks/s", median(with));
    println!("ratio:           {:.3} (median of {rounds} rounds)", median(ratios));
    Ok(())
}
