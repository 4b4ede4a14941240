//! Costs that grow with the store, and the bounds within which they stay.

use std::time::{Duration, Instant};

use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, Finish, NewTask, Outcome, SetLimit, Store,
    Submission, WorkerId,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::Server;

/// Slots that are held of the large limit.
const HELD: usize = 10_000;

/// Finishes whose times are compared.
const FINISHES: usize = 15;

/// How much longer a finish on the general path may take because of the 10,000 numbers of slots that it
/// loads. Measured are 45 ms in a debug build on a busy machine.
const EXTRA_MAX: Duration = Duration::from_millis(250);

#[expect(clippy::disallowed_methods, reason = "the test measures how long a call takes")]
fn now() -> Instant {
    Instant::now()
}

fn claim(kind: &str) -> Claim {
    Claim {
        worker: WorkerId("worker".into()),
        queues: ["default".into()].into(),
        kinds: [kind.into()].into(),
        tasks_max: 1000,
        lease_ms: 600_000,
        poll_interval_ms: 1000,
    }
}

/// Claims so many tasks of a kind, each with a slot of a limit that is twice as large.
async fn running(store: &Postgres, kind: &str, tasks: usize) -> Vec<Attempt> {
    let (name, capacity) = (format!("group:{kind}"), Some(2 * tasks as u32));
    let set = SetLimit { name, capacity, source: CapacitySource::Operator };
    store.set_limit(set).await.expect("set the limit");
    let mut attempts = Vec::new();
    while attempts.len() < tasks {
        let new = vec![NewTask::new(kind, "null"); (tasks - attempts.len()).min(1000)];
        store.submit(Submission { tasks: new, ..Submission::default() }).await.expect("submit");
        attempts.extend(store.claim(claim(kind)).await.expect("claim"));
    }
    attempts
}

/// The median time of finishes that take the general path, because their attempts have failed.
async fn general_finish(store: &Postgres, attempts: &[Attempt]) -> Duration {
    let mut times = Vec::new();
    for attempt in &attempts[..FINISHES] {
        let outcome = Outcome::Failed { error: "no".into(), retryable: false, retry_in_ms: None };
        let exits = vec![Completion { task: attempt.task, token: attempt.token, outcome }];
        let began = now();
        let finished =
            store.finish(Finish { completions: exits, claim: None }).await.expect("finish");
        times.push(now() - began);
        assert_eq!(finished.lost_attempts, []);
    }
    times.sort_unstable();
    times[FINISHES / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finish_under_limit_with_ten_thousand_held_slots_stays_within_bound() {
    let database = Server::shared().database();
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    let few = running(&store, "few", 2 * FINISHES).await;
    let many = running(&store, "many", HELD).await;
    let few = general_finish(&store, &few).await;
    let many = general_finish(&store, &many).await;
    println!("{} slots held: {few:?}; {HELD} slots held: {many:?}", 2 * FINISHES);
    assert!(many < few + EXTRA_MAX, "{few:?}, and {many:?} with {HELD} slots");
}
