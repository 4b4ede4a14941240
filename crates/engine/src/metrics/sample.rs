//! What only the store knows, read in the background.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::inspect::{Load, WorkerView};
use tidegate_core::{Inspect, Limit, LimitId, Millis, Result, Scope, State};

use super::about::{self, About};
use super::counted::NAMES_SHOWN;
use super::family::Reading;
use super::idle::Idle;
use super::top::OTHER;
use super::{Metrics, lock};
use crate::{Phase, Shutdown, time};

/// Between two readings; jittered.
const INTERVAL: Duration = Duration::from_secs(5);

/// A read is made again only after so many times the time it took: whatever is in the store, to
/// watch it takes at most a fiftieth of the time.
const REST: u32 = 50;

/// The verb of reads in the metrics of the store.
const READ: &str = "read";

/// The jobs that have no series of their own, and a job that bears their name.
const OTHER_JOBS: &str = "job:other";

/// What was read last.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    limits: Vec<LimitSample>,
    tasks: BTreeMap<State, u64>,
    ready: u32,
    overdue: u32,
    workers: Option<Workers>,
    /// When the oldest of it was read.
    read_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Workers {
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
    ahead: u64,
    /// Whether its tasks begin some time apart.
    has_delay: bool,
    is_paused: bool,
    /// How long the first in its line has waited.
    oldest: f64,
    job: Option<JobSample>,
}

/// What is said of jobs alone.
#[derive(Debug, Clone, Copy, PartialEq)]
struct JobSample {
    /// How long a task has waited at most, in the line or past it.
    oldest: f64,
    /// How long nothing has run or begun.
    idle: f64,
}

impl Sample {
    pub(super) fn read(&self, reading: &mut Reading) {
        let Some(read_at) = self.read_at else { return };
        let age = time::now() - read_at;
        reading.number(&about::SAMPLE_AGE, &[], age.as_secs_f64());
        reading.number(&about::READY, &[], self.ready.into());
        reading.number(&about::OVERDUE, &[], self.overdue.into());
        for state in State::ALL {
            let tasks = self.tasks.get(&state).copied().unwrap_or(0);
            reading.number(&about::TASKS, &[state.as_str()], tasks as f64);
        }
        if let Some(Workers { alive, wanted }) = self.workers {
            reading.number(&about::WORKERS, &[], alive as f64);
            reading.number(&about::WANTED, &[], wanted as f64);
        }
        self.read_limits(reading, "", &LIMITS);
        self.read_limits(reading, "job:", &JOBS);
    }

    /// The limits with a prefix, by their names without it.
    fn read_limits(&self, reading: &mut Reading, prefix: &str, into: &Shown) {
        let mut other: Option<LimitSample> = None;
        for limit in &self.limits {
            let Some(name) = limit.name.strip_prefix(prefix) else { continue };
            match &mut other {
                _ if ![OTHER, OTHER_JOBS].contains(&name) => limit.read(name, reading, into),
                Some(other) => other.add(limit),
                None => other = Some(limit.clone()),
            }
        }
        if let Some(other) = other {
            other.read(OTHER, reading, into);
        }
    }
}

/// The metrics of limits, or of jobs.
struct Shown {
    active: &'static About,
    slots: &'static About,
    waiting: &'static About,
    oldest: &'static About,
    is_of_jobs: bool,
}

const LIMITS: Shown = Shown {
    active: &about::LIMIT_ACTIVE,
    slots: &about::LIMIT_SLOTS,
    waiting: &about::LIMIT_WAITING,
    oldest: &about::LIMIT_OLDEST,
    is_of_jobs: false,
};

const JOBS: Shown = Shown {
    active: &about::JOB_ACTIVE,
    slots: &about::JOB_SLOTS,
    waiting: &about::JOB_WAITING,
    oldest: &about::JOB_OLDEST,
    is_of_jobs: true,
};

impl LimitSample {
    fn new(limit: &Limit, load: &Load, idle: &Idle) -> Self {
        let waited = |since: Option<Millis>| {
            since.map_or(0.0, |since| (load.now - since).max(0) as f64 / 1000.0)
        };
        let oldest = waited(load.first_waits.get(&limit.id).copied());
        let ready_since = load.jobs.get(&limit.id).and_then(|job| job.ready_since);
        let of_job = |idle| JobSample { oldest: oldest.max(waited(ready_since)), idle };
        Self {
            name: limit.name.clone(),
            held: limit.held.into(),
            capacity: limit.capacity.map(Into::into),
            waiting: limit.waiting.into(),
            ahead: limit.share.map_or(0, |share| share.ahead.into()),
            has_delay: limit.share.is_some_and(|share| share.delay_ms > 0),
            is_paused: limit.halt.is_some(),
            oldest,
            job: idle.seconds(limit.id, load.now).map(of_job),
        }
    }

    fn is_over(&self) -> bool {
        self.capacity.is_some_and(|capacity| self.held > capacity)
    }

    fn is_full(&self) -> bool {
        self.capacity.is_some_and(|capacity| self.held >= capacity) && self.waiting > 0
    }

    /// Whether a job has room for more of its tasks. What is ready has a slot and waits for a worker.
    fn is_open(&self) -> bool {
        !self.is_paused
            && !self.has_delay
            && self.capacity.is_none_or(|capacity| self.held.saturating_sub(self.ahead) < capacity)
    }

    /// Tasks in the line of a job that would begin if there were workers for all that is ready.
    fn would_begin(&self) -> u64 {
        let free = self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.held));
        if self.is_open() { self.waiting.min(free) } else { 0 }
    }

    fn activity(&self) -> u64 {
        self.held + self.waiting
    }

    /// How long it waits in vain, and how long it waits at all. A job waits in vain while nothing of it
    /// begins, unless somebody wants that.
    fn waits(&self) -> (f64, f64) {
        match self.job {
            None => (self.oldest, self.oldest),
            Some(job) if self.is_paused || self.capacity == Some(0) => (0.0, job.oldest),
            Some(job) => (job.oldest.min(job.idle), job.oldest),
        }
    }

    /// Of several jobs one that waits in vain is told of, not those that stand still and have nothing
    /// to do or are meant to.
    fn add(&mut self, other: &Self) {
        let idle = self.waits().0.max(other.waits().0);
        let both =
            |(a, b): (JobSample, JobSample)| JobSample { oldest: a.oldest.max(b.oldest), idle };
        self.job = self.job.zip(other.job).map(both);
        self.held += other.held;
        self.capacity = self.capacity.zip(other.capacity).map(|(a, b)| a + b);
        self.waiting += other.waiting;
        self.ahead += other.ahead;
        self.has_delay &= other.has_delay;
        self.is_paused &= other.is_paused;
        self.oldest = self.oldest.max(other.oldest);
    }

    fn read(&self, name: &str, reading: &mut Reading, into: &Shown) {
        reading.number(into.active, &[name], self.held as f64);
        if let Some(capacity) = self.capacity {
            reading.number(into.slots, &[name], capacity as f64);
        }
        reading.number(into.waiting, &[name], self.waiting as f64);
        match self.job.filter(|_| into.is_of_jobs) {
            None => reading.number(into.oldest, &[name], self.oldest),
            Some(job) => {
                let is_paused = f64::from(u8::from(self.is_paused));
                reading.number(&about::JOB_PAUSED, &[name], is_paused);
                reading.number(into.oldest, &[name], job.oldest);
                reading.number(&about::JOB_IDLE, &[name], job.idle);
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
    inspect: Arc<dyn Inspect>,
    interval: Duration,
    sample: Sample,
    load: Load,
    /// Tasks that only wait for a worker.
    unstarted: u64,
    limits: Turn,
    workers: Turn,
    tasks: Turn,
    /// How often each limit had stopped a task when it was last read.
    refused: HashMap<LimitId, i64>,
    idle: Idle,
    /// Limits that are full while somebody waits.
    full: HashSet<Arc<str>>,
}

/// When a read is next made.
#[derive(Debug, Default)]
struct Turn {
    next_at: Option<Instant>,
    read_at: Option<Instant>,
}

impl Turn {
    /// Makes a read whose turn it is.
    async fn take<T>(
        &mut self,
        interval: Duration,
        read: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        let began_at = time::now();
        if self.next_at.is_some_and(|at| began_at < at) {
            return Ok(None);
        }
        let answer = read.await;
        let now = time::now();
        // The pause between two readings is jittered; half of it is always over by the next.
        self.next_at = Some(now + (interval / 2).max((now - began_at) * REST));
        if answer.is_ok() {
            self.read_at = Some(now);
        }
        answer.map(Some)
    }
}

impl Sampler {
    /// Reads from a store into metrics.
    pub fn new(metrics: &Metrics, inspect: Arc<dyn Inspect>) -> Self {
        Self {
            metrics: metrics.clone(),
            inspect,
            interval: INTERVAL,
            sample: Sample::default(),
            load: Load::default(),
            unstarted: 0,
            limits: Turn::default(),
            workers: Turn::default(),
            tasks: Turn::default(),
            refused: HashMap::new(),
            idle: Idle::default(),
            full: HashSet::new(),
        }
    }

    /// Whether the log takes down that a limit is reached and left.
    pub fn is_heard() -> bool {
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
        let _ = self.metrics.inner.inspect.set(self.inspect.clone());
        tokio::select! {
            () = shutdown.reached(Phase::Stopping) => {}
            () = self.read_for_ever() => {}
        }
    }

    async fn read_for_ever(&mut self) {
        loop {
            if let Err(error) = self.read().await {
                tracing::warn!(%error, "the store cannot be watched, it is tried again");
            }
            time::sleep(time::jittered(self.interval)).await;
        }
    }

    /// One reading of everything whose turn it is.
    pub async fn read(&mut self) -> Result<()> {
        let (inspect, interval) = (self.inspect.clone(), self.interval);
        let metrics = self.metrics.clone();
        let limits = async {
            let limits = metrics.count_call(READ, inspect.limits()).await?;
            Ok((limits, metrics.count_call(READ, inspect.load()).await?))
        };
        if let Some((limits, load)) = self.limits.take(interval, limits).await? {
            self.learn_limits(&limits, load);
        }
        let workers = metrics.count_call(READ, inspect.workers());
        if let Some(workers) = self.workers.take(interval, workers).await? {
            self.learn_workers(&workers);
        }
        let tasks = metrics.count_call(READ, inspect.counts());
        if let Some(tasks) = self.tasks.take(interval, tasks).await? {
            self.sample.tasks = tasks;
        }
        self.sample.read_at = [&self.limits, &self.workers, &self.tasks]
            .into_iter()
            .filter_map(|turn| turn.read_at)
            .min();
        *lock(&self.metrics.inner.sample) = Arc::new(self.sample.clone());
        self.metrics.counted().rank();
        Ok(())
    }

    fn learn_limits(&mut self, limits: &[Limit], load: Load) {
        self.load = load;
        let shared = limits.iter().filter(|limit| limit.scope() != Scope::Workflow);
        let shared: Vec<&Limit> = shared.collect();
        self.count_refusals(&shared);
        self.idle.look(&shared, &self.load);
        let (jobs, groups): (Vec<_>, Vec<_>) = shared
            .iter()
            .map(|limit| LimitSample::new(limit, &self.load, &self.idle))
            .partition(|limit| limit.name.starts_with("job:"));
        groups.iter().chain(&jobs).for_each(|limit| tell(&mut self.full, limit));
        let open = jobs.iter().filter(|job| job.is_open()).map(|job| job.name.clone());
        self.metrics.counted().open_jobs(open.collect());
        self.unstarted = match self.load.ready {
            // Whatever is ready begins at once: those in line wait for something else.
            0 => 0,
            ready => u64::from(ready) + jobs.iter().map(LimitSample::would_begin).sum::<u64>(),
        };
        let known: HashSet<&str> = shared.iter().map(|limit| &*limit.name).collect();
        self.full.retain(|name| known.contains(&**name));
        let groups = busiest(groups, OTHER);
        self.sample.limits = groups.into_iter().chain(busiest(jobs, OTHER_JOBS)).collect();
        (self.sample.ready, self.sample.overdue) = (self.load.ready, self.load.abandoned);
    }

    /// What was refused before the first look is not counted.
    fn count_refusals(&mut self, limits: &[&Limit]) {
        let mut counted = self.metrics.counted();
        for limit in limits {
            let before = self.refused.get(&limit.id).copied().unwrap_or(limit.refused);
            let new = u64::try_from(limit.refused - before).unwrap_or(0);
            if new > 0 {
                counted.reject(&limit.name, new);
            }
        }
        self.refused = limits.iter().map(|limit| (limit.id, limit.refused)).collect();
    }

    fn learn_workers(&mut self, workers: &[WorkerView]) {
        // This process is one of them, and the store has not heard of it yet.
        if workers.is_empty() {
            return;
        }
        let slots = self.metrics.inner.slots.load(std::sync::atomic::Ordering::Relaxed);
        let free = |worker: &WorkerView| match &worker.report {
            Some(report) if !report.accepting => 0,
            Some(report) => u64::from(report.maximum).saturating_sub(worker.running),
            None => slots.saturating_sub(worker.running),
        };
        let wanted = workers_wanted(self.unstarted, workers.iter().map(free).sum(), slots);
        self.sample.workers = Some(Workers { alive: workers.len() as u64, wanted });
    }
}

/// How many more workers with so many slots would help.
fn workers_wanted(unstarted: u64, free: u64, slots: u64) -> u64 {
    unstarted.saturating_sub(free).div_ceil(slots.max(1))
}

/// The busiest limits and those that wait longest in vain, half of each, and the others as one. Whoever
/// has more than it may is among them.
fn busiest(mut limits: Vec<LimitSample>, other: &str) -> Vec<LimitSample> {
    limits.sort_by_key(|limit| Reverse((limit.is_over(), limit.activity())));
    let half = NAMES_SHOWN.div_ceil(2).min(limits.len());
    limits[half..].sort_by(|a, b| {
        let (a, b) = (a.waits(), b.waits());
        b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1))
    });
    let rest = limits.split_off(limits.len().min(NAMES_SHOWN));
    let rest = rest.into_iter().reduce(|mut sum, limit| {
        sum.add(&limit);
        sum
    });
    limits.extend(rest.map(|rest| LimitSample { name: other.into(), ..rest }));
    limits
}

/// Says that a limit was reached or left, once each.
fn tell(full: &mut HashSet<Arc<str>>, limit: &LimitSample) {
    let LimitSample { name, held, capacity, waiting, .. } = limit;
    let capacity = capacity.unwrap_or_default();
    if limit.is_full() {
        if full.insert(name.clone()) {
            tracing::info!(limit = %name, capacity, held, waiting, "the limit is reached");
        }
    } else if full.remove(name) {
        tracing::info!(limit = %name, capacity, held, waiting, "the limit is left");
    }
}
