//! What a limit costs: the same work with it and without, with the same number in flight, so that
//! the cost of the limit is measured and not its effect.

use anyhow::{Context as _, ensure};
use tidegate_store::StoreLocation;

use super::drain::{self, Load};
use super::measurement::{Measurement, Workload};
use super::target::Target;
use super::throughput::raw_drain_seconds;
use super::worker_processes::Program;
use crate::report::ResultLine;

/// The four ways in which it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
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
    pub variant: Variant,
    /// Tasks per measurement. Default: 10,000, and 100,000 where the limit is 500.
    pub tasks: Option<u64>,
    /// Measurements, of which the middle one counts.
    pub rounds: u32,
    /// The worker processes.
    pub program: Program,
}

/// Tasks in one transaction where no limit keeps them fewer.
const BATCH: u32 = 100;

impl Variant {
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
            _ => self.workers() * drain::default_concurrency(BATCH),
        }
    }

    /// What each worker takes, so that all together are in flight.
    fn loads(self) -> Vec<Load> {
        let (workers, all) = (self.workers(), self.in_flight());
        let permits = |worker: u32| all / workers + u32::from(worker < all % workers);
        let load = |permits: u32| Load::noop(BATCH.min(permits), permits, self.kinds());
        (0..workers).map(permits).map(load).collect()
    }
}

/// Measurements of the same work, one after the other.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// As the scenario has it: with the limit, if there is one.
    measured: Measurement,
    /// The same without the limit.
    without: Option<Measurement>,
    /// Seconds of the raw loop, where there is one.
    raw: Option<f64>,
}

/// What a round measures, one of them after the other.
#[derive(Debug, Clone, Copy)]
enum RoundPart {
    Raw,
    Without,
    Measured,
}

impl Concurrency {
    fn tasks(&self) -> u64 {
        self.tasks.unwrap_or(if self.variant == Variant::High { 100_000 } else { 10_000 })
    }

    /// Works off all tasks under the limit, or without one.
    async fn measure(&self, target: &Target, limit: Option<u32>) -> anyhow::Result<Measurement> {
        let (program, loads, tasks) = (&self.program, &self.variant.loads(), self.tasks());
        Workload { program, loads, limit, tasks }.measure(target).await
    }

    /// Who comes first changes: what warms up or wears out strikes all.
    async fn round(&self, target: &Target, number: u32) -> anyhow::Result<Round> {
        let mut parts = [RoundPart::Raw, RoundPart::Without, RoundPart::Measured];
        parts.rotate_left(number as usize % 3);
        let (mut raw_seconds, mut without, mut ours) = (None, None, None);
        for part in parts {
            match part {
                RoundPart::Raw => {
                    let batch = self.variant.loads()[0].batch;
                    raw_seconds =
                        raw_drain_seconds(target, batch, self.tasks(), self.variant.workers())
                            .await?;
                }
                RoundPart::Without if self.variant.limit().is_none() => {}
                RoundPart::Without => without = Some(self.measure(target, None).await?),
                RoundPart::Measured => {
                    ours = Some(self.measure(target, self.variant.limit()).await?)
                }
            }
        }
        let ours = ours.context("a round has every part")?;
        Ok(Round { measured: ours, without, raw: raw_seconds })
    }

    /// Tasks per second of those that are compared.
    fn rate(&self, measured: &Measurement) -> f64 {
        let tasks = self.tasks() as f64;
        match self.variant {
            Variant::Mixed => tasks * 0.99 / measured.took.rest_seconds,
            _ => tasks / measured.took.seconds,
        }
    }

    fn raw_rate(&self, round: &Round) -> Option<f64> {
        round.raw.map(|seconds| self.tasks() as f64 / seconds)
    }

    /// Beside the same without the limit, or beside the raw loop.
    fn ratio(&self, round: &Round) -> f64 {
        let without = round.without.map(|without| self.rate(&without));
        self.rate(&round.measured) / without.or_else(|| self.raw_rate(round)).unwrap_or(f64::NAN)
    }

    fn line(&self, target: &Target, rounds: &[Round]) -> ResultLine {
        let (way, tasks) = (self.variant, self.tasks());
        let (first, last) = (self.ratio(&rounds[0]), self.ratio(&rounds[rounds.len() - 1]));
        let middle = &rounds[rounds.len() / 2];
        let (rate, raw_rate) = (self.rate(&middle.measured), self.raw_rate(middle));
        let mut line = ResultLine::new(way.name(), target.name(), tasks, tasks as f64 / rate)
            .with_batch(way.loads()[0].batch)
            .with_extra("workers", way.workers())
            .with_extra("per_worker", rate / f64::from(way.workers()))
            .with_extra("in_flight", way.in_flight())
            .with_extra("rounds", rounds.len() as u64)
            .with_extra("ratio_min", first)
            .with_extra("ratio_max", last);
        line = match (middle.without, raw_rate) {
            (Some(without), raw) => line
                .compared_with(self.rate(&without), "unlimited_per_s", raw)
                .with_optional("limit", way.limit())
                .with_optional("writes_unlimited", without.writes)
                .with_optional("slot_ms", slot_ms(rounds)),
            (None, Some(raw)) => line.compared_with_raw(raw),
            (None, None) => line,
        };
        middle.measured.add_to_line(line, target)
    }
}

/// What a limit costs the server for one task, commits apart: the middle of all rounds.
fn slot_ms(rounds: &[Round]) -> Option<f64> {
    let cost = |round: &Round| Some(round.measured.server_ms()? - round.without?.server_ms()?);
    let mut costs: Vec<f64> = rounds.iter().filter_map(cost).collect();
    costs.sort_by(f64::total_cmp);
    costs.get(costs.len() / 2).copied()
}

/// Measures with, without and the raw loop in turn, and gives one line.
pub async fn concurrency(
    scenario: &Concurrency,
    mut each: impl FnMut(ResultLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut rounds: Vec<Round> = Vec::new();
    let mut target = Target::new(scenario.url.as_deref())?;
    ensure!(target.place != StoreLocation::Memory, "the memory store has one process only");
    for number in 0..scenario.rounds.max(1) {
        if number > 0 {
            target = Target::new(scenario.url.as_deref())?;
        }
        rounds.push(scenario.round(&target, number).await?);
    }
    rounds.sort_by(|a, b| scenario.ratio(a).total_cmp(&scenario.ratio(b)));
    each(scenario.line(&target, &rounds))
}
