//! The worker: claims tasks and runs their handlers.

mod attempt;
mod board;
mod builder;
mod call;
mod heartbeat;
mod options;
mod outbox;
mod pace;
pub(crate) mod pressure;
mod pump;
mod rooms;
pub(crate) mod running;
mod summary;
mod wake;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use tidegate_core::{
    Error, ErrorKind, RegisteredChange, Registration, Result, Source, Store, WorkerId,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;

pub use builder::Builder;
pub use options::Options;
pub use pressure::{Controller, Marks, Pressure, Reason};
pub use summary::Summary;

use crate::handler::Invoke;
use crate::metrics::Begun;
use crate::outage::Outage;
use crate::{Keeper, KindOptions, Observer, Shutdown, keeper};

/// Claims tasks and runs their handlers until it is shut down.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
}

/// What all parts of a worker share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) worker: WorkerId,
    pub(crate) options: Options,
    pub(crate) queues: Arc<[Arc<str>]>,
    pub(crate) handlers: Vec<Registered>,
    pub(crate) by_kind: HashMap<Arc<str>, usize>,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
    /// Counts the worker among those that its metrics show.
    pub(crate) begun: Option<Begun>,
    pub(crate) board: board::Board,
    pub(crate) outbox: outbox::Outbox,
    /// What the heartbeat and the keeper know of outages of the store.
    pub(crate) outage: Arc<Outage>,
    /// Tells the heartbeat of a lease that was old when it came, to look at it at once.
    pub(crate) old_lease: Notify,
    pub(crate) controller: Arc<Controller>,
    /// Permits that no handler holds.
    pub(crate) free: AtomicU32,
    pub(crate) is_stopping: AtomicBool,
    /// Other workers that had room when the heartbeat last asked; it is reckoned with one before.
    pub(crate) peers: AtomicU32,
}

/// A handler and how its tasks are treated.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) options: KindOptions,
    pub(crate) invoke: Invoke,
}

impl Worker {
    /// Builds a worker on a store.
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        Builder::new(store)
    }

    /// Its id, new for every worker that is built.
    pub fn id(&self) -> &WorkerId {
        &self.shared.worker
    }

    /// How much it takes on and why, also while it runs.
    pub fn pressure(&self) -> Pressure {
        Pressure { shared: self.shared.clone() }
    }

    /// Registers its kinds, then works until the shutdown has been gone through: the first
    /// step lets handlers finish, the second aborts them and gives their attempts back. If
    /// this future is dropped, the handlers are aborted too and their leases run out.
    pub async fn run(self, shutdown: Shutdown) -> Result<Summary> {
        self.register().await?;
        let _handlers = AbortOnDrop(self.shared.clone());
        let _pulse = heartbeat::start(self.shared.clone())?;
        let pump = pump::Pump::new(self.shared.clone());
        let pumping = pumping(pump, shutdown.clone());
        let pumping = async {
            let ended = pumping.await;
            heartbeat::leave(&self.shared).await;
            ended
        };
        if !self.shared.options.keeper {
            return pumping.await;
        }
        let options = keeper::Options::for_lease(self.shared.options.lease);
        let options = keeper::Options {
            heartbeat_interval: self.shared.options.heartbeat_interval(),
            ..options
        };
        let outage = self.shared.outage.clone();
        let keeper = Keeper::beside(self.shared.store.clone(), options, outage);
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
            Some((handler.options.kind.name.to_string(), handler.options.max_concurrent?))
        });
        let (kept, set): (Vec<_>, Vec<_>) = handlers
            .iter()
            .map(|handler| &handler.options)
            .partition(|options| options.keeps_stored);
        let kinds = |of: Vec<&KindOptions>| of.into_iter().map(|one| one.kind.clone()).collect();
        let registration = Registration {
            kinds: kinds(set),
            defaults: kinds(kept),
            limits: limits.collect(),
            source: Some(Source::Registration),
            worker: Some(self.shared.worker.clone()),
            lease_ms: crate::time::millis(self.shared.options.lease),
        };
        tell(self.shared.store.register(registration).await?);
        Ok(())
    }
}

/// Says what counts instead of this worker's word, and what its word has changed.
fn tell(registered: tidegate_core::Registered) {
    for (group, capacity, source) in registered.overruled {
        tracing::info!(group, ?capacity, %source, "max_concurrent is overruled");
    }
    for RegisteredChange { group, before, after, others } in registered.changed {
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
async fn pumping(pump: pump::Pump, shutdown: Shutdown) -> Result<Summary> {
    let mut task = JoinSet::new();
    task.spawn(async move { pump.run(&shutdown).await });
    match task.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        _ => Err(Error::new(ErrorKind::Unavailable, "the runtime has ended")),
    }
}

/// No handler outlives its heartbeat, and its slots are not counted any more.
struct AbortOnDrop(Arc<Shared>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.board.shut();
        self.0.begun.iter().for_each(|begun| begun.end());
    }
}
