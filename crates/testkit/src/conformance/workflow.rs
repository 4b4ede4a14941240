//! Workflows: one step after another, in the order of submission, whatever happens to a step.

use tidegate_core::{Attempt, NewTask, Outcome, TaskState};

use super::fixture::{Fixture, claim_request, job, retry_in, task, task_ids};

fn step(workflow: &str) -> NewTask {
    NewTask { workflow: Some(workflow.into()), ..task("a") }
}

fn steps(workflow: &str, number: usize) -> Vec<NewTask> {
    vec![step(workflow); number]
}

async fn claim_only(fx: &Fixture) -> Attempt {
    let mut claimed = fx.claim(9).await;
    assert_eq!(claimed.len(), 1, "one step at a time");
    claimed.remove(0)
}

pub async fn workflow_steps_run_one_at_a_time_in_order(fx: &Fixture) {
    let all = fx.submit_all(steps("w", 5)).await;
    for id in &all {
        let attempt = claim_only(fx).await;
        assert_eq!(attempt.task, *id);
        assert_eq!(fx.holders("workflow:w").await[0].task, *id);
        fx.complete(&[attempt]).await;
    }
    fx.check_at_rest().await;
}

pub async fn workflows_run_independently_of_each_other(fx: &Fixture) {
    let all = fx.submit_all([steps("v", 2), steps("w", 2)].concat()).await;
    assert_eq!(task_ids(&fx.claim(9).await), [all[0], all[2]]);
}

/// Across workers too: exclusion is in the claim, not in a worker.
pub async fn workflow_runs_on_one_worker_at_a_time(fx: &Fixture) {
    fx.submit_all(steps("w", 2)).await;
    assert_eq!(fx.claim_as(claim_request("one", &["a"], 1)).await.len(), 1);
    assert_eq!(fx.claim_as(claim_request("two", &["a"], 1)).await, []);
}

pub async fn next_step_waits_for_retries_of_previous_step(fx: &Fixture) {
    let all = fx.submit_all(steps("w", 2)).await;
    for number in 1..=3 {
        let attempt = claim_only(fx).await;
        assert_eq!((attempt.task, attempt.number), (all[0], number));
        fx.finish_attempt(&attempt, retry_in(100)).await;
        assert_eq!(fx.claim(9).await, [], "the workflow is held while the step waits");
        assert_eq!(fx.limit("workflow:w").await.held, 1);
        fx.advance(100);
    }
    let attempt = claim_only(fx).await;
    fx.complete(&[attempt]).await;
    assert_eq!(claim_only(fx).await.task, all[1]);
}

/// A step takes its turn as it arrives and waits for its time in it.
pub async fn scheduled_step_is_not_overtaken(fx: &Fixture) {
    let later = NewTask { run_at: Some(fx.now() + 100), ..step("w") };
    let sooner = NewTask { run_at: Some(fx.now() + 50), ..step("w") };
    let all = fx.submit_all(vec![later, sooner, step("w")]).await;
    assert_eq!(fx.claim(9).await, [], "it is not yet its time");
    assert_eq!(fx.holders("workflow:w").await[0].task, all[0]);
    fx.advance(99);
    assert_eq!(fx.claim(9).await, []);
    fx.advance(1);
    for id in all {
        let attempt = claim_only(fx).await;
        assert_eq!(attempt.task, id);
        fx.complete(&[attempt]).await;
    }
    fx.check_at_rest().await;
}

pub async fn next_step_waits_for_snoozed_or_released_step(fx: &Fixture) {
    let all = fx.submit_all(steps("w", 2)).await;
    let attempt = claim_only(fx).await;
    fx.finish_attempt(&attempt, Outcome::Snoozed { delay_ms: 100 }).await;
    assert_eq!(fx.claim(9).await, []);
    fx.advance(100);
    let attempt = claim_only(fx).await;
    fx.finish_attempt(&attempt, Outcome::Released).await;
    let attempt = claim_only(fx).await;
    assert_eq!(attempt.task, all[0]);
    fx.complete(&[attempt]).await;
    assert_eq!(claim_only(fx).await.task, all[1]);
}

/// Priority orders workflows among each other, never the steps of one.
pub async fn priority_does_not_reorder_steps_of_a_workflow(fx: &Fixture) {
    let with = |priority| NewTask { priority, ..step("w") };
    let all = fx.submit_all(vec![with(-5), with(0), with(9)]).await;
    assert_eq!(fx.run_all().await, all);
}

pub async fn later_submitted_steps_run_after_earlier_ones(fx: &Fixture) {
    let mut all = fx.submit_all(steps("w", 2)).await;
    let first = claim_only(fx).await;
    all.extend(fx.submit_all(steps("w", 2)).await);
    fx.complete(&[first]).await;
    assert_eq!(fx.run_all().await, all[1..]);
}

/// The lifetime slot is taken first: a step that waits for its group keeps its workflow.
pub async fn step_blocked_by_its_group_keeps_its_workflow(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let blocker = fx.submit(task("a")).await;
    let running = claim_only(fx).await;
    assert_eq!(running.task, blocker);
    let slow = fx.submit(step("w")).await;
    let free = fx.submit(NewTask { workflow: Some("w".into()), ..task("b") }).await;
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(fx.holders("workflow:w").await[0].task, slow);
    assert_eq!(fx.states(&[slow, free]).await, [TaskState::Blocked; 2]);
    fx.complete(&[running]).await;
    let attempt = claim_only(fx).await;
    assert_eq!(attempt.task, slow);
    fx.complete(&[attempt]).await;
    assert_eq!(claim_only(fx).await.task, free);
}

/// Steps over kinds, groups and a job: the order holds under all of them together.
pub async fn workflow_order_holds_under_group_and_job_limits(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    fx.set_limit("group:b", Some(1)).await;
    fx.job(job("j", Some(1))).await;
    let mut new = Vec::new();
    for i in 0..12 {
        let workflow = Some(["v", "w"][i % 2].to_owned());
        let job = (i % 3 == 0).then(|| "j".to_owned());
        new.push(NewTask { workflow, job, ..task(["a", "b", "c"][i / 2 % 3]) });
    }
    let all = fx.submit_all(new).await;
    let order = fx.run_all().await;
    for first in [0, 1] {
        let wanted: Vec<_> = all.iter().skip(first).step_by(2).copied().collect();
        let found: Vec<_> = order.iter().filter(|id| wanted.contains(id)).copied().collect();
        assert_eq!(found, wanted);
    }
    fx.check_at_rest().await;
}
