//! One measurement of a crew: how long it took, and what it cost the server.

use tidegate_store::{OpenOptions, StoreLocation, open};

use super::bench_phase::BenchPhase;
use super::drain::Load;
use super::pg_stats::{NOT_COUNTED_NOTE, StatementTimes, statement_times};
use super::row_writes::row_writes;
use super::target::Target;
use super::worker_processes::{ElapsedTimes, Program, WorkerProcesses};
use crate::report::ResultLine;

/// What a crew works off.
#[derive(Debug, Clone)]
pub(super) struct Workload<'a> {
    pub(super) program: &'a Program,
    pub(super) loads: &'a [Load],
    /// The first of several kinds, or the only one, has it.
    pub(super) limit: Option<u32>,
    pub(super) tasks: u64,
}

/// What it took. Figures of costs are of one task in the mean.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measurement {
    pub(super) took: ElapsedTimes,
    tasks: u64,
    /// Rows written, where the store can tell.
    pub(super) writes: Option<f64>,
    times: Option<StatementTimes>,
}

impl Workload<'_> {
    /// Lets a new crew warm up, and measures it.
    pub(super) async fn measure(&self, target: &Target) -> anyhow::Result<Measurement> {
        let kinds = self.loads.first().map_or(1, |load| load.kinds);
        let opened = target.open().await?;
        for shift in BenchPhase::ALL {
            let tasks = shift.task_count(self.tasks);
            shift.submit_tasks(&*opened.store, kinds, self.limit, tasks).await?;
        }
        drop(opened);
        let rows_before = row_writes(target).await?;
        let opened = open(&target.url, OpenOptions::default()).await?;
        let mut crew = WorkerProcesses::start(self.program, &target.url, self.loads)?;
        let warm_up = BenchPhase::WarmUp.task_count(self.tasks);
        crew.run_phase(&*opened.store, BenchPhase::WarmUp, warm_up).await?;
        let before = statement_times(target).await?;
        let took = crew.run_phase(&*opened.store, BenchPhase::Measured, self.tasks).await?;
        let times =
            statement_times(target).await?.zip(before).map(|(after, before)| after - before);
        crew.shut_down().await?;
        drop(opened);
        let rows = row_writes(target).await?.zip(rows_before);
        // A server tells them when connections end: those of both shifts together.
        let writes = rows.map(|(after, before)| {
            after.saturating_sub(before) as f64 / (self.tasks + warm_up) as f64
        });
        Ok(Measurement { took, tasks: self.tasks, writes, times })
    }
}

impl Measurement {
    /// Round trips for one task, where the store counts them.
    pub(super) fn round_trips(&self) -> Option<f64> {
        self.took.traffic.map(|traffic| traffic.round_trips as f64 / self.tasks as f64)
    }

    /// How long the server took for one task, commits apart.
    pub(super) fn server_ms(&self) -> Option<f64> {
        self.times.map(|times| times.per_task_ms(self.tasks))
    }

    /// Adds what it cost to a line.
    pub(super) fn add_to_line(&self, mut line: ResultLine, target: &Target) -> ResultLine {
        let trips = self.took.traffic.map(|traffic| traffic.round_trips as f64);
        let trip_ms = self.took.traffic.zip(trips).map(|(sent, trips)| sent.waited_ms / trips);
        for (name, figure) in [
            ("claim_ms", self.times.and_then(|times| times.claim.mean_ms())),
            ("finish_ms", self.times.and_then(|times| times.finish.mean_ms())),
            ("relay_ms", self.times.and_then(|times| times.hand_off.mean_ms())),
            ("server_ms", self.server_ms()),
            ("round_trips", self.round_trips()),
            ("round_trip_ms", trip_ms),
            ("writes", self.writes),
        ] {
            line = line.with_optional(name, figure);
        }
        let is_uncounted =
            matches!(target.place, StoreLocation::Postgres(_)) && self.times.is_none();
        if is_uncounted { line.with_note(NOT_COUNTED_NOTE) } else { line }
    }
}
