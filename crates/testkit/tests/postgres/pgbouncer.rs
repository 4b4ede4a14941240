//! PgBouncer between the store and PostgreSQL. The conformance cases run in the binary `stores`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use insta::{allow_duplicates, assert_snapshot};
use tidegate_core::{ErrorKind, NewTask, Store, Submission};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::pgbouncer::{PgBouncer, PoolMode};
use tidegate_testkit::postgres::Server;
use tidegate_testkit::proxy::Proxy;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

/// Longer than anything here may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longer than a caller waits that is woken for lack of a listener.
const QUIET: Duration = Duration::from_millis(800);

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// Connects several times; every time must be refused with the reason.
async fn check_refused(url: &str, times: usize) {
    for turn in 0..times {
        let refused = Postgres::connect(url, Options::default()).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "turn {turn}: {refused}");
        assert!(refused.to_string().contains("pool_mode = session"), "{refused}");
        allow_duplicates! {
            assert_snapshot!(
                refused,
                @"the connection pooler gives server sessions to other clients between two transactions (pool_mode = transaction or statement); tidegate needs a session per connection, because it uses prepared statements, session settings and LISTEN: set pool_mode = session for this database, or connect to PostgreSQL directly"
            );
        }
    }
}

#[tokio::test]
async fn transaction_mode_is_rejected_at_start() {
    let database = Server::shared().database();
    let bouncer = PgBouncer::start(&database, PoolMode::Transaction, 20);
    check_refused(bouncer.url(), 5).await;
}

#[tokio::test]
async fn statement_mode_is_rejected_at_start() {
    let database = Server::shared().database();
    let bouncer = PgBouncer::start(&database, PoolMode::Statement, 20);
    check_refused(bouncer.url(), 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_mode_is_rejected_while_other_clients_use_pool() {
    let database = Server::shared().database();
    for (pool_size, clients) in [(20, 1), (20, 4), (2, 3)] {
        let bouncer = PgBouncer::start(&database, PoolMode::Transaction, pool_size);
        let is_over = Arc::new(AtomicBool::new(false));
        let mut busy = Vec::new();
        for _ in 0..clients {
            let (client, is_over) = (client(bouncer.url()).await, is_over.clone());
            busy.push(tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    client.simple_query("SELECT pg_sleep(0.0005)").await.expect("select");
                }
            }));
        }
        check_refused(bouncer.url(), 30).await;
        is_over.store(true, Ordering::Relaxed);
        for one in busy {
            one.await.expect("no panic");
        }
    }
}

/// PgBouncer starts a server process when a client needs one, so a new one has no processes that are older than the
/// connections of the check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_mode_is_rejected_while_pool_grows() {
    let database = Server::shared().database();
    for round in 0..6 {
        let bouncer = PgBouncer::start(&database, PoolMode::Transaction, 40);
        let mut busy = JoinSet::new();
        for _ in 0..4 {
            let client = client(bouncer.url()).await;
            busy.spawn(async move {
                loop {
                    client.simple_query("SELECT pg_sleep(0.02)").await.expect("select");
                }
            });
        }
        let mut connecting = JoinSet::new();
        for _ in 0..10 {
            let url = bouncer.url().to_owned();
            connecting.spawn(async move { Postgres::connect(&url, Options::default()).await });
        }
        while let Some(connected) = connecting.join_next().await {
            let refused = connected.expect("no panic").err();
            let refused = refused.unwrap_or_else(|| panic!("accepted in round {round}"));
            assert_eq!(refused.kind(), ErrorKind::Invalid, "round {round}: {refused}");
        }
    }
}

#[tokio::test]
async fn rejected_store_leaves_no_settings_in_sessions_of_other_clients() {
    let database = Server::shared().database();
    let bouncer = PgBouncer::start(&database, PoolMode::Transaction, 2);
    let other = client(bouncer.url()).await;
    check_refused(bouncer.url(), 3).await;
    for _ in 0..5 {
        let shown = other.simple_query("SHOW enable_seqscan").await.expect("show");
        assert!(
            shown.iter().any(|message| matches!(message,
                tokio_postgres::SimpleQueryMessage::Row(row) if row.get(0) == Some("on"))),
            "{shown:?}"
        );
    }
}

/// Without a second connection the mode of the pooler is unknown.
#[tokio::test]
async fn pooler_that_accepts_only_one_connection_is_rejected() {
    let database = Server::shared().database();
    let bouncer = PgBouncer::start_with_client_limit(&database, PoolMode::Transaction, 20, 2);
    let _other = client(bouncer.url()).await;
    let refused = Postgres::connect(bouncer.url(), Options::default()).await.expect_err("refused");
    let shown = refused.to_string();
    let (_, words) = shown.split_once(": ").expect("the address of the server");
    assert_snapshot!(words, @"PostgreSQL says: no more connections allowed (max_client_conn) (08P01)");
}

/// The process ids of different servers may be equal, and then two sessions look like one that is shared.
#[tokio::test]
async fn check_opens_both_connections_to_the_same_server() {
    let database = Server::shared().database();
    for turn in 0..10 {
        let first = Proxy::start(&database).await.expect("a proxy");
        let second = Proxy::start(&database).await.expect("a proxy");
        let host = |proxy: &Proxy| {
            let address = proxy.url().split('@').nth(1).and_then(|rest| rest.split('/').next());
            address.expect("a host and a port").to_owned()
        };
        let url = format!(
            "postgres://postgres@{},{}/{}?sslmode=disable&load_balance_hosts=random\
             &target_session_attrs=any",
            host(&first),
            host(&second),
            database.name()
        );
        let _store = Postgres::connect(&url, Options::default()).await.expect("no pooler");
        let connections = [first.connections(), second.connections()];
        assert!(connections.contains(&0), "turn {turn}: {connections:?}");
    }
}

#[tokio::test]
async fn parameters_that_pgbouncer_refuses_are_named() {
    let database = Server::shared().database();
    let bouncer = PgBouncer::start(&database, PoolMode::Session, 20);
    for (parameter, words) in [
        ("options=-c%20work_mem%3D8MB", ["options", "leave options out of the URL"]),
        ("channel_binding=require", ["channel_binding=require", "PgBouncer does not support it"]),
    ] {
        let url = format!("{}?{parameter}", bouncer.url());
        let refused = Postgres::connect(&url, Options::default()).await.expect_err(parameter);
        for word in words {
            assert!(refused.to_string().contains(word), "{parameter}: {refused}");
        }
    }
}

#[tokio::test]
async fn session_mode_delivers_notifications_and_reuses_clean_sessions() {
    let database = Server::shared().database();
    let bouncer = PgBouncer::start(&database, PoolMode::Session, 40);
    let connect = || async {
        Postgres::connect(bouncer.url(), Options::default()).await.expect("session mode")
    };
    // The sessions of the first store are given to the second.
    connect().await.migrate().await.expect("migrate");
    let (listening, submitting) = (connect().await, connect().await);
    let wait = || {
        let store = listening.clone();
        tokio::spawn(async move { store.wait_for_notification().await })
    };
    // The first wake-up comes from the LISTEN itself.
    tokio::time::timeout(PATIENCE, wait()).await.expect("listening").expect("no panic");
    let mut changed = wait();
    let early = tokio::time::timeout(QUIET, &mut changed).await;
    assert!(early.is_err(), "woken without a change");
    let submission = Submission { tasks: vec![NewTask::new("a", "null")], ..Submission::default() };
    submitting.submit(submission).await.expect("submit");
    tokio::time::timeout(PATIENCE, changed).await.expect("notified").expect("no panic");
}
