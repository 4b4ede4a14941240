//! Settings and parts meet here, and are checked.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::{Error, Result, Store, check_capacity};
use tokio::sync::Notify;

use super::completion_queue::CompletionQueue;
use super::in_flight::InFlight;
use super::{RegisteredHandler, Worker, WorkerConfig, WorkerPool, WorkerShared};
use crate::handler::ErasedHandler;
use crate::outage::OutageTracker;
use crate::{Context, Handler, IntoResult, KindConfig, Metrics, Observer, id};

/// Builds a worker.
#[derive(Debug)]
pub struct WorkerBuilder {
    store: Arc<dyn Store>,
    config: WorkerConfig,
    handlers: Vec<RegisteredHandler>,
    observers: Vec<Arc<dyn Observer>>,
    metrics: Option<Metrics>,
    worker_pool: Option<Arc<WorkerPool>>,
}

impl WorkerBuilder {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            config: WorkerConfig::default(),
            handlers: Vec::new(),
            observers: Vec::new(),
            metrics: None,
            worker_pool: None,
        }
    }

    /// Sets every knob at once.
    pub fn config(mut self, config: WorkerConfig) -> Self {
        self.config = config;
        self
    }

    /// Handlers that run at once. Default: 16.
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.config.concurrency = concurrency;
        self
    }

    /// Queues it claims from. Default: the queues of its kinds.
    pub fn queues(mut self, queues: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.config.queues = queues.into_iter().map(Into::into).collect();
        self
    }

    /// Handles a kind by a function `async fn(Context, P) -> Result<T, E>`. The kind is a
    /// name, or [`KindConfig`] where it has settings.
    pub fn handle<P, R, F, Fut>(mut self, kind: impl Into<KindConfig>, function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: IntoResult + 'static,
        R::Output: Serialize,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
    {
        let invoke = ErasedHandler::from_function(function);
        self.handlers.push(RegisteredHandler { config: kind.into(), erased_handler: invoke });
        self
    }

    /// Handles the kind of a [`Handler`], as its options say.
    pub fn register<H: Handler>(self, handler: H) -> Self {
        self.register_with(H::config(), handler)
    }

    /// Handles the kind of a [`Handler`] with other options.
    pub fn register_with<H: Handler>(mut self, config: KindConfig, handler: H) -> Self {
        self.handlers.push(RegisteredHandler {
            config,
            erased_handler: ErasedHandler::from_handler(handler),
        });
        self
    }

    /// Adds hooks that see every attempt come and go. Default: none.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Counts what the worker does and how its store answers. Default: nobody counts.
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// What it shares with other workers of the process: permits, calls to the store, and the
    /// readings of memory and latency. Default: it has one of its own.
    pub fn worker_pool(mut self, worker_pool: Arc<WorkerPool>) -> Self {
        self.worker_pool = Some(worker_pool);
        self
    }

    /// Checks everything. The worker takes a new id.
    pub fn build(mut self) -> Result<Worker> {
        self.config.check()?;
        let WorkerConfig { concurrency, max_store_requests: calls, backpressure: marks, .. } =
            self.config;
        let controller = match &self.worker_pool {
            Some(controller) => controller.clone(),
            None => Arc::new(WorkerPool::new(concurrency, calls, marks)?),
        };
        let by_kind = self.handlers_by_kind()?;
        let begun = self.metrics.take().map(|metrics| {
            self.store = metrics.wrap_store(self.store.clone());
            self.observers.push(Arc::new(metrics.clone()));
            metrics.register_worker(self.config.concurrency, by_kind.keys())
        });
        let outage = Arc::new(OutageTracker::new(self.config.heartbeat_interval()));
        let shared = WorkerShared {
            outage_tracker: outage,
            queues: self.queue_names(),
            worker_id: id::new_worker_id(),
            store: self.store,
            config: self.config,
            handlers: self.handlers,
            handlers_by_kind: by_kind,
            observers: self.observers,
            metrics_guard: begun,
            in_flight: InFlight::default(),
            completion_queue: CompletionQueue::default(),
            old_lease_claimed: Notify::new(),
            worker_pool: controller,
            free: AtomicU32::new(concurrency),
            is_stopping: AtomicBool::new(false),
            peers_with_capacity: AtomicU32::new(1),
        };
        Ok(Worker { shared: Arc::new(shared) })
    }

    fn handlers_by_kind(&self) -> Result<HashMap<Arc<str>, usize>> {
        if self.handlers.is_empty() {
            return Err(Error::invalid("the worker has no handler; add one with `handle`"));
        }
        let mut by_kind = HashMap::new();
        for (index, RegisteredHandler { config: options, .. }) in self.handlers.iter().enumerate() {
            options.kind.check()?;
            if let Some(capacity) = options.max_concurrent {
                check_capacity(&options.kind.name, capacity.into())?;
            }
            if by_kind.insert(options.kind.name.clone(), index).is_some() {
                let name = &options.kind.name;
                return Err(Error::invalid(format!("kind {name:?} has two handlers; keep one")));
            }
        }
        Ok(by_kind)
    }

    fn queue_names(&self) -> Arc<[Arc<str>]> {
        let of_kinds = self.handlers.iter().map(|handler| handler.config.kind.queue.clone());
        let named = self.config.queues.iter().map(|queue| queue.as_str().into());
        let queues: BTreeSet<Arc<str>> =
            if self.config.queues.is_empty() { of_kinds.collect() } else { named.collect() };
        queues.into_iter().collect()
    }
}
