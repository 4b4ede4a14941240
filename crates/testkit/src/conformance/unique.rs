//! Unique keys among unfinished tasks.

use tidegate_core::{NewTask, Outcome, SubmittedTask, TaskState};

use super::fixture::{Fixture, LEASE_MS, completed_outcome, fatal_failure, retry_in, task};

fn keyed(key: &str) -> NewTask {
    NewTask { unique_key: Some(key.into()), ..task("a") }
}

async fn submit_one(fx: &Fixture, new: NewTask) -> SubmittedTask {
    fx.try_submit(vec![new]).await.expect("submit")[0]
}

pub async fn unique_key_returns_unfinished_task(fx: &Fixture) {
    let first = submit_one(fx, keyed("k")).await;
    assert!(first.is_new);
    let second = submit_one(fx, NewTask { kind: "b".into(), ..keyed("k") }).await;
    assert_eq!(second, SubmittedTask { task: first.task, is_new: false }, "whatever its kind");
    assert!(submit_one(fx, keyed("other")).await.is_new);
    assert_eq!(fx.reader.task_counts().await.expect("counts")[&TaskState::Pending], 2);
}

/// After a cut-off submit the same one is sent again, and nothing is doubled.
pub async fn unique_keys_of_repeated_submit_store_no_duplicates(fx: &Fixture) {
    let tasks = vec![keyed("x"), keyed("y"), keyed("z")];
    let first = fx.try_submit(tasks.clone()).await.expect("submit");
    let again = fx.try_submit(tasks).await.expect("submit again");
    let ids = |stored: &[SubmittedTask]| stored.iter().map(|one| one.task).collect::<Vec<_>>();
    assert_eq!(ids(&first), ids(&again));
    assert!(again.iter().all(|one| !one.is_new));
}

pub async fn unique_key_applies_within_one_submit(fx: &Fixture) {
    let stored = fx.try_submit(vec![keyed("k"), keyed("k"), keyed("l")]).await.expect("submit");
    assert_eq!(stored[0].task, stored[1].task);
    let new: Vec<_> = stored.iter().map(|one| one.is_new).collect();
    assert_eq!(new, [true, false, true]);
}

/// In every unfinished state the key is taken.
pub async fn unique_key_is_held_until_task_finishes(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = submit_one(fx, NewTask { run_at: Some(fx.now() + 10), ..keyed("k") }).await.task;
    let again =
        async || assert!(!submit_one(fx, keyed("k")).await.is_new, "{:?}", fx.state(id).await);
    again().await;
    fx.advance(10);
    let attempt = fx.claim_one().await;
    again().await;
    fx.finish_attempt(&attempt, retry_in(10)).await;
    again().await;
    fx.advance(10);
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, Outcome::Snoozed { delay_ms: 10 }).await;
    again().await;
    fx.advance(10);
    fx.claim_one().await;
    fx.advance(LEASE_MS);
    fx.reap().await;
    again().await;
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, completed_outcome()).await;
    assert!(submit_one(fx, keyed("k")).await.is_new);
}

pub async fn unique_key_is_free_after_every_final_state(fx: &Fixture) {
    for outcome in [completed_outcome(), fatal_failure("no"), Outcome::Cancelled] {
        assert!(submit_one(fx, keyed("k")).await.is_new, "before {outcome:?}");
        let attempt = fx.claim_one().await;
        fx.finish_attempt(&attempt, outcome).await;
    }
    let waiting = submit_one(fx, keyed("k")).await;
    assert!(waiting.is_new);
    fx.cancel(waiting.task).await;
    assert!(submit_one(fx, keyed("k")).await.is_new);
}

pub async fn unique_key_is_kept_after_stale_completion(fx: &Fixture) {
    let id = submit_one(fx, keyed("k")).await.task;
    let stale = fx.claim_one().await;
    fx.finish_attempt(&stale, Outcome::Released).await;
    fx.finish(id, stale.token, completed_outcome()).await;
    assert!(!submit_one(fx, keyed("k")).await.is_new);
}

/// A refused submission takes no key.
pub async fn unique_key_of_rejected_submit_stays_free(fx: &Fixture) {
    let bad = NewTask { weight: 0, ..keyed("l") };
    fx.try_submit(vec![keyed("k"), bad]).await.expect_err("bad");
    assert!(submit_one(fx, keyed("k")).await.is_new);
}
