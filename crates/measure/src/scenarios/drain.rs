//! A worker that works off noops as fast as it can, and counts.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tidegate_core::{Attempt, Kind, NewTask, Registration, Store};
use tidegate_engine::{
    AttemptOutcome, Context, Failure, Observer, Shutdown, Worker, WorkerConfig, time,
};
use tidegate_store::postgres::{self, Postgres};
use tidegate_store::{OpenOptions, StoreLocation, open};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};
use tokio::sync::Notify;

use super::bench_phase::BenchPhase;
use super::task_mix::SplitMix;

use crate::clock::monotonic_ns;

/// As long as the payload of the raw loop.
const PAYLOAD: &[u8] = b"\"sixteen bytes.\"";

/// What is worked off where no crew does it.
pub(super) const NOOP_KIND: &str = "noop";

/// What a worker of a benchmark takes.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Tasks in one claim.
    pub batch: u32,
    /// Tasks that run at once.
    pub concurrency: u32,
    /// How many kinds there are.
    pub kinds: u32,
    /// What the handlers do.
    pub handlers: Handlers,
}

impl Load {
    /// Returns a load of handlers that return at once.
    pub const fn noop(batch: u32, concurrency: u32, kinds: u32) -> Self {
        let handlers = Handlers { hold_ms: 0, failing_percent: 0, reporting_percent: 0 };
        Self { batch, concurrency, kinds, handlers }
    }
}

/// What the handlers of a benchmark do. Default: they return at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Handlers {
    /// How long a handler runs. The worker sends a heartbeat three times as often.
    pub hold_ms: u32,
    /// Percentage of tasks whose first attempt fails. The task is retried after [`RETRY_DELAY`].
    pub failing_percent: u32,
    /// Percentage of tasks that report progress at their start.
    pub reporting_percent: u32,
}

/// Delay before the second attempt of a task whose first attempt failed.
const RETRY_DELAY: Duration = Duration::from_millis(100);

impl Handlers {
    /// Runs one attempt.
    async fn run(self, context: &Context) -> Result<(), Failure> {
        let is_first = context.attempt_number() == 1;
        // By a random number of the task, so that a batch has any number of them.
        let number = SplitMix::new(context.task_id().0.unsigned_abs()).below(100) as u32;
        if is_first && number < self.failing_percent {
            return Err(Failure::retry_in("a benchmark that fails on purpose", RETRY_DELAY));
        }
        if number < self.reporting_percent {
            context.progress(50, "half way");
        }
        if self.hold_ms > 0 {
            time::sleep(Duration::from_millis(self.hold_ms.into())).await;
        }
        Ok(())
    }

    fn heartbeat_interval(self) -> Option<Duration> {
        (self.hold_ms > 0).then(|| Duration::from_millis(u64::from(self.hold_ms / 3).max(1)))
    }
}

/// What is worked off: removed as it completes, as the raw loop does.
pub(super) fn kind(name: &str) -> Kind {
    Kind { remove_on_completed_days: Some(0), ..Kind::new(name) }
}

/// One of it.
pub(super) fn task(kind: &str) -> NewTask {
    NewTask::new(kind, PAYLOAD)
}

/// Makes kinds known.
pub(super) async fn register(store: &dyn Store, kinds: Vec<Kind>) -> tidegate_core::Result<()> {
    let registration = Registration { kinds, ..Registration::default() };
    store.register(registration).await.map(drop)
}

/// Counts completed tasks, and tells when all are.
#[derive(Debug)]
pub(super) struct Counter {
    wanted: u64,
    /// The first of several kinds.
    first: String,
    completed: AtomicU64,
    last_ns: AtomicU64,
    rest_last_ns: AtomicU64,
    all: Notify,
}

impl Counter {
    pub(super) fn new(wanted: u64) -> Self {
        let zero = || AtomicU64::new(0);
        let (completed, last_ns, rest_last_ns) = (zero(), zero(), zero());
        let first = BenchPhase::Measured.kind_name(0, 2);
        Self { wanted, first, completed, last_ns, rest_last_ns, all: Notify::new() }
    }

    /// Waits until all are completed.
    pub(super) async fn reached(&self) {
        self.all.notified().await;
    }

    /// How many so far.
    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::SeqCst)
    }

    fn report(&self) -> DrainReport {
        DrainReport {
            completed: self.completed(),
            last_ns: self.last_ns.load(Ordering::SeqCst),
            rest_last_ns: self.rest_last_ns.load(Ordering::SeqCst),
            traffic: None,
            is_final: false,
        }
    }
}

impl Observer for Counter {
    fn on_acknowledged(&self, attempt: &Attempt, ended: AttemptOutcome) {
        // The clock stops at the last first attempt: the last retries wait for their delay only.
        if attempt.number == 1 {
            let now = monotonic_ns();
            self.last_ns.store(now, Ordering::SeqCst);
            if *attempt.kind != *self.first {
                self.rest_last_ns.store(now, Ordering::SeqCst);
            }
        }
        if ended != AttemptOutcome::Completed {
            return;
        }
        if self.completed.fetch_add(1, Ordering::SeqCst) + 1 == self.wanted {
            self.all.notify_one();
        }
    }
}

/// Twice a batch, so that handlers run while the store works. The raw loop has one batch in
/// flight, and at small batches two of ours may share a commit that it has to make alone.
pub(super) fn default_concurrency(batch: u32) -> u32 {
    2 * batch
}

/// A worker of these kinds under this load.
pub(super) fn worker(
    store: Arc<dyn Store>,
    load: Load,
    kinds: Vec<Kind>,
    counter: Arc<Counter>,
) -> tidegate_core::Result<Worker> {
    let Load { batch, concurrency: permits, handlers, .. } = load;
    let heartbeat_interval = handlers.heartbeat_interval();
    let options = WorkerConfig {
        concurrency: permits,
        claim_batch_size: batch,
        heartbeat_interval,
        ..WorkerConfig::default()
    };
    let mut builder = Worker::builder(store).config(options).observer(counter);
    for kind in kinds {
        let handler =
            move |context: Context, _: IgnoredAny| async move { handlers.run(&context).await };
        builder = builder.handle(kind, handler);
    }
    builder.build()
}

/// What one process did in one shift.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct DrainReport {
    pub(super) completed: u64,
    /// When the last first attempt of a task ended.
    pub(super) last_ns: u64,
    /// The same of all kinds but the first.
    pub(super) rest_last_ns: u64,
    /// What went to the server, where the store counts it.
    pub(super) traffic: Option<Traffic>,
    /// Nothing more comes of this shift.
    pub(super) is_final: bool,
}

/// What a process sent to its server.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Traffic {
    pub(super) round_trips: u64,
    pub(super) waited_ms: f64,
}

impl From<postgres::RoundTripStats> for Traffic {
    fn from(sent: postgres::RoundTripStats) -> Self {
        let waited_ms = 1e3 * sent.waited.as_secs_f64();
        Self { round_trips: sent.round_trips, waited_ms }
    }
}

/// How often a process says what it has done. Whoever waits for the end need not ask the store,
/// which would cost those who are measured.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// The life of a worker process of a benchmark: one shift after the other. In each it says that it is
/// ready, says what it has done again and again, rests when a line comes in or stdin ends, and says
/// it for the last time. What it has connected and prepared stays for the next shift.
pub async fn run_process(url: &str, load: Load) -> anyhow::Result<()> {
    let (store, postgres) = connect(url).await?;
    let mut stdin = BufReader::new(tokio::io::stdin()).lines();
    for shift in BenchPhase::ALL {
        let sent = || postgres.as_ref().map(Postgres::round_trip_stats);
        let before = sent();
        let mut done = run_phase(store.clone(), load, shift, &mut stdin).await?;
        done.traffic = sent().zip(before).map(|(after, before)| after.since(before).into());
        print_line(&serde_json::to_string(&done)?)?;
    }
    Ok(())
}

/// The store, and the same where it counts what it sends.
async fn connect(url: &str) -> anyhow::Result<(Arc<dyn Store>, Option<Postgres>)> {
    if let StoreLocation::Postgres(url) = StoreLocation::parse(url)? {
        let store = Postgres::connect(&url, postgres::Options::default()).await?;
        return Ok((Arc::new(store.clone()), Some(store)));
    }
    Ok((open(url, OpenOptions::default()).await?.store, None))
}

async fn run_phase(
    store: Arc<dyn Store>,
    load: Load,
    shift: BenchPhase,
    stdin: &mut Lines<BufReader<Stdin>>,
) -> anyhow::Result<DrainReport> {
    let counter = Arc::new(Counter::new(u64::MAX));
    let worker = worker(store, load, shift.kinds(load.kinds), counter.clone())?;
    let shutdown = Shutdown::new();
    let told = shutdown.clone();
    let listen = async move {
        // Also where the parent has died.
        let _ = stdin.next_line().await;
        told.drain();
    };
    let said = async {
        print_line(READY_LINE)?;
        let mut last = 0;
        loop {
            time::sleep(REPORT_INTERVAL).await;
            let done = counter.report();
            if done.completed != last {
                last = done.completed;
                print_line(&serde_json::to_string(&done)?)?;
            }
        }
    };
    let work = async {
        let (worked, ()) = tokio::join!(worker.run(shutdown), listen);
        worked
    };
    tokio::select! {
        biased;
        worked = work => drop(worked?),
        said = said => {
            let said: anyhow::Result<()> = said;
            said?;
        }
    }
    Ok(DrainReport { is_final: true, ..counter.report() })
}

/// What a process says when it waits for its queue to open.
pub(super) const READY_LINE: &str = "ready";

fn print_line(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
