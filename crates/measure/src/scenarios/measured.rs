//! One measurement of a crew: how long it took, and what it cost the server.

use tidegate_store::{OpenOptions, Place, open};

use super::crew::{Crew, Program, Took};
use super::drain::Load;
use super::server::{Times, UNCOUNTED, times};
use super::shift::Shift;
use super::target::Target;
use super::writes::row_writes;
use crate::report::Line;

/// What a crew works off.
#[derive(Debug, Clone)]
pub(super) struct Work<'a> {
    pub(super) program: &'a Program,
    pub(super) loads: &'a [Load],
    /// The first of several kinds, or the only one, has it.
    pub(super) limit: Option<u32>,
    pub(super) tasks: u64,
}

/// What it took. Figures of costs are of one task in the mean.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) took: Took,
    tasks: u64,
    /// Rows written, where the store can tell.
    pub(super) writes: Option<f64>,
    times: Option<Times>,
}

impl Work<'_> {
    /// Lets a new crew warm up, and measures it.
    pub(super) async fn measure(&self, target: &Target) -> anyhow::Result<Measured> {
        let kinds = self.loads.first().map_or(1, |load| load.kinds);
        let opened = target.open().await?;
        for shift in Shift::ALL {
            let tasks = shift.tasks(self.tasks);
            shift.load(&*opened.store, kinds, self.limit, tasks).await?;
        }
        drop(opened);
        let rows_before = row_writes(target).await?;
        let opened = open(&target.url, OpenOptions::default()).await?;
        let mut crew = Crew::start(self.program, &target.url, self.loads)?;
        let warm_up = Shift::WarmUp.tasks(self.tasks);
        crew.work(&*opened.store, Shift::WarmUp, warm_up).await?;
        let before = times(target).await?;
        let took = crew.work(&*opened.store, Shift::Measured, self.tasks).await?;
        let times = times(target).await?.zip(before).map(|(after, before)| after - before);
        crew.end().await?;
        drop(opened);
        let rows = row_writes(target).await?.zip(rows_before);
        // A server tells them when connections end: those of both shifts together.
        let writes = rows.map(|(after, before)| {
            after.saturating_sub(before) as f64 / (self.tasks + warm_up) as f64
        });
        Ok(Measured { took, tasks: self.tasks, writes, times })
    }
}

impl Measured {
    /// Round trips for one task, where the store counts them.
    pub(super) fn round_trips(&self) -> Option<f64> {
        self.took.traffic.map(|traffic| traffic.round_trips as f64 / self.tasks as f64)
    }

    /// How long the server took for one task, commits apart.
    pub(super) fn server_ms(&self) -> Option<f64> {
        self.times.map(|times| times.per_task_ms(self.tasks))
    }

    /// Adds what it cost to a line.
    pub(super) fn told(&self, mut line: Line, target: &Target) -> Line {
        let trips = self.took.traffic.map(|traffic| traffic.round_trips as f64);
        let trip_ms = self.took.traffic.zip(trips).map(|(sent, trips)| sent.waited_ms / trips);
        for (name, figure) in [
            ("claim_ms", self.times.and_then(|times| times.claim.mean_ms())),
            ("finish_ms", self.times.and_then(|times| times.finish.mean_ms())),
            ("relay_ms", self.times.and_then(|times| times.relay.mean_ms())),
            ("server_ms", self.server_ms()),
            ("round_trips", self.round_trips()),
            ("round_trip_ms", trip_ms),
            ("writes", self.writes),
        ] {
            line = line.with_some(name, figure);
        }
        let is_uncounted = matches!(target.place, Place::Postgres(_)) && self.times.is_none();
        if is_uncounted { line.with_note(UNCOUNTED) } else { line }
    }
}
