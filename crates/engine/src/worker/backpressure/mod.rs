//! Back-pressure: what the workers of a process share, and what makes them claim less.

mod memory;
mod state;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::{Error, MemoryUsage, Result, WorkerReport};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

pub use state::{BackpressureReason, BackpressureThresholds};
pub(crate) use state::{BackpressureSignals, BackpressureState};

use super::WorkerShared;
use super::config::CONCURRENCY_MAX;
use crate::time;

/// One latency weighs so much against those before it.
const LATENCY_SMOOTHING: u32 = 8;

/// A latency halves each time this has passed without a call: who does not call because the store was slow
/// must not believe that it still is.
const LATENCY_HALF_LIFE: Duration = Duration::from_secs(1);

/// Permits, memory, latency and calls to the store, shared by the workers that are built with it.
/// A worker that is built without one has its own.
#[derive(Debug)]
pub struct WorkerPool {
    concurrency: u32,
    thresholds: BackpressureThresholds,
    in_use: Mutex<CapacityInUse>,
    /// Permits were given back; a hint, for who looks again now and then.
    capacity_freed: Notify,
    request_semaphore: Semaphore,
    memory_meter: memory::MemoryMeter,
    memory: Mutex<Option<MemoryUsage>>,
    store_latency: LatencyTracker,
    start_latency: LatencyTracker,
    backpressure_state: Mutex<BackpressureState>,
}

/// Permits in other hands.
#[derive(Debug, Default, Clone, Copy)]
struct CapacityInUse {
    /// Of handlers.
    in_flight: u32,
    /// Of claims under way.
    reserved: u32,
}

impl CapacityInUse {
    fn total(self) -> u32 {
        self.in_flight + self.reserved
    }
}

/// A mean in which the latest weighs most.
#[derive(Debug, Default)]
struct LatencyTracker(Mutex<LatencyState>);

#[derive(Debug, Default)]
struct LatencyState {
    average: Duration,
    in_progress: u32,
    /// When the last one ended.
    last_ended_at: Option<Instant>,
}

impl LatencyState {
    fn current(&self, now: Instant) -> Duration {
        let quiet = match self.last_ended_at {
            Some(since) if self.in_progress == 0 => now.saturating_duration_since(since),
            _ => Duration::ZERO,
        };
        let halves = (quiet.as_millis() / LATENCY_HALF_LIFE.as_millis()).min(31) as u32;
        self.average / (1 << halves)
    }
}

impl LatencyTracker {
    fn current(&self, now: Instant) -> Duration {
        self.lock_state().current(now)
    }

    fn record_start(&self, started_at: Instant) {
        let mut mean = self.lock_state();
        mean.average = mean.current(started_at);
        mean.in_progress += 1;
    }

    fn record_end(&self, latency: Duration, ended_at: Instant) {
        let mut mean = self.lock_state();
        mean.average =
            mean.average - mean.average / LATENCY_SMOOTHING + latency / LATENCY_SMOOTHING;
        mean.in_progress -= 1;
        mean.last_ended_at = Some(ended_at);
    }

    fn lock_state(&self) -> MutexGuard<'_, LatencyState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to call the store, and the time that the call takes.
#[derive(Debug)]
pub(crate) struct StoreRequestGuard<'a> {
    worker_pool: &'a WorkerPool,
    pub(crate) sent_at: Instant,
    _permit: Option<SemaphorePermit<'a>>,
}

impl Drop for StoreRequestGuard<'_> {
    fn drop(&mut self) {
        let now = time::now();
        self.worker_pool
            .store_latency
            .record_end(self.worker_pool.cap_latency(now - self.sent_at), now);
    }
}

impl WorkerPool {
    /// With so many permits, and so many calls to the store under way at once. Calls beyond the
    /// store's connections would wait for one of them.
    pub fn new(
        concurrency: u32,
        max_store_requests: usize,
        thresholds: BackpressureThresholds,
    ) -> Result<Self> {
        if !(1..=CONCURRENCY_MAX).contains(&concurrency) || max_store_requests == 0 {
            return Err(Error::invalid(format!(
                "a controller has 1 to {CONCURRENCY_MAX} permits and at least one call, not \
                 {concurrency} and {max_store_requests}"
            )));
        }
        thresholds.check()?;
        Ok(Self {
            concurrency,
            thresholds,
            in_use: Mutex::default(),
            capacity_freed: Notify::new(),
            request_semaphore: Semaphore::new(max_store_requests.min(Semaphore::MAX_PERMITS)),
            memory_meter: memory::MemoryMeter::new(),
            memory: Mutex::new(None),
            store_latency: LatencyTracker::default(),
            start_latency: LatencyTracker::default(),
            backpressure_state: Mutex::new(BackpressureState::default()),
        })
    }

    /// Permits in all.
    pub fn concurrency(&self) -> u32 {
        self.concurrency
    }

    /// Permits in the hands of handlers and of claims under way.
    pub fn capacity_in_use(&self) -> u32 {
        self.lock_in_use().total()
    }

    /// How long the store's calls take, the latest of them above all.
    pub fn store_latency(&self) -> Duration {
        self.store_latency.current(time::now())
    }

    /// How long handlers wait for their start behind the answer to their claim.
    pub fn start_latency(&self) -> Duration {
        self.start_latency.current(time::now())
    }

    /// Memory as it was last read.
    pub fn memory(&self) -> Option<MemoryUsage> {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The brakes by what is known now.
    pub(crate) fn update_backpressure(&self) -> (BackpressureState, BackpressureSignals) {
        let readings = BackpressureSignals {
            concurrency: self.concurrency,
            in_use: self.capacity_in_use(),
            memory: self.memory(),
            store_latency: self.store_latency(),
            start_latency: self.start_latency(),
        };
        let mut brakes = self.backpressure_state.lock().unwrap_or_else(PoisonError::into_inner);
        *brakes = brakes.next_state(&readings, &self.thresholds);
        (*brakes, readings)
    }

    /// The brakes by what handlers use. Permits that a claim asks for are room until it has found
    /// tasks for them.
    fn backpressure_without_reservations(&self) -> (BackpressureState, BackpressureSignals) {
        let (brakes, readings) = self.update_backpressure();
        let readings = BackpressureSignals { in_use: self.lock_in_use().in_flight, ..readings };
        (brakes.next_state(&readings, &self.thresholds), readings)
    }

    /// Takes as many permits as are free for a claim, up to `permits`.
    pub(crate) fn reserve(&self, tasks: u32) -> u32 {
        let mut taken = self.lock_in_use();
        let granted = tasks.min(self.concurrency.saturating_sub(taken.total()));
        taken.reserved += granted;
        granted
    }

    /// A claim is answered: of the permits that it asked for so many have a handler now.
    pub(crate) fn settle_reservation(&self, reserved: u32, started: u32) {
        let mut taken = self.lock_in_use();
        taken.reserved -= reserved;
        taken.in_flight += started;
        drop(taken);
        self.notify_freed(reserved.saturating_sub(started));
    }

    /// Handlers have ended.
    pub(crate) fn release(&self, tasks: u32) {
        self.lock_in_use().in_flight -= tasks;
        self.notify_freed(tasks);
    }

    fn notify_freed(&self, tasks: u32) {
        if tasks > 0 {
            self.capacity_freed.notify_waiters();
        }
    }

    fn lock_in_use(&self) -> MutexGuard<'_, CapacityInUse> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when permits were given back.
    pub(crate) async fn wait_for_free_capacity(&self) {
        self.capacity_freed.notified().await;
    }

    /// Waits for the right to call the store. The call lasts until what is returned is dropped.
    pub(crate) async fn begin_store_request(&self) -> StoreRequestGuard<'_> {
        let right = self.request_semaphore.acquire().await.ok();
        let sent_at = time::now();
        self.store_latency.record_start(sent_at);
        StoreRequestGuard { worker_pool: self, sent_at, _permit: right }
    }

    /// Reads the memory. The files are of the kernel's making and are read in no time.
    pub(crate) fn sample_memory(&self) {
        let memory = self.memory_meter.read_usage();
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// A handler begins that was claimed at `since`.
    pub(crate) fn record_handler_start(&self, claimed_at: Instant) {
        let now = time::now();
        self.start_latency.record_start(claimed_at);
        self.start_latency
            .record_end(self.cap_latency(now.saturating_duration_since(claimed_at)), now);
    }

    /// One that is far too long counts as four times the mark: alone it does not brake.
    fn cap_latency(&self, latency: Duration) -> Duration {
        latency.min(self.thresholds.latency_high.saturating_mul(4))
    }
}

/// How much a worker takes on, and why. Cheap to clone and to ask.
#[derive(Debug, Clone)]
pub struct WorkerStatus {
    pub(super) shared: Arc<WorkerShared>,
}

impl WorkerStatus {
    /// What the worker's heartbeats say of it.
    pub fn worker_report(&self) -> WorkerReport {
        self.shared.worker_report()
    }

    /// Why it takes on as much as it does.
    pub fn reason(&self) -> BackpressureReason {
        self.shared.backpressure_reason()
    }

    /// What it shares with other workers of the process.
    pub fn worker_pool(&self) -> &WorkerPool {
        &self.shared.worker_pool
    }
}

impl WorkerShared {
    pub(crate) fn backpressure_reason(&self) -> BackpressureReason {
        let (brakes, readings) = self.worker_pool.backpressure_without_reservations();
        self.backpressure_reason_for(brakes, &readings)
    }

    fn backpressure_reason_for(
        &self,
        state: BackpressureState,
        signals: &BackpressureSignals,
    ) -> BackpressureReason {
        if self.is_stopping.load(Ordering::Relaxed) {
            return BackpressureReason::Stopping;
        }
        match self.free.load(Ordering::Relaxed) {
            0 => BackpressureReason::LowCapacity,
            _ => state.reason(signals),
        }
    }

    pub(crate) fn worker_report(&self) -> WorkerReport {
        let (brakes, readings) = self.worker_pool.backpressure_without_reservations();
        let reason = self.backpressure_reason_for(brakes, &readings);
        let room = brakes.claim_budget(&readings, u32::MAX).min(self.free.load(Ordering::Relaxed));
        let accepting = room > 0 && reason != BackpressureReason::Stopping;
        self.metrics_guard.iter().for_each(|begun| begun.set_accepting(accepting, reason));
        WorkerReport {
            free: room,
            concurrency: self.config.concurrency.min(self.worker_pool.concurrency),
            memory: readings.memory,
            accepting,
            reason: reason.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_grants_at_most_the_free_capacity() {
        let controller = WorkerPool::new(5, 1, BackpressureThresholds::default()).unwrap();
        assert_eq!(
            (controller.reserve(3), controller.reserve(3), controller.reserve(1)),
            (3, 2, 0)
        );
        controller.settle_reservation(5, 3);
        controller.release(2);
        assert_eq!((controller.capacity_in_use(), controller.reserve(9)), (1, 4));
    }

    #[test]
    fn capacity_reserved_by_a_claim_counts_as_free() {
        let controller = WorkerPool::new(100, 1, BackpressureThresholds::default()).unwrap();
        let room = || {
            let (brakes, readings) = controller.backpressure_without_reservations();
            (brakes.claim_budget(&readings, u32::MAX), brakes.reason(&readings))
        };
        controller.reserve(100);
        assert_eq!(controller.update_backpressure().1.in_use, 100);
        assert_eq!(room(), (100, BackpressureReason::None));
        controller.settle_reservation(100, 95);
        assert_eq!(room(), (5, BackpressureReason::LowCapacity));
        controller.release(95);
        assert_eq!(room(), (100, BackpressureReason::None));
    }

    /// Calls that take so long, one after the other, the first of them at `now`. Tells when the last ended.
    fn record_requests(
        controller: &WorkerPool,
        requests: u32,
        took: Duration,
        now: Instant,
    ) -> Instant {
        (0..requests).fold(now, |now, _| {
            controller.store_latency.record_start(now);
            controller.store_latency.record_end(controller.cap_latency(took), now + took);
            now + took
        })
    }

    fn is_store_slow(controller: &WorkerPool, now: Instant) -> bool {
        controller.store_latency.current(now) > controller.thresholds.latency_high
    }

    #[test]
    fn single_slow_request_causes_no_backpressure() {
        let controller = WorkerPool::new(5, 1, BackpressureThresholds::default()).unwrap();
        for took in [1, 3, 60].map(Duration::from_secs) {
            let now = record_requests(&controller, 1, took, time::now());
            assert!(!is_store_slow(&controller, now));
            let now = record_requests(&controller, 9, took, now);
            assert!(is_store_slow(&controller, now), "they take {took:?}");
            controller.store_latency.record_start(now);
            assert!(is_store_slow(&controller, now + took), "the next is under way for as long");
            controller.store_latency.record_end(took, now + took);
            let now = record_requests(&controller, 30, Duration::from_millis(1), now + took);
            assert!(!is_store_slow(&controller, now));
        }
    }

    #[tokio::test]
    async fn store_request_ends_when_its_guard_is_dropped() {
        let marks = BackpressureThresholds {
            latency_high: Duration::from_nanos(1),
            ..BackpressureThresholds::default()
        };
        let controller = WorkerPool::new(5, 1, marks).unwrap();
        drop(controller.begin_store_request().await);
        let mean = controller.store_latency.lock_state();
        assert_eq!((mean.in_progress, mean.last_ended_at.is_some()), (0, true));
    }

    #[test]
    fn latency_without_requests_decays() {
        let latency = LatencyTracker::default();
        let now = time::now();
        for _ in 0..100 {
            latency.record_start(now);
            latency.record_end(Duration::from_secs(2), now);
        }
        let high = latency.current(now);
        assert!(high > Duration::from_millis(1900), "{high:?}");
        assert_eq!(latency.current(now + LATENCY_HALF_LIFE), high / 2);
        assert_eq!(latency.current(now + LATENCY_HALF_LIFE * 3), high / 8);
        assert_eq!(latency.current(now + Duration::from_secs(3600)), high / (1 << 31));
    }
}
