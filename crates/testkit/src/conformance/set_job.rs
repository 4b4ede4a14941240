//! Jobs that are changed while they have work: quota, share, priority, reserve and pace.

use std::collections::BTreeMap;

use tidegate_core::{Attempt, ErrorKind, JobSpec, NewTask, SetJob, TaskId};

use super::fixture::{Fixture, job, task, task_ids};

fn task_of_job(job: &str) -> NewTask {
    NewTask { job: Some(job.into()), ..task("a") }
}

async fn submit(fx: &Fixture, job: &str, number: usize) -> Vec<TaskId> {
    fx.submit_all(vec![task_of_job(job); number]).await
}

fn change(job: &str) -> SetJob {
    SetJob { job: job.into(), ..SetJob::default() }
}

async fn set(fx: &Fixture, set: SetJob) {
    fx.store.set_job(set).await.expect("set_job");
    fx.settle().await;
}

/// How many of each job there are.
fn count_by_job(attempts: &[Attempt]) -> BTreeMap<&str, usize> {
    let mut jobs = BTreeMap::new();
    for attempt in attempts {
        *jobs.entry(attempt.job.as_deref().unwrap_or("none")).or_default() += 1;
    }
    jobs
}

/// Claims one by one and completes each.
async fn start_tasks(fx: &Fixture, number: usize) -> Vec<Attempt> {
    let mut starts = Vec::new();
    for _ in 0..number {
        let attempt = fx.claim_one().await;
        fx.complete(std::slice::from_ref(&attempt)).await;
        starts.push(attempt);
    }
    starts
}

pub async fn job_concurrency_change_applies_at_once(fx: &Fixture) {
    fx.job(job("j", Some(1))).await;
    submit(fx, "j", 6).await;
    let first = fx.claim(9).await;
    assert_eq!(first.len(), 1);
    set(fx, SetJob { concurrency: Some(Some(3)), ..change("j") }).await;
    let more = fx.claim(9).await;
    assert_eq!(more.len(), 2);
    set(fx, SetJob { concurrency: Some(Some(2)), ..change("j") }).await;
    fx.complete(&first).await;
    assert_eq!(fx.claim(9).await, [], "two run, and no more may");
    fx.complete(&more[..1]).await;
    assert_eq!(fx.claim(9).await.len(), 1);
}

pub async fn unset_job_concurrency_restores_submitted_value(fx: &Fixture) {
    fx.job(job("j", Some(2))).await;
    set(fx, SetJob { concurrency: Some(Some(7)), ..change("j") }).await;
    set(fx, SetJob { concurrency: Some(None), ..change("j") }).await;
    submit(fx, "j", 5).await;
    assert_eq!(fx.claim(9).await.len(), 2);
}

/// A weight counts for all that has not passed the job's line.
pub async fn job_weight_change_applies_to_waiting_tasks(fx: &Fixture) {
    for name in ["i", "j"] {
        fx.job(job(name, None)).await;
        submit(fx, name, 150).await;
    }
    set(fx, SetJob { weight: Some(4), ..change("i") }).await;
    // What is past the lines goes by the old weights.
    start_tasks(fx, 40).await;
    let shares = start_tasks(fx, 50).await;
    let shares = count_by_job(&shares);
    assert!((39..=41).contains(&shares["i"]), "{shares:?}");
    set(fx, SetJob { weight: Some(1), ..change("i") }).await;
    start_tasks(fx, 40).await;
    let shares = start_tasks(fx, 50).await;
    let shares = count_by_job(&shares);
    assert!((24..=26).contains(&shares["i"]), "{shares:?}");
}

/// It is added to the priority of the tasks, and not among the tasks of the job.
pub async fn job_priority_is_added_to_task_priority(fx: &Fixture) {
    fx.job(JobSpec { priority: 5, ..job("urgent", Some(1)) }).await;
    let plain = fx.submit(NewTask { priority: 4, ..task("a") }).await;
    let urgent = submit(fx, "urgent", 2).await;
    assert_eq!(task_ids(&start_tasks(fx, 3).await), [urgent[0], urgent[1], plain]);
    set(fx, SetJob { priority: Some(-5), ..change("urgent") }).await;
    let urgent = submit(fx, "urgent", 2).await;
    let plain = fx.submit(NewTask { priority: -4, ..task("a") }).await;
    assert_eq!(task_ids(&start_tasks(fx, 3).await), [plain, urgent[0], urgent[1]]);
    fx.check_at_rest().await;
}

pub async fn job_delay_separates_starts(fx: &Fixture) {
    fx.job(JobSpec { delay_ms: 100, ..job("j", None) }).await;
    let all = submit(fx, "j", 4).await;
    let mut running = Vec::new();
    for (number, id) in all.iter().enumerate() {
        let claimed = fx.claim(9).await;
        assert_eq!(task_ids(&claimed), [*id]);
        running.extend(claimed);
        assert_eq!(fx.claim(9).await, [], "start {number} was just now");
        fx.advance(99);
        assert_eq!(fx.claim(9).await, []);
        fx.check_invariants().await;
        fx.advance(1);
    }
    // Retries are starts too.
    fx.finish_attempt(&running[0], super::fixture::retry_in(0)).await;
    let first = fx.claim_one().await;
    fx.finish_attempt(&first, super::fixture::retry_in(10)).await;
    fx.advance(10);
    assert_eq!(fx.claim(9).await, []);
    fx.advance(90);
    assert_eq!(fx.claim(9).await.len(), 1);
}

/// The time that a task waits for a worker does not count.
pub async fn job_delay_is_measured_from_the_claim(fx: &Fixture) {
    fx.job(JobSpec { delay_ms: 100, ..job("j", None) }).await;
    submit(fx, "j", 1).await;
    fx.admit().await;
    fx.advance(1000);
    assert_eq!(fx.claim(9).await.len(), 1);
    fx.advance(40);
    // Who comes when nobody waited knows of the last start all the same.
    submit(fx, "j", 2).await;
    assert_eq!(fx.claim(9).await, []);
    fx.advance(60);
    assert_eq!(fx.claim(9).await.len(), 1);
    fx.advance(5000);
    assert_eq!(fx.claim(9).await.len(), 1);
    fx.advance(5000);
    submit(fx, "j", 1).await;
    assert_eq!(fx.claim(9).await.len(), 1, "a job that rested owes nothing");
}

pub async fn job_delay_can_be_shortened_and_removed(fx: &Fixture) {
    fx.job(JobSpec { delay_ms: 60_000, ..job("j", None) }).await;
    submit(fx, "j", 4).await;
    assert_eq!(fx.claim(9).await.len(), 1);
    assert_eq!(fx.claim(9).await, []);
    set(fx, SetJob { delay_ms: Some(100), ..change("j") }).await;
    assert_eq!(fx.claim(9).await, []);
    fx.advance(100);
    assert_eq!(fx.claim(9).await.len(), 1, "the shorter time counts from the last start");
    set(fx, SetJob { delay_ms: Some(0), ..change("j") }).await;
    assert_eq!(fx.claim(9).await.len(), 2);
}

/// Two of the job run whatever else there is, as long as it has work.
pub async fn min_concurrency_of_job_is_served_first(fx: &Fixture) {
    fx.job(JobSpec { min_concurrency: 2, ..job("small", None) }).await;
    fx.job(JobSpec { weight: 100, priority: 9, ..job("big", None) }).await;
    submit(fx, "big", 60).await;
    let mut running = fx.claim(4).await;
    assert_eq!(count_by_job(&running), BTreeMap::from([("big", 4)]));
    // Fewer than may be past the job's line: all of them are, and most without the rank of the reserve.
    submit(fx, "small", 9).await;
    for _ in 0..2 {
        let ended = running.remove(0);
        running.extend(fx.finish_and_claim(&[ended], 1).await);
    }
    assert_eq!(count_by_job(&running), BTreeMap::from([("big", 2), ("small", 2)]));
    // Whatever ends is followed by one of its own, to the last.
    for _ in 0..14 {
        let ended = running.remove(0);
        running.extend(fx.finish_and_claim(&[ended], 1).await);
        assert_eq!(count_by_job(&running)["small"], 2);
        fx.check_invariants().await;
    }
}

/// A job gets a reserve when all its tasks are ready already.
pub async fn min_concurrency_set_later_applies_to_ready_tasks(fx: &Fixture) {
    fx.claim(0).await;
    submit(fx, "other", 3).await;
    let late = submit(fx, "late", 2).await;
    assert_eq!(fx.claim(0).await, [], "all of them are ready");
    set(fx, SetJob { min_concurrency: Some(1), ..change("late") }).await;
    assert_eq!(task_ids(&start_tasks(fx, 1).await), late[..1]);
}

/// What is beyond the reserve goes by its share: here a very small one.
pub async fn min_concurrency_does_not_raise_share_beyond_reserve(fx: &Fixture) {
    fx.job(JobSpec { min_concurrency: 1, ..job("small", None) }).await;
    fx.job(JobSpec { weight: 1000, ..job("big", None) }).await;
    submit(fx, "small", 30).await;
    submit(fx, "big", 200).await;
    let running = fx.claim(10).await;
    let jobs = count_by_job(&running);
    assert!(jobs["small"] <= 2 && jobs["big"] >= 8, "{jobs:?}");
    fx.check_invariants().await;
}

/// Where a group's limit is what is scarce, the reserve is first in its line.
pub async fn min_concurrency_is_served_first_in_wait_queue(fx: &Fixture) {
    fx.set_limit("group:a", Some(4)).await;
    fx.job(JobSpec { min_concurrency: 2, ..job("small", None) }).await;
    fx.job(JobSpec { weight: 100, priority: 9, ..job("big", None) }).await;
    submit(fx, "big", 60).await;
    let mut running = fx.claim(9).await;
    submit(fx, "small", 30).await;
    for round in 0..20 {
        let ended = running.remove(0);
        running.extend(fx.finish_and_claim(&[ended], 9).await);
        assert_eq!(running.len(), 4, "round {round}");
        if round >= 2 {
            assert_eq!(count_by_job(&running)["small"], 2, "round {round}");
        }
        fx.check_invariants().await;
    }
}

/// However many of the job have passed its line with the rank of the reserve: those that find it
/// taken are as all others.
pub async fn min_concurrency_set_to_zero_restores_fair_share(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    fx.job(JobSpec { min_concurrency: 1, ..job("small", None) }).await;
    fx.job(job("other", None)).await;
    let small = submit(fx, "small", 40).await;
    submit(fx, "other", 40).await;
    let mut running = fx.claim(9).await;
    assert_eq!(task_ids(&running), small[..1]);
    set(fx, SetJob { min_concurrency: Some(0), ..change("small") }).await;
    let mut jobs = Vec::new();
    for _ in 0..20 {
        let ended = running.remove(0);
        jobs.extend(fx.finish_and_claim(&[ended], 9).await);
        running.push(jobs[jobs.len() - 1].clone());
        fx.check_invariants().await;
    }
    let jobs = count_by_job(&jobs);
    assert!((8..=12).contains(&jobs["small"]), "{jobs:?}");
}

pub async fn change_of_unknown_job_returns_not_found(fx: &Fixture) {
    let error = fx.store.set_job(change("nobody")).await.expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

pub async fn invalid_job_change_is_rejected(fx: &Fixture) {
    fx.job(job("j", None)).await;
    let bad = [
        SetJob { weight: Some(0), ..change("j") },
        SetJob { weight: Some(1001), ..change("j") },
        SetJob { priority: Some(1001), ..change("j") },
        SetJob { priority: Some(-1001), ..change("j") },
        SetJob { delay_ms: Some(-1), ..change("j") },
        SetJob { delay_ms: Some(i64::MAX), ..change("j") },
        SetJob { concurrency: Some(Some(2)), min_concurrency: Some(3), ..change("j") },
        SetJob { concurrency: Some(Some(u32::MAX)), ..change("j") },
        change(""),
    ];
    for set in bad {
        let shown = format!("{set:?}");
        let error = fx.store.set_job(set).await.expect_err(&shown);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{shown}: {error}");
    }
    let shown = &fx.reader.jobs().await.expect("jobs")[0];
    assert_eq!((shown.weight, shown.priority, shown.delay_ms), (1, 0, 0), "nothing was written");
}

/// From when it was due to when it was through the gate a task waited for its limits; from then on
/// for a worker. And it knows where it was submitted.
pub async fn claimed_attempt_has_due_time_ready_time_and_trace(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let start = fx.now();
    let traced = NewTask { trace: Some("00-4bf9-00f0-01".into()), ..task("a") };
    fx.submit_all(vec![traced.clone(), task("a"), task("b")]).await;
    fx.submit(NewTask { kind: "c".into(), ..traced }).await;
    let first = fx.claim(9).await;
    assert_eq!(first.len(), 3);
    let traces: Vec<_> = first.iter().map(|attempt| attempt.trace.as_deref()).collect();
    assert_eq!(traces, [Some("00-4bf9-00f0-01"), None, Some("00-4bf9-00f0-01")]);
    for attempt in &first {
        assert_eq!((attempt.due_at, attempt.ready_at), (start, start));
    }
    fx.advance(300);
    fx.complete(&first).await;
    fx.advance(50);
    let second = fx.claim_one().await;
    assert_eq!((second.due_at, second.ready_at), (start, start + 300));
    fx.finish_attempt(&second, super::fixture::retry_in(100)).await;
    fx.advance(100);
    let again = fx.claim_one().await;
    assert_eq!((again.due_at, again.ready_at), (start + 450, start + 450));
    // Handed on in the same step, nobody waited for a worker.
    fx.submit(task("a")).await;
    fx.claim(9).await;
    fx.advance(70);
    let next = fx.finish_and_claim(&[again], 1).await;
    assert_eq!((next[0].due_at, next[0].ready_at), (start + 450, start + 520));
}
