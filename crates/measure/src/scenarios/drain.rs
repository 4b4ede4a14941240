//! A worker that works off noops as fast as it can, and counts.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tidegate_core::{Attempt, Kind, NewTask, Registration, Store};
use tidegate_engine::{Context, Ended, Failure, Observer, Options, Shutdown, Worker, time};
use tidegate_store::{OpenOptions, open};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::sync::Notify;

use crate::clock::monotonic_ns;

/// As long as the payload of the raw loop.
const PAYLOAD: &[u8] = b"\"sixteen bytes.\"";

/// What a worker of a benchmark takes.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Tasks in one claim.
    pub batch: u32,
    /// Tasks that run at once.
    pub permits: u32,
    /// How many kinds there are.
    pub kinds: u32,
}

/// The name of the kind with this number.
pub(super) fn kind_name(number: u32, kinds: u32) -> String {
    if kinds == 1 { "noop".to_owned() } else { format!("noop-{number}") }
}

/// What is worked off: removed as it completes, as the raw loop does.
pub(super) fn kind(number: u32, kinds: u32) -> Kind {
    Kind { remove_on_completed_days: Some(0), ..Kind::new(kind_name(number, kinds)) }
}

/// One of it; the kinds take turns.
pub(super) fn task(number: u64, kinds: u32) -> NewTask {
    NewTask::new(kind_name((number % u64::from(kinds)) as u32, kinds), PAYLOAD)
}

/// Makes the kinds known.
pub(super) async fn register(store: &dyn Store, kinds: u32) -> tidegate_core::Result<()> {
    let kinds = (0..kinds).map(|number| kind(number, kinds)).collect();
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
        let first = kind_name(0, 2);
        Self { wanted, first, completed, last_ns, rest_last_ns, all: Notify::new() }
    }

    /// Waits until all are completed.
    pub(super) async fn reached(&self) {
        self.all.notified().await;
    }

    fn done(&self) -> Drained {
        Drained {
            completed: self.completed.load(Ordering::SeqCst),
            last_ns: self.last_ns.load(Ordering::SeqCst),
            rest_last_ns: self.rest_last_ns.load(Ordering::SeqCst),
        }
    }
}

impl Observer for Counter {
    fn exit(&self, attempt: &Attempt, ended: Ended) {
        if ended != Ended::Completed {
            return;
        }
        let now = monotonic_ns();
        self.last_ns.store(now, Ordering::SeqCst);
        if *attempt.kind != *self.first {
            self.rest_last_ns.store(now, Ordering::SeqCst);
        }
        if self.completed.fetch_add(1, Ordering::SeqCst) + 1 == self.wanted {
            self.all.notify_one();
        }
    }
}

/// Twice a batch, so that handlers run while the store works. The raw loop has one batch in
/// flight, and at small batches two of ours may share a commit that it has to make alone.
pub(super) fn permits(batch: u32) -> u32 {
    2 * batch
}

/// A worker under this load.
pub(super) fn worker(
    store: Arc<dyn Store>,
    load: Load,
    counter: Arc<Counter>,
) -> tidegate_core::Result<Worker> {
    let Load { batch, permits, kinds } = load;
    let options = Options { concurrency: permits, claim_batch: batch, ..Options::default() };
    let mut builder = Worker::builder(store).options(options).observer(counter);
    for number in 0..kinds {
        let noop = |_: Context, _: IgnoredAny| async { Ok::<_, Failure>(()) };
        builder = builder.handle(kind(number, kinds), noop);
    }
    builder.build()
}

/// What one process did.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Drained {
    pub(super) completed: u64,
    /// When it completed its last task.
    pub(super) last_ns: u64,
    /// The same of all kinds but the first.
    pub(super) rest_last_ns: u64,
}

/// How often a process says what it has done. Whoever waits for the end need not ask the store,
/// which would cost those who are measured.
const SAY_INTERVAL: Duration = Duration::from_millis(50);

/// The life of a worker process of a benchmark: says that it is ready, begins when a line comes
/// in, says what it has done again and again, ends when stdin does, and says it for the last time.
pub async fn process(url: &str, load: Load) -> anyhow::Result<()> {
    let opened = open(url, OpenOptions::default()).await?;
    let counter = Arc::new(Counter::new(u64::MAX));
    let worker = worker(opened.store, load, counter.clone())?;
    say("ready")?;
    let mut stdin = BufReader::new(tokio::io::stdin());
    stdin.read_line(&mut String::new()).await?;
    let shutdown = Shutdown::new();
    let told = shutdown.clone();
    let listen = async move {
        // Also where the parent has died.
        let _ = stdin.read_to_end(&mut Vec::new()).await;
        told.drain();
    };
    let said = async {
        let mut last = 0;
        loop {
            time::sleep(SAY_INTERVAL).await;
            let done = counter.done();
            if done.completed != last {
                last = done.completed;
                say(&serde_json::to_string(&done)?)?;
            }
        }
    };
    let work = async {
        let (worked, ()) = tokio::join!(worker.run(shutdown), listen);
        worked
    };
    tokio::select! {
        worked = work => drop(worked?),
        said = said => {
            let said: anyhow::Result<()> = said;
            said?;
        }
    }
    say(&serde_json::to_string(&counter.done())?)
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
