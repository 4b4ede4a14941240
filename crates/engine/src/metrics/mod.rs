//! What a worker measures: its own work, its calls to the store, and what waits in the store.
//!
//! A [`Metrics`] is given to the worker's builder and counts from then on. [`Metrics::encode`] gives
//! the text that Prometheus reads, [`Metrics::read`] the numbers themselves. What only the store
//! knows is read by a [`Sampler`] in the background, never while somebody waits for the numbers.
//!
//! Names of limits and jobs come from whoever submits, so there may be very many: the busiest have
//! series of their own and the rest is `other`.

pub mod about;
mod buckets;
mod counted;
mod family;
mod idle;
mod metered;
mod process;
mod sample;
mod top;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tidegate_core::requests::{
    FallbackReason, REQUEST_SECONDS, RequestCount, RequestStats, RequestTimes,
};
use tidegate_core::{Attempt, Inspect, Store};

pub use buckets::Buckets;
pub use family::{Family, Series, Value};
pub use sample::Sampler;

use crate::{Ended, Observer, Reason};
use counted::Counted;
use family::Reading;
use sample::Sample;

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
/// assert!(metrics.encode().contains("tidegate_worker_slots 16\n"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    slots: AtomicU64,
    in_flight: AtomicI64,
    workers: Mutex<Workers>,
    counted: Mutex<Counted>,
    sample: Mutex<Arc<Sample>>,
    /// Whom to ask for what can be told at once.
    inspect: OnceLock<Arc<dyn Inspect>>,
}

/// The workers that are counted, each with whether it takes new tasks and why.
#[derive(Debug, Default)]
struct Workers {
    next: u64,
    states: BTreeMap<u64, (bool, Reason)>,
}

impl Metrics {
    /// Nothing is counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same store, with its calls counted. A worker that is built with these metrics does it by
    /// itself.
    pub fn metered(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(metered::Metered::new(store, self.clone()))
    }

    /// Counts a call of the kind `http`: the status of the answer, if there was one.
    pub fn http_request(&self, status: Option<u16>, took: Duration) {
        self.counted().http_request(status, took);
    }

    /// Every metric with its numbers.
    pub fn read(&self) -> Vec<Family> {
        let mut reading = Reading::new();
        self.read_worker(&mut reading);
        self.counted().read(&mut reading);
        let sample = lock(&self.inner.sample).clone();
        sample.read(&mut reading);
        reading.families()
    }

    /// Every metric as the text that Prometheus reads.
    pub fn encode(&self) -> String {
        family::text(&self.read())
    }

    fn read_worker(&self, reading: &mut Reading) {
        let in_flight = self.inner.in_flight.load(Ordering::Relaxed) as f64;
        reading.number(&about::IN_FLIGHT, &[], in_flight);
        reading.number(&about::SLOTS_IN_USE, &[], in_flight);
        reading.number(&about::SLOTS, &[], self.inner.slots.load(Ordering::Relaxed) as f64);
        self.read_backpressure(reading);
        process::read(reading);
        if let Some(inspect) = self.inner.inspect.get() {
            read_store(reading, &**inspect);
        }
    }

    fn read_backpressure(&self, reading: &mut Reading) {
        let workers = lock(&self.inner.workers);
        let accepting = workers.states.values().filter(|(accepts, _)| *accepts).count();
        reading.number(&about::ACCEPTING, &[], accepting as f64);
        for reason in Reason::ALL {
            let number = workers.states.values().filter(|(_, of)| *of == reason).count();
            reading.number(&about::BACKPRESSURE, &[reason.as_str()], number as f64);
        }
    }

    /// A worker with so many slots begins; it is counted until this is dropped. The counters of its
    /// kinds are there from the start: of one that appears with a number no rate is known.
    pub(crate) fn begin<'a>(&self, slots: u32, kinds: impl Iterator<Item = &'a Arc<str>>) -> Begun {
        self.counted().expect(kinds);
        self.inner.slots.fetch_add(slots.into(), Ordering::Relaxed);
        let mut workers = lock(&self.inner.workers);
        let worker = workers.next;
        workers.next += 1;
        workers.states.insert(worker, (true, Reason::Room));
        Begun { metrics: self.clone(), worker, slots }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        lock(&self.inner.counted)
    }
}

/// Reads what the store counts in this process.
fn read_store(reading: &mut Reading, inspect: &dyn Inspect) {
    if let Some(pool) = inspect.connections() {
        reading.number(&about::CONNECTIONS_IN_USE, &[], pool.in_use as f64);
        reading.number(&about::CONNECTIONS, &[], pool.max as f64);
        reading.number(&about::CONNECTIONS_WAITING, &[], pool.waiting as f64);
    }
    let RequestStats { counts, times } = inspect.requests();
    for RequestCount { verb, path, reason, requests } in counts {
        let reason = reason.map_or("", FallbackReason::as_str);
        reading.number(&about::STORE_REQUESTS, &[verb, path.as_str(), reason], requests as f64);
    }
    for RequestTimes { verb, path, buckets, total } in times {
        let took = Buckets::counted(REQUEST_SECONDS, &buckets, total.as_secs_f64());
        reading.buckets(&about::STORE_REQUEST, &[verb, path.as_str()], &took);
    }
}

/// Held for a few instructions, never across an await.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A worker that is counted.
#[derive(Debug)]
pub(crate) struct Begun {
    metrics: Metrics,
    worker: u64,
    slots: u32,
}

impl Begun {
    /// Notes whether the worker takes new tasks, and why. A worker that has ended stays uncounted.
    pub(crate) fn accepts(&self, accepts: bool, reason: Reason) {
        if let Some(state) = lock(&self.metrics.inner.workers).states.get_mut(&self.worker) {
            *state = (accepts, reason);
        }
    }

    /// Stops counting the worker and its slots.
    pub(crate) fn end(&self) {
        if lock(&self.metrics.inner.workers).states.remove(&self.worker).is_some() {
            self.metrics.inner.slots.fetch_sub(self.slots.into(), Ordering::Relaxed);
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.end();
    }
}

impl Observer for Metrics {
    fn enter(&self, attempt: &Attempt) {
        self.inner.in_flight.fetch_add(1, Ordering::Relaxed);
        self.counted().start(attempt);
    }

    fn leave(&self, attempt: &Attempt, ran: Duration) {
        self.inner.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.counted().ran(attempt, ran);
    }

    fn exit(&self, attempt: &Attempt, ended: Ended) {
        self.counted().end(&attempt.kind, ended);
    }
}
