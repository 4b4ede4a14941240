//! PostgreSQL when threads block, connections break and the schema is another one.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::channel;
use std::time::Duration;

use insta::assert_snapshot;
use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, ErrorKind, Finish, Heartbeat, NewTask, Outcome,
    SetLimit, Store, StoreReader, Submission, TaskId, TaskState, WorkerId, invariants,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::proxy::Proxy;
use tidegate_testkit::wait;
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
        poll_interval_ms: 1000,
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
fn heartbeat_succeeds_while_handler_threads_are_blocked() {
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
                tokio::spawn(async move { store.task_counts().await.expect("counts") })
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
        let extend = Heartbeat {
            worker,
            tokens: vec![token],
            lease_ms: 30_000,
            progress: vec![],
            run_times: vec![],
            report: None,
        };
        let extended = runtime().expect("a runtime").block_on(beating.heartbeat(extend));
        let _ = answer.send(extended.expect("heartbeat").lost_leases);
    });
    let lost = answered.recv_timeout(PATIENCE).expect("the heartbeat is answered");
    assert_eq!(lost, []);
    heart.join().expect("the heart");
    drop((store, handlers));
}

#[tokio::test]
async fn verbs_reconnect_after_connections_are_cut() {
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
async fn listener_reconnects_after_its_connection_is_cut() {
    let database = Server::shared().database();
    let (listening, submitting) = (connect(&database).await, connect(&database).await);
    let mut changed = tokio::spawn({
        let store = listening.clone();
        async move { store.wait_for_notification().await }
    });
    cut_all(&database).await;
    // The first notice after the cut may come from the reconnection itself.
    tokio::time::timeout(PATIENCE, &mut changed).await.expect("woken").expect("no panic");
    for _ in 0..10 {
        let store = listening.clone();
        let changed = tokio::spawn(async move { store.wait_for_notification().await });
        let submitted = submitting.submit(submission()).await;
        if tokio::time::timeout(Duration::from_secs(3), changed).await.is_ok() && submitted.is_ok()
        {
            return;
        }
    }
    panic!("nobody was told of a submit");
}

#[tokio::test]
async fn schema_of_newer_version_is_rejected() {
    let database = Server::shared().database();
    let store = connect(&database).await;
    run(&database, "INSERT INTO tidegate.migrations VALUES (999, 'the future', 'x')").await;
    let refused = store.migrate().await.expect_err("a newer schema");
    assert_eq!(refused.kind(), ErrorKind::Incompatible);
    assert_snapshot!(
        refused,
        @"the database has version 999 of the tidegate schema and this program knows 1; use a newer tidegate"
    );
}

#[tokio::test]
async fn schema_of_an_earlier_build_is_refused() {
    let database = Server::shared().empty_database();
    run(
        &database,
        "CREATE SCHEMA tidegate;
         CREATE TABLE tidegate.migrations (version bigint PRIMARY KEY, name text NOT NULL,
             checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now(), oldest bigint);
         INSERT INTO tidegate.migrations (version, name, checksum, oldest)
         SELECT number, 'earlier', 'x', 11 FROM generate_series(1, 15) AS number",
    )
    .await;
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    let refused = store.migrate().await.expect_err("an earlier build");
    assert_eq!(refused.kind(), ErrorKind::Incompatible);
    assert!(refused.to_string().contains("made by an earlier build of tidegate"), "{refused}");
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    let written = "SELECT (SELECT count(*) FROM tidegate.migrations) AS rows, count(*) AS tables
                   FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                   WHERE n.nspname = 'tidegate' AND c.relkind = 'r'";
    let row = client.query_one(written, &[]).await.expect("look");
    assert_eq!(
        (row.get::<_, i64>("rows"), row.get::<_, i64>("tables")),
        (15, 1),
        "nothing is written"
    );
}

// Connections that are lost between the COMMIT and its answer

fn completed(attempts: &[Attempt]) -> Finish {
    let exit = |attempt: &Attempt| Completion {
        task: attempt.task,
        token: attempt.token,
        outcome: Outcome::Completed(b"1".to_vec()),
    };
    Finish { completions: attempts.iter().map(exit).collect(), claim: None }
}

async fn proxied(database: &Database) -> (Postgres, Proxy) {
    let proxy = Proxy::start(database).await.expect("a proxy");
    let store = Postgres::connect(proxy.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    (store, proxy)
}

#[tokio::test]
async fn finish_with_lost_reply_is_detected_by_its_token() {
    let database = Server::shared().database();
    let (store, proxy) = proxied(&database).await;
    for limit in [None, Some(1)] {
        let set =
            SetLimit { name: "group:a".into(), capacity: limit, source: CapacitySource::Operator };
        store.set_limit(set).await.expect("set");
        let mut done = 0;
        // What holds slots ends in the third transaction.
        for nth in 1..=3 {
            store.submit(submission()).await.expect("submit");
            let claimed = store.claim(claim()).await.expect("claim");
            assert_eq!(claimed.len(), 1);
            proxy.cut_commit(nth);
            let first = store.finish(completed(&claimed)).await;
            assert_eq!(first.is_err(), proxy.has_cut(), "{first:?}");
            proxy.cut_commit(0);
            // If it was done, who tells it again hears that the token is over. In no case is it
            // done twice.
            let again = store.finish(completed(&claimed)).await.expect("finish");
            done += usize::from(first.is_err()) * again.lost_attempts.len();
            let last = store.finish(completed(&claimed)).await.expect("finish");
            assert_eq!(last.lost_attempts.len(), 1);
            let task = store.task(claimed[0].task).await.expect("task").expect("it is kept");
            assert_eq!(task.state, TaskState::Completed);
        }
        assert_eq!(done, 1, "the answer to what was done was lost once, with the limit {limit:?}");
    }
    let snapshot = store.snapshot().await.expect("a snapshot");
    assert_eq!(invariants::check_idle_store_except(&snapshot, |name| name == "group:a"), []);
}

#[tokio::test]
async fn claim_with_lost_reply_is_reaped_when_its_lease_expires() {
    let database = Server::shared().database();
    let (store, proxy) = proxied(&database).await;
    store.submit(submission()).await.expect("submit");
    store.claim(Claim { tasks_max: 1, ..claim() }).await.map(drop).expect("the worker is noted");
    store.submit(submission()).await.expect("submit");
    proxy.cut_commit(1);
    let short = Claim { lease_ms: 200, ..claim() };
    store.claim(short).await.expect_err("the answer is lost");
    // Nobody has it, and nobody else gets it before the lease is over.
    assert_eq!(store.claim(claim()).await.expect("claim").len(), 0);
    let claimed = wait::until_some_async("the task is claimed after its lease", async || {
        store.reap().await.expect("reap");
        let claimed = store.claim(claim()).await.expect("claim");
        (!claimed.is_empty()).then_some(claimed)
    })
    .await;
    assert_eq!(claimed.len(), 1);
}

#[tokio::test]
async fn submit_with_lost_reply_and_unique_key_stores_no_duplicate() {
    let database = Server::shared().database();
    let (store, proxy) = proxied(&database).await;
    store.submit(submission()).await.expect("the kind is known");
    // A submit looks before it stores: one of these commits is the one that stores.
    for nth in 1..=3 {
        let mut keyed = submission();
        keyed.tasks[0].unique_key = Some(format!("once-{nth}"));
        proxy.cut_commit(nth);
        let first = store.submit(keyed.clone()).await;
        assert_eq!(first.is_err(), proxy.has_cut(), "{first:?}");
        proxy.cut_commit(0);
        store.submit(keyed).await.expect("submit");
    }
    assert_eq!(store.claim(claim()).await.expect("claim").len(), 1 + 3);
}

// Futures that are dropped

/// Polls a future a few times and drops it wherever it is.
async fn drop_after(polls: u32, future: impl Future) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let is_ready = std::future::poll_fn(|context| {
            std::task::Poll::Ready(future.as_mut().poll(context).is_ready())
        });
        if is_ready.await {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Connections that work, or have a transaction open.
async fn busy(client: &tokio_postgres::Client) -> i64 {
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                AND pid <> pg_backend_pid() AND state <> 'idle' AND backend_type = 'client backend'";
    client.query_one(busy, &[]).await.expect("count").get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_dropped_futures_leave_no_open_transaction() {
    let database = Server::shared().database();
    let store = connect(&database).await;
    let set =
        SetLimit { name: "group:a".into(), capacity: Some(50), source: CapacitySource::Operator };
    store.set_limit(set).await.expect("set");
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    let mut claimed: Vec<Attempt> = Vec::new();
    for round in 0..10_000_u32 {
        // Another number of polls each time a verb comes around.
        let polls = (round / 9) % 12;
        match round % 9 {
            0 | 1 => drop_after(polls, store.submit(submission())).await,
            2 => drop_after(polls, store.claim(claim())).await,
            3 => drop_after(polls, store.finish(completed(&claimed))).await,
            4 => drop_after(polls, store.cancel(vec![TaskId(i64::from(round / 4))])).await,
            5 => drop_after(polls, store.task_counts()).await,
            6 => drop_after(polls, store.reap()).await,
            7 => {
                let extend = Heartbeat {
                    worker: WorkerId("worker".into()),
                    tokens: claimed.iter().map(|attempt| attempt.token).collect(),
                    lease_ms: 30_000,
                    progress: Vec::new(),
                    run_times: Vec::new(),
                    report: None,
                };
                drop_after(polls, store.heartbeat(extend)).await;
            }
            _ => {
                // In a transaction of the caller's, which goes on as the caller likes.
                let transaction = client.transaction().await.expect("begin");
                let submission = submission();
                let submit = Box::pin(store.submit_in(&transaction, &submission));
                drop_after(polls, submit).await;
                transaction.rollback().await.expect("the connection is the caller's still");
            }
        }
        if round % 500 == 0 {
            claimed = store.claim(claim()).await.expect("claim");
        }
    }
    // What was dropped goes on by itself, or is undone. A transaction that is left open stays.
    wait::until_async("no transaction is open", async || busy(&client).await == 0).await;
    // Every connection is good.
    let verbs: Vec<_> = (0..16)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.claim(claim()).await })
        })
        .collect();
    for verb in verbs {
        verb.await.expect("a task").expect("claim");
    }
    assert_eq!(store.transaction_conflicts(), 0);
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                       AND pid <> pg_backend_pid()";
    let connections: i64 = client.query_one(connections, &[]).await.expect("count").get(0);
    // The pool, two readers, one for heartbeats, one that listens.
    assert!(connections <= 8 + 2 + 1 + 1, "{connections} connections");
    let snapshot = store.snapshot().await.expect("a snapshot");
    assert_eq!(invariants::check(&snapshot), []);
}
