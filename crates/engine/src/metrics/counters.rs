//! What this process counts as it works.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Attempt, HeldSlot, LimitScope, Millis};

use super::descriptors;
use super::exposition::MetricSnapshot;
use super::histogram::{HistogramCounts, SECONDS_BOUNDS, TASK_COUNT_BOUNDS};
use super::named_values::{NamedValues, OTHER_NAME};
use crate::AttemptOutcome;

/// Limits of one sort that have histograms and counts of acquisitions of their own.
const HISTOGRAM_LIMITS_MAX: usize = 20;

/// Limits of one sort, and jobs, that have other series of their own.
pub(super) const NAMED_SERIES_MAX: usize = 100;

/// Numbers that grow.
#[derive(Debug)]
pub(super) struct ProcessCounters {
    /// Kinds that ran here; no more than the worker has handlers.
    kinds: HashMap<Arc<str>, KindCounters>,
    groups: NamedValues<LimitCounters>,
    jobs: NamedValues<LimitCounters>,
    job_tasks: NamedValues<u64>,
    /// Handlers that run, by job.
    job_in_flight: HashMap<Arc<str>, u64>,
    /// Jobs whose tasks are not held up by the job's limit.
    unblocked_jobs: HashSet<Arc<str>>,
    claims_found: u64,
    claims_empty: u64,
    claims_failed: u64,
    claim_size: HistogramCounts,
    worker_wait: HistogramCounts,
    /// Requests to the store that failed or were given up, by verb.
    request_failures: BTreeMap<&'static str, u64>,
    http_requests: BTreeMap<&'static str, HistogramCounts>,
    leases_expired: u64,
}

#[derive(Debug)]
struct KindCounters {
    outcomes: [u64; AttemptOutcome::ALL.len()],
    duration: HistogramCounts,
}

#[derive(Debug)]
struct LimitCounters {
    acquired: u64,
    rejected: u64,
    wait: HistogramCounts,
}

impl Default for LimitCounters {
    fn default() -> Self {
        Self { acquired: 0, rejected: 0, wait: HistogramCounts::new(SECONDS_BOUNDS) }
    }
}

impl Default for ProcessCounters {
    fn default() -> Self {
        Self {
            kinds: HashMap::new(),
            groups: NamedValues::new(HISTOGRAM_LIMITS_MAX),
            jobs: NamedValues::new(HISTOGRAM_LIMITS_MAX),
            job_tasks: NamedValues::new(NAMED_SERIES_MAX),
            job_in_flight: HashMap::new(),
            unblocked_jobs: HashSet::new(),
            claims_found: 0,
            claims_empty: 0,
            claims_failed: 0,
            claim_size: HistogramCounts::new(TASK_COUNT_BOUNDS),
            worker_wait: HistogramCounts::new(SECONDS_BOUNDS),
            request_failures: BTreeMap::new(),
            http_requests: BTreeMap::new(),
            leases_expired: 0,
        }
    }
}

impl ProcessCounters {
    /// Tasks of these kinds may come.
    pub(super) fn add_kinds<'a>(&mut self, kinds: impl Iterator<Item = &'a Arc<str>>) {
        for kind in kinds {
            self.kind_counters(kind);
        }
    }

    pub(super) fn record_start(&mut self, attempt: &Attempt) {
        if let Some(job) = &attempt.job {
            *self.job_tasks.record_activity(job) += 1;
            *self.job_in_flight.entry(job.clone()).or_default() += 1;
        }
        for name in distinct_limits_of(attempt) {
            self.limit_counters(name).iter_mut().for_each(|limit| limit.acquired += 1);
        }
    }

    pub(super) fn record_run_time(&mut self, attempt: &Attempt, run_time: Duration) {
        self.kind_counters(&attempt.kind).duration.observe(run_time.as_secs_f64());
        let in_flight = attempt.job.as_ref().and_then(|job| self.job_in_flight.get_mut(job));
        if let Some(in_flight) = in_flight {
            *in_flight = in_flight.saturating_sub(1);
        }
    }

    pub(super) fn record_outcome(&mut self, kind: &Arc<str>, outcome: AttemptOutcome) {
        self.kind_counters(kind).outcomes[outcome as usize] += 1;
    }

    /// A claim was answered; none where it failed.
    pub(super) fn record_claim(&mut self, claimed: Option<&[Attempt]>, lease_ms: i64) {
        match claimed {
            None => self.claims_failed += 1,
            Some([]) => self.claims_empty += 1,
            Some(claimed) => {
                self.claims_found += 1;
                self.claim_size.observe(claimed.len() as f64);
                claimed.iter().for_each(|attempt| self.record_waits(attempt, lease_ms));
            }
        }
    }

    /// How long an attempt waited, by the store's clock alone: it was claimed as its lease began. Of a
    /// job only a few tasks are ready at a time; the others stand in its line also where nothing but a
    /// worker is missing.
    fn record_waits(&mut self, attempt: &Attempt, lease_ms: i64) {
        let seconds = |from: Millis, to: Millis| (to - from).max(0) as f64 / 1000.0;
        let claimed_at = attempt.expires_at - lease_ms;
        let mut is_limited = false;
        for name in distinct_limits_of(attempt) {
            if self.unblocked_jobs.contains(name) {
                continue;
            }
            is_limited = true;
            if let Some(limit) = self.limit_counters(name) {
                limit.wait.observe(seconds(attempt.due_at, attempt.ready_at));
            }
        }
        let since = if is_limited { attempt.ready_at } else { attempt.due_at };
        self.worker_wait.observe(seconds(since, claimed_at));
    }

    /// These are the limits of jobs with room for more of their tasks.
    pub(super) fn set_unblocked_jobs(&mut self, jobs: HashSet<Arc<str>>) {
        self.unblocked_jobs = jobs;
    }

    /// Counts a request to the store. A verb has a series from its first request on.
    pub(super) fn record_request(&mut self, verb: &'static str, is_success: bool) {
        *self.request_failures.entry(verb).or_default() += u64::from(!is_success);
    }

    pub(super) fn record_http_request(&mut self, status: Option<u16>, took: Duration) {
        let class = match status {
            Some(100..=199) => "1xx",
            Some(200..=299) => "2xx",
            Some(300..=399) => "3xx",
            Some(400..=499) => "4xx",
            Some(_) => "5xx",
            None => "none",
        };
        let buckets =
            self.http_requests.entry(class).or_insert_with(|| HistogramCounts::new(SECONDS_BOUNDS));
        buckets.observe(took.as_secs_f64());
    }

    pub(super) fn record_expired_leases(&mut self, attempts: u32) {
        self.leases_expired += u64::from(attempts);
    }

    /// A limit stopped tasks, somewhere.
    pub(super) fn record_rejections(&mut self, limit: &Arc<str>, rejections: u64) {
        if let Some(limit) = self.limit_counters(limit) {
            limit.rejected += rejections;
        }
    }

    /// Chooses anew who has series of its own.
    pub(super) fn update_rankings(&mut self) {
        self.groups.update_ranking();
        self.jobs.update_ranking();
        self.job_tasks.update_ranking();
        self.job_in_flight.retain(|_, in_flight| *in_flight > 0);
    }

    /// The numbers of a limit. A workflow's has none: there are as many as workflows.
    fn limit_counters(&mut self, name: &Arc<str>) -> Option<&mut LimitCounters> {
        match LimitScope::from_limit_name(name) {
            Some(LimitScope::Workflow) => None,
            Some(LimitScope::Job) => Some(self.jobs.record_activity(name)),
            _ => Some(self.groups.record_activity(name)),
        }
    }

    fn kind_counters(&mut self, name: &Arc<str>) -> &mut KindCounters {
        if !self.kinds.contains_key(name) {
            let kind = KindCounters {
                outcomes: Default::default(),
                duration: HistogramCounts::new(SECONDS_BOUNDS),
            };
            self.kinds.insert(name.clone(), kind);
        }
        self.kinds.get_mut(name).expect("it was just put there")
    }

    pub(super) fn export(&self, snapshot: &mut MetricSnapshot) {
        self.export_kinds(snapshot);
        self.export_limits(snapshot);
        for (result, number) in [
            ("found", self.claims_found),
            ("empty", self.claims_empty),
            ("failed", self.claims_failed),
        ] {
            snapshot.add_number(&descriptors::CLAIMS, &[result], number as f64);
        }
        snapshot.add_histogram(&descriptors::CLAIM_SIZE, &[], &self.claim_size);
        snapshot.add_histogram(&descriptors::WORKER_WAIT, &[], &self.worker_wait);
        for (verb, failures) in &self.request_failures {
            snapshot.add_number(&descriptors::STORE_REQUEST_FAILURES, &[verb], *failures as f64);
        }
        for (class, took) in &self.http_requests {
            snapshot.add_histogram(&descriptors::HTTP_REQUESTS, &[class], took);
        }
        snapshot.add_number(&descriptors::LEASES_EXPIRED, &[], self.leases_expired as f64);
    }

    fn export_kinds(&self, snapshot: &mut MetricSnapshot) {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_unstable_by_key(|(name, _)| *name);
        for (name, kind) in kinds {
            for ended in AttemptOutcome::ALL {
                let number = kind.outcomes[ended as usize] as f64;
                snapshot.add_number(&descriptors::TASKS_COMPLETED, &[name, ended.as_str()], number);
            }
            snapshot.add_histogram(&descriptors::TASK_DURATION, &[name], &kind.duration);
        }
    }

    fn export_in_flight(&self, snapshot: &mut MetricSnapshot) {
        let (shown, other) = top_jobs_in_flight(&self.job_in_flight);
        for (job, in_flight) in shown {
            snapshot.add_number(&descriptors::JOB_IN_FLIGHT, &[job], in_flight as f64);
        }
        snapshot.add_number(&descriptors::JOB_IN_FLIGHT, &[OTHER_NAME], other as f64);
    }

    fn export_limits(&self, snapshot: &mut MetricSnapshot) {
        for (job, tasks) in self.job_tasks.named_values() {
            snapshot.add_number(&descriptors::JOB_TASKS, &[job], *tasks as f64);
        }
        snapshot.add_number(
            &descriptors::JOB_TASKS,
            &[OTHER_NAME],
            *self.job_tasks.other_value() as f64,
        );
        self.export_in_flight(snapshot);
        for (name, limit) in
            [&self.groups, &self.jobs].into_iter().flat_map(NamedValues::named_values)
        {
            limit.export(name, snapshot);
        }
        let mut other = LimitCounters::default();
        other.merge(self.groups.other_value());
        other.merge(self.jobs.other_value());
        other.export(OTHER_NAME, snapshot);
    }
}

/// The jobs with the most, and the others as one.
fn top_jobs_in_flight(in_flight: &HashMap<Arc<str>, u64>) -> (BTreeMap<&str, u64>, u64) {
    let mut jobs: Vec<(&str, u64)> = in_flight.iter().map(|(job, n)| (&**job, *n)).collect();
    jobs.sort_unstable_by_key(|(job, number)| (*job == OTHER_NAME, Reverse(*number)));
    let shown = jobs.iter().take(NAMED_SERIES_MAX).filter(|(job, _)| *job != OTHER_NAME).count();
    let other = jobs.drain(shown..).map(|(_, number)| number).sum();
    (jobs.into_iter().collect(), other)
}

/// The limits of which an attempt has slots, each once: a heavy one has several of one.
fn distinct_limits_of(attempt: &Attempt) -> impl Iterator<Item = &Arc<str>> {
    let is_first = |(at, slot): &(usize, &HeldSlot)| {
        attempt.slots[..*at].iter().all(|other| other.limit != slot.limit)
    };
    attempt.slots.iter().enumerate().filter(is_first).map(|(_, slot)| &slot.name)
}

impl LimitCounters {
    fn merge(&mut self, other: &Self) {
        self.acquired += other.acquired;
        self.rejected += other.rejected;
        self.wait.merge(&other.wait);
    }

    fn export(&self, name: &str, snapshot: &mut MetricSnapshot) {
        snapshot.add_number(&descriptors::ACQUISITIONS, &[name, "acquired"], self.acquired as f64);
        snapshot.add_number(&descriptors::ACQUISITIONS, &[name, "rejected"], self.rejected as f64);
        snapshot.add_histogram(&descriptors::LIMIT_WAIT, &[name], &self.wait);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{LimitId, TaskId, Token};

    use super::*;

    #[test]
    fn limit_wait_and_worker_wait_are_recorded_separately() {
        let slot = |number| HeldSlot { limit: LimitId(1), name: "group:a".into(), number };
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
            due_at: 1000,
            ready_at: 3500,
            expires_at: 34_000,
            trace: None,
        };
        let mut counted = ProcessCounters::default();
        counted.record_claim(Some(std::slice::from_ref(&attempt)), 30_000);
        let shown = counted.groups.named_values();
        let [("group:a", limit)] = shown[..] else { panic!("{shown:?}") };
        assert_eq!((limit.wait.count(), limit.wait.sum()), (1, 2.5), "once for both slots");
        assert_eq!((counted.worker_wait.count(), counted.worker_wait.sum()), (1, 0.5));

        let of_job = |number| HeldSlot { limit: LimitId(2), name: "job:j".into(), number };
        let in_job = Attempt { slots: vec![of_job(0)], ..attempt.clone() };
        counted.set_unblocked_jobs(HashSet::from(["job:j".into()]));
        counted.record_claim(Some(&[in_job]), 30_000);
        assert!(counted.jobs.named_values().is_empty(), "its limit has held nobody up");
        assert_eq!((counted.worker_wait.count(), counted.worker_wait.sum()), (2, 0.5 + 3.0));
        let both = Attempt { slots: vec![of_job(0), slot(0)], ..attempt };
        counted.record_claim(Some(&[both]), 30_000);
        assert!(counted.jobs.named_values().is_empty(), "the group's has");
        assert_eq!((counted.worker_wait.count(), counted.worker_wait.sum()), (3, 3.5 + 0.5));
    }

    #[test]
    fn in_flight_of_jobs_beyond_the_top_is_merged_into_other() {
        let names =
            (0..NAMED_SERIES_MAX as u64 + 2).map(|number| (format!("j{number}").into(), number));
        let in_flight: HashMap<Arc<str>, u64> = names.collect();
        let (shown, other) = top_jobs_in_flight(&in_flight);
        assert_eq!((shown.len(), other), (NAMED_SERIES_MAX, 1), "those with 0 and 1 are others");
        let in_flight = HashMap::from([(OTHER_NAME.into(), 3), ("a".into(), 1)]);
        let (shown, other) = top_jobs_in_flight(&in_flight);
        assert_eq!((shown, other), (BTreeMap::from([("a", 1)]), 3), "the name is taken");
    }
}
