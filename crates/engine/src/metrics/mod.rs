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

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

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
    accepting: Mutex<Option<(bool, &'static str)>>,
    counted: Mutex<Counted>,
    sample: Mutex<Arc<Sample>>,
    /// Whom to ask for what can be told at once.
    inspect: OnceLock<Arc<dyn Inspect>>,
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

    /// Says whether the worker takes new tasks, and why; the words are few and known beforehand.
    pub fn set_accepting(&self, accepting: bool, reason: &'static str) {
        *lock(&self.inner.accepting) = Some((accepting, reason));
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
        if let Some((accepting, reason)) = *lock(&self.inner.accepting) {
            reading.number(&about::ACCEPTING, &[reason], f64::from(u8::from(accepting)));
        }
        process::read(reading);
        if let Some(pool) = self.inner.inspect.get().and_then(|inspect| inspect.connections()) {
            reading.number(&about::CONNECTIONS_IN_USE, &[], pool.in_use as f64);
            reading.number(&about::CONNECTIONS, &[], pool.max as f64);
            reading.number(&about::CONNECTIONS_WAITING, &[], pool.waiting as f64);
        }
    }

    /// A worker with so many slots begins; it is counted until this is dropped. The counters of its
    /// kinds are there from the start: of one that appears with a number no rate is known.
    pub(crate) fn begin<'a>(&self, slots: u32, kinds: impl Iterator<Item = &'a Arc<str>>) -> Begun {
        self.counted().expect(kinds);
        self.inner.slots.fetch_add(slots.into(), Ordering::Relaxed);
        self.set_accepting(true, Reason::Room.as_str());
        Begun { metrics: self.clone(), slots, has_ended: AtomicBool::new(false) }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        lock(&self.inner.counted)
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
    slots: u32,
    has_ended: AtomicBool,
}

impl Begun {
    /// Whether it takes on more, and why.
    pub(crate) fn accepts(&self, accepts: bool, reason: Reason) {
        self.metrics.set_accepting(accepts, reason.as_str());
    }

    /// Its slots are gone.
    pub(crate) fn end(&self) {
        if !self.has_ended.swap(true, Ordering::Relaxed) {
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
