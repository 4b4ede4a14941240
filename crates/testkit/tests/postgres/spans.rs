//! Every request has a span that shows its path, and no payload.

use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, Finish, NewTask, Outcome, SetLimit, Store,
    Submission, WorkerId,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::events::Events;
use tidegate_testkit::postgres::Server;

/// In every payload, result and error of these tests.
const SECRET: &str = "s3cr3t";

fn claim(tasks_max: u32) -> Claim {
    Claim {
        worker: WorkerId("worker".into()),
        queues: ["default".into()].into(),
        kinds: ["a".into()].into(),
        tasks_max,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    }
}

async fn finish(store: &Postgres, attempts: &[Attempt], outcome: Outcome) -> Vec<Attempt> {
    let exit = |attempt: &Attempt| Completion {
        task: attempt.task,
        token: attempt.token,
        outcome: outcome.clone(),
    };
    let exits = attempts.iter().map(exit).collect();
    let finish = Finish { completions: exits, claim: Some(claim(2)) };
    store.finish(finish).await.expect("finish").claimed
}

/// Returns the last span of a verb, without its verb.
fn last(events: &Events, verb: &str) -> String {
    let prefix = format!("verb=\"{verb}\" ");
    let requests = events.requests();
    let mut of_verb = requests.iter().filter_map(|text| text.strip_prefix(&prefix));
    of_verb.next_back().unwrap_or_else(|| panic!("no span of {verb}: {requests:?}")).to_owned()
}

#[tokio::test]
async fn request_span_has_path_and_counts_and_no_payload() {
    let events = Events::capture();
    let database = Server::shared().database();
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    let name = "group:a".to_owned();
    let limit = SetLimit { name, capacity: Some(2), source: CapacitySource::Operator };
    store.set_limit(limit).await.expect("set_limit");
    let submission = || Submission {
        tasks: vec![NewTask::new("a", format!("\"{SECRET}\"")); 9],
        ..Submission::default()
    };
    store.submit(submission()).await.expect("submit");
    assert!(last(&events, "submit").contains("path=\"general\" reason=\"unknown_names\""));
    store.submit(submission()).await.expect("submit");
    assert_eq!(last(&events, "submit"), "path=\"fast\" rows=1 round_trips=1 retries=0");
    let mut running = store.claim(claim(2)).await.expect("claim");
    let done = || Outcome::Completed(format!("\"{SECRET}\"").into_bytes());
    for _ in 0..2 {
        running = finish(&store, &running, done()).await;
    }
    let hand_off = last(&events, "finish");
    assert!(hand_off.starts_with("path=\"hand_off\" rows="), "{hand_off}");
    assert!(hand_off.ends_with(" round_trips=1 retries=0"), "{hand_off}");
    let failed = Outcome::Failed { error: SECRET.into(), retryable: true, retry_in_ms: Some(0) };
    finish(&store, &running, failed).await;
    let general = last(&events, "finish");
    assert!(
        general.starts_with("path=\"general\" reason=\"attempts_not_completed\" rows="),
        "{general}"
    );
    assert!(!events.requests().concat().contains(SECRET), "{:?}", events.requests());
}

#[tokio::test]
async fn submit_in_caller_transaction_has_a_span() {
    let events = Events::capture();
    let database = Server::shared().database();
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.expect("connect");
    tokio::spawn(connection);
    let transaction = client.transaction().await.expect("begin");
    let submission = Submission { tasks: vec![NewTask::new("a", "null")], ..Submission::default() };
    store.submit_in(&transaction, &submission).await.expect("submit");
    transaction.commit().await.expect("commit");
    assert!(last(&events, "submit").starts_with("path=\"general\" "));
}
