//! Connections while the network is silent: connecting, listening and transactions left open.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use tidegate_core::{
    CapacitySource, ErrorKind, Heartbeat, NewTask, SetLimit, Store, Submission, WorkerId,
};
use tidegate_engine::time;
use tidegate_store::postgres::{Options, Postgres, StatementHook, Timeouts};
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::proxy::Proxy;
use tokio::sync::Semaphore;

/// The deadlines under test.
const DEADLINE: Duration = Duration::from_millis(300);

/// Far more than what is waited for takes, and less than any default.
const SOON: Duration = Duration::from_secs(4);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited in vain for {what}"),
    }
}

fn submission() -> Submission {
    Submission { tasks: vec![NewTask::new("a", "null")], ..Submission::default() }
}

fn capacity(capacity: u32) -> SetLimit {
    let (name, capacity) = ("group:a".to_owned(), Some(capacity));
    SetLimit { name, capacity, source: CapacitySource::Operator }
}

fn quick() -> Timeouts {
    Timeouts { connect: DEADLINE, request: DEADLINE, heartbeat: DEADLINE, ..Timeouts::default() }
}

async fn connect(url: &str, timeouts: Timeouts) -> Postgres {
    Postgres::connect(url, Options { timeouts, ..Options::default() }).await.expect("connect")
}

async fn migrated(database: &Database) -> Postgres {
    let store = connect(&database.url(), Timeouts::default()).await;
    store.migrate().await.expect("migrate");
    store
}

/// The server accepts the connection and never answers: no timeout of the socket sees that.
#[tokio::test]
async fn connection_attempt_without_reply_fails_at_connect_timeout() {
    let database = Server::shared().database();
    migrated(&database).await;
    let proxy = Proxy::start(&database).await.expect("a proxy");
    proxy.go_silent();
    let options = Options { timeouts: quick(), ..Options::default() };
    let connected = soon("the timeout", Postgres::connect(proxy.url(), options)).await;
    let error = connected.expect_err("the proxy is silent");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0.3 s"), "{error}");
    let shown = error.to_string();
    let (_, words) = shown.split_once(": ").expect("the address of the server");
    assert_snapshot!(words, @"no connection within 0.3 s (postgres.connect_timeout_ms, or connect_timeout of the URL)");
}

/// The host accepts connections and never answers. A heartbeat is given up before it has waited for such a host, so the
/// next one must not wait for the same host again.
#[tokio::test]
async fn heartbeat_connects_to_second_host_while_first_is_silent() {
    let database = Server::shared().database();
    migrated(&database).await;
    let (first, second) = (
        Proxy::start(&database).await.expect("a proxy"),
        Proxy::start(&database).await.expect("a proxy"),
    );
    let port = |proxy: &Proxy| {
        let rest = proxy.url().split("127.0.0.1:").nth(1).expect("a port");
        rest.split('/').next().expect("a port").to_owned()
    };
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{}?sslmode=disable&target_session_attrs=read-write",
        port(&first),
        port(&second),
        database.name()
    );
    let store = connect(&url, Timeouts::default()).await;
    let heartbeat = || {
        let (progress, ran) = (vec![], vec![]);
        let worker = WorkerId("worker".into());
        store.heartbeat(Heartbeat {
            worker,
            tokens: vec![],
            lease_ms: 3000,
            progress,
            run_times: ran,
            report: None,
        })
    };
    heartbeat().await.expect("the first host answers");
    first.go_silent();
    let renewed = async {
        // As a worker does: it waits no longer than a third of the lease.
        while !matches!(tokio::time::timeout(Duration::from_secs(1), heartbeat()).await, Ok(Ok(_)))
        {
        }
    };
    soon("a heartbeat", renewed).await;
    // A store that starts now waits for the first host no longer than its part of the time.
    let options = Options::default();
    let opened =
        tokio::time::timeout(Duration::from_secs(9), Postgres::connect(&url, options)).await;
    opened.expect("within the connect timeout").expect("the second host answers");
}

/// The listener finds out that the network is back, and the call that waits for its connection starts
/// another attempt instead of waiting for its own timeout.
#[tokio::test]
async fn connection_attempt_restarts_when_network_returns() {
    let database = Server::shared().database();
    migrated(&database).await;
    let proxy = Proxy::start(&database).await.expect("a proxy");
    let connect_timeout = Duration::from_secs(60);
    let timeouts = Timeouts { connect: connect_timeout, ..quick() };
    let store = connect(proxy.url(), timeouts).await;
    let listener = tokio::spawn({
        let store = store.clone();
        async move {
            loop {
                store.wait_for_notification().await;
            }
        }
    });
    store.submit(submission()).await.expect("submit");
    proxy.go_silent();
    store
        .submit(submission())
        .await
        .expect_err("the deadline passes, and the connections are closed");
    let waits = tokio::spawn({
        let store = store.clone();
        async move { store.submit(submission()).await }
    });
    // Its attempt is lost in the silence.
    time::sleep(2 * DEADLINE).await;
    assert!(!waits.is_finished());
    proxy.deliver();
    soon("the second attempt", waits).await.expect("joined").expect("submit");
    listener.abort();
}

/// The runtime of the first caller has ended; another caller is still woken.
#[test]
fn listener_continues_after_runtime_of_first_caller_ends() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let database = Server::shared().database();
    let (first, second) = (runtime(), runtime());
    let other = second.block_on(migrated(&database));
    let store = second.block_on(connect(&database.url(), Timeouts::default()));
    let listens = store.clone();
    // The first wake-up means that the connection listens.
    first.block_on(async { soon("the listener", listens.wait_for_notification()).await });
    drop(first);
    second.block_on(async {
        let changed = tokio::spawn(async move { store.wait_for_notification().await });
        tokio::task::yield_now().await;
        other.submit(submission()).await.expect("submit");
        soon("the notification", changed).await.expect("joined");
    });
}

/// No byte arrives any more on the connection that listens, and its socket stays open.
#[tokio::test]
async fn silent_listener_connection_is_detected_and_replaced() {
    let database = Server::shared().database();
    let other = migrated(&database).await;
    let proxy = Proxy::start(&database).await.expect("a proxy");
    proxy.deliver_notifications();
    let store = connect(proxy.url(), quick()).await;
    soon("the listener", store.wait_for_notification()).await;
    let before = proxy.connections();
    proxy.go_silent();
    // The probe has no answer, the connection is closed, and another one is attempted.
    soon("another connection", proxy.connection_after(before)).await;
    proxy.deliver();
    // Wake-ups without a notification: the connection was lost, and it listens again.
    let woken_at = is_notified(&store, &other).await;
    assert!(woken_at.is_some(), "no notification arrives after the silence");
}

/// Submits on another store until the submit alone wakes this one.
async fn is_notified(store: &Postgres, other: &Postgres) -> Option<Instant> {
    let began_at = time::now();
    while time::now() - began_at < 2 * SOON {
        // The listener wakes its callers when it reconnects, so only a wake-up after a quiet second that
        // follows a submit at once is a notification.
        if tokio::time::timeout(2 * DEADLINE, store.wait_for_notification()).await.is_ok() {
            continue;
        }
        let changed = tokio::spawn({
            let store = store.clone();
            async move { store.wait_for_notification().await }
        });
        tokio::task::yield_now().await;
        other.submit(submission()).await.expect("submit");
        if tokio::time::timeout(DEADLINE, changed).await.is_ok() {
            return Some(time::now());
        }
    }
    None
}

/// The client gives up, and the server does not get to know: its session would hold the lock of the limit.
#[tokio::test]
async fn open_transaction_of_silent_client_is_ended_by_server() {
    let database = Server::shared().database();
    let other = migrated(&database).await;
    other.set_limit(capacity(1)).await.expect("the limit exists");
    let proxy = Arc::new(Proxy::start(&database).await.expect("a proxy"));
    let locked = Arc::new(Semaphore::new(0));
    let step: StatementHook = {
        let (proxy, locked) = (proxy.clone(), locked.clone());
        Arc::new(move |sql| {
            let (proxy, locked) = (proxy.clone(), locked.clone());
            Box::pin(async move {
                if sql == "COMMIT" {
                    proxy.go_silent();
                    locked.add_permits(1);
                }
            })
        })
    };
    let options = Options { timeouts: quick(), statement_hook: Some(step), ..Options::default() };
    let store = Postgres::connect(proxy.url(), options).await.expect("connect");
    let left = tokio::spawn(async move { store.set_limit(capacity(2)).await });
    soon("the lock", locked.acquire()).await.expect("never closed").forget();
    soon("the deadline", left).await.expect("joined").expect_err("the commit is lost");
    soon("the lock of the limit", other.set_limit(capacity(3))).await.expect("set the limit");
    assert!(proxy.is_silent(), "the session was ended by the server alone");
}
