//! PostgreSQL when threads block, connections break and the schema is another one.

use std::sync::mpsc::channel;
use std::time::Duration;

use tidegate_core::{Claim, ErrorKind, Extend, Inspect, NewTask, Store, Submission, WorkerId};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};
use tokio_postgres::NoTls;

/// Longer than anything here may take.
const PATIENCE: Duration = Duration::from_secs(30);

fn claim() -> Claim {
    Claim {
        worker: WorkerId("worker".into()),
        queues: ["default".into()].into(),
        kinds: ["a".into()].into(),
        tasks_max: 10,
        lease_ms: 30_000,
    }
}

fn submission() -> Submission {
    Submission { tasks: vec![NewTask::new("a", "null")], ..Submission::default() }
}

async fn connect(database: &Database) -> Postgres {
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    store
}

/// Runs SQL on a connection of its own.
async fn run(database: &Database, sql: &str) {
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    client.batch_execute(sql).await.expect("run");
}

/// Ends every other connection to the database.
async fn cut_all(database: &Database) {
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    run(database, cut).await;
}

#[test]
fn a_heartbeat_goes_through_while_the_threads_of_the_handlers_are_blocked() {
    let database = Server::shared().database();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let handlers = runtime().expect("a runtime");
    let (store, token) = handlers.block_on(async {
        let store = connect(&database).await;
        store.submit(submission()).await.expect("submit");
        let claimed = store.claim(claim()).await.expect("claim");
        // Several calls at once, so that every connection has been opened from here.
        let counts: Vec<_> = (0..8)
            .map(|_| {
                let store = store.clone();
                tokio::spawn(async move { store.counts().await.expect("counts") })
            })
            .collect();
        for one in counts {
            one.await.expect("counted");
        }
        (store, claimed[0].token)
    });
    // From here on nothing runs on the runtime of the handlers.
    let (answer, answered) = channel();
    let beating = store.clone();
    let heart = std::thread::spawn(move || {
        let worker = WorkerId("worker".into());
        let extend =
            Extend { worker, tokens: vec![token], lease_ms: 30_000, progress: vec![], ran: vec![] };
        let extended = runtime().expect("a runtime").block_on(beating.extend(extend));
        let _ = answer.send(extended.expect("extend").lost);
    });
    let lost = answered.recv_timeout(PATIENCE).expect("the heartbeat is answered");
    assert_eq!(lost, []);
    heart.join().expect("the heart");
    drop((store, handlers));
}

#[tokio::test]
async fn verbs_find_new_connections_when_the_old_ones_are_cut() {
    let database = Server::shared().database();
    let store = connect(&database).await;
    store.submit(submission()).await.expect("submit");
    cut_all(&database).await;
    // What was under way on a connection that broke may fail and says so; nothing else does.
    let mut claimed = Vec::new();
    for _ in 0..10 {
        match store.claim(claim()).await {
            Ok(attempts) => claimed = attempts,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        if !claimed.is_empty() {
            break;
        }
    }
    assert_eq!(claimed.len(), 1);
}

#[tokio::test]
async fn the_listener_comes_back_when_its_connection_is_cut() {
    let database = Server::shared().database();
    let (listening, submitting) = (connect(&database).await, connect(&database).await);
    let mut changed = tokio::spawn({
        let store = listening.clone();
        async move { store.changed().await }
    });
    cut_all(&database).await;
    // The first notice after the cut may come from the reconnection itself.
    tokio::time::timeout(PATIENCE, &mut changed).await.expect("woken").expect("no panic");
    for _ in 0..10 {
        let store = listening.clone();
        let changed = tokio::spawn(async move { store.changed().await });
        let submitted = submitting.submit(submission()).await;
        if tokio::time::timeout(Duration::from_secs(3), changed).await.is_ok() && submitted.is_ok()
        {
            return;
        }
    }
    panic!("nobody was told of a submit");
}

#[tokio::test]
async fn a_schema_of_a_newer_version_is_refused() {
    let database = Server::shared().database();
    let store = connect(&database).await;
    run(&database, "INSERT INTO tidegate.migrations VALUES (999, 'the future', 'x')").await;
    let refused = store.migrate().await.expect_err("a newer schema");
    assert_eq!(refused.kind(), ErrorKind::Incompatible);
    assert!(refused.to_string().contains("newer"), "{refused}");
}
