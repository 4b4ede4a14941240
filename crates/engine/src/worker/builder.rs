//! Settings and parts meet here, and are checked.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::{Error, Result, Store, check_capacity};
use tokio::sync::Notify;

use super::board::Board;
use super::outbox::Outbox;
use super::{Controller, Options, Registered, Shared, Worker};
use crate::handler::Invoke;
use crate::outage::Outage;
use crate::{Context, Handler, IntoResult, KindOptions, Metrics, Observer, id};

/// Builds a worker.
#[derive(Debug)]
pub struct Builder {
    store: Arc<dyn Store>,
    options: Options,
    handlers: Vec<Registered>,
    observers: Vec<Arc<dyn Observer>>,
    metrics: Option<Metrics>,
    controller: Option<Arc<Controller>>,
}

impl Builder {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            options: Options::default(),
            handlers: Vec::new(),
            observers: Vec::new(),
            metrics: None,
            controller: None,
        }
    }

    /// Sets every knob at once.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Handlers that run at once. Default: 16.
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.options.concurrency = concurrency;
        self
    }

    /// Queues it claims from. Default: the queues of its kinds.
    pub fn queues(mut self, queues: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.options.queues = queues.into_iter().map(Into::into).collect();
        self
    }

    /// Handles a kind by a function `async fn(Context, P) -> Result<T, E>`. The kind is a
    /// name, or [`KindOptions`] where it has settings.
    pub fn handle<P, R, F, Fut>(mut self, kind: impl Into<KindOptions>, function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: IntoResult + 'static,
        R::Output: Serialize,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
    {
        let invoke = Invoke::function(function);
        self.handlers.push(Registered { options: kind.into(), invoke });
        self
    }

    /// Handles the kind of a [`Handler`], as its options say.
    pub fn register<H: Handler>(self, handler: H) -> Self {
        self.register_with(H::options(), handler)
    }

    /// Handles the kind of a [`Handler`] with other options.
    pub fn register_with<H: Handler>(mut self, options: KindOptions, handler: H) -> Self {
        self.handlers.push(Registered { options, invoke: Invoke::handler(handler) });
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
    pub fn controller(mut self, controller: Arc<Controller>) -> Self {
        self.controller = Some(controller);
        self
    }

    /// Checks everything. The worker takes a new id.
    pub fn build(mut self) -> Result<Worker> {
        self.options.check()?;
        let Options { concurrency, calls, marks, .. } = self.options;
        let controller = match &self.controller {
            Some(controller) => controller.clone(),
            None => Arc::new(Controller::new(concurrency, calls, marks)?),
        };
        let by_kind = self.by_kind()?;
        let begun = self.metrics.take().map(|metrics| {
            self.store = metrics.metered(self.store.clone());
            self.observers.push(Arc::new(metrics.clone()));
            metrics.begin(self.options.concurrency, by_kind.keys())
        });
        let outage = Arc::new(Outage::new(self.options.heartbeat_interval()));
        let shared = Shared {
            outage,
            queues: self.queue_names(),
            worker: id::worker(),
            store: self.store,
            options: self.options,
            handlers: self.handlers,
            by_kind,
            observers: self.observers,
            begun,
            board: Board::default(),
            outbox: Outbox::default(),
            old_lease: Notify::new(),
            controller,
            free: AtomicU32::new(concurrency),
            is_stopping: AtomicBool::new(false),
            peers: AtomicU32::new(1),
        };
        Ok(Worker { shared: Arc::new(shared) })
    }

    fn by_kind(&self) -> Result<HashMap<Arc<str>, usize>> {
        if self.handlers.is_empty() {
            return Err(Error::invalid("the worker has no handler; add one with `handle`"));
        }
        let mut by_kind = HashMap::new();
        for (index, Registered { options, .. }) in self.handlers.iter().enumerate() {
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
        let of_kinds = self.handlers.iter().map(|handler| handler.options.kind.queue.clone());
        let named = self.options.queues.iter().map(|queue| queue.as_str().into());
        let queues: BTreeSet<Arc<str>> =
            if self.options.queues.is_empty() { of_kinds.collect() } else { named.collect() };
        queues.into_iter().collect()
    }
}
