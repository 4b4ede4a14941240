//! Workflows and jobs that stand still: by a step that failed for good, or by an operator's word.

use tidegate_core::reader::{NotRunningReason, WorkflowView};
use tidegate_core::{
    CancelOutcome, ErrorKind, Kind, NewTask, OnFailure, PauseCause, PauseTarget, Registration,
    SetPaused, TaskId, TaskState,
};

use super::fixture::{Fixture, LEASE_MS, fatal_failure, job, task, task_ids};

fn step(workflow: &str) -> NewTask {
    NewTask { workflow: Some(workflow.into()), ..task("a") }
}

async fn steps(fx: &Fixture, number: usize) -> Vec<TaskId> {
    fx.submit_all(vec![step("w"); number]).await
}

async fn pause(fx: &Fixture, what: PauseTarget, paused: bool) -> bool {
    let changed = fx.store.set_paused(SetPaused { target: what, paused }).await.expect("pause");
    fx.settle().await;
    changed
}

async fn pause_w(fx: &Fixture, paused: bool) -> bool {
    pause(fx, PauseTarget::Workflow("w".into()), paused).await
}

async fn retry(fx: &Fixture, task: TaskId) {
    fx.store.retry(vec![task]).await.expect("retry");
    fx.settle().await;
}

async fn workflow(fx: &Fixture) -> Option<WorkflowView> {
    let workflows = fx.reader.workflows().await.expect("workflows");
    workflows.into_iter().find(|workflow| &*workflow.name == "w")
}

async fn pause_cause(fx: &Fixture) -> Option<PauseCause> {
    workflow(fx).await.expect("a workflow").paused_by
}

/// Fails the step that runs now.
async fn fail_one(fx: &Fixture) -> TaskId {
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, fatal_failure("no")).await;
    attempt.task
}

pub async fn failed_step_pauses_its_workflow(fx: &Fixture) {
    let all = steps(fx, 3).await;
    let other = fx.submit(step("v")).await;
    assert_eq!(fail_one(fx).await, all[0]);
    assert_eq!(fx.run_all().await, [other], "other workflows go on");
    assert_eq!(pause_cause(fx).await, Some(PauseCause::FailedStep(all[0])));
    let NotRunningReason::InWaitQueue { limit, paused_by: halt, queue_position: place, .. } =
        fx.explain(all[1]).await.reason
    else {
        panic!("it waits");
    };
    assert_eq!((&*limit, halt, place), ("workflow:w", Some(PauseCause::FailedStep(all[0])), 1));
    assert_eq!(fx.explain(all[1]).await.estimated_wait_ms, None, "nobody knows when");
    let late = steps(fx, 1).await;
    assert_eq!(fx.claim(9).await, [], "what comes later waits too");
    assert_eq!(fx.states(&[all[1], all[2], late[0]]).await, [TaskState::Blocked; 3]);
}

/// However it comes to fail: here it is quarantined.
pub async fn step_failed_by_crashes_pauses_its_workflow(fx: &Fixture) {
    let kind = Kind { max_crashes: 1, ..Kind::new("a") };
    let registration = Registration { kinds: vec![kind], ..Registration::default() };
    fx.store.register(registration).await.expect("register");
    let all = steps(fx, 2).await;
    assert_eq!(fx.claim_one().await.task, all[0]);
    fx.advance(LEASE_MS);
    assert_eq!(fx.reap().await.expired_attempts, 1);
    assert_eq!(fx.state(all[0]).await, TaskState::Failed);
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(pause_cause(fx).await, Some(PauseCause::FailedStep(all[0])));
}

pub async fn failed_step_with_on_failure_continue_does_not_pause_workflow(fx: &Fixture) {
    let bold = NewTask { on_failure: OnFailure::Continue, ..step("w") };
    let all = fx.submit_all(vec![bold, step("w")]).await;
    assert_eq!(fail_one(fx).await, all[0]);
    assert_eq!(pause_cause(fx).await, None);
    assert_eq!(fail_one(fx).await, all[1]);
    assert_eq!(
        pause_cause(fx).await,
        Some(PauseCause::FailedStep(all[1])),
        "each step says it for itself"
    );
}

/// Whoever cancels a step has said what becomes of it.
pub async fn cancelled_step_does_not_pause_workflow(fx: &Fixture) {
    let all = steps(fx, 3).await;
    fx.admit().await;
    assert_eq!(fx.cancel(all[0]).await, CancelOutcome::Cancelled);
    let attempt = fx.claim_one().await;
    assert_eq!(attempt.task, all[1]);
    assert_eq!(fx.cancel(all[1]).await, CancelOutcome::Requested);
    fx.finish_attempt(&attempt, tidegate_core::Outcome::Cancelled).await;
    assert_eq!(fx.run_all().await, [all[2]]);
    fx.check_at_rest().await;
}

pub async fn retried_step_resumes_workflow_and_runs_first(fx: &Fixture) {
    let all = steps(fx, 3).await;
    fail_one(fx).await;
    assert_eq!(fx.claim(9).await, []);
    retry(fx, all[0]).await;
    let attempt = fx.claim_one().await;
    assert_eq!(attempt.task, all[0]);
    assert_eq!(pause_cause(fx).await, None);
    assert_eq!(fx.claim(9).await, [], "the others still wait for it");
    fx.complete(&[attempt]).await;
    assert_eq!(fx.run_all().await, all[1..]);
    fx.check_at_rest().await;
}

pub async fn retried_step_that_fails_again_pauses_workflow_again(fx: &Fixture) {
    let all = steps(fx, 2).await;
    for _ in 0..3 {
        assert_eq!(fail_one(fx).await, all[0]);
        assert_eq!(pause_cause(fx).await, Some(PauseCause::FailedStep(all[0])));
        assert_eq!(fx.claim(9).await, []);
        retry(fx, all[0]).await;
    }
    assert_eq!(fx.run_all().await, all);
}

pub async fn resumed_workflow_continues_without_failed_step(fx: &Fixture) {
    let all = steps(fx, 3).await;
    fail_one(fx).await;
    assert_eq!(fx.claim(9).await, []);
    assert!(!pause_w(fx, true).await, "it stands still already");
    assert_eq!(pause_cause(fx).await, Some(PauseCause::FailedStep(all[0])), "and the reason stays");
    assert!(pause_w(fx, false).await);
    assert!(!pause_w(fx, false).await);
    assert_eq!(fx.run_all().await, all[1..]);
    assert_eq!(fx.state(all[0]).await, TaskState::Failed);
    // The step that failed has lost its turn: it comes behind whoever is there.
    let late = steps(fx, 1).await;
    fx.admit().await;
    retry(fx, all[0]).await;
    assert_eq!(fx.run_all().await, [late[0], all[0]]);
    fx.check_at_rest().await;
}

pub async fn paused_workflow_starts_no_step(fx: &Fixture) {
    let all = steps(fx, 3).await;
    let attempt = fx.claim_one().await;
    assert!(pause_w(fx, true).await);
    fx.complete(&[attempt]).await;
    assert_eq!(fx.claim(9).await, [], "what ran has ended, and nothing follows");
    assert_eq!(pause_cause(fx).await, Some(PauseCause::Operator));
    assert!(pause_w(fx, false).await);
    assert_eq!(fx.run_all().await, all[1..]);
    fx.check_at_rest().await;
}

pub async fn unknown_workflow_can_be_paused(fx: &Fixture) {
    assert!(!pause_w(fx, false).await);
    assert_eq!(workflow(fx).await, None);
    assert!(pause_w(fx, true).await);
    let all = steps(fx, 2).await;
    assert_eq!(fx.claim(9).await, []);
    assert!(pause_w(fx, false).await);
    assert_eq!(fx.run_all().await, all);
}

/// A workflow stands still until somebody says otherwise, whatever is kept of its tasks.
pub async fn workflow_pause_remains_after_its_tasks_are_removed(fx: &Fixture) {
    let kind = Kind { remove_on_failed_days: Some(0), ..Kind::new("a") };
    let registration = Registration { kinds: vec![kind], ..Registration::default() };
    fx.store.register(registration).await.expect("register");
    let all = steps(fx, 1).await;
    fail_one(fx).await;
    fx.store.prune().await.expect("prune");
    let shown = workflow(fx).await.expect("it is to be seen");
    assert_eq!((shown.paused_by, shown.tasks.len()), (Some(PauseCause::FailedStep(all[0])), 0));
    let late = steps(fx, 1).await;
    assert_eq!(fx.claim(9).await, []);
    assert!(pause_w(fx, false).await);
    assert_eq!(fx.run_all().await, late);
    fx.store.prune().await.expect("prune");
    assert_eq!(fx.find_limit("workflow:w").await, None, "nothing is left of it");
}

pub async fn paused_job_admits_no_task(fx: &Fixture) {
    fx.job(job("j", Some(2))).await;
    let of_job = || NewTask { job: Some("j".into()), ..task("a") };
    let all = fx.submit_all(vec![of_job(); 5]).await;
    let first = fx.claim(1).await;
    let paused = || PauseTarget::Job("j".into());
    assert!(pause(fx, paused(), true).await);
    assert!(!pause(fx, paused(), true).await);
    let shown = &fx.reader.jobs().await.expect("jobs")[0];
    assert_eq!((shown.paused, shown.concurrency), (true, Some(2)), "its quota is as it was");
    assert_eq!(task_ids(&first), all[..1]);
    assert_eq!(fx.claim(9).await, [], "nor who was through the gate and had not begun");
    fx.complete(&first).await;
    assert_eq!(fx.claim(9).await, []);
    assert!(pause(fx, paused(), false).await);
    assert_eq!(fx.run_all().await, all[1..]);
    fx.check_at_rest().await;
}

pub async fn pause_of_unknown_job_returns_not_found(fx: &Fixture) {
    for paused in [true, false] {
        let pause = SetPaused { target: PauseTarget::Job("nobody".into()), paused };
        let error = fx.store.set_paused(pause).await.expect_err("there is none");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}
