//! The keeper: what no single worker is responsible for.
//!
//! It takes back the tasks of workers that died, lets through what became due while nobody
//! asked, and removes what was kept long enough. Every verb may be repeated and any number of
//! keepers may run at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{Admitted, Pruned, Reaped, Result, Store};

use crate::outage::Outage;
use crate::time;
use crate::{Phase, Shutdown};

/// Steps of one verb in one pass; what is left is taken up by the next pass.
const STEPS_MAX: usize = 1000;

/// How often the keeper passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Between two passes that reap and admit; jittered. Default: 5 s.
    pub reap_interval: Duration,
    /// Between two passes that prune as well; jittered. Default: 1 min.
    pub prune_interval: Duration,
    /// How often workers send heartbeats. After an outage that it saw itself the keeper does not reap
    /// for so long: workers renew or release their leases first. Default: 10 s.
    pub heartbeat_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reap_interval: Duration::from_secs(5),
            prune_interval: Duration::from_secs(60),
            heartbeat_interval: Duration::from_secs(10),
        }
    }
}

impl Options {
    /// For leases of this length: an expired one is noticed within half of it.
    pub fn for_lease(lease: Duration) -> Self {
        let default = Self::default();
        let reap_interval = default.reap_interval.min(lease / 2);
        Self { reap_interval, heartbeat_interval: lease / 3, ..default }
    }
}

/// What one pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Leases that ran out, and tasks nobody serves.
    pub reaped: Reaped,
    /// What was let through.
    pub admitted: Admitted,
    /// What was removed.
    pub pruned: Pruned,
}

/// The background passes over a store.
#[derive(Debug, Clone)]
pub struct Keeper {
    store: Arc<dyn Store>,
    options: Options,
    outage: Arc<Outage>,
    /// Whether no worker runs beside it.
    is_alone: bool,
}

impl Keeper {
    /// A keeper of a store.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        let outage = Arc::new(Outage::new(options.heartbeat_interval));
        Self { store, options, outage, is_alone: true }
    }

    /// A keeper that also learns of outages from the heartbeats of a worker.
    pub(crate) fn beside(store: Arc<dyn Store>, options: Options, outage: Arc<Outage>) -> Self {
        Self { store, options, outage, is_alone: false }
    }

    /// Passes until the shutdown begins. Errors are logged and tried again.
    pub async fn run(self, shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.reached(Phase::Draining) => {}
            () = self.pass_for_ever() => {}
        }
    }

    /// One pass of everything.
    pub async fn run_once(&self) -> Result<Kept> {
        let (reaped, admitted) = (self.reap().await?, self.admit().await?);
        Ok(Kept { reaped, admitted, pruned: self.prune().await? })
    }

    /// Takes back the tasks of workers that died.
    pub async fn reap(&self) -> Result<Reaped> {
        let mut total = Reaped::default();
        for _ in 0..STEPS_MAX {
            let step = self.store.reap().await;
            self.outage.note(&step);
            let step = step?;
            total.expired += step.expired;
            total.unserved += step.unserved;
            total.more = step.more;
            if !step.more {
                break;
            }
        }
        Ok(total)
    }

    /// Lets through what waits at the gate.
    pub async fn admit(&self) -> Result<Admitted> {
        let mut total = Admitted::default();
        for _ in 0..STEPS_MAX {
            let step = self.store.admit().await?;
            total.ready += step.ready;
            total.parked += step.parked;
            total.more = step.more;
            if !step.more {
                break;
            }
        }
        Ok(total)
    }

    /// Removes what was kept long enough.
    pub async fn prune(&self) -> Result<Pruned> {
        let mut total = Pruned::default();
        for _ in 0..STEPS_MAX {
            let step = self.store.prune().await?;
            total.tasks += step.tasks;
            total.limits += step.limits;
            total.kinds += step.kinds;
            total.more = step.more;
            if !step.more {
                break;
            }
        }
        Ok(total)
    }

    /// The first pass comes at once: whoever starts after a crash does not wait for it. One that
    /// fails is no reason to pass less often. Leases that expired while the store was away are reaped one
    /// heartbeat interval after its return.
    async fn pass_for_ever(&self) {
        let mut prune_at = time::now();
        loop {
            if let Err(error) = self.pass(&mut prune_at).await {
                tracing::warn!(%error, "the keeper's pass failed, it tries again");
            }
            time::sleep(time::jittered(self.options.reap_interval)).await;
        }
    }

    async fn pass(&self, prune_at: &mut Instant) -> Result<()> {
        match self.outage.unless_begun(self.reap()).await {
            Some(reaped) => {
                let reaped = reaped?;
                if reaped.expired > 0 {
                    tracing::info!(tasks = reaped.expired, "took back tasks whose lease ran out");
                }
            }
            None => tracing::info!("no reaping: workers renew or release their leases first"),
        }
        let admitted = self.admit().await;
        if self.is_alone {
            // A store may answer this one without asking the server, so heartbeats are better evidence.
            self.outage.note(&admitted);
        }
        admitted?;
        if time::now() >= *prune_at {
            self.prune().await?;
            *prune_at = time::now() + time::jittered(self.options.prune_interval);
        }
        Ok(())
    }
}
