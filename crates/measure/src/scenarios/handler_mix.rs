//! What failing handlers and progress reports cost: the same work with and without them, interleaved
//! in one run, once without a limit and once with every task under one.

use anyhow::ensure;
use tidegate_store::StoreLocation;

use super::drain::{self, Handlers, Load};
use super::measurement::{Measurement, Workload};
use super::target::Target;
use super::worker_processes::Program;
use crate::report::ResultLine;

/// What some of the handlers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deviation {
    /// The first attempt fails, and the task is retried.
    Failure,
    /// The attempt reports progress while the other attempts of its lease run.
    Progress,
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct HandlerMix {
    /// The store. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// What some of the handlers do.
    pub deviation: Deviation,
    /// Percentage of the tasks whose handler does it.
    pub percent: u32,
    /// Tasks in one transaction.
    pub batch: u32,
    /// Tasks per measurement.
    pub tasks: u64,
    /// Measurements, of which the middle one counts.
    pub rounds: u32,
    /// The worker processes.
    pub program: Program,
}

const WORKERS: u32 = 4;

/// How long handlers run where some of them report progress: long enough for two heartbeats.
const HOLD_MS: u32 = 60;

/// Tasks in flight where handlers run for [`HOLD_MS`], in batches per worker: so many that the store
/// is the bottleneck and not the handlers.
const BATCHES_HELD: u32 = 20;

impl Deviation {
    fn name(self) -> &'static str {
        match self {
            Self::Failure => "failures",
            Self::Progress => "progress",
        }
    }

    fn handlers(self, percent: u32) -> Handlers {
        match self {
            Self::Failure => Handlers { failing_percent: percent, ..Handlers::default() },
            Self::Progress => {
                Handlers { hold_ms: HOLD_MS, reporting_percent: percent, ..Handlers::default() }
            }
        }
    }

    fn concurrency(self, batch: u32) -> u32 {
        match self {
            Self::Failure => drain::default_concurrency(batch),
            Self::Progress => BATCHES_HELD * batch,
        }
    }
}

/// Two measurements of the same work, one after the other.
#[derive(Debug, Clone, Copy)]
struct Round {
    with: Measurement,
    without: Measurement,
}

impl Round {
    fn ratio(&self) -> f64 {
        self.without.took.seconds / self.with.took.seconds
    }
}

impl HandlerMix {
    fn load(&self, percent: u32) -> Load {
        let permits = self.deviation.concurrency(self.batch);
        let handlers = self.deviation.handlers(percent);
        Load { handlers, ..Load::noop(self.batch, permits, 1) }
    }

    fn in_flight(&self) -> u32 {
        WORKERS * self.load(0).concurrency
    }

    async fn measure(
        &self,
        target: &Target,
        limit: Option<u32>,
        percent: u32,
    ) -> anyhow::Result<Measurement> {
        let loads = &vec![self.load(percent); WORKERS as usize];
        Workload { program: &self.program, loads, limit, tasks: self.tasks }.measure(target).await
    }

    /// The order alternates, so that a cache or a table that grows affects both.
    async fn round(
        &self,
        target: &Target,
        limit: Option<u32>,
        number: u32,
    ) -> anyhow::Result<Round> {
        if number.is_multiple_of(2) {
            let without = self.measure(target, limit, 0).await?;
            let with = self.measure(target, limit, self.percent).await?;
            return Ok(Round { with, without });
        }
        let with = self.measure(target, limit, self.percent).await?;
        let without = self.measure(target, limit, 0).await?;
        Ok(Round { with, without })
    }

    fn line(&self, target: &Target, limit: Option<u32>, rounds: &[Round]) -> ResultLine {
        let middle = &rounds[rounds.len() / 2];
        let rate = |measured: &Measurement| self.tasks as f64 / measured.took.seconds;
        let line = ResultLine::new(
            self.deviation.name(),
            target.name(),
            self.tasks,
            middle.with.took.seconds,
        )
        .with_batch(self.batch)
        .with_extra("percent", self.percent)
        .with_extra("workers", WORKERS)
        .with_extra("in_flight", self.in_flight())
        .with_optional("limit", limit)
        .with_extra("rounds", rounds.len() as u64)
        .with_extra("ratio_min", rounds[0].ratio())
        .with_extra("ratio_max", rounds[rounds.len() - 1].ratio())
        .with_optional("round_trips_without", middle.without.round_trips())
        .with_optional("writes_without", middle.without.writes)
        .compared_with(rate(&middle.without), "without_per_s", None);
        middle.with.add_to_line(line, target)
    }
}

/// Measures with and without in turn; gives a line without a limit and one with every task under a
/// limit of as many as are in flight.
pub async fn handler_mix(
    scenario: &HandlerMix,
    mut each: impl FnMut(ResultLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for limit in [None, Some(scenario.in_flight())] {
        let mut rounds: Vec<Round> = Vec::new();
        let mut target = Target::new(scenario.url.as_deref())?;
        ensure!(target.place != StoreLocation::Memory, "the memory store has one process only");
        for number in 0..scenario.rounds.max(1) {
            if number > 0 {
                target = Target::new(scenario.url.as_deref())?;
            }
            rounds.push(scenario.round(&target, limit, number).await?);
        }
        rounds.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        each(scenario.line(&target, limit, &rounds))?;
    }
    Ok(())
}
