//! One seed's world: its kinds, limits and jobs, how its tasks look, and how bad its days are.

use std::sync::Arc;

use tidegate_core::{
    Backoff, CapacitySource, DayWindow, JobSpec, Kind, Millis, NewTask, OnFailure, PauseTarget,
    Registration, SetJob, SetLimit, SetPaused, Submission,
};

use super::message::Request;
use super::rng::Rng;

pub(super) const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// The payload of a task whose handler takes the whole process down.
pub(super) const POISON: &[u8] = b"13";

/// Faults in a thousand: of requests, or of the nemesis's rounds.
#[derive(Debug, Clone, Default)]
pub(super) struct Rates {
    pub(super) lost: u32,
    pub(super) reply_lost: u32,
    pub(super) delayed: u32,
    pub(super) duplicated: u32,
    pub(super) kill: u32,
    pub(super) pause: u32,
    pub(super) partition: u32,
    pub(super) skew: u32,
    pub(super) jump: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) kinds: Vec<Kind>,
    pub(super) queues: Vec<Arc<str>>,
    groups: Vec<String>,
    jobs: Vec<JobSpec>,
    workflows: Vec<String>,
    weight_max: i64,
    /// Most tasks need two scarce limits, so that they move between lines and reserve.
    is_crossed: bool,
    poison: u32,
    pub(super) rates: Rates,
    pub(super) processes: usize,
    pub(super) worker_concurrency: u32,
    pub(super) tasks_max: usize,
    pub(super) lease_ms: i64,
    pub(super) handler_ms: i64,
    /// Tasks the gate looks at in one step; few, so that work is left over.
    pub(super) admission_budget: Option<u32>,
    /// Tasks of a job past its line; few, so that windows fill.
    pub(super) job_window: Option<u32>,
    /// Whether a commit tells other processes to look.
    pub(super) sends_wake_hints: bool,
}

impl Scenario {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let queues: Vec<Arc<str>> = vec!["q0".into(), "q1".into()];
        let kinds = (0..rng.between(1, 4)).map(|n| kind(rng, n, &queues)).collect();
        let is_crossed = rng.chance(250);
        let names = |what: &str, count: i64| (0..count).map(|n| format!("{what}{n}")).collect();
        Self {
            kinds,
            queues,
            groups: names("g", rng.between(0, 2)),
            jobs: (0..rng.between(i64::from(is_crossed), 3)).map(|n| job(rng, n)).collect(),
            workflows: names("w", rng.between(0, 3)),
            weight_max: rng.between(1, 3),
            is_crossed,
            poison: *rng.pick(&[0, 0, 10, 60]),
            rates: rates(rng),
            processes: rng.between(1, 4) as usize,
            worker_concurrency: rng.between(1, 4) as u32,
            tasks_max: rng.between(5, 25) as usize,
            lease_ms: *rng.pick(&[200, 500, 1000, 3000]),
            handler_ms: *rng.pick(&[30, 100, 300]),
            admission_budget: rng.chance(250).then(|| rng.between(1, 4) as u32),
            job_window: rng.chance(500).then(|| rng.between(1, 3) as u32),
            sends_wake_hints: rng.chance(500),
        }
    }

    /// What a process brings along; deployments disagree about capacities.
    pub(super) fn registration(&self, rng: &mut Rng) -> Registration {
        let mut limits = Vec::new();
        for kind in &self.kinds {
            if rng.chance(400) || self.is_crossed {
                limits.push((kind.name.to_string(), self.capacity(rng)));
            }
        }
        for group in &self.groups {
            if rng.chance(600) {
                limits.push((group.clone(), self.capacity(rng)));
            }
        }
        let source = rng.chance(200).then_some(CapacitySource::Configuration);
        Registration { kinds: self.kinds.clone(), limits, source, ..Registration::default() }
    }

    fn capacity(&self, rng: &mut Rng) -> u32 {
        if self.is_crossed { 1 } else { rng.between(0, 4) as u32 }
    }

    pub(super) fn submission(&self, rng: &mut Rng, now: Millis, room: usize) -> Submission {
        let most = if rng.chance(150) { 6 } else { 2 };
        let count = rng.between(1, most).min(room as i64);
        let tasks: Vec<NewTask> = (0..count).map(|_| self.task(rng, now)).collect();
        let named = |job: &&JobSpec| tasks.iter().any(|t| t.job.as_ref() == Some(&job.name));
        // Without the job itself the tasks make one with the defaults.
        let jobs = if rng.chance(800) {
            self.jobs.iter().filter(named).cloned().collect()
        } else {
            vec![]
        };
        Submission { jobs, tasks, ..Submission::default() }
    }

    fn task(&self, rng: &mut Rng, now: Millis) -> NewTask {
        let kind = rng.pick(&self.kinds).name.to_string();
        let mut task = NewTask::new(kind, if rng.chance(self.poison) { POISON } else { b"0" });
        task.queue = rng.chance(150).then(|| rng.pick(&self.queues).to_string());
        task.effective_group = one_of(rng, 400, &self.groups);
        let in_job = if self.is_crossed { 800 } else { 400 };
        task.job = one_of(rng, in_job, &self.jobs).map(|job: JobSpec| job.name);
        task.workflow = one_of(rng, 300, &self.workflows);
        task.weight = if rng.chance(250) { rng.between(1, self.weight_max) as u32 } else { 1 };
        task.priority = if rng.chance(300) { rng.between(-2, 2) as i32 } else { 0 };
        task.run_at = rng.chance(150).then(|| now + rng.between(-50, 500));
        task.unique_key = rng.chance(200).then(|| format!("u{}", rng.below(5)));
        task.on_failure = if rng.chance(400) { OnFailure::Continue } else { OnFailure::Halt };
        task.max_attempts = rng.chance(300).then(|| rng.between(1, 5) as u32);
        task
    }

    /// An operator stops a job or a workflow, or mostly lets one go on.
    pub(super) fn pause(&self, rng: &mut Rng) -> SetPaused {
        let what = if rng.chance(500) {
            PauseTarget::Job(format!("j{}", rng.below(3)))
        } else {
            PauseTarget::Workflow(format!("w{}", rng.below(3)))
        };
        SetPaused { target: what, paused: rng.chance(150) }
    }

    /// An operator changes a job.
    pub(super) fn set_job(&self, rng: &mut Rng) -> SetJob {
        let number = rng.between(0, 2);
        let JobSpec { name, concurrency, min_concurrency, weight, priority, delay_ms } =
            job(rng, number);
        SetJob {
            job: name,
            concurrency: rng.chance(300).then_some(concurrency),
            min_concurrency: Some(min_concurrency.min(concurrency.unwrap_or(u32::MAX))),
            weight: Some(weight),
            priority: Some(priority),
            delay_ms: Some(delay_ms),
        }
    }

    /// An operator's or a deployment's change of a limit.
    pub(super) fn set_limit(&self, rng: &mut Rng) -> SetLimit {
        let name = if !self.jobs.is_empty() && rng.chance(250) {
            format!("job:{}", rng.pick(&self.jobs).name)
        } else if !self.groups.is_empty() && rng.chance(500) {
            format!("group:{}", rng.pick(&self.groups))
        } else {
            format!("group:{}", rng.pick(&self.kinds).name)
        };
        let source =
            if rng.chance(150) { CapacitySource::Configuration } else { CapacitySource::Operator };
        let capacity = match rng.below(10) {
            0 => Some(0),
            1..=3 if source == CapacitySource::Operator => None,
            _ if self.is_crossed => Some(rng.between(1, 2) as u32),
            _ => Some(rng.between(1, 4) as u32),
        };
        SetLimit { name, capacity, source }
    }
}

/// What a limit's name stands for.
pub(super) fn pausable_of_limit(limit: &str) -> PauseTarget {
    match limit.split_once(':') {
        Some(("workflow", of)) => PauseTarget::Workflow(of.to_owned()),
        Some((_, of)) => PauseTarget::Job(of.to_owned()),
        None => PauseTarget::Queue(limit.to_owned()),
    }
}

fn one_of<T: Clone>(rng: &mut Rng, per_mille: u32, from: &[T]) -> Option<T> {
    (!from.is_empty() && rng.chance(per_mille)).then(|| rng.pick(from).clone())
}

fn kind(rng: &mut Rng, number: i64, queues: &[Arc<str>]) -> Kind {
    let mut kind = Kind::new(format!("k{number}"));
    kind.queue = rng.pick(queues).clone();
    kind.max_attempts = rng.between(1, 5) as u32;
    kind.max_crashes = rng.between(1, 4) as u32;
    kind.backoff = Backoff { base_ms: rng.between(1, 100), cap_ms: 400 };
    // Most are removed as they end, so that the state stays small; the rest waits for prune.
    kind.remove_on_completed_days = Some(u32::from(rng.chance(200)));
    kind.remove_on_failed_days = Some(u32::from(rng.chance(400)));
    if rng.chance(30) {
        kind.day_window = Some(DayWindow { start_ms: DAY_MS / 2, end_ms: DAY_MS / 4 });
    }
    kind
}

fn job(rng: &mut Rng, number: i64) -> JobSpec {
    let concurrency = rng.chance(700).then(|| rng.between(0, 3) as u32);
    let reserve = if rng.chance(300) { rng.between(1, 2) as u32 } else { 0 };
    JobSpec {
        name: format!("j{number}"),
        concurrency,
        min_concurrency: reserve.min(concurrency.unwrap_or(u32::MAX)),
        weight: rng.between(1, 4) as u32,
        priority: if rng.chance(300) { rng.between(-2, 2) as i32 } else { 0 },
        delay_ms: if rng.chance(200) { rng.between(1, 300) } else { 0 },
    }
}

/// Some worlds are calm, some know one kind of trouble, some know all of them.
fn rates(rng: &mut Rng) -> Rates {
    let mut rate = |usual: u32, bad: u32| match rng.below(4) {
        0 => 0,
        1 => bad,
        _ => usual,
    };
    Rates {
        lost: rate(10, 80),
        reply_lost: rate(10, 80),
        delayed: rate(20, 150),
        duplicated: rate(10, 80),
        kill: rate(10, 60),
        pause: rate(15, 80),
        partition: rate(15, 80),
        skew: rate(100, 500),
        jump: rate(10, 20),
    }
}

/// The change by which an operator lets somebody run who never could.
pub(super) fn relief_request(limit: &str, rng: &mut Rng) -> Request {
    let capacity = Some(rng.between(3, 4) as u32);
    Request::SetLimit(SetLimit {
        name: limit.to_owned(),
        capacity,
        source: CapacitySource::Operator,
    })
}
