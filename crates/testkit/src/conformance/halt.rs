//! Workflows and jobs that stand still: by a step that failed for good, or by an operator's word.

use tidegate_core::inspect::{Reason, WorkflowView};
use tidegate_core::{
    CancelOutcome, ErrorKind, Halt, Kind, NewTask, OnFailure, Pausable, Pause, Registration, State,
    TaskId,
};

use super::fixture::{Fixture, LEASE_MS, fatal, ids, job, task};

fn step(workflow: &str) -> NewTask {
    NewTask { workflow: Some(workflow.into()), ..task("a") }
}

async fn steps(fx: &Fixture, number: usize) -> Vec<TaskId> {
    fx.submit_all(vec![step("w"); number]).await
}

async fn pause(fx: &Fixture, what: Pausable, paused: bool) -> bool {
    let changed = fx.store.pause(Pause { what, paused }).await.expect("pause");
    fx.settle().await;
    changed
}

async fn pause_w(fx: &Fixture, paused: bool) -> bool {
    pause(fx, Pausable::Workflow("w".into()), paused).await
}

async fn retry(fx: &Fixture, task: TaskId) {
    fx.store.retry(vec![task]).await.expect("retry");
    fx.settle().await;
}

async fn workflow(fx: &Fixture) -> Option<WorkflowView> {
    let workflows = fx.inspect.workflows().await.expect("workflows");
    workflows.into_iter().find(|workflow| &*workflow.name == "w")
}

async fn halt(fx: &Fixture) -> Option<Halt> {
    workflow(fx).await.expect("a workflow").halt
}

/// Fails the step that runs now.
async fn fail_one(fx: &Fixture) -> TaskId {
    let attempt = fx.claim_one().await;
    fx.exit(&attempt, fatal("no")).await;
    attempt.task
}

pub async fn a_step_that_fails_for_good_halts_its_workflow(fx: &Fixture) {
    let all = steps(fx, 3).await;
    let other = fx.submit(step("v")).await;
    assert_eq!(fail_one(fx).await, all[0]);
    assert_eq!(fx.work_off().await, [other], "other workflows go on");
    assert_eq!(halt(fx).await, Some(Halt::Step(all[0])));
    let Reason::InLine { limit, halt, place, .. } = fx.explain(all[1]).await.reason else {
        panic!("it waits");
    };
    assert_eq!((&*limit, halt, place), ("workflow:w", Some(Halt::Step(all[0])), 1));
    assert_eq!(fx.explain(all[1]).await.estimate_ms, None, "nobody knows when");
    let late = steps(fx, 1).await;
    assert_eq!(fx.claim(9).await, [], "what comes later waits too");
    assert_eq!(fx.states(&[all[1], all[2], late[0]]).await, [State::Blocked; 3]);
}

/// However it comes to fail: here it is quarantined.
pub async fn a_step_whose_workers_die_halts_its_workflow(fx: &Fixture) {
    let kind = Kind { max_deaths: 1, ..Kind::new("a") };
    let registration = Registration { kinds: vec![kind], ..Registration::default() };
    fx.store.register(registration).await.expect("register");
    let all = steps(fx, 2).await;
    assert_eq!(fx.claim_one().await.task, all[0]);
    fx.advance(LEASE_MS);
    assert_eq!(fx.reap().await.expired, 1);
    assert_eq!(fx.state(all[0]).await, State::Failed);
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(halt(fx).await, Some(Halt::Step(all[0])));
}

pub async fn a_workflow_goes_on_where_a_step_says_so(fx: &Fixture) {
    let bold = NewTask { on_failure: OnFailure::Continue, ..step("w") };
    let all = fx.submit_all(vec![bold, step("w")]).await;
    assert_eq!(fail_one(fx).await, all[0]);
    assert_eq!(halt(fx).await, None);
    assert_eq!(fail_one(fx).await, all[1]);
    assert_eq!(halt(fx).await, Some(Halt::Step(all[1])), "each step says it for itself");
}

/// Whoever cancels a step has said what becomes of it.
pub async fn a_cancelled_step_does_not_halt(fx: &Fixture) {
    let all = steps(fx, 3).await;
    fx.admit().await;
    assert_eq!(fx.cancel(all[0]).await, CancelOutcome::Cancelled);
    let attempt = fx.claim_one().await;
    assert_eq!(attempt.task, all[1]);
    assert_eq!(fx.cancel(all[1]).await, CancelOutcome::Requested);
    fx.exit(&attempt, tidegate_core::Outcome::Cancelled).await;
    assert_eq!(fx.work_off().await, [all[2]]);
    fx.check_at_rest().await;
}

pub async fn a_failed_step_that_comes_back_goes_first(fx: &Fixture) {
    let all = steps(fx, 3).await;
    fail_one(fx).await;
    assert_eq!(fx.claim(9).await, []);
    retry(fx, all[0]).await;
    let attempt = fx.claim_one().await;
    assert_eq!(attempt.task, all[0]);
    assert_eq!(halt(fx).await, None);
    assert_eq!(fx.claim(9).await, [], "the others still wait for it");
    fx.complete(&[attempt]).await;
    assert_eq!(fx.work_off().await, all[1..]);
    fx.check_at_rest().await;
}

pub async fn a_failed_step_that_comes_back_may_fail_again(fx: &Fixture) {
    let all = steps(fx, 2).await;
    for _ in 0..3 {
        assert_eq!(fail_one(fx).await, all[0]);
        assert_eq!(halt(fx).await, Some(Halt::Step(all[0])));
        assert_eq!(fx.claim(9).await, []);
        retry(fx, all[0]).await;
    }
    assert_eq!(fx.work_off().await, all);
}

pub async fn a_halted_workflow_goes_on_without_the_step(fx: &Fixture) {
    let all = steps(fx, 3).await;
    fail_one(fx).await;
    assert_eq!(fx.claim(9).await, []);
    assert!(!pause_w(fx, true).await, "it stands still already");
    assert_eq!(halt(fx).await, Some(Halt::Step(all[0])), "and the reason stays");
    assert!(pause_w(fx, false).await);
    assert!(!pause_w(fx, false).await);
    assert_eq!(fx.work_off().await, all[1..]);
    assert_eq!(fx.state(all[0]).await, State::Failed);
    // The step that failed has lost its turn: it comes behind whoever is there.
    let late = steps(fx, 1).await;
    fx.admit().await;
    retry(fx, all[0]).await;
    assert_eq!(fx.work_off().await, [late[0], all[0]]);
    fx.check_at_rest().await;
}

pub async fn a_paused_workflow_begins_no_step(fx: &Fixture) {
    let all = steps(fx, 3).await;
    let attempt = fx.claim_one().await;
    assert!(pause_w(fx, true).await);
    fx.complete(&[attempt]).await;
    assert_eq!(fx.claim(9).await, [], "what ran has ended, and nothing follows");
    assert_eq!(halt(fx).await, Some(Halt::Operator));
    assert!(pause_w(fx, false).await);
    assert_eq!(fx.work_off().await, all[1..]);
    fx.check_at_rest().await;
}

pub async fn an_unknown_workflow_can_be_paused(fx: &Fixture) {
    assert!(!pause_w(fx, false).await);
    assert_eq!(workflow(fx).await, None);
    assert!(pause_w(fx, true).await);
    let all = steps(fx, 2).await;
    assert_eq!(fx.claim(9).await, []);
    assert!(pause_w(fx, false).await);
    assert_eq!(fx.work_off().await, all);
}

/// A workflow stands still until somebody says otherwise, whatever is kept of its tasks.
pub async fn a_halt_outlives_its_tasks(fx: &Fixture) {
    let kind = Kind { remove_on_failed_days: Some(0), ..Kind::new("a") };
    let registration = Registration { kinds: vec![kind], ..Registration::default() };
    fx.store.register(registration).await.expect("register");
    let all = steps(fx, 1).await;
    fail_one(fx).await;
    fx.store.prune().await.expect("prune");
    let shown = workflow(fx).await.expect("it is to be seen");
    assert_eq!((shown.halt, shown.tasks.len()), (Some(Halt::Step(all[0])), 0));
    let late = steps(fx, 1).await;
    assert_eq!(fx.claim(9).await, []);
    assert!(pause_w(fx, false).await);
    assert_eq!(fx.work_off().await, late);
    fx.store.prune().await.expect("prune");
    assert_eq!(fx.find_limit("workflow:w").await, None, "nothing is left of it");
}

pub async fn a_paused_job_passes_nobody(fx: &Fixture) {
    fx.job(job("j", Some(2))).await;
    let of_job = || NewTask { job: Some("j".into()), ..task("a") };
    let all = fx.submit_all(vec![of_job(); 5]).await;
    let first = fx.claim(1).await;
    let paused = || Pausable::Job("j".into());
    assert!(pause(fx, paused(), true).await);
    assert!(!pause(fx, paused(), true).await);
    let shown = &fx.inspect.jobs().await.expect("jobs")[0];
    assert_eq!((shown.paused, shown.concurrency), (true, Some(2)), "its quota is as it was");
    assert_eq!(ids(&first), all[..1]);
    assert_eq!(fx.claim(9).await, [], "nor who was through the gate and had not begun");
    fx.complete(&first).await;
    assert_eq!(fx.claim(9).await, []);
    assert!(pause(fx, paused(), false).await);
    assert_eq!(fx.work_off().await, all[1..]);
    fx.check_at_rest().await;
}

pub async fn an_unknown_job_cannot_be_paused(fx: &Fixture) {
    for paused in [true, false] {
        let pause = Pause { what: Pausable::Job("nobody".into()), paused };
        let error = fx.store.pause(pause).await.expect_err("there is none");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}
