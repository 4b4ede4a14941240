//! What others notice when a limit is set on a kind with a great many tasks waiting: the limit applies
//! to all of them, and they are put in line step by step.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::de::IgnoredAny;
use tidegate_core::{Kind, SetLimit, Source};
use tidegate_engine::{Context, Failure, Options, Shutdown, Worker, time};
use tidegate_store::{OpenOptions, Opened, Place, open};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

use super::drain::{Counter, Load, kind, permits, register, task, worker};
use super::target::Target;
use super::throughput::raw;
use super::{LOOK_INTERVAL, submit};
use crate::clock::Stopwatch;
use crate::report::Line;

/// The kind that gets the limit. Its tasks take their time, so the backlog stays.
const FLOOD: &str = "flood";
const FLOOD_TASK: Duration = Duration::from_secs(1);
const FLOOD_LOAD: Load = Load::noop(100, 200, 1);
const LIMIT: u32 = 10;

/// The other kinds, and how many workers they have.
const OTHERS: [&str; 4] = ["other-0", "other-1", "other-2", "other-3"];
const WORKERS: u32 = 4;
const BATCH: u32 = 100;

/// As many tasks of the others wait, so that their workers never wait.
const AHEAD: u64 = 20_000;

/// Tasks in one submit.
const PART: u64 = 1_000;

/// The most tasks that one transaction put in line: each row tells which one wrote it.
const STEP: &str = "
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
    mut each: impl FnMut(Line) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let target = Target::new(scenario.url.as_deref())?;
    ensure!(target.place != Place::Memory, "the memory store has one process only");
    let opened = target.open().await?;
    let kinds = [FLOOD].iter().chain(&OTHERS).map(|name| of_its_queue(name)).collect();
    register(&*opened.store, kinds).await?;
    submit(&*opened.store, &[], (0..scenario.tasks).map(|_| task(FLOOD))).await?;
    let raw = raw(&target, BATCH, AHEAD, WORKERS).await?;
    let fleet = Fleet::start(&target).await?;
    let feed = tokio::spawn(feed(target.url.clone(), fleet.others.clone()));

    fleet.warm_up().await?;
    let before = fleet.rate(time::sleep(scenario.before)).await;
    let stopwatch = Stopwatch::start();
    let done_before = fleet.others.completed();
    let name = format!("group:{FLOOD}");
    let set = SetLimit { name, capacity: Some(LIMIT), source: Source::Configuration };
    let version = opened.store.set_limit(set).await?;
    ensure!(version.is_some(), "{FLOOD} has a limit already; measure on an empty store");
    let set_s = stopwatch.seconds();
    until_applied(&opened, &fleet, scenario.tasks).await?;
    let seconds = stopwatch.seconds();
    let done = fleet.others.completed() - done_before;

    feed.abort();
    fleet.end().await?;
    let mut line = Line::new("limit-on-backlog", target.name(), done, seconds)
        .beside(before, "before_per_s", raw.map(|seconds| AHEAD as f64 / seconds))
        .with_batch(BATCH)
        .with_extra("backlog", scenario.tasks)
        .with_extra("limit", LIMIT)
        .with_extra("set_s", set_s)
        .with_extra("workers", WORKERS);
    if let Place::Postgres(url) = &target.place {
        line = line.with_extra("step_max", largest_step(url).await?);
    }
    each(line)
}

/// Those who work on the kind and those who work on the others are apart: the handlers of the one
/// would keep the permits of the others.
fn of_its_queue(name: &str) -> Kind {
    let queue = if name == FLOOD { FLOOD } else { "others" };
    Kind { queue: queue.into(), ..kind(name) }
}

/// All workers, each with a store of its own as a process has it.
struct Fleet {
    others: Arc<Counter>,
    flood: Arc<Counter>,
    shutdown: Shutdown,
    running: JoinSet<anyhow::Result<()>>,
}

impl Fleet {
    async fn start(target: &Target) -> anyhow::Result<Self> {
        let counter = || Arc::new(Counter::new(u64::MAX));
        let mut fleet = Self {
            others: counter(),
            flood: counter(),
            shutdown: Shutdown::new(),
            running: JoinSet::new(),
        };
        for _ in 0..WORKERS {
            let store = open(&target.url, OpenOptions::default()).await?.store;
            let load = Load::noop(BATCH, permits(BATCH), OTHERS.len() as u32);
            let kinds = OTHERS.iter().map(|name| of_its_queue(name)).collect();
            fleet.run(worker(store, load, kinds, fleet.others.clone())?);
        }
        let Load { batch, permits, .. } = FLOOD_LOAD;
        let options = Options { concurrency: permits, claim_batch: batch, ..Options::default() };
        let handle = |_: Context, _: IgnoredAny| async {
            time::sleep(FLOOD_TASK).await;
            Ok::<_, Failure>(())
        };
        let flood = Worker::builder(open(&target.url, OpenOptions::default()).await?.store)
            .options(options)
            .observer(fleet.flood.clone())
            .handle(of_its_queue(FLOOD), handle);
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
        while self.others.completed() < PART || self.flood.completed() == 0 {
            ensure!(self.running.len() > WORKERS as usize, "a worker ended early");
            time::sleep(LOOK_INTERVAL).await;
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
async fn feed(url: String, others: Arc<Counter>) -> anyhow::Result<()> {
    let opened = open(&url, OpenOptions::default()).await?;
    let mut submitted = 0;
    loop {
        if submitted < others.completed() + AHEAD {
            let kind = OTHERS[(submitted / PART) as usize % OTHERS.len()];
            submit(&*opened.store, &[], (0..PART).map(|_| task(kind))).await?;
            submitted += PART;
        } else {
            time::sleep(LOOK_INTERVAL).await;
        }
    }
}

/// Waits until every task of the kind is in line, holds a slot or is done.
async fn until_applied(opened: &Opened, fleet: &Fleet, tasks: u64) -> anyhow::Result<()> {
    let name = format!("group:{FLOOD}");
    loop {
        let done = fleet.flood.completed();
        let limits = opened.inspect.limits().await?;
        let limit =
            limits.iter().find(|limit| *limit.name == *name).context("the limit is gone")?;
        if u64::from(limit.waiting) + u64::from(limit.held) + done >= tasks {
            return Ok(());
        }
        ensure!(fleet.running.len() > WORKERS as usize, "a worker ended early");
        time::sleep(LOOK_INTERVAL).await;
    }
}

async fn largest_step(url: &str) -> anyhow::Result<i64> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let step = client.query_one(STEP, &[]).await?.get(0);
    drop(client);
    connection.await??;
    Ok(step)
}
