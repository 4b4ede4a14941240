//! What is removed, and when.

use tidegate_core::bounds::DAY_MS;
use tidegate_core::{Kind, NewTask, Outcome, Pruned, Registration, State};

use super::fixture::{Fixture, done, fatal, task, tasks};

async fn kind(fx: &Fixture, completed: Option<u32>, failed: Option<u32>) {
    let kind = Kind {
        remove_on_completed_days: completed,
        remove_on_failed_days: failed,
        ..Kind::new("a")
    };
    let registration = Registration { kinds: vec![kind], ..Registration::default() };
    fx.store.register(registration).await.expect("register");
}

async fn prune(fx: &Fixture) -> Pruned {
    fx.store.prune().await.expect("prune")
}

pub async fn finished_tasks_are_kept_by_default(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.work_off().await;
    fx.advance(4000 * DAY_MS);
    assert_eq!(prune(fx).await, Pruned::default());
    assert_eq!(fx.state(id).await, State::Completed);
}

pub async fn completed_and_failed_are_kept_for_their_days(fx: &Fixture) {
    kind(fx, Some(2), Some(5)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    fx.cancel(all[2]).await;
    let claimed = fx.claim(2).await;
    fx.exit(&claimed[0], done()).await;
    fx.exit(&claimed[1], fatal("no")).await;
    // To the end of the last day on which they are kept.
    let rest_of_day = DAY_MS - fx.now() % DAY_MS;
    fx.advance(2 * DAY_MS + rest_of_day - 1);
    assert_eq!(prune(fx).await.tasks, 0);
    fx.advance(1);
    assert_eq!(prune(fx).await.tasks, 1);
    assert_eq!(fx.inspect.task(all[0]).await.expect("task"), None);
    fx.advance(3 * DAY_MS - 1);
    assert_eq!(prune(fx).await.tasks, 0);
    assert_eq!(fx.states(&all[1..]).await, [State::Failed, State::Cancelled]);
    fx.advance(1);
    assert_eq!(prune(fx).await.tasks, 2, "cancelled ones are kept as failed ones are");
    assert!(fx.inspect.counts().await.expect("counts").is_empty());
}

pub async fn zero_days_removes_a_task_as_it_ends(fx: &Fixture) {
    kind(fx, Some(0), Some(0)).await;
    fx.set_limit("group:a", Some(5)).await;
    let all = fx.submit_all(tasks("a", 4)).await;
    let claimed = fx.claim(3).await;
    fx.exit(&claimed[0], done()).await;
    fx.exit(&claimed[1], fatal("no")).await;
    fx.exit(&claimed[2], Outcome::Cancelled).await;
    fx.cancel(all[3]).await;
    assert!(fx.inspect.counts().await.expect("counts").is_empty());
    assert_eq!(fx.inspect.task(all[0]).await.expect("task"), None);
    assert_eq!(fx.finish(all[0], claimed[0].token, done()).await.lost.len(), 1);
    fx.check_at_rest().await;
}

pub async fn unfinished_tasks_are_never_removed(fx: &Fixture) {
    kind(fx, Some(0), Some(0)).await;
    let late = NewTask { run_at: Some(fx.now() + 900 * DAY_MS), ..task("a") };
    let all = fx.submit_all(vec![task("a"), task("a"), late]).await;
    fx.claim_one().await;
    fx.advance(500 * DAY_MS);
    assert_eq!(prune(fx).await.tasks, 0);
    let wanted = [State::Processing, State::Pending, State::Scheduled];
    assert_eq!(fx.states(&all).await, wanted);
}

pub async fn unset_limits_go_when_nobody_uses_them(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    fx.set_limit("group:b", Some(1)).await;
    fx.submit(task("a")).await;
    let claimed = fx.claim(9).await;
    fx.set_limit("group:a", None).await;
    assert_eq!(prune(fx).await.limits, 0, "it is still held");
    fx.complete(&claimed).await;
    assert_eq!(prune(fx).await.limits, 1);
    assert!(fx.find_limit("group:a").await.is_none());
    assert!(fx.find_limit("group:b").await.is_some(), "what is set stays, also unused");
}

pub async fn a_limit_is_set_anew_after_it_was_removed(fx: &Fixture) {
    for _ in 0..2 {
        fx.set_limit("group:a", Some(1)).await;
        fx.submit_all(tasks("a", 2)).await;
        let claimed = fx.claim(9).await;
        assert_eq!(claimed.len(), 1);
        fx.complete(&claimed).await;
        fx.work_off().await;
        fx.set_limit("group:a", None).await;
        prune(fx).await;
        assert!(fx.find_limit("group:a").await.is_none());
    }
    fx.check_at_rest().await;
}

pub async fn a_workflow_leaves_nothing_behind(fx: &Fixture) {
    let step = || NewTask { workflow: Some("w".into()), ..task("a") };
    fx.submit_all(vec![step(), step()]).await;
    fx.claim(0).await;
    prune(fx).await;
    assert!(fx.find_limit("workflow:w").await.is_some(), "it is in use");
    fx.work_off().await;
    prune(fx).await;
    assert!(fx.find_limit("workflow:w").await.is_none());
    let next = fx.submit(step()).await;
    assert_eq!(fx.claim_one().await.task, next, "it can begin again");
}

pub async fn much_is_removed_in_steps(fx: &Fixture) {
    kind(fx, Some(1), None).await;
    fx.submit_all(tasks("a", 1100)).await;
    let claimed = fx.claim(2000).await;
    let exits = claimed.into_iter().map(|one| tidegate_core::Exit {
        task: one.task,
        token: one.token,
        outcome: done(),
    });
    let finish = tidegate_core::Finish { exits: exits.collect(), claim: None };
    fx.store.finish(finish).await.expect("finish");
    fx.advance(2 * DAY_MS);
    let mut removed = 0;
    for _ in 0..10 {
        let pruned = prune(fx).await;
        removed += pruned.tasks;
        if !pruned.more {
            break;
        }
    }
    assert_eq!(removed, 1100);
}
