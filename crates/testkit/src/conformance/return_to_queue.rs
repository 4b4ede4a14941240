//! Tasks that are through the gate and have not begun when a limit is lowered or paused, or a job gets a
//! delay: they go back to the line, and what runs is not touched.

use tidegate_core::bounds::ADMISSION_BATCH_MAX;
use tidegate_core::{
    CapacitySource, JobSpec, NewTask, PauseTarget, SetJob, SetPaused, TaskId, TaskState,
};

use super::fixture::{Fixture, fatal_failure, job, task, task_ids, tasks};

fn task_of_job() -> NewTask {
    NewTask { job: Some("j".into()), ..task("a") }
}

async fn set_job(fx: &Fixture, concurrency: Option<u32>) {
    let set = SetJob { job: "j".into(), concurrency: Some(concurrency), ..SetJob::default() };
    fx.store.set_job(set).await.expect("set_job");
    fx.settle().await;
}

async fn pause_job(fx: &Fixture, paused: bool) {
    let target = PauseTarget::Job("j".into());
    assert!(fx.store.set_paused(SetPaused { target, paused }).await.expect("pause"));
    fx.settle().await;
}

async fn set_delay(fx: &Fixture, delay_ms: i64) {
    let set = SetJob { job: "j".into(), delay_ms: Some(delay_ms), ..SetJob::default() };
    fx.store.set_job(set).await.expect("set_job");
    fx.settle().await;
    fx.check_invariants().await;
}

/// Claims all there is every 10 ms, completes it, and gives each start with how long it had waited.
async fn starts_over_time(fx: &Fixture, ms: i64) -> Vec<(TaskId, i64)> {
    let (mut starts, begin) = (Vec::new(), fx.now());
    while fx.now() < begin + ms {
        let claimed = fx.claim(9).await;
        starts.extend(task_ids(&claimed).into_iter().map(|task| (task, fx.now() - begin)));
        fx.complete(&claimed).await;
        fx.check_invariants().await;
        fx.advance(10);
    }
    starts
}

/// How many of these are through the gate and wait for a worker.
async fn ready_tasks(fx: &Fixture, tasks: &[TaskId]) -> usize {
    fx.states(tasks).await.iter().filter(|state| **state == TaskState::Pending).count()
}

pub async fn lowered_job_limit_starts_no_admitted_task_above_it(fx: &Fixture) {
    fx.job(job("j", Some(12))).await;
    let all = fx.submit_all(vec![task_of_job(); 20]).await;
    let running = fx.claim(4).await;
    assert_eq!(ready_tasks(fx, &all).await, 8, "they hold slots and have not begun");
    set_job(fx, Some(1)).await;
    assert_eq!(fx.limit("job:j").await.held, 4, "what runs is not touched");
    fx.check_invariants().await;
    for attempt in &running {
        assert_eq!(fx.claim(9).await, [], "more run than may");
        fx.complete(std::slice::from_ref(attempt)).await;
    }
    let next = fx.claim(9).await;
    assert_eq!(task_ids(&next), all[4..5]);
    set_job(fx, Some(12)).await;
    let more = fx.claim(99).await;
    assert_eq!(task_ids(&more), all[5..16], "in the order they had");
    fx.complete(&next).await;
    fx.complete(&more).await;
    assert_eq!(fx.run_all().await, all[16..]);
    fx.check_at_rest().await;
}

pub async fn lowered_group_limit_starts_no_admitted_task_above_it(fx: &Fixture) {
    fx.set_limit("group:a", Some(12)).await;
    let all = fx.submit_all(tasks("a", 20)).await;
    let running = fx.claim(4).await;
    assert_eq!(ready_tasks(fx, &all).await, 8);
    fx.set_limit("group:a", Some(1)).await;
    fx.settle().await;
    fx.check_invariants().await;
    for attempt in &running {
        assert_eq!(fx.claim(9).await, [], "more run than may");
        fx.complete(std::slice::from_ref(attempt)).await;
    }
    assert_eq!(fx.run_all().await, all[4..]);
    fx.check_at_rest().await;
}

pub async fn lowered_limit_keeps_admitted_tasks_that_fit(fx: &Fixture) {
    fx.set_limit("group:a", Some(12)).await;
    let all = fx.submit_all(tasks("a", 20)).await;
    let running = fx.claim(4).await;
    fx.set_limit("group:a", Some(6)).await;
    fx.settle().await;
    assert_eq!(ready_tasks(fx, &all).await, 2);
    assert_eq!(fx.limit("group:a").await.held, 6);
    let more = fx.claim(9).await;
    assert_eq!(task_ids(&more), all[4..6]);
    fx.complete(&running).await;
    fx.complete(&more).await;
    assert_eq!(fx.run_all().await, all[6..]);
    fx.check_at_rest().await;
}

pub async fn limit_lowered_by_registration_returns_admitted_tasks(fx: &Fixture) {
    fx.set_limit_as("group:a", Some(5), CapacitySource::Registration).await;
    let all = fx.submit_all(tasks("a", 5)).await;
    let first = fx.claim(1).await;
    fx.set_limit_as("group:a", Some(1), CapacitySource::Registration).await;
    fx.settle().await;
    assert_eq!(fx.claim(9).await, []);
    fx.complete(&first).await;
    assert_eq!(fx.run_all().await, all[1..]);
    fx.check_at_rest().await;
}

pub async fn paused_job_starts_no_admitted_task(fx: &Fixture) {
    fx.job(job("j", None)).await;
    let all = fx.submit_all(vec![task_of_job(); 24]).await;
    let running = fx.claim(3).await;
    assert_eq!(ready_tasks(fx, &all).await, 16, "as many as may be past its line");
    pause_job(fx, true).await;
    assert_eq!(fx.states(&all[3..]).await, [TaskState::Blocked; 21]);
    assert_eq!(fx.claim(9).await, []);
    fx.check_invariants().await;
    fx.complete(&running).await;
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(fx.limit("job:j").await.held, 0);
    // Who comes meanwhile waits behind them, however urgent others of its job are.
    let late = fx.submit(task_of_job()).await;
    assert_eq!(fx.claim(9).await, []);
    pause_job(fx, false).await;
    let order = fx.run_all().await;
    assert_eq!(order[..21], all[3..], "they go first, in the order they had");
    assert_eq!(order[21..], [late]);
    fx.check_at_rest().await;
}

pub async fn group_limit_of_zero_starts_no_admitted_task(fx: &Fixture) {
    fx.set_limit("group:a", Some(8)).await;
    let all = fx.submit_all(tasks("a", 12)).await;
    let running = fx.claim(2).await;
    fx.set_limit("group:a", Some(0)).await;
    fx.settle().await;
    assert_eq!(fx.claim(9).await, []);
    fx.complete(&running).await;
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(fx.limit("group:a").await.held, 0);
    fx.check_invariants().await;
    fx.set_limit("group:a", Some(20)).await;
    fx.settle().await;
    let more = fx.claim(99).await;
    assert_eq!(task_ids(&more), all[2..]);
    fx.complete(&more).await;
    fx.check_at_rest().await;
}

/// What goes back gives the slots of its other limits to those who can use them.
pub async fn returned_task_frees_slots_of_its_other_limits(fx: &Fixture) {
    fx.set_limit("group:a", Some(4)).await;
    fx.job(job("j", None)).await;
    let of_j = fx.submit_all(vec![task_of_job(); 6]).await;
    fx.admit().await;
    let running = fx.claim(1).await;
    assert_eq!(task_ids(&running), of_j[..1]);
    let plain = fx.submit_all(tasks("a", 5)).await;
    assert_eq!(fx.claim(0).await, []);
    pause_job(fx, true).await;
    let others = fx.claim(9).await;
    assert_eq!(task_ids(&others), plain[..3], "three slots were given back");
    fx.check_invariants().await;
    pause_job(fx, false).await;
    fx.complete(&running).await;
    fx.complete(&others).await;
    let mut rest = fx.run_all().await;
    rest.sort_unstable();
    assert_eq!(rest, [&of_j[1..], &plain[3..]].concat());
    fx.check_at_rest().await;
}

/// A heavy one that goes back is set aside where it no longer fits at all.
pub async fn returned_task_above_new_capacity_is_parked_as_too_heavy(fx: &Fixture) {
    fx.set_limit("group:a", Some(6)).await;
    let heavy = fx.submit(NewTask { weight: 4, ..task("a") }).await;
    let light = fx.submit_all(tasks("a", 2)).await;
    fx.admit().await;
    assert_eq!(fx.claim(0).await, []);
    assert_eq!(fx.limit("group:a").await.held, 6);
    fx.set_limit("group:a", Some(2)).await;
    fx.settle().await;
    fx.check_invariants().await;
    let running = fx.claim(9).await;
    assert_eq!(task_ids(&running), light);
    assert_eq!(fx.state(heavy).await, TaskState::Blocked);
    fx.set_limit("group:a", Some(6)).await;
    fx.settle().await;
    let last = fx.claim(9).await;
    assert_eq!(task_ids(&last), [heavy]);
    fx.complete(&[running, last].concat()).await;
    fx.check_at_rest().await;
}

/// A step keeps its turn in its workflow.
pub async fn returned_step_keeps_its_position_in_workflow(fx: &Fixture) {
    fx.job(job("j", None)).await;
    let step = NewTask { workflow: Some("w".into()), ..task_of_job() };
    let all = fx.submit_all(vec![step; 3]).await;
    assert_eq!(fx.claim(0).await, []);
    assert_eq!(ready_tasks(fx, &all[..1]).await, 1);
    pause_job(fx, true).await;
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(fx.state(all[0]).await, TaskState::Blocked);
    fx.check_invariants().await;
    pause_job(fx, false).await;
    assert_eq!(fx.run_all().await, all);
    fx.check_at_rest().await;
}

/// Whoever began before the pause comes back to a job that stands still.
pub async fn retry_of_paused_job_waits_until_resume(fx: &Fixture) {
    fx.job(job("j", Some(2))).await;
    let all = fx.submit_all(vec![task_of_job(); 3]).await;
    let running = fx.claim(1).await;
    pause_job(fx, true).await;
    fx.finish_attempt(&running[0], super::fixture::retry_in(0)).await;
    assert_eq!(fx.claim(9).await, []);
    fx.check_invariants().await;
    pause_job(fx, false).await;
    let both = fx.claim(9).await;
    assert_eq!(both.len(), 2);
    fx.finish_attempt(&both[0], fatal_failure("no")).await;
    fx.complete(&both[1..]).await;
    assert_eq!(fx.run_all().await.len(), 1);
    assert!(fx.states(&all).await.iter().all(|state| state.is_final()));
    fx.check_at_rest().await;
}

/// However many there are, none of them begins, and none is lost.
pub async fn return_of_many_admitted_tasks_runs_in_steps(fx: &Fixture) {
    let number = 2 * ADMISSION_BATCH_MAX + 100;
    fx.set_limit("group:a", Some(number)).await;
    let all = fx.submit_all(tasks("a", number as usize)).await;
    let first = fx.claim(1).await;
    fx.admit().await;
    assert_eq!(fx.limit("group:a").await.held, number);
    fx.set_limit("group:a", Some(1)).await;
    assert_eq!(fx.claim(9).await, [], "one runs, and no more may");
    fx.admit().await;
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(fx.limit("group:a").await.held, 1);
    fx.check_invariants().await;
    fx.complete(&first).await;
    let next = fx.claim(9).await;
    assert_eq!(next.len(), 1);
    fx.set_limit("group:a", Some(number)).await;
    fx.admit().await;
    let mut rest = next.len();
    fx.complete(&next).await;
    loop {
        let claimed = fx.claim(1000).await;
        if claimed.is_empty() {
            break;
        }
        rest += claimed.len();
        let exits = fx.finish_and_claim(&claimed, 0).await;
        assert_eq!(exits, []);
    }
    assert_eq!(rest, all.len() - 1);
    fx.check_at_rest().await;
}

/// Those that are next have not begun: the delay counts for them as for all others, from the last start.
pub async fn new_job_delay_applies_to_admitted_tasks(fx: &Fixture) {
    fx.job(job("j", None)).await;
    let all = fx.submit_all(vec![task_of_job(); 24]).await;
    let running = fx.claim(3).await;
    assert_eq!(ready_tasks(fx, &all).await, 16, "as many as may be past its line");
    fx.advance(40);
    set_delay(fx, 100).await;
    assert_eq!(ready_tasks(fx, &all).await, 0, "the last start was just now");
    let expected = [(all[3], 60), (all[4], 160), (all[5], 260), (all[6], 360)];
    assert_eq!(starts_over_time(fx, 400).await, expected, "in the order they had");
    assert_eq!(fx.states(&all[..3]).await, [TaskState::Processing; 3], "what runs is not touched");
    set_delay(fx, 0).await;
    fx.complete(&running).await;
    assert_eq!(fx.run_all().await, all[7..]);
    fx.check_at_rest().await;
}

/// One may begin at once where the last start was long ago, or never.
pub async fn new_job_delay_keeps_first_admitted_task_ready(fx: &Fixture) {
    fx.job(job("j", None)).await;
    let all = fx.submit_all(vec![task_of_job(); 20]).await;
    assert_eq!(fx.claim(0).await, []);
    assert_eq!(ready_tasks(fx, &all).await, 16);
    set_delay(fx, 100).await;
    assert_eq!(ready_tasks(fx, &all).await, 1);
    assert_eq!(starts_over_time(fx, 200).await, [(all[0], 0), (all[1], 100)]);
    set_delay(fx, 0).await;
    assert_eq!(fx.run_all().await, all[2..]);
    fx.check_at_rest().await;
}

/// The one that is next goes back as well, where the longer time since the last start is not over.
pub async fn longer_job_delay_returns_admitted_task(fx: &Fixture) {
    fx.job(JobSpec { delay_ms: 50, ..job("j", None) }).await;
    let all = fx.submit_all(vec![task_of_job(); 4]).await;
    let first = fx.claim(9).await;
    fx.advance(60);
    assert_eq!(fx.claim(0).await, []);
    assert_eq!(ready_tasks(fx, &all).await, 1, "its time has come");
    set_delay(fx, 100).await;
    assert_eq!(ready_tasks(fx, &all).await, 0);
    assert_eq!(starts_over_time(fx, 150).await, [(all[1], 40), (all[2], 140)]);
    fx.advance(200);
    assert_eq!(fx.claim(0).await, []);
    set_delay(fx, 120).await;
    assert_eq!(ready_tasks(fx, &all).await, 1, "the longer time is over too");
    fx.complete(&first).await;
    assert_eq!(fx.run_all().await, all[3..]);
    fx.check_at_rest().await;
}

/// Who is past its job's line and waits for another limit goes back when its turn comes there.
pub async fn new_job_delay_applies_to_tasks_parked_at_group(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    fx.job(job("j", None)).await;
    let all = fx.submit_all(vec![task_of_job(); 12]).await;
    let running = fx.claim(1).await;
    assert_eq!(ready_tasks(fx, &all).await, 1, "the others wait for the group");
    fx.advance(40);
    set_delay(fx, 100).await;
    fx.complete(&running).await;
    let begun = starts_over_time(fx, 400).await;
    let at: Vec<i64> = begun.iter().map(|(_, at)| *at).collect();
    assert_eq!(at, [60, 160, 260, 360], "{begun:?}");
    set_delay(fx, 0).await;
    assert_eq!(fx.run_all().await.len(), 7);
    fx.check_at_rest().await;
}

/// A reserve does not help against a delay.
pub async fn new_job_delay_applies_to_reserved_slots(fx: &Fixture) {
    fx.job(JobSpec { min_concurrency: 3, ..job("j", Some(9)) }).await;
    let all = fx.submit_all(vec![task_of_job(); 8]).await;
    assert_eq!(fx.claim(0).await, []);
    assert_eq!(ready_tasks(fx, &all).await, 8);
    set_delay(fx, 100).await;
    assert_eq!(ready_tasks(fx, &all).await, 1);
    let begun = starts_over_time(fx, 300).await;
    let at: Vec<i64> = begun.iter().map(|(_, at)| *at).collect();
    assert_eq!(at, [0, 100, 200], "{begun:?}");
    set_delay(fx, 0).await;
    assert_eq!(fx.run_all().await.len(), 5);
    fx.check_at_rest().await;
}
