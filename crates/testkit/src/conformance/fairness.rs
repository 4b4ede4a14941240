//! Shares between many jobs where something is scarce: the permits of the workers, or a group's
//! limit that all jobs need.

use std::collections::BTreeMap;

use tidegate_core::bounds::{JOB_WINDOW, SUBMIT_TASKS_MAX};
use tidegate_core::{Attempt, Exit, Finish, JobSpec, NewTask, SetJob};

use super::fixture::{Fixture, asks, done, job, task};
use crate::tier::Cases;

/// What is scarce, and how much there is of it.
#[derive(Debug, Clone, Copy)]
enum Scarce {
    Permits(u32),
    Limit(u32),
}

/// The permits of the workers where they are not what is scarce.
const PERMITS_MANY: u32 = 200;

/// The limit that all jobs share.
const GROUP: &str = "shared";

/// The clock moves on between two claims, so that intervals of ageing end in between.
const STEP_MS: i64 = 700;

fn of(job: &str) -> NewTask {
    NewTask { job: Some(job.to_owned()), group: Some(GROUP.to_owned()), ..task("a") }
}

/// Stores a backlog of a job.
async fn submit(fx: &Fixture, job: &str, number: usize) {
    let tasks = vec![of(job); number];
    for tasks in tasks.chunks(SUBMIT_TASKS_MAX) {
        fx.submit_all(tasks.to_vec()).await;
    }
}

/// Workers that are always as busy as they may be; every task ends at their next call.
struct Crew<'a> {
    fx: &'a Fixture,
    permits: u32,
    running: Vec<Attempt>,
}

impl<'a> Crew<'a> {
    async fn new(fx: &'a Fixture, scarce: Scarce) -> Self {
        let permits = match scarce {
            Scarce::Permits(permits) => permits,
            Scarce::Limit(capacity) => {
                fx.set_limit(&format!("group:{GROUP}"), Some(capacity)).await;
                PERMITS_MANY
            }
        };
        Self { fx, permits, running: Vec::new() }
    }

    /// Ends what runs and starts what comes next; the jobs of what was started.
    async fn turn(&mut self) -> Vec<String> {
        self.fx.advance(STEP_MS);
        let claim = Some(asks("worker", &["a"], self.permits));
        let exit = |one: &Attempt| Exit { task: one.task, token: one.token, outcome: done() };
        let exits = self.running.iter().map(exit).collect();
        // What the gate has not looked at yet is left to these calls, as in a real worker.
        let finished = self.fx.store.finish(Finish { exits, claim }).await.expect("finish");
        assert_eq!(finished.lost, [], "the exits were not accepted");
        self.running = finished.claimed;
        assert!(!self.running.is_empty(), "there is work, and nobody has it");
        let job = |attempt: &Attempt| attempt.job.as_deref().expect("a job").to_owned();
        self.running.iter().map(job).collect()
    }

    /// Starts at least so many; how many of each job.
    async fn starts(&mut self, number: usize) -> BTreeMap<String, usize> {
        let mut starts = BTreeMap::new();
        while starts.values().sum::<usize>() < number {
            for job in self.turn().await {
                *starts.entry(job).or_default() += 1;
            }
        }
        starts
    }
}

/// Tasks of the large job.
const LARGE: Cases<usize> = Cases { small: 20_000, full: 100_000 };

/// One large job and 99 jobs with ten tasks each: the small ones are done before the large one has had more
/// than its share.
async fn small_jobs_are_not_held_up(fx: &Fixture, scarce: Scarce) {
    const SMALL: usize = 99;
    const TASKS: usize = 10;
    const STARTS_MAX: usize = 1_100;
    let mut crew = Crew::new(fx, scarce).await;
    submit(fx, "large", LARGE.of_this_run()).await;
    for number in 0..SMALL {
        submit(fx, &format!("small-{number}"), TASKS).await;
    }
    let (mut starts, mut left) = (0, SMALL * TASKS);
    while left > 0 {
        for job in crew.turn().await {
            starts += 1;
            left -= usize::from(job != "large");
        }
        assert!(starts < STARTS_MAX, "{left} tasks of small jobs are left after {starts} starts");
    }
}

pub async fn small_jobs_are_not_held_up_by_a_large_one(fx: &Fixture) {
    small_jobs_are_not_held_up(fx, Scarce::Permits(10)).await;
}

pub async fn small_jobs_are_not_held_up_behind_a_limit(fx: &Fixture) {
    small_jobs_are_not_held_up(fx, Scarce::Limit(10)).await;
}

const WEIGHTS: [u32; 3] = [1, 2, 4];

/// Starts over which shares are compared.
const STARTS: Cases<usize> = Cases { small: 700, full: 1_400 };

/// Weights give shares while all have a backlog, and so do those to which they are changed.
async fn shares_are_as_weights(fx: &Fixture, scarce: Scarce) {
    let number = STARTS.of_this_run();
    let mut crew = Crew::new(fx, scarce).await;
    for weight in WEIGHTS {
        fx.job(JobSpec { weight, ..job(&named(weight), None) }).await;
        submit(fx, &named(weight), 2_000).await;
    }
    // Free slots go to whoever comes first: the first starts are no contest.
    crew.starts(100).await;
    let starts = crew.starts(number).await;
    within_a_tenth(&starts, WEIGHTS.map(|weight| (named(weight), weight)));
    for weight in WEIGHTS {
        let set = SetJob { job: named(weight), weight: Some(4 / weight), ..SetJob::default() };
        fx.store.set_job(set).await.expect("set_job");
        fx.settle().await;
    }
    // What is past the jobs' lines goes by the old weights.
    crew.starts(WEIGHTS.len() * JOB_WINDOW as usize).await;
    let starts = crew.starts(number).await;
    within_a_tenth(&starts, WEIGHTS.map(|weight| (named(weight), 4 / weight)));
}

fn named(weight: u32) -> String {
    format!("weight-{weight}")
}

#[track_caller]
fn within_a_tenth<const N: usize>(starts: &BTreeMap<String, usize>, weights: [(String, u32); N]) {
    let all: usize = starts.values().sum();
    let sum: u32 = weights.iter().map(|(_, weight)| weight).sum();
    for (name, weight) in weights {
        let fair = all as f64 * f64::from(weight) / f64::from(sum);
        let had = starts.get(&name).copied().unwrap_or_default() as f64;
        assert!((had - fair).abs() <= fair / 10.0, "{name} should have {fair:.0}: {starts:?}");
    }
}

pub async fn permits_are_shared_as_weights_say(fx: &Fixture) {
    shares_are_as_weights(fx, Scarce::Permits(10)).await;
}

pub async fn a_limit_is_shared_as_weights_say(fx: &Fixture) {
    shares_are_as_weights(fx, Scarce::Limit(10)).await;
}

/// Tasks that passed their job's line and wait for another limit stand in the job's window. When all of
/// it is taken up by them, the rest of the job goes on as that limit gives slots, and not before.
pub async fn a_window_full_of_waiters_opens_as_their_limit_gives_slots(fx: &Fixture) {
    let narrow = 3 * JOB_WINDOW as usize;
    fx.set_limit(&format!("group:{GROUP}"), Some(1)).await;
    submit(fx, "j", narrow).await;
    let free = fx.submit(NewTask { group: None, ..of("j") }).await;
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
    assert!(before <= narrow - JOB_WINDOW as usize + 1, "it waited for {before} others");
    fx.complete(&last).await;
    fx.work_off().await;
    fx.check_at_rest().await;
}
