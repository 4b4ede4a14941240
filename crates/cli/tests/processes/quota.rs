//! Worker processes with 2, 5 and 10 permits, and jobs with a quota: many at once and never more,
//! an end that waits for what runs, and a slot that comes back however its task ends. And jobs without one that
//! share few permits.

use std::collections::BTreeSet;

use crate::fleet::barrier::Barrier;
use crate::fleet::{Fleet, start_records};
use tidegate_core::{JobSpec, NewTask};
use tidegate_measure::history::{ExpectedLimits, Outcome, Record, peak_concurrency};

const CONCURRENCIES: [usize; 3] = [2, 5, 10];

/// The quota of the jobs: more than the permits of one worker, or fewer.
const QUOTA: usize = 3;

/// Runs a case with every number of permits on every store.
fn each(case: impl Fn(&mut Fleet, usize)) {
    for permits in CONCURRENCIES {
        for mut fleet in Fleet::on_each_store() {
            case(&mut fleet, permits);
        }
    }
}

/// Starts a worker that may call a server.
fn start(fleet: &mut Fleet, permits: usize, server: &Barrier) -> usize {
    let (permits, address) = (permits.to_string(), server.address());
    let arguments = ["--concurrency", &permits, "--http-allow", &address, "--exec-allow", "false"];
    fleet.start(&[&arguments[..], &["--lease", "1s"]].concat())
}

/// Starts as many workers as it takes to use a quota up.
fn start_all(fleet: &mut Fleet, permits: usize, server: &Barrier) -> Vec<usize> {
    (0..QUOTA.div_ceil(permits)).map(|_| start(fleet, permits, server)).collect()
}

fn job() -> JobSpec {
    JobSpec { concurrency: Some(QUOTA as u32), ..JobSpec::new("nightly".to_owned()) }
}

fn of_job(task: NewTask) -> NewTask {
    NewTask { job: Some(job().name), ..task }
}

/// The quota was reached and never exceeded.
#[track_caller]
fn assert_quota(fleet: &Fleet) {
    let expected = ExpectedLimits::default().with("job:nightly", QUOTA as u32);
    let report = fleet.report(&expected);
    assert!(report.is_clean() && report.limits.iter().any(|limit| limit.reached), "{report}");
}

/// Nobody is answered before as many call as may: the permits are used up, and then never exceeded.
#[test]
fn worker_reaches_and_never_exceeds_its_concurrency() {
    each(|fleet, permits| {
        let server = Barrier::new(permits);
        fleet.submit(&[], &vec![server.task(); 4 * permits]);
        start(fleet, permits, &server);
        fleet.wait_for_outcomes(4 * permits, Outcome::Completed);
        fleet.end_all();
        assert_eq!(peak_concurrency(&fleet.records, |_| true), permits);
        fleet.assert_clean();
    });
}

#[test]
fn worker_drain_waits_for_running_tasks() {
    each(|fleet, permits| {
        let server = Barrier::new(usize::MAX);
        fleet.submit(&[], &vec![server.task(); 3 * permits]);
        let worker = start(fleet, permits, &server);
        (0..permits).for_each(|_| drop(fleet.wait_for_start()));
        fleet.terminate(worker);
        fleet.wait_for_log(worker, "draining");
        server.open();
        assert!(fleet.wait(worker).success());
        fleet.end_all();
        assert_eq!(start_records(&fleet.records).count(), permits, "nothing new is claimed");
        let report = fleet.report(&ExpectedLimits::default());
        assert_eq!((report.completed, report.attempts), (permits as u64, permits as u64));
        assert!(report.is_clean(), "{report}");
    });
}

#[test]
fn job_concurrency_is_exact_across_workers() {
    each(|fleet, permits| {
        let server = Barrier::new(QUOTA);
        fleet.submit(&[job()], &vec![of_job(server.task()); 20]);
        for _ in 0..2 {
            start(fleet, permits, &server);
        }
        fleet.wait_for_outcomes(20, Outcome::Completed);
        fleet.end_all();
        assert_quota(fleet);
        fleet.assert_clean();
    });
}

/// As many tasks fail for good as would use the quota up several times.
#[test]
fn failed_task_frees_its_job_slot() {
    each(|fleet, permits| {
        let server = Barrier::new(QUOTA);
        let fails =
            NewTask { max_attempts: Some(1), ..NewTask::new("exec", "{\"argv\":[\"false\"]}") };
        let mut tasks = vec![of_job(fails); 4 * QUOTA];
        tasks.resize(6 * QUOTA, of_job(server.task()));
        fleet.submit(&[job()], &tasks);
        start_all(fleet, permits, &server);
        fleet.wait_for_outcomes(2 * QUOTA, Outcome::Completed);
        fleet.end_all();
        let is_failed = |record: &&Record| crate::fleet::is_completion(record, Outcome::Failed);
        assert_eq!(fleet.records.iter().filter(is_failed).count(), 4 * QUOTA);
        assert_quota(fleet);
        fleet.assert_clean();
    });
}

/// All of a quota is in the hands of workers that are killed; all of it is used again elsewhere.
#[test]
fn job_slots_of_killed_workers_are_freed() {
    each(|fleet, permits| {
        let server = Barrier::new(usize::MAX);
        fleet.submit(&[job()], &vec![of_job(server.task()); 2 * QUOTA]);
        let first = start_all(fleet, permits, &server);
        fleet.wait_for_starts(QUOTA);
        start_all(fleet, permits, &server);
        for worker in first {
            fleet.kill(worker);
        }
        let entered = fleet.wait_for_starts(2 * QUOTA);
        let (lost, again) = entered.split_at(QUOTA);
        let [lost, again] = [lost, again].map(BTreeSet::from_iter);
        assert_eq!(again, lost, "what was interrupted goes first");
        server.open();
        fleet.wait_for_outcomes(2 * QUOTA, Outcome::Completed);
        fleet.end_all();
        assert_quota(fleet);
        assert_eq!(fleet.assert_clean().killed, QUOTA as u64);
    });
}

/// What waits of a job is cancelled while one of its tasks runs in a worker that is then killed. The
/// job can be made anew with all of its quota.
#[test]
fn job_cancelled_during_worker_crash_leaks_no_slot() {
    for mut fleet in Fleet::on_each_store() {
        let server = Barrier::new(usize::MAX);
        let all = fleet.submit(&[job()], &vec![of_job(server.task()); 4 * QUOTA]);
        let first = start(&mut fleet, QUOTA, &server);
        fleet.wait_for_starts(QUOTA);
        fleet.cancel(&all);
        fleet.kill(first);
        start(&mut fleet, QUOTA, &server);
        fleet.submit(&[job()], &vec![of_job(server.task()); QUOTA]);
        fleet.wait_for_starts(2 * QUOTA);
        server.open();
        fleet.wait_for_outcomes(QUOTA, Outcome::Completed);
        fleet.end_all();
        assert_eq!(start_records(&fleet.records).count(), 2 * QUOTA, "what was cancelled stays so");
        fleet.assert_clean();
    }
}

/// One job has a hundred thousand tasks and came first, 99 have ten each, and few may run at once: whatever
/// the gate has looked at by then, the small ones are done before the large one has had more than its share.
#[test]
fn small_jobs_are_not_delayed_by_large_job() {
    const SMALL: usize = 99;
    const TASKS: usize = 10;
    const STARTS_MAX: usize = 1_100;
    for mut fleet in Fleet::on_each_store() {
        let of = |job: &str| NewTask { job: Some(job.to_owned()), ..NewTask::new("noop", "null") };
        fleet.submit(&[JobSpec::new("large")], &vec![of("large"); 100_000]);
        let names: Vec<String> = (0..SMALL).map(|number| format!("small-{number}")).collect();
        let jobs: Vec<JobSpec> = names.iter().map(JobSpec::new).collect();
        let tasks: Vec<NewTask> = names.iter().flat_map(|name| vec![of(name); TASKS]).collect();
        let mut left: BTreeSet<i64> =
            fleet.submit(&jobs, &tasks).iter().map(|task| task.0).collect();
        let small = left.clone();
        for _ in 0..2 {
            fleet.start(&["--concurrency", "5"]);
        }
        left.retain(|task| start_records(&fleet.records).all(|enter| enter.task != *task));
        while !left.is_empty() {
            left.remove(&fleet.wait_for_start().task);
        }
        fleet.end_all();
        let mut starts: Vec<_> = start_records(&fleet.records).collect();
        starts.sort_by_key(|enter| enter.t_ns);
        let last = starts.iter().rposition(|enter| small.contains(&enter.task));
        let before = last.expect("all have started");
        assert!(before < STARTS_MAX, "the last one starts after {before} others");
    }
}
