//! Shares between many jobs where something is scarce: the permits of the workers, or a group's
//! limit that all jobs need.

use std::collections::BTreeMap;

use tidegate_core::bounds::{JOB_WINDOW_SIZE, SUBMIT_TASKS_MAX};
use tidegate_core::{Attempt, Completion, Finish, JobSpec, NewTask, SetJob};

use super::fixture::{Fixture, claim_request, completed_outcome, job, task};
use crate::tier::Cases;

/// What is scarce, and how much there is of it.
#[derive(Debug, Clone, Copy)]
enum ScarceResource {
    WorkerConcurrency(u32),
    Limit(u32),
}

/// The permits of the workers where they are not what is scarce.
const AMPLE_CONCURRENCY: u32 = 200;

/// The limit that all jobs share.
const GROUP: &str = "shared";

/// The clock moves on between two claims, so that intervals of ageing end in between.
const STEP_MS: i64 = 700;

fn task_of_job(job: &str) -> NewTask {
    NewTask { job: Some(job.to_owned()), effective_group: Some(GROUP.to_owned()), ..task("a") }
}

/// Stores a backlog of a job.
async fn submit(fx: &Fixture, job: &str, number: usize) {
    let tasks = vec![task_of_job(job); number];
    for tasks in tasks.chunks(SUBMIT_TASKS_MAX) {
        fx.submit_all(tasks.to_vec()).await;
    }
}

/// Workers that are always as busy as they may be; every task ends at their next call.
struct BusyWorkers<'a> {
    fx: &'a Fixture,
    concurrency: u32,
    running: Vec<Attempt>,
}

impl<'a> BusyWorkers<'a> {
    async fn new(fx: &'a Fixture, scarce: ScarceResource) -> Self {
        let permits = match scarce {
            ScarceResource::WorkerConcurrency(permits) => permits,
            ScarceResource::Limit(capacity) => {
                fx.set_limit(&format!("group:{GROUP}"), Some(capacity)).await;
                AMPLE_CONCURRENCY
            }
        };
        Self { fx, concurrency: permits, running: Vec::new() }
    }

    /// Ends what runs and starts what comes next; the jobs of what was started.
    async fn run_round(&mut self) -> Vec<String> {
        self.fx.advance(STEP_MS);
        let claim = Some(claim_request("worker", &["a"], self.concurrency));
        let exit = |one: &Attempt| Completion {
            task: one.task,
            token: one.token,
            outcome: completed_outcome(),
        };
        let exits = self.running.iter().map(exit).collect();
        // What the gate has not looked at yet is left to these calls, as in a real worker.
        let finished =
            self.fx.store.finish(Finish { completions: exits, claim }).await.expect("finish");
        assert_eq!(finished.lost_attempts, [], "the exits were not accepted");
        self.running = finished.claimed;
        assert!(!self.running.is_empty(), "there is work, and nobody has it");
        let job = |attempt: &Attempt| attempt.job.as_deref().expect("a job").to_owned();
        self.running.iter().map(job).collect()
    }

    /// Starts at least so many; how many of each job.
    async fn count_starts(&mut self, number: usize) -> BTreeMap<String, usize> {
        let mut starts = BTreeMap::new();
        while starts.values().sum::<usize>() < number {
            for job in self.run_round().await {
                *starts.entry(job).or_default() += 1;
            }
        }
        starts
    }
}

/// Tasks of the large job.
const LARGE_JOB_TASKS: Cases<usize> = Cases { small: 20_000, full: 100_000 };

/// One large job and 99 jobs with ten tasks each: the small ones are done before the large one has had more
/// than its share.
async fn small_jobs_are_not_held_up(fx: &Fixture, scarce: ScarceResource) {
    const SMALL: usize = 99;
    const TASKS: usize = 10;
    const STARTS_MAX: usize = 1_100;
    let mut crew = BusyWorkers::new(fx, scarce).await;
    submit(fx, "large", LARGE_JOB_TASKS.of_this_run()).await;
    for number in 0..SMALL {
        submit(fx, &format!("small-{number}"), TASKS).await;
    }
    let (mut starts, mut left) = (0, SMALL * TASKS);
    while left > 0 {
        for job in crew.run_round().await {
            starts += 1;
            left -= usize::from(job != "large");
        }
        assert!(starts < STARTS_MAX, "{left} tasks of small jobs are left after {starts} starts");
    }
}

pub async fn small_jobs_are_not_delayed_by_large_job_at_worker_concurrency(fx: &Fixture) {
    small_jobs_are_not_held_up(fx, ScarceResource::WorkerConcurrency(10)).await;
}

pub async fn small_jobs_are_not_delayed_by_large_job_at_group_limit(fx: &Fixture) {
    small_jobs_are_not_held_up(fx, ScarceResource::Limit(10)).await;
}

const WEIGHTS: [u32; 3] = [1, 2, 4];

/// Starts over which shares are compared.
const COUNTED_STARTS: Cases<usize> = Cases { small: 700, full: 1_400 };

/// Weights give shares while all have a backlog, and so do those to which they are changed.
async fn shares_are_as_weights(fx: &Fixture, scarce: ScarceResource) {
    let number = COUNTED_STARTS.of_this_run();
    let mut crew = BusyWorkers::new(fx, scarce).await;
    for weight in WEIGHTS {
        fx.job(JobSpec { weight, ..job(&job_name(weight), None) }).await;
        submit(fx, &job_name(weight), 2_000).await;
    }
    // Free slots go to whoever comes first: the first starts are no contest.
    crew.count_starts(100).await;
    let starts = crew.count_starts(number).await;
    assert_shares(&starts, WEIGHTS.map(|weight| (job_name(weight), weight)));
    for weight in WEIGHTS {
        let set = SetJob { job: job_name(weight), weight: Some(4 / weight), ..SetJob::default() };
        fx.store.set_job(set).await.expect("set_job");
        fx.settle().await;
    }
    // What is past the jobs' lines goes by the old weights.
    crew.count_starts(WEIGHTS.len() * JOB_WINDOW_SIZE as usize).await;
    let starts = crew.count_starts(number).await;
    assert_shares(&starts, WEIGHTS.map(|weight| (job_name(weight), 4 / weight)));
}

fn job_name(weight: u32) -> String {
    format!("weight-{weight}")
}

#[track_caller]
fn assert_shares<const N: usize>(starts: &BTreeMap<String, usize>, weights: [(String, u32); N]) {
    let all: usize = starts.values().sum();
    let sum: u32 = weights.iter().map(|(_, weight)| weight).sum();
    for (name, weight) in weights {
        let fair = all as f64 * f64::from(weight) / f64::from(sum);
        let had = starts.get(&name).copied().unwrap_or_default() as f64;
        assert!((had - fair).abs() <= fair / 10.0, "{name} should have {fair:.0}: {starts:?}");
    }
}

pub async fn worker_concurrency_is_shared_by_job_weight(fx: &Fixture) {
    shares_are_as_weights(fx, ScarceResource::WorkerConcurrency(10)).await;
}

pub async fn group_limit_is_shared_by_job_weight(fx: &Fixture) {
    shares_are_as_weights(fx, ScarceResource::Limit(10)).await;
}

/// Tasks that passed their job's line and wait for another limit stand in the job's window. When all of
/// it is taken up by them, the rest of the job goes on as that limit gives slots, and not before.
pub async fn job_window_full_of_waiters_advances_with_slots_of_their_limit(fx: &Fixture) {
    let narrow = 3 * JOB_WINDOW_SIZE as usize;
    fx.set_limit(&format!("group:{GROUP}"), Some(1)).await;
    submit(fx, "j", narrow).await;
    let free = fx.submit(NewTask { effective_group: None, ..task_of_job("j") }).await;
    let mut before = 0;
    let last = loop {
        let claimed = fx.claim(9).await;
        if claimed.iter().any(|attempt| attempt.task == free) {
            break claimed;
        }
        assert_eq!(claimed.len(), 1, "as many as the limit has slots, after {before}");
        before += 1;
        fx.complete(&claimed).await;
    };
    // The claim that opens the window has looked already.
    assert!(before <= narrow - JOB_WINDOW_SIZE as usize + 1, "it waited for {before} others");
    fx.complete(&last).await;
    fx.run_all().await;
    fx.check_at_rest().await;
}
