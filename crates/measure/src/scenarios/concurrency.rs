//! What a limit costs: the same work with it and without, with the same number in flight, so that
//! the cost of the limit is measured and not its effect.

use tidegate_core::{Claim, SetLimit, Source, Store, WorkerId};
use tidegate_store::Place;

use super::crew::{self, Program, Took};
use super::drain::{self, Load};
use super::submit;
use super::target::Target;
use super::throughput::raw;
use super::writes::row_writes;
use crate::report::Line;

/// The four ways in which it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// No limit at all, beside the raw loop.
    Baseline,
    /// Every task under one limit of 10.
    Enabled,
    /// A hundred kinds, one of them with a limit of 10: what the other 99 pay for it.
    Mixed,
    /// Every task under one limit of 500, in large batches.
    High,
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Concurrency {
    /// The store. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// How.
    pub way: Way,
    /// Tasks per measurement. Default: 10,000, and 100,000 where the limit is 500.
    pub tasks: Option<u64>,
    /// Measurements, of which the middle one counts.
    pub rounds: u32,
    /// The worker processes.
    pub program: Program,
}

/// Tasks in one transaction where no limit keeps them fewer.
const BATCH: u32 = 100;

/// Until the worker processes ask for tasks.
const SERVED_MS: i64 = 60_000;

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Baseline => "concurrency-baseline",
            Self::Enabled => "concurrency-enabled",
            Self::Mixed => "concurrency-mixed",
            Self::High => "concurrency-high",
        }
    }

    fn workers(self) -> u32 {
        if self == Self::High { 8 } else { 4 }
    }

    fn kinds(self) -> u32 {
        if self == Self::Mixed { 100 } else { 1 }
    }

    fn limit(self) -> Option<u32> {
        match self {
            Self::Baseline => None,
            Self::Enabled | Self::Mixed => Some(10),
            Self::High => Some(500),
        }
    }

    /// In flight over all workers. Where every task is under the limit, as many as it lets run.
    fn in_flight(self) -> u32 {
        match (self, self.limit()) {
            (Self::Enabled | Self::High, Some(limit)) => limit,
            _ => self.workers() * drain::permits(BATCH),
        }
    }

    /// What each worker takes, so that all together are in flight.
    fn loads(self) -> Vec<Load> {
        let (workers, all) = (self.workers(), self.in_flight());
        let permits = |worker: u32| all / workers + u32::from(worker < all % workers);
        let load = |permits: u32| Load { batch: BATCH.min(permits), permits, kinds: self.kinds() };
        (0..workers).map(permits).map(load).collect()
    }
}

/// One measurement.
struct Measured {
    took: Took,
    /// Rows written per task, where the store can tell.
    writes: Option<f64>,
}

/// Two measurements, one after the other.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// Tasks per second.
    rate: f64,
    /// The same without the limit, or of the raw loop.
    other: f64,
    writes: Option<f64>,
    writes_unlimited: Option<f64>,
}

impl Round {
    fn ratio(&self) -> f64 {
        self.rate / self.other
    }
}

impl Concurrency {
    fn tasks(&self) -> u64 {
        self.tasks.unwrap_or(if self.way == Way::High { 100_000 } else { 10_000 })
    }

    /// Works off all tasks under the limit, or without one.
    async fn measure(&self, target: &Target, limit: Option<u32>) -> anyhow::Result<Measured> {
        let kinds = self.way.kinds();
        let opened = target.open().await?;
        drain::register(&*opened.store, kinds).await?;
        set(&*opened.store, kinds, limit).await?;
        // What is at the gate is let through before, and is known to be served: it comes in while
        // workers work, as a rule.
        serve(&*opened.store, kinds).await?;
        let tasks = (0..self.tasks()).map(|number| drain::task(number, kinds));
        submit(&*opened.store, &[], tasks).await?;
        while opened.store.admit().await?.more {}
        drop(opened);
        let before = row_writes(target).await?;
        let loads = self.way.loads();
        let took = crew::drain(&self.program, &target.url, &loads, self.tasks()).await?;
        let after = row_writes(target).await?;
        let writes = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok(Measured { took, writes: writes.map(|rows| rows as f64 / self.tasks() as f64) })
    }

    async fn beside_raw(&self, target: &Target) -> anyhow::Result<Round> {
        let raw = raw(target, BATCH, self.tasks(), self.way.workers()).await?;
        let ours = self.measure(target, None).await?;
        let other = raw.map_or(f64::NAN, |seconds| self.tasks() as f64 / seconds);
        let rate = self.rate(&ours.took);
        Ok(Round { rate, other, writes: ours.writes, writes_unlimited: None })
    }

    fn round(&self, with: &Measured, without: &Measured) -> Round {
        Round {
            rate: self.rate(&with.took),
            other: self.rate(&without.took),
            writes: with.writes,
            writes_unlimited: without.writes,
        }
    }

    /// Tasks per second of those that are compared.
    fn rate(&self, took: &Took) -> f64 {
        let tasks = self.tasks() as f64;
        match self.way {
            Way::Mixed => tasks * 0.99 / took.rest_seconds,
            _ => tasks / took.seconds,
        }
    }
}

async fn set(store: &dyn Store, kinds: u32, limit: Option<u32>) -> anyhow::Result<()> {
    let name = format!("group:{}", drain::kind_name(0, kinds));
    let (capacity, source) = (limit, Source::Configuration);
    store.set_limit(SetLimit { name, capacity, source }).await?;
    // A limit that was taken away is gone when nobody needs it any more, and not before.
    while store.prune().await?.more {}
    Ok(())
}

/// A worker asks for work of every kind, and there is none yet.
async fn serve(store: &dyn Store, kinds: u32) -> anyhow::Result<()> {
    let kinds = (0..kinds).map(|number| drain::kind_name(number, kinds).into()).collect();
    let claimed = store
        .claim(Claim {
            worker: WorkerId("first".into()),
            queues: ["default".into()].into(),
            kinds,
            tasks_max: 1,
            lease_ms: SERVED_MS,
        })
        .await?;
    anyhow::ensure!(claimed.is_empty(), "there are tasks before the first is submitted");
    Ok(())
}

/// Measures with and without in turn, and gives one line.
pub async fn concurrency(
    scenario: &Concurrency,
    mut each: impl FnMut(Line) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let way = scenario.way;
    let mut rounds: Vec<Round> = Vec::new();
    let mut name = "";
    for round in 0..scenario.rounds.max(1) {
        let target = Target::new(scenario.url.as_deref())?;
        name = target.name();
        anyhow::ensure!(target.place != Place::Memory, "the memory store has one process only");
        let measured = match way.limit() {
            None => scenario.beside_raw(&target).await?,
            // Who comes first changes: what warms up or wears out strikes both.
            limit if round % 2 == 0 => {
                let without = scenario.measure(&target, None).await?;
                scenario.round(&scenario.measure(&target, limit).await?, &without)
            }
            limit => {
                let with = scenario.measure(&target, limit).await?;
                scenario.round(&with, &scenario.measure(&target, None).await?)
            }
        };
        rounds.push(measured);
    }
    rounds.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
    let (first, last) = (rounds[0].ratio(), rounds[rounds.len() - 1].ratio());
    let Round { rate, other, writes, writes_unlimited } = rounds[rounds.len() / 2];
    let tasks = scenario.tasks();
    let mut line = Line::new(way.name(), name, tasks, tasks as f64 / rate)
        .with_batch(way.loads()[0].batch)
        .with_extra("workers", way.workers())
        .with_extra("per_worker", rate / f64::from(way.workers()))
        .with_extra("in_flight", way.in_flight())
        .with_extra("rounds", rounds.len() as u64)
        .with_extra("ratio_min", first)
        .with_extra("ratio_max", last);
    line = match way.limit() {
        None => line.beside_raw(other),
        Some(limit) => line.beside(other, "unlimited_per_s").with_extra("limit", limit),
    };
    for (name, writes) in [("writes", writes), ("writes_unlimited", writes_unlimited)] {
        if let Some(writes) = writes {
            line = line.with_extra(name, writes);
        }
    }
    each(line)
}
