//! The keeper: what no single worker is responsible for.
//!
//! It takes back the tasks of workers that died, lets through what became due while nobody
//! asked, and removes what was kept long enough. Every verb may be repeated and any number of
//! keepers may run at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{AdmitReply, PruneReply, ReapReply, Result, Store};

use crate::outage::OutageTracker;
use crate::time;
use crate::{Shutdown, ShutdownPhase};

/// Steps of one verb in one pass; what is left is taken up by the next pass.
const BATCHES_PER_PASS_MAX: usize = 1000;

/// How often the keeper passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintenanceConfig {
    /// Between two passes that reap and admit; jittered. Default: 5 s.
    pub reap_interval: Duration,
    /// Between two passes that prune as well; jittered. Default: 1 min.
    pub prune_interval: Duration,
    /// How often workers send heartbeats. After an outage that it saw itself the keeper does not reap
    /// for so long: workers renew or release their leases first. Default: 10 s.
    pub heartbeat_interval: Duration,
}

impl Default for MaintenanceConfig {
    fn default() -> Self {
        Self {
            reap_interval: Duration::from_secs(5),
            prune_interval: Duration::from_secs(60),
            heartbeat_interval: Duration::from_secs(10),
        }
    }
}

impl MaintenanceConfig {
    /// For leases of this length: an expired one is noticed within half of it.
    pub fn for_lease(lease: Duration) -> Self {
        let default = Self::default();
        let reap_interval = default.reap_interval.min(lease / 2);
        Self { reap_interval, heartbeat_interval: lease / 3, ..default }
    }
}

/// What one pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Leases that ran out, and tasks nobody serves.
    pub reaped: ReapReply,
    /// What was let through.
    pub admitted: AdmitReply,
    /// What was removed.
    pub pruned: PruneReply,
}

/// The background passes over a store.
#[derive(Debug, Clone)]
pub struct Maintenance {
    store: Arc<dyn Store>,
    config: MaintenanceConfig,
    outage_tracker: Arc<OutageTracker>,
    /// Whether no worker runs beside it.
    is_standalone: bool,
}

impl Maintenance {
    /// A keeper of a store.
    pub fn new(store: Arc<dyn Store>, config: MaintenanceConfig) -> Self {
        let outage_tracker = Arc::new(OutageTracker::new(config.heartbeat_interval));
        Self { store, config, outage_tracker, is_standalone: true }
    }

    /// A keeper that also learns of outages from the heartbeats of a worker.
    pub(crate) fn with_outage_tracker(
        store: Arc<dyn Store>,
        config: MaintenanceConfig,
        outage_tracker: Arc<OutageTracker>,
    ) -> Self {
        Self { store, config, outage_tracker, is_standalone: false }
    }

    /// Passes until the shutdown begins. Errors are logged and tried again.
    pub async fn run(self, shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.wait_for_phase(ShutdownPhase::Draining) => {}
            () = self.run_passes() => {}
        }
    }

    /// One pass of everything.
    pub async fn run_once(&self) -> Result<MaintenanceReport> {
        let (reaped, admitted) = (self.reap().await?, self.admit().await?);
        Ok(MaintenanceReport { reaped, admitted, pruned: self.prune().await? })
    }

    /// Takes back the tasks of workers that died.
    pub async fn reap(&self) -> Result<ReapReply> {
        let mut total = ReapReply::default();
        for _ in 0..BATCHES_PER_PASS_MAX {
            let step = self.store.reap().await;
            self.outage_tracker.record_result(&step);
            let step = step?;
            total.expired_attempts += step.expired_attempts;
            total.unserved_tasks += step.unserved_tasks;
            total.has_more = step.has_more;
            if !step.has_more {
                break;
            }
        }
        Ok(total)
    }

    /// Lets through what waits at the gate.
    pub async fn admit(&self) -> Result<AdmitReply> {
        let mut total = AdmitReply::default();
        for _ in 0..BATCHES_PER_PASS_MAX {
            let step = self.store.admit().await?;
            total.ready += step.ready;
            total.parked += step.parked;
            total.has_more = step.has_more;
            if !step.has_more {
                break;
            }
        }
        Ok(total)
    }

    /// Removes what was kept long enough.
    pub async fn prune(&self) -> Result<PruneReply> {
        let mut total = PruneReply::default();
        for _ in 0..BATCHES_PER_PASS_MAX {
            let step = self.store.prune().await?;
            total.tasks += step.tasks;
            total.limits += step.limits;
            total.kinds += step.kinds;
            total.has_more = step.has_more;
            if !step.has_more {
                break;
            }
        }
        Ok(total)
    }

    /// The first pass comes at once: whoever starts after a crash does not wait for it. One that
    /// fails is no reason to pass less often. Leases that expired while the store was away are reaped one
    /// heartbeat interval after its return.
    async fn run_passes(&self) {
        let mut prune_at = time::now();
        loop {
            if let Err(error) = self.run_pass(&mut prune_at).await {
                tracing::warn!(%error, "the keeper's pass failed, it tries again");
            }
            time::sleep(time::jittered(self.config.reap_interval)).await;
        }
    }

    async fn run_pass(&self, prune_at: &mut Instant) -> Result<()> {
        match self.outage_tracker.run_unless_outage(self.reap()).await {
            Some(reaped) => {
                let reaped = reaped?;
                if reaped.expired_attempts > 0 {
                    tracing::info!(
                        tasks = reaped.expired_attempts,
                        "took back tasks whose lease ran out"
                    );
                }
            }
            None => tracing::info!("no reaping: workers renew or release their leases first"),
        }
        let admitted = self.admit().await;
        if self.is_standalone {
            // A store may answer this one without asking the server, so heartbeats are better evidence.
            self.outage_tracker.record_result(&admitted);
        }
        admitted?;
        if time::now() >= *prune_at {
            self.prune().await?;
            *prune_at = time::now() + time::jittered(self.config.prune_interval);
        }
        Ok(())
    }
}
