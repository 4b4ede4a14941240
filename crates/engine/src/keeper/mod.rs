//! The keeper: what no single worker is responsible for.
//!
//! It takes back the tasks of workers that died, lets through what became due while nobody
//! asked, and removes what was kept long enough. Every verb may be repeated and any number of
//! keepers may run at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{Admitted, Pruned, Reaped, Result, Store};

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
}

impl Default for Options {
    fn default() -> Self {
        Self { reap_interval: Duration::from_secs(5), prune_interval: Duration::from_secs(60) }
    }
}

impl Options {
    /// For leases of this length: an expired one is noticed within half of it.
    pub fn for_lease(lease: Duration) -> Self {
        let default = Self::default();
        Self { reap_interval: default.reap_interval.min(lease / 2), ..default }
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
}

impl Keeper {
    /// A keeper of a store.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        Self { store, options }
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
            let step = self.store.reap().await?;
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
    /// fails is no reason to pass less often: leases that ran out while the store was away are taken
    /// back as soon as any others.
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
        let reaped = self.reap().await?;
        if reaped.expired > 0 {
            tracing::info!(tasks = reaped.expired, "took back tasks whose lease ran out");
        }
        self.admit().await?;
        if time::now() >= *prune_at {
            self.prune().await?;
            *prune_at = time::now() + time::jittered(self.options.prune_interval);
        }
        Ok(())
    }
}
