//! What a crew works off, in two shifts: a little first, so that every process is connected, listens
//! and has its statements prepared, and then what is measured. The tasks of a shift wait in a queue of
//! their own, which is closed until the shift begins.

use std::sync::Arc;

use anyhow::ensure;
use tidegate_core::{
    CapacitySource, Claim, Kind, NewTask, PauseTarget, SetLimit, SetPaused, Store, WorkerId,
};

use super::drain;
use super::submit;

/// Tasks of the first shift at most.
const WARM_UP_MAX: u64 = 5_000;

/// Until the worker processes ask for tasks.
const WORKER_LEASE_MS: i64 = 120_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BenchPhase {
    WarmUp,
    Measured,
}

impl BenchPhase {
    pub(super) const ALL: [Self; 2] = [Self::WarmUp, Self::Measured];

    /// Of its queue, and of its kinds.
    fn name(self) -> &'static str {
        match self {
            Self::WarmUp => "warm-up",
            Self::Measured => "measured",
        }
    }

    /// How many tasks it has where so many are measured.
    pub(super) fn task_count(self, measured: u64) -> u64 {
        match self {
            Self::WarmUp => measured.min(WARM_UP_MAX),
            Self::Measured => measured,
        }
    }

    /// The name of the kind with this number.
    pub(super) fn kind_name(self, number: u32, kinds: u32) -> String {
        if kinds == 1 { self.name().to_owned() } else { format!("{}-{number}", self.name()) }
    }

    pub(super) fn kinds(self, kinds: u32) -> Vec<Kind> {
        let kind = |number| Kind {
            queue: self.name().into(),
            ..drain::kind(&self.kind_name(number, kinds))
        };
        (0..kinds).map(kind).collect()
    }

    /// The kinds take turns.
    fn task(self, number: u64, kinds: u32) -> NewTask {
        drain::task(&self.kind_name((number % u64::from(kinds)) as u32, kinds))
    }

    /// Puts its tasks in front of its workers, and keeps the queue closed. The first of the kinds has
    /// the limit.
    pub(super) async fn submit_tasks(
        self,
        store: &dyn Store,
        kinds: u32,
        limit: Option<u32>,
        tasks: u64,
    ) -> anyhow::Result<()> {
        self.set_queue_open(store, true).await?;
        drain::register(store, self.kinds(kinds)).await?;
        self.set_group_limit(store, kinds, limit).await?;
        self.announce_worker(store, kinds).await?;
        self.set_queue_open(store, false).await?;
        let tasks = (0..tasks).map(|number| self.task(number, kinds));
        submit(store, &[], tasks).await?;
        // What is at the gate is let through before, and is known to be served: it comes in while
        // workers work, as a rule.
        while store.admit().await?.has_more {}
        Ok(())
    }

    /// Lets its queue be worked off, or not.
    pub(super) async fn set_queue_open(
        self,
        store: &dyn Store,
        is_open: bool,
    ) -> anyhow::Result<()> {
        store
            .set_paused(SetPaused {
                target: PauseTarget::Queue(self.name().to_owned()),
                paused: !is_open,
            })
            .await?;
        Ok(())
    }

    async fn set_group_limit(
        self,
        store: &dyn Store,
        kinds: u32,
        limit: Option<u32>,
    ) -> anyhow::Result<()> {
        let name = format!("group:{}", self.kind_name(0, kinds));
        let (capacity, source) = (limit, CapacitySource::Configuration);
        store.set_limit(SetLimit { name, capacity, source }).await?;
        // A limit that was taken away is gone when nobody needs it any more, and not before.
        while store.prune().await?.has_more {}
        Ok(())
    }

    /// A worker asks for work of every kind, and there is none yet.
    async fn announce_worker(self, store: &dyn Store, kinds: u32) -> anyhow::Result<()> {
        let names = self.kinds(kinds).into_iter().map(|kind| kind.name);
        let claimed = store
            .claim(Claim {
                worker: WorkerId("first".into()),
                queues: Arc::new([self.name().into()]),
                kinds: names.collect(),
                tasks_max: 1,
                lease_ms: WORKER_LEASE_MS,
                poll_interval_ms: 1000,
            })
            .await?;
        ensure!(claimed.is_empty(), "there are tasks before the first is submitted");
        Ok(())
    }
}
