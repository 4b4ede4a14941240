//! How long a task on an idle queue waits from its submit to the start of its handler, beside the raw
//! loop. Whoever submits and whoever works are apart: the worker hears of a task through the store.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tidegate_core::{Attempt, Kind, NewTask, Submission};
use tidegate_engine::{AttemptOutcome, Context, Failure, Observer, Shutdown, Worker, WorkerConfig};
use tidegate_store::{OpenOptions, StoreLocation, open};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::target::Target;
use crate::clock::monotonic_ns;
use crate::raw::RawStartLatency;
use crate::report::ResultLine;

/// Tasks that are measured in turn, ours and raw.
const ROUND_TASKS: u32 = 20;

/// After so long without its task the worker is asked no more.
const START_TIMEOUT: Duration = Duration::from_secs(60);

const LATENCY_KIND: &str = "picked-up";

/// What to measure.
#[derive(Debug, Clone)]
pub struct Latency {
    /// The store. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// Tasks, each submitted when the one before is done.
    pub tasks: u32,
}

/// Tells when handlers start, and when their tasks are done with.
#[derive(Debug)]
struct StartTimes(UnboundedSender<u64>);

impl StartTimes {
    fn send_now(&self) {
        // Nobody listens any more when the measurement is over.
        let _ = self.0.send(monotonic_ns());
    }
}

impl Observer for StartTimes {
    fn on_start(&self, _: &Attempt) {
        self.send_now();
    }

    fn on_acknowledged(&self, _: &Attempt, _: AttemptOutcome) {
        self.send_now();
    }
}

/// Measures ours and the raw loop in turn.
pub async fn latency(
    scenario: &Latency,
    mut each: impl FnMut(ResultLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let target = Target::new(scenario.url.as_deref())?;
    let opened = target.open().await?;
    let mut raw = match &target.place {
        StoreLocation::Postgres(url) => Some(RawStartLatency::open(url).await?),
        _ => None,
    };
    let theirs = match target.place {
        StoreLocation::Memory => opened.store.clone(),
        _ => open(&target.url, OpenOptions::default()).await?.store,
    };
    let (tell, mut starts) = unbounded_channel();
    let kind = Kind { remove_on_completed_days: Some(0), ..Kind::new(LATENCY_KIND) };
    let handle = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    let worker = Worker::builder(theirs)
        .config(WorkerConfig::default())
        .observer(Arc::new(StartTimes(tell)))
        .handle(kind, handle)
        .build()?;
    let shutdown = Shutdown::new();
    let run = tokio::spawn(worker.run(shutdown.clone()));
    let (mut ours, mut raws) = (Vec::new(), Vec::new());
    // The first is only to see that the worker is there.
    submit_and_wait(&*opened.store, &mut starts).await?;
    while ours.len() < scenario.tasks as usize {
        for _ in 0..ROUND_TASKS {
            ours.push(submit_and_wait(&*opened.store, &mut starts).await?);
        }
        if let Some(raw) = &mut raw {
            raws.extend(raw.measure(ROUND_TASKS).await?);
        }
    }
    shutdown.drain();
    run.await??;
    let seconds = ours.iter().sum();
    let mut line = ResultLine::new("latency", target.name(), ours.len() as u64, seconds)
        .with_extra("p50_ms", percentile_ms(&mut ours, 50))
        .with_extra("p99_ms", percentile_ms(&mut ours, 99));
    if !raws.is_empty() {
        let raw = percentile_ms(&mut raws, 50);
        line = line
            .with_extra("raw_p50_ms", raw)
            .with_extra("raw_p99_ms", percentile_ms(&mut raws, 99));
        line.ratio = Some(percentile_ms(&mut ours, 50) / raw);
        line.raw_per_s = Some(raws.len() as f64 / raws.iter().sum::<f64>());
    }
    each(line)
}

/// Submits a task and waits until it is done; gives the seconds to its start.
async fn submit_and_wait(
    store: &dyn tidegate_core::Store,
    starts: &mut UnboundedReceiver<u64>,
) -> anyhow::Result<f64> {
    let begin_ns = monotonic_ns();
    let tasks = vec![NewTask::new(LATENCY_KIND, "null")];
    store.submit(Submission { tasks, ..Submission::default() }).await?;
    let started_ns = next_time(starts).await?;
    next_time(starts).await?;
    ensure!(started_ns >= begin_ns, "a task began before it was submitted");
    Ok((started_ns - begin_ns) as f64 / 1e9)
}

async fn next_time(starts: &mut UnboundedReceiver<u64>) -> anyhow::Result<u64> {
    let heard = tokio::time::timeout(START_TIMEOUT, starts.recv()).await;
    heard.ok().flatten().context("the worker does nothing")
}

/// In milliseconds.
fn percentile_ms(seconds: &mut [f64], percent: usize) -> f64 {
    seconds.sort_by(f64::total_cmp);
    let at = (seconds.len() * percent / 100).min(seconds.len() - 1);
    1e3 * seconds[at]
}
