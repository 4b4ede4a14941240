//! What a worker measures: its own work, its calls to the store, and what waits in the store.
//!
//! A [`Metrics`] is given to the worker's builder and counts from then on. [`Metrics::encode_text`] gives
//! the text that Prometheus reads, [`Metrics::snapshot`] the numbers themselves. What only the store
//! knows is read by a [`Sampler`] in the background, never while somebody waits for the numbers.
//!
//! Names of limits and jobs come from whoever submits, so there may be very many: the busiest have
//! series of their own and the rest is `other`.

mod counters;
pub mod descriptors;
mod exposition;
mod histogram;
mod job_idle;
mod metered_store;
mod named_values;
mod process;
mod sampler;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tidegate_core::request_stats::{
    FallbackReason, REQUEST_DURATION_BUCKETS_SECS, RequestCount, RequestStats, RequestTimes,
};
use tidegate_core::{Attempt, Store, StoreReader};

pub use exposition::{MetricFamily, MetricSeries, MetricValue};
pub use histogram::HistogramCounts;
pub use sampler::Sampler;

use crate::{AttemptOutcome, BackpressureReason, Observer};
use counters::ProcessCounters;
use exposition::MetricSnapshot;
use sampler::StoreSample;

/// Counts what workers do. Clones share the numbers.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_engine::{Context, Failure, Metrics, Worker};
///
/// # fn main() -> tidegate_engine::Result<()> {
/// # let store = Arc::new(tidegate_store::memory::Memory::new());
/// let metrics = Metrics::new();
/// let worker = Worker::builder(store)
///     .metrics(&metrics)
///     .handle("mail", async |_: Context, to: String| Ok::<_, Failure>(to.len()))
///     .build()?;
/// assert!(metrics.encode_text().contains("tidegate_worker_slots 16\n"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    inner: Arc<MetricsInner>,
}

#[derive(Debug, Default)]
struct MetricsInner {
    concurrency: AtomicU64,
    in_flight: AtomicI64,
    workers: Mutex<WorkerStates>,
    counters: Mutex<ProcessCounters>,
    store_sample: Mutex<Arc<StoreSample>>,
    /// Whom to ask for what can be told at once.
    reader: OnceLock<Arc<dyn StoreReader>>,
}

/// The workers that are counted, each with whether it takes new tasks and why.
#[derive(Debug, Default)]
struct WorkerStates {
    next_id: u64,
    states: BTreeMap<u64, (bool, BackpressureReason)>,
}

impl Metrics {
    /// Nothing is counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same store, with its calls counted. A worker that is built with these metrics does it by
    /// itself.
    pub fn wrap_store(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(metered_store::MeteredStore::new(store, self.clone()))
    }

    /// Counts a call of the kind `http`: the status of the answer, if there was one.
    pub fn record_http_request(&self, status: Option<u16>, duration: Duration) {
        self.counters().record_http_request(status, duration);
    }

    /// Every metric with its numbers.
    pub fn snapshot(&self) -> Vec<MetricFamily> {
        let mut snapshot = MetricSnapshot::new();
        self.export_worker(&mut snapshot);
        self.counters().export(&mut snapshot);
        let sample = lock(&self.inner.store_sample).clone();
        sample.export(&mut snapshot);
        snapshot.into_families()
    }

    /// Every metric as the text that Prometheus reads.
    pub fn encode_text(&self) -> String {
        exposition::encode_text(&self.snapshot())
    }

    fn export_worker(&self, snapshot: &mut MetricSnapshot) {
        let in_flight = self.inner.in_flight.load(Ordering::Relaxed) as f64;
        snapshot.add_number(&descriptors::IN_FLIGHT, &[], in_flight);
        snapshot.add_number(&descriptors::CONCURRENCY_IN_USE, &[], in_flight);
        snapshot.add_number(
            &descriptors::CONCURRENCY,
            &[],
            self.inner.concurrency.load(Ordering::Relaxed) as f64,
        );
        self.export_backpressure(snapshot);
        process::export(snapshot);
        if let Some(inspect) = self.inner.reader.get() {
            export_store(snapshot, &**inspect);
        }
    }

    fn export_backpressure(&self, snapshot: &mut MetricSnapshot) {
        let workers = lock(&self.inner.workers);
        let accepting = workers.states.values().filter(|(accepts, _)| *accepts).count();
        snapshot.add_number(&descriptors::ACCEPTING, &[], accepting as f64);
        for reason in BackpressureReason::ALL {
            let number = workers.states.values().filter(|(_, of)| *of == reason).count();
            snapshot.add_number(&descriptors::BACKPRESSURE, &[reason.as_str()], number as f64);
        }
    }

    /// A worker with so many slots begins; it is counted until this is dropped. The counters of its
    /// kinds are there from the start: of one that appears with a number no rate is known.
    pub(crate) fn register_worker<'a>(
        &self,
        concurrency: u32,
        kinds: impl Iterator<Item = &'a Arc<str>>,
    ) -> WorkerGuard {
        self.counters().add_kinds(kinds);
        self.inner.concurrency.fetch_add(concurrency.into(), Ordering::Relaxed);
        let mut workers = lock(&self.inner.workers);
        let worker = workers.next_id;
        workers.next_id += 1;
        workers.states.insert(worker, (true, BackpressureReason::None));
        WorkerGuard { metrics: self.clone(), worker_number: worker, concurrency }
    }

    fn counters(&self) -> MutexGuard<'_, ProcessCounters> {
        lock(&self.inner.counters)
    }
}

/// Reads what the store counts in this process.
fn export_store(snapshot: &mut MetricSnapshot, reader: &dyn StoreReader) {
    if let Some(pool) = reader.connection_pool_stats() {
        snapshot.add_number(&descriptors::CONNECTIONS_IN_USE, &[], pool.in_use as f64);
        snapshot.add_number(&descriptors::CONNECTIONS, &[], pool.max as f64);
        snapshot.add_number(&descriptors::CONNECTIONS_WAITING, &[], pool.waiting as f64);
    }
    let RequestStats { counts, times } = reader.request_stats();
    for RequestCount { verb, path, reason, requests } in counts {
        let reason = reason.map_or("", FallbackReason::as_str);
        snapshot.add_number(
            &descriptors::STORE_REQUESTS,
            &[verb, path.as_str(), reason],
            requests as f64,
        );
    }
    for RequestTimes { verb, path, buckets, total } in times {
        let took = HistogramCounts::from_counts(
            REQUEST_DURATION_BUCKETS_SECS,
            &buckets,
            total.as_secs_f64(),
        );
        snapshot.add_histogram(&descriptors::STORE_REQUEST_SECONDS, &[verb, path.as_str()], &took);
    }
}

/// Held for a few instructions, never across an await.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A worker that is counted.
#[derive(Debug)]
pub(crate) struct WorkerGuard {
    metrics: Metrics,
    worker_number: u64,
    concurrency: u32,
}

impl WorkerGuard {
    /// Notes whether the worker takes new tasks, and why. A worker that has ended stays uncounted.
    pub(crate) fn set_accepting(&self, is_accepting: bool, reason: BackpressureReason) {
        if let Some(state) = lock(&self.metrics.inner.workers).states.get_mut(&self.worker_number) {
            *state = (is_accepting, reason);
        }
    }

    /// Stops counting the worker and its slots.
    pub(crate) fn deregister(&self) {
        if lock(&self.metrics.inner.workers).states.remove(&self.worker_number).is_some() {
            self.metrics.inner.concurrency.fetch_sub(self.concurrency.into(), Ordering::Relaxed);
        }
    }
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        self.deregister();
    }
}

impl Observer for Metrics {
    fn on_start(&self, attempt: &Attempt) {
        self.inner.in_flight.fetch_add(1, Ordering::Relaxed);
        self.counters().record_start(attempt);
    }

    fn on_handler_done(&self, attempt: &Attempt, run_time: Duration) {
        self.inner.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.counters().record_run_time(attempt, run_time);
    }

    fn on_acknowledged(&self, attempt: &Attempt, outcome: AttemptOutcome) {
        self.counters().record_outcome(&attempt.kind, outcome);
    }
}
