//! Unique keys among unfinished tasks.

use tidegate_core::{NewTask, Outcome, State, Submitted};

use super::fixture::{Fixture, LEASE_MS, done, fatal, retry_in, task};

fn keyed(key: &str) -> NewTask {
    NewTask { unique_key: Some(key.into()), ..task("a") }
}

async fn one(fx: &Fixture, new: NewTask) -> Submitted {
    fx.try_submit(vec![new]).await.expect("submit")[0]
}

pub async fn the_unfinished_task_is_found_again(fx: &Fixture) {
    let first = one(fx, keyed("k")).await;
    assert!(first.is_new);
    let second = one(fx, NewTask { kind: "b".into(), ..keyed("k") }).await;
    assert_eq!(second, Submitted { task: first.task, is_new: false }, "whatever its kind");
    assert!(one(fx, keyed("other")).await.is_new);
    assert_eq!(fx.inspect.counts().await.expect("counts")[&State::Pending], 2);
}

/// After a cut-off submit the same one is sent again, and nothing is doubled.
pub async fn a_repeated_submission_doubles_nothing(fx: &Fixture) {
    let tasks = vec![keyed("x"), keyed("y"), keyed("z")];
    let first = fx.try_submit(tasks.clone()).await.expect("submit");
    let again = fx.try_submit(tasks).await.expect("submit again");
    let ids = |stored: &[Submitted]| stored.iter().map(|one| one.task).collect::<Vec<_>>();
    assert_eq!(ids(&first), ids(&again));
    assert!(again.iter().all(|one| !one.is_new));
}

pub async fn a_key_counts_within_one_submission(fx: &Fixture) {
    let stored = fx.try_submit(vec![keyed("k"), keyed("k"), keyed("l")]).await.expect("submit");
    assert_eq!(stored[0].task, stored[1].task);
    let new: Vec<_> = stored.iter().map(|one| one.is_new).collect();
    assert_eq!(new, [true, false, true]);
}

/// In every unfinished state the key is taken.
pub async fn a_key_is_held_until_the_end(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = one(fx, NewTask { run_at: Some(fx.now() + 10), ..keyed("k") }).await.task;
    let again = async || assert!(!one(fx, keyed("k")).await.is_new, "{:?}", fx.state(id).await);
    again().await;
    fx.advance(10);
    let attempt = fx.claim_one().await;
    again().await;
    fx.exit(&attempt, retry_in(10)).await;
    again().await;
    fx.advance(10);
    let attempt = fx.claim_one().await;
    fx.exit(&attempt, Outcome::Snoozed { for_ms: 10 }).await;
    again().await;
    fx.advance(10);
    fx.claim_one().await;
    fx.advance(LEASE_MS);
    fx.reap().await;
    again().await;
    let attempt = fx.claim_one().await;
    fx.exit(&attempt, done()).await;
    assert!(one(fx, keyed("k")).await.is_new);
}

pub async fn a_key_is_free_after_every_end(fx: &Fixture) {
    for outcome in [done(), fatal("no"), Outcome::Cancelled] {
        assert!(one(fx, keyed("k")).await.is_new, "before {outcome:?}");
        let attempt = fx.claim_one().await;
        fx.exit(&attempt, outcome).await;
    }
    let waiting = one(fx, keyed("k")).await;
    assert!(waiting.is_new);
    fx.cancel(waiting.task).await;
    assert!(one(fx, keyed("k")).await.is_new);
}

pub async fn a_stale_exit_does_not_free_a_key(fx: &Fixture) {
    let id = one(fx, keyed("k")).await.task;
    let stale = fx.claim_one().await;
    fx.exit(&stale, Outcome::Released).await;
    fx.finish(id, stale.token, done()).await;
    assert!(!one(fx, keyed("k")).await.is_new);
}

/// A refused submission takes no key.
pub async fn a_refused_submission_takes_no_key(fx: &Fixture) {
    let bad = NewTask { weight: 0, ..keyed("l") };
    fx.try_submit(vec![keyed("k"), bad]).await.expect_err("bad");
    assert!(one(fx, keyed("k")).await.is_new);
}
