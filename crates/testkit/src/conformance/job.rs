//! Jobs: quotas, shares, and a bounded number of tasks past the job's own line.

use std::collections::BTreeMap;

use tidegate_core::bounds::JOB_WINDOW_SIZE;
use tidegate_core::tables::Position;
use tidegate_core::{JobSpec, NewTask, TaskId, TaskState};

use super::fixture::{Fixture, LEASE_MS, job, retry_in, task, task_ids};

fn task_of_job(job: &str) -> NewTask {
    NewTask { job: Some(job.into()), ..task("a") }
}

async fn submit(fx: &Fixture, job: &str, number: usize) -> Vec<TaskId> {
    fx.submit_all(vec![task_of_job(job); number]).await
}

async fn set_weight(fx: &Fixture, name: &str, weight: u32) {
    fx.job(JobSpec { weight, ..job(name, None) }).await;
}

/// Claims one by one and completes each; counts the starts per job.
async fn count_starts(fx: &Fixture, number: usize) -> BTreeMap<String, usize> {
    let mut starts = BTreeMap::new();
    for _ in 0..number {
        let attempt = fx.claim_one().await;
        let job = attempt.job.clone().expect("a job").to_string();
        *starts.entry(job).or_default() += 1;
        fx.complete(&[attempt]).await;
    }
    starts
}

pub async fn job_concurrency_bounds_running_tasks(fx: &Fixture) {
    fx.job(job("j", Some(2))).await;
    let all = submit(fx, "j", 5).await;
    let running = fx.claim(9).await;
    assert_eq!(task_ids(&running), all[..2]);
    fx.complete(&running[..1]).await;
    assert_eq!(task_ids(&fx.claim(9).await), [all[2]]);
}

pub async fn job_concurrency_is_separate_for_each_job(fx: &Fixture) {
    fx.job(job("i", Some(1))).await;
    fx.job(job("j", Some(2))).await;
    submit(fx, "i", 4).await;
    submit(fx, "j", 4).await;
    let mut per_job = BTreeMap::new();
    for attempt in fx.claim(9).await {
        *per_job.entry(attempt.job.expect("a job").to_string()).or_insert(0) += 1;
    }
    assert_eq!(per_job, BTreeMap::from([("i".to_owned(), 1), ("j".to_owned(), 2)]));
}

pub async fn job_concurrency_of_zero_runs_nothing(fx: &Fixture) {
    fx.job(job("j", Some(0))).await;
    submit(fx, "j", 2).await;
    assert_eq!(fx.claim(9).await, []);
}

/// Every way out gives the quota back, also those that come back later.
pub async fn retry_is_admitted_by_job_limit_again(fx: &Fixture) {
    fx.job(job("j", Some(1))).await;
    let both = submit(fx, "j", 2).await;
    let first = fx.claim_one().await;
    fx.finish_attempt(&first, retry_in(10)).await;
    let second = fx.claim_one().await;
    assert_eq!(second.task, both[1]);
    fx.advance(10);
    assert_eq!(fx.claim(9).await, []);
    fx.advance(LEASE_MS);
    fx.claim(0).await;
    assert_eq!(fx.reap().await.expired_attempts, 1);
    let second = fx.claim(9).await;
    assert_eq!(task_ids(&second), [both[1]], "it comes back before the one that failed");
    fx.complete(&second).await;
    assert_eq!(fx.claim_one().await.task, both[0]);
    assert_eq!(fx.claim(9).await, []);
}

pub async fn submit_does_not_overwrite_known_job(fx: &Fixture) {
    fx.job(JobSpec { weight: 3, ..job("j", Some(2)) }).await;
    fx.job(JobSpec { weight: 7, ..job("j", Some(9)) }).await;
    let shown = &fx.reader.jobs().await.expect("jobs")[0];
    assert_eq!((shown.concurrency, shown.weight), (Some(2), 3));
}

pub async fn task_creates_its_job(fx: &Fixture) {
    submit(fx, "j", 1).await;
    let shown = &fx.reader.jobs().await.expect("jobs")[0];
    assert_eq!((&*shown.name, shown.concurrency, shown.weight), ("j", None, 1));
    assert_eq!(fx.claim(9).await.len(), 1);
}

/// What is ready cannot be reordered, so little of a job's backlog is.
pub async fn job_window_bounds_admitted_tasks(fx: &Fixture) {
    submit(fx, "j", 3 * JOB_WINDOW_SIZE as usize).await;
    fx.claim(0).await;
    assert_eq!(ready_tasks(fx).await, JOB_WINDOW_SIZE as usize);
    let claimed = fx.claim(5).await;
    assert_eq!(ready_tasks(fx).await, JOB_WINDOW_SIZE as usize, "claimed ones make room");
    fx.complete(&claimed).await;
    assert_eq!(ready_tasks(fx).await, JOB_WINDOW_SIZE as usize);
    fx.check_invariants().await;
}

async fn ready_tasks(fx: &Fixture) -> usize {
    let snapshot = fx.snapshot().await;
    let rows = snapshot.tasks.iter();
    rows.filter(|row| matches!(row.positions[..], [Position::Ready(_)])).count()
}

/// An unlimited job is worked off to its end, window after window, in order.
pub async fn job_backlog_beyond_window_runs_in_order(fx: &Fixture) {
    let all = submit(fx, "j", 5 * JOB_WINDOW_SIZE as usize).await;
    assert_eq!(fx.run_all().await, all);
    fx.check_at_rest().await;
}

/// Invariant 8: starts per weight differ by at most one task each while both are backlogged.
pub async fn job_shares_follow_weights(fx: &Fixture) {
    set_weight(fx, "light", 1).await;
    set_weight(fx, "heavy", 3).await;
    submit(fx, "light", 60).await;
    submit(fx, "heavy", 60).await;
    for round in 1..=10 {
        assert_starts_differ_by_one(fx, round).await;
    }
}

async fn assert_starts_differ_by_one(fx: &Fixture, round: usize) {
    let starts = count_starts(fx, 4).await;
    let (light, heavy) = (starts.get("light"), starts.get("heavy"));
    let light = light.copied().unwrap_or_default();
    let heavy = heavy.copied().unwrap_or_default();
    assert!((0..=2).contains(&light) && (2..=4).contains(&heavy), "{round}: {light} to {heavy}");
}

/// A job that comes late shares from then on: it neither waits for the old backlog nor is
/// paid for the time before.
pub async fn late_job_gets_its_share_from_its_submit_on(fx: &Fixture) {
    submit(fx, "old", 200).await;
    count_starts(fx, 40).await;
    submit(fx, "new", 100).await;
    let shared = count_starts(fx, 60).await;
    let (old, new) = (shared["old"], shared["new"]);
    // What of the old job was ready already, one window, may go first.
    assert!(new >= 30 - JOB_WINDOW_SIZE as usize / 2 && old >= 28, "{old} to {new}");
}

pub async fn cancelled_job_backlog_does_not_distort_shares(fx: &Fixture) {
    let gone = submit(fx, "gone", 100).await;
    fx.claim(0).await;
    fx.store.cancel(gone).await.expect("cancel");
    submit(fx, "gone", 50).await;
    submit(fx, "other", 50).await;
    let shared = count_starts(fx, 40).await;
    let (gone, other) = (shared["gone"], shared["other"]);
    assert!(gone.abs_diff(other) <= 2 * JOB_WINDOW_SIZE as usize + 2, "{gone} to {other}");
}

pub async fn job_view_counts_tasks_by_state(fx: &Fixture) {
    fx.job(job("j", Some(1))).await;
    submit(fx, "j", 3).await;
    let first = fx.claim_one().await;
    fx.complete(&[first]).await;
    fx.claim(0).await;
    let shown = &fx.reader.jobs().await.expect("jobs")[0];
    let wanted = BTreeMap::from([
        (TaskState::Pending, 1),
        (TaskState::Blocked, 1),
        (TaskState::Completed, 1),
    ]);
    assert_eq!(shown.tasks, wanted);
}
