//! What only the store knows, read in the background.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::reader::{StoreLoad, WorkerView};
use tidegate_core::{Limit, LimitId, LimitScope, Millis, Result, StoreReader, TaskState};

use super::counters::NAMED_SERIES_MAX;
use super::descriptors::{self, MetricDescriptor};
use super::exposition::MetricSnapshot;
use super::job_idle::JobIdleTracker;
use super::named_values::OTHER_NAME;
use super::{Metrics, lock};
use crate::{Shutdown, ShutdownPhase, time};

/// Between two readings; jittered.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);

/// A read is made again only after so many times the time it took: whatever is in the store, to
/// watch it takes at most a fiftieth of the time.
const READ_PAUSE_FACTOR: u32 = 50;

/// The verb of reads in the metrics of the store.
const READ: &str = "read";

/// The jobs that have no series of their own, and a job that bears their name.
const OTHER_JOBS_NAME: &str = "job:other";

/// What was read last.
#[derive(Debug, Clone, Default)]
pub(super) struct StoreSample {
    limits: Vec<LimitSample>,
    tasks_by_state: BTreeMap<TaskState, u64>,
    ready_tasks: u32,
    leases_overdue: u32,
    worker_counts: Option<WorkerCounts>,
    /// When the oldest of it was read.
    read_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct WorkerCounts {
    alive: u64,
    wanted: u64,
}

/// One limit, or several together.
#[derive(Debug, Clone, PartialEq)]
struct LimitSample {
    name: Arc<str>,
    held: u64,
    capacity: Option<u64>,
    waiting: u64,
    /// Tasks of a job that are past its line and have not begun.
    in_window: u64,
    /// Whether its tasks begin some time apart.
    has_delay: bool,
    is_paused: bool,
    /// How long the first in its line has waited.
    oldest_wait_seconds: f64,
    job: Option<JobSample>,
}

/// What is said of jobs alone.
#[derive(Debug, Clone, Copy, PartialEq)]
struct JobSample {
    /// How long a task has waited at most, in the line or past it.
    oldest_wait_seconds: f64,
    /// How long nothing has run or begun.
    idle_seconds: f64,
}

impl StoreSample {
    pub(super) fn export(&self, snapshot: &mut MetricSnapshot) {
        let Some(read_at) = self.read_at else { return };
        let age = time::now() - read_at;
        snapshot.add_number(&descriptors::SAMPLE_AGE, &[], age.as_secs_f64());
        snapshot.add_number(&descriptors::READY_TASKS, &[], self.ready_tasks.into());
        snapshot.add_number(&descriptors::LEASES_OVERDUE, &[], self.leases_overdue.into());
        for state in TaskState::ALL {
            let tasks = self.tasks_by_state.get(&state).copied().unwrap_or(0);
            snapshot.add_number(&descriptors::TASKS, &[state.as_str()], tasks as f64);
        }
        if let Some(WorkerCounts { alive, wanted }) = self.worker_counts {
            snapshot.add_number(&descriptors::WORKERS, &[], alive as f64);
            snapshot.add_number(&descriptors::WORKERS_WANTED, &[], wanted as f64);
        }
        self.export_limits(snapshot, "", &LIMIT_METRICS);
        self.export_limits(snapshot, "job:", &JOB_METRICS);
    }

    /// The limits with a prefix, by their names without it.
    fn export_limits(&self, snapshot: &mut MetricSnapshot, prefix: &str, metrics: &LimitMetrics) {
        let mut other: Option<LimitSample> = None;
        for limit in &self.limits {
            let Some(name) = limit.name.strip_prefix(prefix) else { continue };
            match &mut other {
                _ if ![OTHER_NAME, OTHER_JOBS_NAME].contains(&name) => {
                    limit.export(name, snapshot, metrics)
                }
                Some(other) => other.merge(limit),
                None => other = Some(limit.clone()),
            }
        }
        if let Some(other) = other {
            other.export(OTHER_NAME, snapshot, metrics);
        }
    }
}

/// The metrics of limits, or of jobs.
struct LimitMetrics {
    active: &'static MetricDescriptor,
    slots: &'static MetricDescriptor,
    waiting: &'static MetricDescriptor,
    oldest_wait: &'static MetricDescriptor,
    is_for_jobs: bool,
}

const LIMIT_METRICS: LimitMetrics = LimitMetrics {
    active: &descriptors::LIMIT_ACTIVE,
    slots: &descriptors::LIMIT_SLOTS,
    waiting: &descriptors::LIMIT_WAITING,
    oldest_wait: &descriptors::LIMIT_OLDEST_WAIT,
    is_for_jobs: false,
};

const JOB_METRICS: LimitMetrics = LimitMetrics {
    active: &descriptors::JOB_ACTIVE,
    slots: &descriptors::JOB_SLOTS,
    waiting: &descriptors::JOB_WAITING,
    oldest_wait: &descriptors::JOB_OLDEST_WAIT,
    is_for_jobs: true,
};

impl LimitSample {
    fn new(limit: &Limit, load: &StoreLoad, job_idle: &JobIdleTracker) -> Self {
        let waited = |since: Option<Millis>| {
            since.map_or(0.0, |since| (load.now - since).max(0) as f64 / 1000.0)
        };
        let oldest_wait_seconds = waited(load.first_waiter_due_at.get(&limit.id).copied());
        let ready_since = load.jobs.get(&limit.id).and_then(|job| job.first_ready_at);
        let of_job = |idle| JobSample {
            oldest_wait_seconds: oldest_wait_seconds.max(waited(ready_since)),
            idle_seconds: idle,
        };
        Self {
            name: limit.name.clone(),
            held: limit.held.into(),
            capacity: limit.capacity.map(Into::into),
            waiting: limit.waiting.into(),
            in_window: limit.fair_share.map_or(0, |share| share.in_window.into()),
            has_delay: limit.fair_share.is_some_and(|share| share.delay_ms > 0),
            is_paused: limit.paused_by.is_some(),
            oldest_wait_seconds,
            job: job_idle.idle_seconds(limit.id, load.now).map(of_job),
        }
    }

    fn is_over_capacity(&self) -> bool {
        self.capacity.is_some_and(|capacity| self.held > capacity)
    }

    fn is_full(&self) -> bool {
        self.capacity.is_some_and(|capacity| self.held >= capacity) && self.waiting > 0
    }

    /// Whether a job has room for more of its tasks. What is ready has a slot and waits for a worker.
    fn may_admit_more(&self) -> bool {
        !self.is_paused
            && !self.has_delay
            && self
                .capacity
                .is_none_or(|capacity| self.held.saturating_sub(self.in_window) < capacity)
    }

    /// Tasks in the line of a job that would begin if there were workers for all that is ready.
    fn startable_waiters(&self) -> u64 {
        let free = self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.held));
        if self.may_admit_more() { self.waiting.min(free) } else { 0 }
    }

    fn held_and_waiting(&self) -> u64 {
        self.held + self.waiting
    }

    /// How long it waits in vain, and how long it waits at all. A job waits in vain while nothing of it
    /// begins, unless somebody wants that.
    fn stalled_and_oldest_wait(&self) -> (f64, f64) {
        match self.job {
            None => (self.oldest_wait_seconds, self.oldest_wait_seconds),
            Some(job) if self.is_paused || self.capacity == Some(0) => {
                (0.0, job.oldest_wait_seconds)
            }
            Some(job) => (job.oldest_wait_seconds.min(job.idle_seconds), job.oldest_wait_seconds),
        }
    }

    /// Of several jobs one that waits in vain is told of, not those that stand still and have nothing
    /// to do or are meant to.
    fn merge(&mut self, other: &Self) {
        let idle = self.stalled_and_oldest_wait().0.max(other.stalled_and_oldest_wait().0);
        let both = |(a, b): (JobSample, JobSample)| JobSample {
            oldest_wait_seconds: a.oldest_wait_seconds.max(b.oldest_wait_seconds),
            idle_seconds: idle,
        };
        self.job = self.job.zip(other.job).map(both);
        self.held += other.held;
        self.capacity = self.capacity.zip(other.capacity).map(|(a, b)| a + b);
        self.waiting += other.waiting;
        self.in_window += other.in_window;
        self.has_delay &= other.has_delay;
        self.is_paused &= other.is_paused;
        self.oldest_wait_seconds = self.oldest_wait_seconds.max(other.oldest_wait_seconds);
    }

    fn export(&self, name: &str, snapshot: &mut MetricSnapshot, metrics: &LimitMetrics) {
        snapshot.add_number(metrics.active, &[name], self.held as f64);
        if let Some(capacity) = self.capacity {
            snapshot.add_number(metrics.slots, &[name], capacity as f64);
        }
        snapshot.add_number(metrics.waiting, &[name], self.waiting as f64);
        match self.job.filter(|_| metrics.is_for_jobs) {
            None => snapshot.add_number(metrics.oldest_wait, &[name], self.oldest_wait_seconds),
            Some(job) => {
                let is_paused = f64::from(u8::from(self.is_paused));
                snapshot.add_number(&descriptors::JOB_PAUSED, &[name], is_paused);
                snapshot.add_number(metrics.oldest_wait, &[name], job.oldest_wait_seconds);
                snapshot.add_number(&descriptors::JOB_IDLE, &[name], job.idle_seconds);
            }
        }
    }
}

/// Reads what only the store knows, and notes in the log when a limit is reached and left.
///
/// Every process that shows metrics runs one; it asks each question every 5 s, give or take a
/// quarter, and less often where the store takes long to answer.
#[derive(Debug)]
pub struct Sampler {
    metrics: Metrics,
    reader: Arc<dyn StoreReader>,
    interval: Duration,
    sample: StoreSample,
    load: StoreLoad,
    /// Tasks that only wait for a worker.
    waiting_for_worker: u64,
    limits_schedule: ReadSchedule,
    workers_schedule: ReadSchedule,
    tasks_schedule: ReadSchedule,
    /// How often each limit had stopped a task when it was last read.
    rejections_before: HashMap<LimitId, i64>,
    job_idle: JobIdleTracker,
    /// Limits that are full while somebody waits.
    saturated: HashSet<Arc<str>>,
}

/// When a read is next made.
#[derive(Debug, Default)]
struct ReadSchedule {
    next_read_at: Option<Instant>,
    last_read_at: Option<Instant>,
}

impl ReadSchedule {
    /// Makes a read whose turn it is.
    async fn read_if_due<T>(
        &mut self,
        interval: Duration,
        read: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        let began_at = time::now();
        if self.next_read_at.is_some_and(|at| began_at < at) {
            return Ok(None);
        }
        let answer = read.await;
        let now = time::now();
        // The pause between two readings is jittered; half of it is always over by the next.
        self.next_read_at = Some(now + (interval / 2).max((now - began_at) * READ_PAUSE_FACTOR));
        if answer.is_ok() {
            self.last_read_at = Some(now);
        }
        answer.map(Some)
    }
}

impl Sampler {
    /// Reads from a store into metrics.
    pub fn new(metrics: &Metrics, reader: Arc<dyn StoreReader>) -> Self {
        Self {
            metrics: metrics.clone(),
            reader,
            interval: SAMPLE_INTERVAL,
            sample: StoreSample::default(),
            load: StoreLoad::default(),
            waiting_for_worker: 0,
            limits_schedule: ReadSchedule::default(),
            workers_schedule: ReadSchedule::default(),
            tasks_schedule: ReadSchedule::default(),
            rejections_before: HashMap::new(),
            job_idle: JobIdleTracker::default(),
            saturated: HashSet::new(),
        }
    }

    /// Whether the log takes down that a limit is reached and left.
    pub fn is_logging_enabled() -> bool {
        tracing::enabled!(tracing::Level::INFO)
    }

    /// Between two readings; jittered. Default: 5 s.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Reads until the shutdown is over. Errors are logged and tried again.
    pub async fn run(mut self, shutdown: Shutdown) {
        // Whoever looks at a store that does not answer still sees the pool.
        let _ = self.metrics.inner.reader.set(self.reader.clone());
        tokio::select! {
            () = shutdown.wait_for_phase(ShutdownPhase::Stopping) => {}
            () = self.sample_repeatedly() => {}
        }
    }

    async fn sample_repeatedly(&mut self) {
        loop {
            if let Err(error) = self.sample_once().await {
                tracing::warn!(%error, "the store cannot be watched, it is tried again");
            }
            time::sleep(time::jittered(self.interval)).await;
        }
    }

    /// One reading of everything whose turn it is.
    pub async fn sample_once(&mut self) -> Result<()> {
        let (inspect, interval) = (self.reader.clone(), self.interval);
        let metrics = self.metrics.clone();
        let limits = async {
            let limits = metrics.count_call(READ, inspect.limits()).await?;
            Ok((limits, metrics.count_call(READ, inspect.store_load()).await?))
        };
        if let Some((limits, load)) = self.limits_schedule.read_if_due(interval, limits).await? {
            self.update_limits(&limits, load);
        }
        let workers = metrics.count_call(READ, inspect.workers());
        if let Some(workers) = self.workers_schedule.read_if_due(interval, workers).await? {
            self.update_workers(&workers);
        }
        let tasks = metrics.count_call(READ, inspect.task_counts());
        if let Some(tasks) = self.tasks_schedule.read_if_due(interval, tasks).await? {
            self.sample.tasks_by_state = tasks;
        }
        self.sample.read_at = [&self.limits_schedule, &self.workers_schedule, &self.tasks_schedule]
            .into_iter()
            .filter_map(|turn| turn.last_read_at)
            .min();
        *lock(&self.metrics.inner.store_sample) = Arc::new(self.sample.clone());
        self.metrics.counters().update_rankings();
        Ok(())
    }

    fn update_limits(&mut self, limits: &[Limit], load: StoreLoad) {
        self.load = load;
        let shared = limits.iter().filter(|limit| limit.scope() != LimitScope::Workflow);
        let shared: Vec<&Limit> = shared.collect();
        self.record_rejections(&shared);
        self.job_idle.update(&shared, &self.load);
        let (jobs, groups): (Vec<_>, Vec<_>) = shared
            .iter()
            .map(|limit| LimitSample::new(limit, &self.load, &self.job_idle))
            .partition(|limit| limit.name.starts_with("job:"));
        groups
            .iter()
            .chain(&jobs)
            .for_each(|limit| log_saturation_change(&mut self.saturated, limit));
        let open = jobs.iter().filter(|job| job.may_admit_more()).map(|job| job.name.clone());
        self.metrics.counters().set_unblocked_jobs(open.collect());
        self.waiting_for_worker = match self.load.ready_tasks {
            // Whatever is ready begins at once: those in line wait for something else.
            0 => 0,
            ready => {
                u64::from(ready) + jobs.iter().map(LimitSample::startable_waiters).sum::<u64>()
            }
        };
        let known: HashSet<&str> = shared.iter().map(|limit| &*limit.name).collect();
        self.saturated.retain(|name| known.contains(&**name));
        let groups = select_named_limits(groups, OTHER_NAME);
        self.sample.limits =
            groups.into_iter().chain(select_named_limits(jobs, OTHER_JOBS_NAME)).collect();
        (self.sample.ready_tasks, self.sample.leases_overdue) =
            (self.load.ready_tasks, self.load.abandoned_leases);
    }

    /// What was refused before the first look is not counted.
    fn record_rejections(&mut self, limits: &[&Limit]) {
        let mut counted = self.metrics.counters();
        for limit in limits {
            let before =
                self.rejections_before.get(&limit.id).copied().unwrap_or(limit.parked_total);
            let new = u64::try_from(limit.parked_total - before).unwrap_or(0);
            if new > 0 {
                counted.record_rejections(&limit.name, new);
            }
        }
        self.rejections_before =
            limits.iter().map(|limit| (limit.id, limit.parked_total)).collect();
    }

    fn update_workers(&mut self, workers: &[WorkerView]) {
        // This process is one of them, and the store has not heard of it yet.
        if workers.is_empty() {
            return;
        }
        let slots = self.metrics.inner.concurrency.load(std::sync::atomic::Ordering::Relaxed);
        let free = |worker: &WorkerView| match &worker.report {
            Some(report) if !report.accepting => 0,
            Some(report) => u64::from(report.concurrency).saturating_sub(worker.running),
            None => slots.saturating_sub(worker.running),
        };
        let wanted = workers_wanted(self.waiting_for_worker, workers.iter().map(free).sum(), slots);
        self.sample.worker_counts = Some(WorkerCounts { alive: workers.len() as u64, wanted });
    }
}

/// How many more workers with so many slots would help.
fn workers_wanted(waiting_tasks: u64, free_capacity: u64, concurrency_per_worker: u64) -> u64 {
    waiting_tasks.saturating_sub(free_capacity).div_ceil(concurrency_per_worker.max(1))
}

/// The busiest limits and those that wait longest in vain, half of each, and the others as one. Whoever
/// has more than it may is among them.
fn select_named_limits(mut limits: Vec<LimitSample>, other_name: &str) -> Vec<LimitSample> {
    limits.sort_by_key(|limit| Reverse((limit.is_over_capacity(), limit.held_and_waiting())));
    let half = NAMED_SERIES_MAX.div_ceil(2).min(limits.len());
    limits[half..].sort_by(|a, b| {
        let (a, b) = (a.stalled_and_oldest_wait(), b.stalled_and_oldest_wait());
        b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1))
    });
    let rest = limits.split_off(limits.len().min(NAMED_SERIES_MAX));
    let rest = rest.into_iter().reduce(|mut sum, limit| {
        sum.merge(&limit);
        sum
    });
    limits.extend(rest.map(|rest| LimitSample { name: other_name.into(), ..rest }));
    limits
}

/// Says that a limit was reached or left, once each.
fn log_saturation_change(saturated: &mut HashSet<Arc<str>>, limit: &LimitSample) {
    let LimitSample { name, held, capacity, waiting, .. } = limit;
    let capacity = capacity.unwrap_or_default();
    if limit.is_full() {
        if saturated.insert(name.clone()) {
            tracing::info!(limit = %name, capacity, held, waiting, "the limit is reached");
        }
    } else if saturated.remove(name) {
        tracing::info!(limit = %name, capacity, held, waiting, "the limit is left");
    }
}
