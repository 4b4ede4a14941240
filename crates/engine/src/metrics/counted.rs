//! What this process counts as it works.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Attempt, Millis, Scope, SlotHeld};

use super::about;
use super::buckets::{Buckets, SECONDS, SIZES};
use super::family::Reading;
use super::top::{OTHER, Top};
use crate::Ended;

/// Limits of one sort that have histograms and counts of acquisitions of their own.
const HISTOGRAMS_SHOWN: usize = 20;

/// Limits of one sort, and jobs, that have other series of their own.
pub(super) const NAMES_SHOWN: usize = 100;

/// Numbers that grow.
#[derive(Debug)]
pub(super) struct Counted {
    /// Kinds that ran here; no more than the worker has handlers.
    kinds: HashMap<Arc<str>, Kind>,
    groups: Top<Limit>,
    jobs: Top<Limit>,
    job_tasks: Top<u64>,
    /// Handlers that run, by job.
    job_in_flight: HashMap<Arc<str>, u64>,
    /// Jobs whose tasks are not held up by the job's limit.
    open_jobs: HashSet<Arc<str>>,
    claims_found: u64,
    claims_empty: u64,
    claims_failed: u64,
    claim_size: Buckets,
    worker_wait: Buckets,
    /// Requests to the store that failed or were given up, by verb.
    failures: BTreeMap<&'static str, u64>,
    http: BTreeMap<&'static str, Buckets>,
    expired: u64,
}

#[derive(Debug)]
struct Kind {
    ended: [u64; Ended::ALL.len()],
    duration: Buckets,
}

#[derive(Debug)]
struct Limit {
    acquired: u64,
    rejected: u64,
    wait: Buckets,
}

impl Default for Limit {
    fn default() -> Self {
        Self { acquired: 0, rejected: 0, wait: Buckets::new(SECONDS) }
    }
}

impl Default for Counted {
    fn default() -> Self {
        Self {
            kinds: HashMap::new(),
            groups: Top::new(HISTOGRAMS_SHOWN),
            jobs: Top::new(HISTOGRAMS_SHOWN),
            job_tasks: Top::new(NAMES_SHOWN),
            job_in_flight: HashMap::new(),
            open_jobs: HashSet::new(),
            claims_found: 0,
            claims_empty: 0,
            claims_failed: 0,
            claim_size: Buckets::new(SIZES),
            worker_wait: Buckets::new(SECONDS),
            failures: BTreeMap::new(),
            http: BTreeMap::new(),
            expired: 0,
        }
    }
}

impl Counted {
    /// Tasks of these kinds may come.
    pub(super) fn expect<'a>(&mut self, kinds: impl Iterator<Item = &'a Arc<str>>) {
        for kind in kinds {
            self.kind(kind);
        }
    }

    pub(super) fn start(&mut self, attempt: &Attempt) {
        if let Some(job) = &attempt.job {
            *self.job_tasks.of(job) += 1;
            *self.job_in_flight.entry(job.clone()).or_default() += 1;
        }
        for name in limits_of(attempt) {
            self.limit(name).iter_mut().for_each(|limit| limit.acquired += 1);
        }
    }

    pub(super) fn ran(&mut self, attempt: &Attempt, ran: Duration) {
        self.kind(&attempt.kind).duration.observe(ran.as_secs_f64());
        let in_flight = attempt.job.as_ref().and_then(|job| self.job_in_flight.get_mut(job));
        if let Some(in_flight) = in_flight {
            *in_flight = in_flight.saturating_sub(1);
        }
    }

    pub(super) fn end(&mut self, kind: &Arc<str>, ended: Ended) {
        self.kind(kind).ended[ended as usize] += 1;
    }

    /// A claim was answered; none where it failed.
    pub(super) fn claim(&mut self, claimed: Option<&[Attempt]>, lease_ms: i64) {
        match claimed {
            None => self.claims_failed += 1,
            Some([]) => self.claims_empty += 1,
            Some(claimed) => {
                self.claims_found += 1;
                self.claim_size.observe(claimed.len() as f64);
                claimed.iter().for_each(|attempt| self.wait(attempt, lease_ms));
            }
        }
    }

    /// How long an attempt waited, by the store's clock alone: it was claimed as its lease began. Of a
    /// job only a few tasks are ready at a time; the others stand in its line also where nothing but a
    /// worker is missing.
    fn wait(&mut self, attempt: &Attempt, lease_ms: i64) {
        let seconds = |from: Millis, to: Millis| (to - from).max(0) as f64 / 1000.0;
        let claimed_at = attempt.expires_at - lease_ms;
        let mut is_limited = false;
        for name in limits_of(attempt) {
            if self.open_jobs.contains(name) {
                continue;
            }
            is_limited = true;
            if let Some(limit) = self.limit(name) {
                limit.wait.observe(seconds(attempt.arrived_at, attempt.ready_at));
            }
        }
        let since = if is_limited { attempt.ready_at } else { attempt.arrived_at };
        self.worker_wait.observe(seconds(since, claimed_at));
    }

    /// These are the limits of jobs with room for more of their tasks.
    pub(super) fn open_jobs(&mut self, open: HashSet<Arc<str>>) {
        self.open_jobs = open;
    }

    /// Counts a request to the store. A verb has a series from its first request on.
    pub(super) fn request(&mut self, verb: &'static str, is_good: bool) {
        *self.failures.entry(verb).or_default() += u64::from(!is_good);
    }

    pub(super) fn http_request(&mut self, status: Option<u16>, took: Duration) {
        let class = match status {
            Some(100..=199) => "1xx",
            Some(200..=299) => "2xx",
            Some(300..=399) => "3xx",
            Some(400..=499) => "4xx",
            Some(_) => "5xx",
            None => "none",
        };
        let buckets = self.http.entry(class).or_insert_with(|| Buckets::new(SECONDS));
        buckets.observe(took.as_secs_f64());
    }

    pub(super) fn expire(&mut self, attempts: u32) {
        self.expired += u64::from(attempts);
    }

    /// A limit stopped tasks, somewhere.
    pub(super) fn reject(&mut self, limit: &Arc<str>, times: u64) {
        if let Some(limit) = self.limit(limit) {
            limit.rejected += times;
        }
    }

    /// Chooses anew who has series of its own.
    pub(super) fn rank(&mut self) {
        self.groups.rank();
        self.jobs.rank();
        self.job_tasks.rank();
        self.job_in_flight.retain(|_, in_flight| *in_flight > 0);
    }

    /// The numbers of a limit. A workflow's has none: there are as many as workflows.
    fn limit(&mut self, name: &Arc<str>) -> Option<&mut Limit> {
        match Scope::of(name) {
            Some(Scope::Workflow) => None,
            Some(Scope::Job) => Some(self.jobs.of(name)),
            _ => Some(self.groups.of(name)),
        }
    }

    fn kind(&mut self, name: &Arc<str>) -> &mut Kind {
        if !self.kinds.contains_key(name) {
            let kind = Kind { ended: Default::default(), duration: Buckets::new(SECONDS) };
            self.kinds.insert(name.clone(), kind);
        }
        self.kinds.get_mut(name).expect("it was just put there")
    }

    pub(super) fn read(&self, reading: &mut Reading) {
        self.read_kinds(reading);
        self.read_limits(reading);
        for (result, number) in [
            ("found", self.claims_found),
            ("empty", self.claims_empty),
            ("failed", self.claims_failed),
        ] {
            reading.number(&about::CLAIMS, &[result], number as f64);
        }
        reading.buckets(&about::CLAIM_SIZE, &[], &self.claim_size);
        reading.buckets(&about::WORKER_WAIT, &[], &self.worker_wait);
        for (verb, failures) in &self.failures {
            reading.number(&about::STORE_FAILED, &[verb], *failures as f64);
        }
        for (class, took) in &self.http {
            reading.buckets(&about::HTTP, &[class], took);
        }
        reading.number(&about::EXPIRED, &[], self.expired as f64);
    }

    fn read_kinds(&self, reading: &mut Reading) {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_unstable_by_key(|(name, _)| *name);
        for (name, kind) in kinds {
            for ended in Ended::ALL {
                let number = kind.ended[ended as usize] as f64;
                reading.number(&about::COMPLETED, &[name, ended.as_str()], number);
            }
            reading.buckets(&about::DURATION, &[name], &kind.duration);
        }
    }

    fn read_in_flight(&self, reading: &mut Reading) {
        let (shown, other) = most(&self.job_in_flight);
        for (job, in_flight) in shown {
            reading.number(&about::JOB_IN_FLIGHT, &[job], in_flight as f64);
        }
        reading.number(&about::JOB_IN_FLIGHT, &[OTHER], other as f64);
    }

    fn read_limits(&self, reading: &mut Reading) {
        for (job, tasks) in self.job_tasks.shown() {
            reading.number(&about::JOB_TASKS, &[job], *tasks as f64);
        }
        reading.number(&about::JOB_TASKS, &[OTHER], *self.job_tasks.other() as f64);
        self.read_in_flight(reading);
        for (name, limit) in [&self.groups, &self.jobs].into_iter().flat_map(Top::shown) {
            limit.read(name, reading);
        }
        let mut other = Limit::default();
        other.add(self.groups.other());
        other.add(self.jobs.other());
        other.read(OTHER, reading);
    }
}

/// The jobs with the most, and the others as one.
fn most(in_flight: &HashMap<Arc<str>, u64>) -> (BTreeMap<&str, u64>, u64) {
    let mut jobs: Vec<(&str, u64)> = in_flight.iter().map(|(job, n)| (&**job, *n)).collect();
    jobs.sort_unstable_by_key(|(job, number)| (*job == OTHER, Reverse(*number)));
    let shown = jobs.iter().take(NAMES_SHOWN).filter(|(job, _)| *job != OTHER).count();
    let other = jobs.drain(shown..).map(|(_, number)| number).sum();
    (jobs.into_iter().collect(), other)
}

/// The limits of which an attempt has slots, each once: a heavy one has several of one.
fn limits_of(attempt: &Attempt) -> impl Iterator<Item = &Arc<str>> {
    let is_first = |(at, slot): &(usize, &SlotHeld)| {
        attempt.slots[..*at].iter().all(|other| other.limit != slot.limit)
    };
    attempt.slots.iter().enumerate().filter(is_first).map(|(_, slot)| &slot.name)
}

impl Limit {
    fn add(&mut self, other: &Self) {
        self.acquired += other.acquired;
        self.rejected += other.rejected;
        self.wait.add(&other.wait);
    }

    fn read(&self, name: &str, reading: &mut Reading) {
        reading.number(&about::ACQUIRED, &[name, "acquired"], self.acquired as f64);
        reading.number(&about::ACQUIRED, &[name, "rejected"], self.rejected as f64);
        reading.buckets(&about::LIMIT_WAIT, &[name], &self.wait);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{LimitId, TaskId, Token};

    use super::*;

    #[test]
    fn waiting_for_a_limit_and_for_a_worker_are_told_apart() {
        let slot = |number| SlotHeld { limit: LimitId(1), name: "group:a".into(), number };
        let attempt = Attempt {
            task: TaskId(1),
            token: Token(1),
            kind: "k".into(),
            queue: "q".into(),
            group: "a".into(),
            weight: 2,
            payload: Vec::new(),
            number: 1,
            max_attempts: 1,
            timeout_ms: None,
            job: None,
            workflow: None,
            slots: vec![slot(0), slot(1)],
            arrived_at: 1000,
            ready_at: 3500,
            expires_at: 34_000,
            trace: None,
        };
        let mut counted = Counted::default();
        counted.claim(Some(std::slice::from_ref(&attempt)), 30_000);
        let shown = counted.groups.shown();
        let [("group:a", limit)] = shown[..] else { panic!("{shown:?}") };
        assert_eq!((limit.wait.count(), limit.wait.sum()), (1, 2.5), "once for both slots");
        assert_eq!((counted.worker_wait.count(), counted.worker_wait.sum()), (1, 0.5));

        let of_job = |number| SlotHeld { limit: LimitId(2), name: "job:j".into(), number };
        let in_job = Attempt { slots: vec![of_job(0)], ..attempt.clone() };
        counted.open_jobs(HashSet::from(["job:j".into()]));
        counted.claim(Some(&[in_job]), 30_000);
        assert!(counted.jobs.shown().is_empty(), "its limit has held nobody up");
        assert_eq!((counted.worker_wait.count(), counted.worker_wait.sum()), (2, 0.5 + 3.0));
        let both = Attempt { slots: vec![of_job(0), slot(0)], ..attempt };
        counted.claim(Some(&[both]), 30_000);
        assert!(counted.jobs.shown().is_empty(), "the group's has");
        assert_eq!((counted.worker_wait.count(), counted.worker_wait.sum()), (3, 3.5 + 0.5));
    }

    #[test]
    fn jobs_with_the_most_in_flight_are_shown_and_the_others_are_one() {
        let names = (0..NAMES_SHOWN as u64 + 2).map(|number| (format!("j{number}").into(), number));
        let in_flight: HashMap<Arc<str>, u64> = names.collect();
        let (shown, other) = most(&in_flight);
        assert_eq!((shown.len(), other), (NAMES_SHOWN, 1), "those with 0 and 1 are others");
        let in_flight = HashMap::from([(OTHER.into(), 3), ("a".into(), 1)]);
        let (shown, other) = most(&in_flight);
        assert_eq!((shown, other), (BTreeMap::from([("a", 1)]), 3), "the name is taken");
    }
}
