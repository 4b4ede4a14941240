//! The worker: claims tasks and runs their handlers.

mod attempt;
pub(crate) mod backpressure;
mod builder;
mod burst_ramp;
mod claim_planner;
mod completion_queue;
mod config;
mod dispatcher;
mod heartbeat;
mod in_flight;
mod poll_timer;
pub(crate) mod running_attempt;
mod store_request;
mod summary;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use tidegate_core::{
    CapacitySource, Error, ErrorKind, RegisteredCapacityChange, Registration, Result, Store,
    WorkerId,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;

pub use backpressure::{BackpressureReason, BackpressureThresholds, WorkerPool, WorkerStatus};
pub use builder::WorkerBuilder;
pub use config::WorkerConfig;
pub use summary::WorkerSummary;

use crate::handler::ErasedHandler;
use crate::metrics::WorkerGuard;
use crate::outage::OutageTracker;
use crate::{KindConfig, Maintenance, Observer, Shutdown, maintenance};

/// Claims tasks and runs their handlers until it is shut down.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<WorkerShared>,
}

/// What all parts of a worker share.
#[derive(Debug)]
pub(crate) struct WorkerShared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) worker_id: WorkerId,
    pub(crate) config: WorkerConfig,
    pub(crate) queues: Arc<[Arc<str>]>,
    pub(crate) handlers: Vec<RegisteredHandler>,
    pub(crate) handlers_by_kind: HashMap<Arc<str>, usize>,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
    /// Counts the worker among those that its metrics show.
    pub(crate) metrics_guard: Option<WorkerGuard>,
    pub(crate) in_flight: in_flight::InFlight,
    pub(crate) completion_queue: completion_queue::CompletionQueue,
    /// What the heartbeat and the keeper know of outages of the store.
    pub(crate) outage_tracker: Arc<OutageTracker>,
    /// Tells the heartbeat of a lease that was old when it came, to look at it at once.
    pub(crate) old_lease_claimed: Notify,
    pub(crate) worker_pool: Arc<WorkerPool>,
    /// Permits that no handler holds.
    pub(crate) free: AtomicU32,
    pub(crate) is_stopping: AtomicBool,
    /// Other workers that had room when the heartbeat last asked; it is reckoned with one before.
    pub(crate) peers_with_capacity: AtomicU32,
}

/// A handler and how its tasks are treated.
#[derive(Debug)]
pub(crate) struct RegisteredHandler {
    pub(crate) config: KindConfig,
    pub(crate) erased_handler: ErasedHandler,
}

impl Worker {
    /// Builds a worker on a store.
    pub fn builder(store: Arc<dyn Store>) -> WorkerBuilder {
        WorkerBuilder::new(store)
    }

    /// Its id, new for every worker that is built.
    pub fn id(&self) -> &WorkerId {
        &self.shared.worker_id
    }

    /// How much it takes on and why, also while it runs.
    pub fn status(&self) -> WorkerStatus {
        WorkerStatus { shared: self.shared.clone() }
    }

    /// Registers its kinds, then works until the shutdown has been gone through: the first
    /// step lets handlers finish, the second aborts them and gives their attempts back. If
    /// this future is dropped, the handlers are aborted too and their leases run out.
    pub async fn run(self, shutdown: Shutdown) -> Result<WorkerSummary> {
        self.register().await?;
        let _handlers = AbortOnDrop(self.shared.clone());
        let _pulse = heartbeat::start(self.shared.clone())?;
        let pump = dispatcher::Dispatcher::new(self.shared.clone());
        let pumping = run_dispatcher(pump, shutdown.clone());
        let pumping = async {
            let ended = pumping.await;
            heartbeat::deregister(&self.shared).await;
            ended
        };
        if !self.shared.config.run_maintenance {
            return pumping.await;
        }
        let options = maintenance::MaintenanceConfig::for_lease(self.shared.config.lease);
        let options = maintenance::MaintenanceConfig {
            heartbeat_interval: self.shared.config.heartbeat_interval(),
            ..options
        };
        let outage = self.shared.outage_tracker.clone();
        let keeper = Maintenance::with_outage_tracker(self.shared.store.clone(), options, outage);
        let keep = async {
            keeper.run(shutdown.clone()).await;
            std::future::pending().await
        };
        tokio::select! {
            ended = pumping => ended,
            () = keep => unreachable!("the keeper is followed by an endless wait"),
        }
    }

    async fn register(&self) -> Result<()> {
        let handlers = &self.shared.handlers;
        let limits = handlers.iter().filter_map(|handler| {
            Some((handler.config.kind.name.to_string(), handler.config.max_concurrent?))
        });
        let (kept, set): (Vec<_>, Vec<_>) = handlers
            .iter()
            .map(|handler| &handler.config)
            .partition(|options| options.keeps_existing_settings);
        let kinds = |of: Vec<&KindConfig>| of.into_iter().map(|one| one.kind.clone()).collect();
        let registration = Registration {
            kinds: kinds(set),
            default_kinds: kinds(kept),
            limits: limits.collect(),
            source: Some(CapacitySource::Registration),
            worker: Some(self.shared.worker_id.clone()),
            lease_ms: crate::time::millis(self.shared.config.lease),
        };
        log_registration(self.shared.store.register(registration).await?);
        Ok(())
    }
}

/// Says what counts instead of this worker's word, and what its word has changed.
fn log_registration(reply: tidegate_core::RegisterReply) {
    for (group, capacity, source) in reply.overridden_limits {
        tracing::info!(group, ?capacity, %source, "max_concurrent is overruled");
    }
    for RegisteredCapacityChange { group, before, after, other_workers: others } in
        reply.changed_capacities
    {
        match after {
            Some(after) => tracing::warn!(
                group,
                before,
                after,
                others,
                "another max_concurrent was registered before; the latest counts, and `others` live \
                 workers still bring another"
            ),
            None => tracing::warn!(
                group,
                before,
                "no live worker brings a max_concurrent any more; what was registered is unset"
            ),
        }
    }
}

/// Runs the pump as a task of its own, wherever its caller runs: what it starts then begins on
/// the same thread and wakes no other. It ends with this future.
async fn run_dispatcher(
    dispatcher: dispatcher::Dispatcher,
    shutdown: Shutdown,
) -> Result<WorkerSummary> {
    let mut task = JoinSet::new();
    task.spawn(async move { dispatcher.run(&shutdown).await });
    match task.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        _ => Err(Error::new(ErrorKind::Unavailable, "the runtime has ended")),
    }
}

/// No handler outlives its heartbeat, and its slots are not counted any more.
struct AbortOnDrop(Arc<WorkerShared>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.in_flight.close();
        self.0.metrics_guard.iter().for_each(|begun| begun.deregister());
    }
}
