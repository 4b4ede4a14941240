//! What others notice when a limit is set on a kind with a great many tasks waiting: the limit applies
//! to all of them, and they are put in line step by step.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::de::IgnoredAny;
use tidegate_core::{CapacitySource, Kind, SetLimit};
use tidegate_engine::{Context, Failure, Shutdown, Worker, WorkerConfig, time};
use tidegate_store::{OpenOptions, StoreHandle, StoreLocation, open};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

use super::drain::{Counter, Load, default_concurrency, kind, register, task, worker};
use super::target::Target;
use super::throughput::raw_drain_seconds;
use super::{POLL_INTERVAL, submit};
use crate::clock::Stopwatch;
use crate::report::ResultLine;

/// The kind that gets the limit. Its tasks take their time, so the backlog stays.
const LIMITED_KIND: &str = "flood";
const LIMITED_TASK_DURATION: Duration = Duration::from_secs(1);
const LIMITED_KIND_LOAD: Load = Load::noop(100, 200, 1);
const LIMIT: u32 = 10;

/// The other kinds, and how many workers they have.
const OTHER_KINDS: [&str; 4] = ["other-0", "other-1", "other-2", "other-3"];
const WORKERS: u32 = 4;
const BATCH: u32 = 100;

/// As many tasks of the others wait, so that their workers never wait.
const BUFFERED_TASKS: u64 = 20_000;

/// Tasks in one submit.
const BATCH_TASKS: u64 = 1_000;

/// The most tasks that one transaction put in line: each row tells which one wrote it.
const LARGEST_STEP_SQL: &str = "
    select coalesce(max(step.tasks), 0)
    from (select count(*) as tasks from tidegate.waiters group by xmin::text) as step";

/// What to measure.
#[derive(Debug, Clone)]
pub struct LimitOnBacklog {
    /// The store; it is left with the backlog in it. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// Tasks of the kind that wait when it gets its limit.
    pub tasks: u64,
    /// How long the rate before is measured.
    pub before: Duration,
}

/// Measures the others' rate before, and from the moment the limit is set until all are in line.
pub async fn limit_on_backlog(
    scenario: &LimitOnBacklog,
    mut each: impl FnMut(ResultLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let target = Target::new(scenario.url.as_deref())?;
    ensure!(target.place != StoreLocation::Memory, "the memory store has one process only");
    let opened = target.open().await?;
    let kinds =
        [LIMITED_KIND].iter().chain(&OTHER_KINDS).map(|name| kind_with_queue(name)).collect();
    register(&*opened.store, kinds).await?;
    submit(&*opened.store, &[], (0..scenario.tasks).map(|_| task(LIMITED_KIND))).await?;
    let raw = raw_drain_seconds(&target, BATCH, BUFFERED_TASKS, WORKERS).await?;
    let fleet = WorkerFleet::start(&target).await?;
    let feed = tokio::spawn(feed_others(target.url.clone(), fleet.others.clone()));

    fleet.warm_up().await?;
    let before = fleet.rate(time::sleep(scenario.before)).await;
    let stopwatch = Stopwatch::start();
    let done_before = fleet.others.completed();
    let name = format!("group:{LIMITED_KIND}");
    let set = SetLimit { name, capacity: Some(LIMIT), source: CapacitySource::Configuration };
    let version = opened.store.set_limit(set).await?;
    ensure!(version.is_some(), "{LIMITED_KIND} has a limit already; measure on an empty store");
    let set_s = stopwatch.seconds();
    wait_until_applied(&opened, &fleet, scenario.tasks).await?;
    let seconds = stopwatch.seconds();
    let done = fleet.others.completed() - done_before;

    feed.abort();
    fleet.end().await?;
    let mut line = ResultLine::new("limit-on-backlog", target.name(), done, seconds)
        .compared_with(before, "before_per_s", raw.map(|seconds| BUFFERED_TASKS as f64 / seconds))
        .with_batch(BATCH)
        .with_extra("backlog", scenario.tasks)
        .with_extra("limit", LIMIT)
        .with_extra("set_s", set_s)
        .with_extra("workers", WORKERS);
    if let StoreLocation::Postgres(url) = &target.place {
        line = line.with_extra("step_max", largest_step(url).await?);
    }
    each(line)
}

/// Those who work on the kind and those who work on the others are apart: the handlers of the one
/// would keep the permits of the others.
fn kind_with_queue(name: &str) -> Kind {
    let queue = if name == LIMITED_KIND { LIMITED_KIND } else { "others" };
    Kind { queue: queue.into(), ..kind(name) }
}

/// All workers, each with a store of its own as a process has it.
struct WorkerFleet {
    others: Arc<Counter>,
    limited: Arc<Counter>,
    shutdown: Shutdown,
    running: JoinSet<anyhow::Result<()>>,
}

impl WorkerFleet {
    async fn start(target: &Target) -> anyhow::Result<Self> {
        let counter = || Arc::new(Counter::new(u64::MAX));
        let mut fleet = Self {
            others: counter(),
            limited: counter(),
            shutdown: Shutdown::new(),
            running: JoinSet::new(),
        };
        for _ in 0..WORKERS {
            let store = open(&target.url, OpenOptions::default()).await?.store;
            let load = Load::noop(BATCH, default_concurrency(BATCH), OTHER_KINDS.len() as u32);
            let kinds = OTHER_KINDS.iter().map(|name| kind_with_queue(name)).collect();
            fleet.run(worker(store, load, kinds, fleet.others.clone())?);
        }
        let Load { batch, concurrency: permits, .. } = LIMITED_KIND_LOAD;
        let options = WorkerConfig {
            concurrency: permits,
            claim_batch_size: batch,
            ..WorkerConfig::default()
        };
        let handle = |_: Context, _: IgnoredAny| async {
            time::sleep(LIMITED_TASK_DURATION).await;
            Ok::<_, Failure>(())
        };
        let flood = Worker::builder(open(&target.url, OpenOptions::default()).await?.store)
            .config(options)
            .observer(fleet.limited.clone())
            .handle(kind_with_queue(LIMITED_KIND), handle);
        fleet.run(flood.build()?);
        Ok(fleet)
    }

    fn run(&mut self, worker: Worker) {
        let shutdown = self.shutdown.clone();
        self.running.spawn(async move {
            worker.run(shutdown).await?;
            Ok(())
        });
    }

    /// Waits until all is under way.
    async fn warm_up(&self) -> anyhow::Result<()> {
        while self.others.completed() < BATCH_TASKS || self.limited.completed() == 0 {
            ensure!(self.running.len() > WORKERS as usize, "a worker ended early");
            time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// How many tasks of the others are completed per second meanwhile.
    async fn rate(&self, meanwhile: impl Future<Output = ()>) -> f64 {
        let (stopwatch, before) = (Stopwatch::start(), self.others.completed());
        meanwhile.await;
        (self.others.completed() - before) as f64 / stopwatch.seconds()
    }

    async fn end(mut self) -> anyhow::Result<()> {
        self.shutdown.drain();
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Keeps the others' workers busy.
async fn feed_others(url: String, others: Arc<Counter>) -> anyhow::Result<()> {
    let opened = open(&url, OpenOptions::default()).await?;
    let mut submitted = 0;
    loop {
        if submitted < others.completed() + BUFFERED_TASKS {
            let kind = OTHER_KINDS[(submitted / BATCH_TASKS) as usize % OTHER_KINDS.len()];
            submit(&*opened.store, &[], (0..BATCH_TASKS).map(|_| task(kind))).await?;
            submitted += BATCH_TASKS;
        } else {
            time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Waits until every task of the kind is in line, holds a slot or is done.
async fn wait_until_applied(
    opened: &StoreHandle,
    fleet: &WorkerFleet,
    tasks: u64,
) -> anyhow::Result<()> {
    let name = format!("group:{LIMITED_KIND}");
    loop {
        let done = fleet.limited.completed();
        let limits = opened.reader.limits().await?;
        let limit =
            limits.iter().find(|limit| *limit.name == *name).context("the limit is gone")?;
        if u64::from(limit.waiting) + u64::from(limit.held) + done >= tasks {
            return Ok(());
        }
        ensure!(fleet.running.len() > WORKERS as usize, "a worker ended early");
        time::sleep(POLL_INTERVAL).await;
    }
}

async fn largest_step(url: &str) -> anyhow::Result<i64> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let step = client.query_one(LARGEST_STEP_SQL, &[]).await?.get(0);
    drop(client);
    connection.await??;
    Ok(step)
}
