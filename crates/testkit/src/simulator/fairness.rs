//! Fair shares between jobs, and the way of a task that needs two scarce limits.

use tidegate_core::bounds::{AGEING_INTERVAL_MS, JOB_WINDOW_SIZE, QUEUE_SWITCHES_BEFORE_RESERVING};
use tidegate_core::invariants::Violation;
use tidegate_core::tables::Position;
use tidegate_core::{Attempt, JobSpec, TaskId, ready_rank};

use super::direct::{DirectStore, task};
use super::rng::Rng;

/// Tasks each job keeps waiting; more than a job's window.
const BACKLOG: u64 = 24;

/// Rounds before starts are counted: free slots go to whoever comes first, so the first starts
/// are no contest.
const WARM_UP: u32 = 100;

/// Tasks of a job that came long before all others.
const OLD_BACKLOG: u64 = 500;

/// The furthest two jobs came apart, as a part of the bound: at most 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Spread(pub f64);

struct JobShare {
    name: String,
    weight: u32,
    starts: u64,
    waiting: u64,
}

/// Several jobs with a backlog each share a group's limit, or only the workers' permits. Their
/// backlogs may be of any age.
///
/// The rule: while two jobs both have a backlog, their starts per weight differ by at most one
/// task of each plus one claim batch. It holds in the steady part of an ageing interval. Each
/// time an interval ends, tasks that passed their job's line before go before those that pass
/// later, whatever their tags. A job has at most [`JOB_WINDOW`] of them, so with every interval
/// that ends two jobs may come apart by a window of each in addition.
pub fn fair_shares(seed: u64, crosses: bool) -> Result<Spread, Violation> {
    let mut rng = Rng::new(seed);
    let clock_ms = if crosses { AGEING_INTERVAL_MS / 10 } else { 100 };
    let (mut intervals, mut interval) = (u32::from(crosses), 0);
    let mut direct = DirectStore::new(&["k0", "k1"]);
    let mut jobs: Vec<JobShare> =
        (0..rng.between(2, 4)).map(|n| new_job_share(&mut rng, n)).collect();
    if rng.chance(700) {
        direct.set_limit("group:shared", rng.between(1, 8) as u32)?;
    }
    if rng.chance(500) {
        old_backlog(&mut direct, &mut jobs[0])?;
    }
    let batch = rng.between(1, 8) as u32;
    let permits = rng.between(i64::from(batch), 12) as usize;
    let mut running: Vec<Attempt> = Vec::new();
    let mut worst = Spread(0.0);
    for round in 0..400 {
        if round == WARM_UP {
            jobs.iter_mut().for_each(|job| job.starts = 0);
        }
        top_up(&mut direct, &mut jobs, &mut rng)?;
        let free = permits.saturating_sub(running.len()) as u32;
        let got = direct.claim(batch.min(free))?;
        for attempt in got {
            let job = jobs.iter_mut().find(|job| attempt.job.as_deref() == Some(&job.name));
            if let Some(job) = job {
                job.starts += 1;
                job.waiting -= 1;
            }
            running.push(attempt);
        }
        if interval != ready_rank(direct.state.now, 0) {
            interval = ready_rank(direct.state.now, 0);
            intervals += u32::from(round > WARM_UP);
        }
        let spread = spread(&jobs, batch, intervals);
        worst = if round > WARM_UP && spread > worst { spread } else { worst };
        if round > WARM_UP && spread.0 > 1.0 {
            return Err(spread_violation(&jobs, batch));
        }
        for _ in 0..rng.between(0, 3).min(running.len() as i64) {
            let attempt = running.swap_remove(rng.below(running.len() as u64) as usize);
            direct.complete(&attempt)?;
        }
        direct.state.now += rng.between(0, clock_ms);
    }
    Ok(worst)
}

/// The first job has waited since long before the others came, with more than all that start.
fn old_backlog(direct: &mut DirectStore, job: &mut JobShare) -> Result<(), Violation> {
    let mut old = task("k0", Some(&job.name));
    old.effective_group = Some("shared".to_owned());
    job.waiting = OLD_BACKLOG;
    direct.submit(vec![spec(job)], vec![old; OLD_BACKLOG as usize])?;
    direct.claim(0)?;
    direct.state.now += 10 * AGEING_INTERVAL_MS;
    Ok(())
}

fn new_job_share(rng: &mut Rng, number: i64) -> JobShare {
    let weight = rng.between(1, 5) as u32;
    JobShare { name: format!("j{number}"), weight, starts: 0, waiting: 0 }
}

/// Every job has a backlog again.
fn top_up(direct: &mut DirectStore, jobs: &mut [JobShare], rng: &mut Rng) -> Result<(), Violation> {
    for job in jobs.iter_mut().filter(|job| job.waiting < BACKLOG) {
        let JobSpec { name, .. } = spec(job);
        let tasks = (job.waiting..BACKLOG + rng.below(4)).map(|_| {
            let kind = if rng.chance(500) { "k0" } else { "k1" };
            let mut task = task(kind, Some(&name));
            task.effective_group = Some("shared".to_owned());
            task
        });
        let tasks: Vec<_> = tasks.collect();
        job.waiting += tasks.len() as u64;
        direct.submit(vec![spec(job)], tasks)?;
    }
    Ok(())
}

fn spec(job: &JobShare) -> JobSpec {
    JobSpec { concurrency: None, weight: job.weight, ..JobSpec::new(job.name.clone()) }
}

/// How far apart the two most unequal jobs are, as a part of what the rule allows.
fn spread(jobs: &[JobShare], batch: u32, intervals: u32) -> Spread {
    let mut worst = 0.0_f64;
    for (i, a) in jobs.iter().enumerate() {
        for b in &jobs[i + 1..] {
            let (wa, wb) = (f64::from(a.weight), f64::from(b.weight));
            let apart = (a.starts as f64 / wa - b.starts as f64 / wb).abs();
            let allowed = f64::from(1 + intervals * JOB_WINDOW_SIZE) * (1.0 / wa + 1.0 / wb)
                + f64::from(batch) / wa.min(wb);
            worst = worst.max(apart / allowed);
        }
    }
    Spread(worst)
}

fn spread_violation(jobs: &[JobShare], batch: u32) -> Violation {
    let shares: Vec<String> =
        jobs.iter().map(|job| format!("{} at weight {}", job.starts, job.weight)).collect();
    Violation {
        rule: "jobs with a backlog start by their weights",
        details: format!("{} with batches of {batch}", shares.join(", ")),
    }
}

/// Within how many finishes a task is admitted that needs two limits which are always full,
/// each with `line` others waiting. Finishes count where the task stands: a slot that the other
/// limit frees is no help yet. The task stands in a line first, moves at most
/// [`MOVES_BEFORE_RESERVING`] times and then collects its two slots, and each time it waits at
/// most for those in the line it joins and for its own turn.
pub fn finishes_max(line: u32) -> u32 {
    (line + 1) * (QUEUE_SWITCHES_BEFORE_RESERVING + 2)
}

/// Keeps the limits of a job and of a group full, each with a line, and submits a task that
/// needs both. Returns after how many finishes it ran and how many the bound allows.
pub fn two_full_limits(seed: u64) -> Result<(u32, u32), Violation> {
    let mut rng = Rng::new(seed);
    let mut direct = DirectStore::new(&["a", "b"]);
    let slots = [rng.between(1, 4) as u32, rng.between(1, 4) as u32];
    let line = rng.between(1, 6) as u32;
    direct.set_limit("group:a", slots[0])?;
    let job = JobSpec { concurrency: Some(slots[1]), ..JobSpec::new("j") };
    let others = (0..slots[0] + line).map(|_| task("a", None));
    let of_job = (0..slots[1] + line).map(|_| task("b", Some("j")));
    direct.submit(vec![job], others.chain(of_job).collect())?;
    let mut running = direct.claim(100)?;
    let wanted = direct.submit(vec![], vec![task("a", Some("j"))])?;
    let (mut finishes, allowed) = (0, finishes_max(line));
    while finishes <= allowed {
        if running.iter().any(|attempt| attempt.task == wanted) {
            return Ok((finishes, allowed));
        }
        let stands_at = limit_waited_for(&direct, wanted);
        let frees = finish_one(&mut direct, &mut running, &mut rng)?;
        finishes += u32::from(stands_at.is_none_or(|limit| limit == frees));
    }
    Err(not_admitted(wanted, allowed))
}

/// The name of the limit in whose line a task stands.
fn limit_waited_for(direct: &DirectStore, task: TaskId) -> Option<&'static str> {
    let snapshot = direct.state.snapshot();
    let row = snapshot.tasks.iter().find(|row| row.id == task)?;
    let Some(Position::Waiting(row)) = row.positions.first() else {
        return None;
    };
    let limit = snapshot.limits.iter().find(|limit| limit.id == row.limit)?;
    Some(if &*limit.name == "job:j" { "job:j" } else { "group:a" })
}

/// One of those that run finishes, and another of its sort joins the line. Returns which limit
/// that frees.
fn finish_one(
    direct: &mut DirectStore,
    running: &mut Vec<Attempt>,
    rng: &mut Rng,
) -> Result<&'static str, Violation> {
    let ended = running.swap_remove(rng.below(running.len() as u64) as usize);
    direct.submit(vec![], vec![task(&ended.kind, ended.job.as_deref())])?;
    direct.state.now += 1;
    direct.complete(&ended)?;
    running.extend(direct.claim(100)?);
    Ok(if ended.job.is_some() { "job:j" } else { "group:a" })
}

fn not_admitted(task: TaskId, finishes: u32) -> Violation {
    Violation {
        rule: "a task that needs two full limits is admitted within a bound",
        details: format!("task {task} waits after {finishes} finishes"),
    }
}

/// Tasks that are too heavy for a lowered limit are set aside and do not stop their job. Returns
/// whether the one that can run was claimed.
pub fn heavy_tasks_make_way() -> Result<bool, Violation> {
    let mut direct = DirectStore::new(&["a", "b"]);
    direct.set_limit("group:a", 4)?;
    let mut heavy = task("a", Some("j"));
    heavy.weight = 4;
    let job = JobSpec { concurrency: None, ..JobSpec::new("j") };
    direct.submit(vec![job], vec![heavy; 2 * JOB_WINDOW_SIZE as usize])?;
    let running = direct.claim(1)?;
    direct.set_limit("group:a", 2)?;
    let light = direct.submit(vec![], vec![task("b", Some("j"))])?;
    for attempt in &running {
        direct.complete(attempt)?;
    }
    Ok(direct.claim(1)?.first().is_some_and(|attempt| attempt.task == light))
}
