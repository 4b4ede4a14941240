//! Back-pressure: what the workers of a process share, and what makes them claim less.

mod brakes;
mod memory;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::{Error, Memory, Result, WorkerReport};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

pub(crate) use brakes::{Brakes, Readings};
pub use brakes::{Marks, Reason};

use super::Shared;
use super::options::CONCURRENCY_MAX;
use crate::time;

/// One latency weighs so much against those before it.
const LATENCY_SHARE: u32 = 8;

/// A latency halves each time this has passed without a call: who does not call because the store was slow
/// must not believe that it still is.
const FADES_IN: Duration = Duration::from_secs(1);

/// Permits, memory, latency and calls to the store, shared by the workers that are built with it.
/// A worker that is built without one has its own.
#[derive(Debug)]
pub struct Controller {
    maximum: u32,
    marks: Marks,
    taken: Mutex<Taken>,
    /// Permits were given back; a hint, for who looks again now and then.
    freed: Notify,
    calls: Semaphore,
    meter: memory::Meter,
    memory: Mutex<Option<Memory>>,
    store: Latency,
    start: Latency,
    brakes: Mutex<Brakes>,
}

/// Permits in other hands.
#[derive(Debug, Default, Clone, Copy)]
struct Taken {
    /// Of handlers.
    running: u32,
    /// Of claims under way.
    asked: u32,
}

impl Taken {
    fn all(self) -> u32 {
        self.running + self.asked
    }
}

/// A mean in which the latest weighs most.
#[derive(Debug, Default)]
struct Latency(Mutex<Mean>);

#[derive(Debug, Default)]
struct Mean {
    mean: Duration,
    under_way: u32,
    /// When the last one ended.
    quiet_since: Option<Instant>,
}

impl Mean {
    fn read(&self, now: Instant) -> Duration {
        let quiet = match self.quiet_since {
            Some(since) if self.under_way == 0 => now.saturating_duration_since(since),
            _ => Duration::ZERO,
        };
        let halves = (quiet.as_millis() / FADES_IN.as_millis()).min(31) as u32;
        self.mean / (1 << halves)
    }
}

impl Latency {
    fn read(&self, now: Instant) -> Duration {
        self.mean().read(now)
    }

    fn begin(&self, now: Instant) {
        let mut mean = self.mean();
        mean.mean = mean.read(now);
        mean.under_way += 1;
    }

    fn end(&self, took: Duration, now: Instant) {
        let mut mean = self.mean();
        mean.mean = mean.mean - mean.mean / LATENCY_SHARE + took / LATENCY_SHARE;
        mean.under_way -= 1;
        mean.quiet_since = Some(now);
    }

    fn mean(&self) -> MutexGuard<'_, Mean> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to call the store, and the time that the call takes.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    controller: &'a Controller,
    pub(crate) sent_at: Instant,
    _right: Option<SemaphorePermit<'a>>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let now = time::now();
        self.controller.store.end(self.controller.weighed(now - self.sent_at), now);
    }
}

impl Controller {
    /// With so many permits, and so many calls to the store under way at once. Calls beyond the
    /// store's connections would wait for one of them.
    pub fn new(permits: u32, calls: usize, marks: Marks) -> Result<Self> {
        if !(1..=CONCURRENCY_MAX).contains(&permits) || calls == 0 {
            return Err(Error::invalid(format!(
                "a controller has 1 to {CONCURRENCY_MAX} permits and at least one call, not \
                 {permits} and {calls}"
            )));
        }
        marks.check()?;
        Ok(Self {
            maximum: permits,
            marks,
            taken: Mutex::default(),
            freed: Notify::new(),
            calls: Semaphore::new(calls.min(Semaphore::MAX_PERMITS)),
            meter: memory::Meter::new(),
            memory: Mutex::new(None),
            store: Latency::default(),
            start: Latency::default(),
            brakes: Mutex::new(Brakes::default()),
        })
    }

    /// Permits in all.
    pub fn permits(&self) -> u32 {
        self.maximum
    }

    /// Permits in the hands of handlers and of claims under way.
    pub fn permits_taken(&self) -> u32 {
        self.taken().all()
    }

    /// How long the store's calls take, the latest of them above all.
    pub fn store_latency(&self) -> Duration {
        self.store.read(time::now())
    }

    /// How long handlers wait for their start behind the answer to their claim.
    pub fn start_latency(&self) -> Duration {
        self.start.read(time::now())
    }

    /// Memory as it was last read.
    pub fn memory(&self) -> Option<Memory> {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The brakes by what is known now.
    pub(crate) fn judge(&self) -> (Brakes, Readings) {
        let readings = Readings {
            maximum: self.maximum,
            taken: self.permits_taken(),
            memory: self.memory(),
            store_latency: self.store_latency(),
            start_latency: self.start_latency(),
        };
        let mut brakes = self.brakes.lock().unwrap_or_else(PoisonError::into_inner);
        *brakes = brakes.after(&readings, &self.marks);
        (*brakes, readings)
    }

    /// The brakes by what handlers use. Permits that a claim asks for are room until it has found
    /// tasks for them.
    fn judge_handlers(&self) -> (Brakes, Readings) {
        let (brakes, readings) = self.judge();
        let readings = Readings { taken: self.taken().running, ..readings };
        (brakes.after(&readings, &self.marks), readings)
    }

    /// Takes as many permits as are free for a claim, up to `permits`.
    pub(crate) fn ask(&self, permits: u32) -> u32 {
        let mut taken = self.taken();
        let granted = permits.min(self.maximum.saturating_sub(taken.all()));
        taken.asked += granted;
        granted
    }

    /// A claim is answered: of the permits that it asked for so many have a handler now.
    pub(crate) fn answered(&self, asked: u32, started: u32) {
        let mut taken = self.taken();
        taken.asked -= asked;
        taken.running += started;
        drop(taken);
        self.are_free(asked.saturating_sub(started));
    }

    /// Handlers have ended.
    pub(crate) fn give_back(&self, permits: u32) {
        self.taken().running -= permits;
        self.are_free(permits);
    }

    fn are_free(&self, permits: u32) {
        if permits > 0 {
            self.freed.notify_waiters();
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when permits were given back.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Waits for the right to call the store. The call lasts until what is returned is dropped.
    pub(crate) async fn call(&self) -> Call<'_> {
        let right = self.calls.acquire().await.ok();
        let sent_at = time::now();
        self.store.begin(sent_at);
        Call { controller: self, sent_at, _right: right }
    }

    /// Reads the memory. The files are of the kernel's making and are read in no time.
    pub(crate) fn sample(&self) {
        let memory = self.meter.read();
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// A handler begins that was claimed at `since`.
    pub(crate) fn begins(&self, since: Instant) {
        let now = time::now();
        self.start.begin(since);
        self.start.end(self.weighed(now.saturating_duration_since(since)), now);
    }

    /// One that is far too long counts as four times the mark: alone it does not brake.
    fn weighed(&self, took: Duration) -> Duration {
        took.min(self.marks.latency_high.saturating_mul(4))
    }
}

/// How much a worker takes on, and why. Cheap to clone and to ask.
#[derive(Debug, Clone)]
pub struct Pressure {
    pub(super) shared: Arc<Shared>,
}

impl Pressure {
    /// What the worker's heartbeats say of it.
    pub fn report(&self) -> WorkerReport {
        self.shared.report()
    }

    /// Why it takes on as much as it does.
    pub fn reason(&self) -> Reason {
        self.shared.reason()
    }

    /// What it shares with other workers of the process.
    pub fn controller(&self) -> &Controller {
        &self.shared.controller
    }
}

impl Shared {
    pub(crate) fn reason(&self) -> Reason {
        let (brakes, readings) = self.controller.judge_handlers();
        self.reason_by(brakes, &readings)
    }

    fn reason_by(&self, brakes: Brakes, readings: &Readings) -> Reason {
        if self.is_stopping.load(Ordering::Relaxed) {
            return Reason::Stopping;
        }
        match self.free.load(Ordering::Relaxed) {
            0 => Reason::Permits,
            _ => brakes.reason(readings),
        }
    }

    pub(crate) fn report(&self) -> WorkerReport {
        let (brakes, readings) = self.controller.judge_handlers();
        let reason = self.reason_by(brakes, &readings);
        let room = brakes.claim(&readings, u32::MAX).min(self.free.load(Ordering::Relaxed));
        let accepting = room > 0 && reason != Reason::Stopping;
        self.begun.iter().for_each(|begun| begun.accepts(accepting, reason));
        WorkerReport {
            available: room,
            maximum: self.options.concurrency.min(self.controller.maximum),
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
    fn permits_are_taken_as_far_as_there_are() {
        let controller = Controller::new(5, 1, Marks::default()).unwrap();
        assert_eq!((controller.ask(3), controller.ask(3), controller.ask(1)), (3, 2, 0));
        controller.answered(5, 3);
        controller.give_back(2);
        assert_eq!((controller.permits_taken(), controller.ask(9)), (1, 4));
    }

    #[test]
    fn what_a_claim_asks_for_is_room() {
        let controller = Controller::new(100, 1, Marks::default()).unwrap();
        let room = || {
            let (brakes, readings) = controller.judge_handlers();
            (brakes.claim(&readings, u32::MAX), brakes.reason(&readings))
        };
        controller.ask(100);
        assert_eq!(controller.judge().1.taken, 100);
        assert_eq!(room(), (100, Reason::Room));
        controller.answered(100, 95);
        assert_eq!(room(), (5, Reason::Permits));
        controller.give_back(95);
        assert_eq!(room(), (100, Reason::Room));
    }

    /// Calls that take so long, one after the other, the first of them at `now`. Tells when the last ended.
    fn calls(controller: &Controller, calls: u32, took: Duration, now: Instant) -> Instant {
        (0..calls).fold(now, |now, _| {
            controller.store.begin(now);
            controller.store.end(controller.weighed(took), now + took);
            now + took
        })
    }

    fn is_slow(controller: &Controller, now: Instant) -> bool {
        controller.store.read(now) > controller.marks.latency_high
    }

    #[test]
    fn one_slow_call_alone_does_not_brake_and_several_do() {
        let controller = Controller::new(5, 1, Marks::default()).unwrap();
        for took in [1, 3, 60].map(Duration::from_secs) {
            let now = calls(&controller, 1, took, time::now());
            assert!(!is_slow(&controller, now));
            let now = calls(&controller, 9, took, now);
            assert!(is_slow(&controller, now), "they take {took:?}");
            controller.store.begin(now);
            assert!(is_slow(&controller, now + took), "the next is under way for as long");
            controller.store.end(took, now + took);
            let now = calls(&controller, 30, Duration::from_millis(1), now + took);
            assert!(!is_slow(&controller, now));
        }
    }

    #[tokio::test]
    async fn a_call_lasts_until_it_is_dropped() {
        let marks = Marks { latency_high: Duration::from_nanos(1), ..Marks::default() };
        let controller = Controller::new(5, 1, marks).unwrap();
        drop(controller.call().await);
        let mean = controller.store.mean();
        assert_eq!((mean.under_way, mean.quiet_since.is_some()), (0, true));
    }

    #[test]
    fn a_latency_that_nobody_measures_any_more_fades() {
        let latency = Latency::default();
        let now = time::now();
        for _ in 0..100 {
            latency.begin(now);
            latency.end(Duration::from_secs(2), now);
        }
        let high = latency.read(now);
        assert!(high > Duration::from_millis(1900), "{high:?}");
        assert_eq!(latency.read(now + FADES_IN), high / 2);
        assert_eq!(latency.read(now + FADES_IN * 3), high / 8);
        assert_eq!(latency.read(now + Duration::from_secs(3600)), high / (1 << 31));
    }
}
