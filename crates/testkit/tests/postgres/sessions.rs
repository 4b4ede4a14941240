//! Sessions of the store on the server: their settings, and the threads that serve them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use tidegate_core::{Heartbeat, NewTask, Store, StoreReader, Submission, WorkerId};
use tidegate_store::postgres::{Options, Postgres, StatementHook, Timeouts};
use tidegate_testkit::own_server::OwnServer;
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::wait;
use tokio::sync::Semaphore;
use tokio_postgres::{Client, NoTls};

/// Longer than anything here may take.
const PATIENCE: Duration = Duration::from_secs(30);

fn submission(kind: &str) -> Submission {
    Submission { tasks: vec![NewTask::new(kind, "null")], ..Submission::default() }
}

async fn client(database: &Database) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

async fn connect(database: &Database, options: Options) -> Postgres {
    let store = Postgres::connect(&database.url(), options).await.expect("connect");
    store.migrate().await.expect("migrate");
    store
}

#[tokio::test]
async fn server_ends_statement_after_client_deadline() {
    let database = Server::shared().database();
    let request = Duration::from_millis(300);
    let timeouts = Timeouts { request, ..Timeouts::default() };
    let store = connect(&database, Options { timeouts, ..Options::default() }).await;
    let mut blocking = client(&database).await;
    let lock = blocking.transaction().await.expect("begin");
    lock.batch_execute("LOCK TABLE tidegate.tasks").await.expect("lock");
    store.submit(submission("a")).await.expect_err("the table is locked");
    let waiting = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let monitor = client(&database).await;
    let ended = async {
        while monitor.query_one(waiting, &[]).await.expect("count").get::<_, i64>(0) > 0 {
            monitor.batch_execute("SELECT pg_sleep(0.05)").await.expect("sleep");
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the statement still waits on the server");
    lock.rollback().await.expect("rollback");
}

#[tokio::test]
async fn url_options_apply_to_every_session() {
    let database = Server::shared().database();
    let url = format!("{}&options=-c%20default_transaction_read_only%3Don", database.url());
    let store = Postgres::connect(&url, Options::default()).await.expect("connect");
    let refused = store.submit(submission("a")).await.expect_err("the session is read-only");
    assert!(refused.to_string().contains("read-only"), "{refused}");
}

/// `submit_in` runs on the runtime of its caller. A connection that it opens for the pool must not depend on the
/// threads of that runtime.
#[test]
fn connection_opened_by_submit_in_works_while_caller_blocks() {
    let database = Server::shared().database();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let caller = runtime().expect("a runtime");
    let store = caller.block_on(async {
        let store = connect(&database, Options { pool_size: 1, ..Options::default() }).await;
        let mut client = client(&database).await;
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        client.batch_execute(cut).await.expect("cut");
        // A kind that is not known yet is stored on a connection of the pool.
        for kind in ["a", "b", "c"] {
            let transaction = client.transaction().await.expect("begin");
            if store.submit_in(&transaction, &submission(kind)).await.is_ok() {
                transaction.commit().await.expect("commit");
                return store;
            }
        }
        panic!("the pool finds no new connection");
    });
    // From here on nothing runs on the runtime of the caller.
    let (answer, answered) = channel();
    let other = store.clone();
    let thread = std::thread::spawn(move || {
        let submitted = runtime().expect("a runtime").block_on(other.submit(submission("d")));
        let _ = answer.send(submitted.map(|submitted| submitted.len()));
    });
    let submitted = answered.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(submitted.expect("the connection of the pool is served"), 1);
    thread.join().expect("no panic");
    drop((store, caller));
}

#[tokio::test]
async fn unix_socket_is_reported_as_not_encrypted() {
    let database = Server::shared().database();
    // As in libpq, a socket is not encrypted whatever the mode is.
    let url = format!("{}&sslmode=require", database.url());
    let store = Postgres::connect(&url, Options::default()).await.expect("connect");
    let encryption = store.connection_encryption().expect("known after the first connection");
    assert!(encryption.is_unix_socket && !encryption.is_encrypted, "{encryption:?}");
}

/// Every session of a store, with one for each purpose.
async fn open_every_session(store: &Postgres) -> tokio::task::JoinHandle<()> {
    let listening = tokio::spawn({
        let store = store.clone();
        async move {
            loop {
                store.wait_for_notification().await;
            }
        }
    });
    store.submit(submission("a")).await.expect("submit");
    store.task_counts().await.expect("counts");
    let heartbeat = Heartbeat {
        worker: WorkerId("worker".into()),
        tokens: vec![],
        lease_ms: 30_000,
        progress: vec![],
        run_times: vec![],
        report: None,
    };
    store.heartbeat(heartbeat).await.expect("heartbeat");
    listening
}

/// A network that goes silent leaves sessions on the server, which holds their locks until it notices.
#[tokio::test]
async fn server_sends_keepalives_in_every_session() {
    let settings = ["fsync=off", "log_statement=all", "log_line_prefix=[%p] "];
    let server = OwnServer::init(&settings);
    server.start();
    let admin = server.connect().await;
    let sessions = "SELECT pid, query LIKE 'LISTEN%' FROM pg_stat_activity \
        WHERE application_name = 'tidegate'";
    let url = |parameters: &str| {
        format!("postgres://postgres@127.0.0.1:{}/postgres?{parameters}", server.port())
    };
    // The LISTEN stays the last statement of its session: the first probe comes after this test.
    let timeouts = Timeouts { heartbeat: PATIENCE, ..Timeouts::default() };
    let options = Options { timeouts, ..Options::default() };
    let store = Postgres::connect(&url(""), options.clone()).await.expect("connect");
    store.migrate().await.expect("migrate");
    let listening = open_every_session(&store).await;
    let found = wait_for_listener(&admin, sessions).await;
    assert!(found.len() >= 4, "{found:?}");
    let log = server.log();
    for pid in found {
        let of_session = |line: &&str| line.starts_with(&format!("[{pid}] "));
        let text: String = log.lines().filter(of_session).collect();
        for setting in [
            "SET tcp_keepalives_idle = 10;",
            "SET tcp_keepalives_interval = 3;",
            "SET tcp_keepalives_count = 3;",
            "SET tcp_user_timeout = 10000;",
        ] {
            assert!(text.contains(setting), "session {pid}: no {setting} in {text}");
        }
    }
    listening.abort();
    drop(store);

    let before = server.log().len();
    let own = url("options=-c%20tcp_keepalives_idle%3D77&tcp_user_timeout=0&keepalives_count=5");
    let store = Postgres::connect(&own, options).await.expect("connect");
    let listening = open_every_session(&store).await;
    let log = server.log().split_off(before);
    assert!(!log.contains("SET tcp_keepalives_idle"), "the URL has precedence: {log}");
    assert!(!log.contains("SET tcp_user_timeout"), "the default of the system: {log}");
    assert!(log.contains("SET tcp_keepalives_count = 5;"), "{log}");
    listening.abort();
}

/// Waits until one of the sessions listens, and returns the process of each.
async fn wait_for_listener(admin: &Client, sessions: &str) -> Vec<i32> {
    let mut found = Vec::new();
    wait::until_async("the store listens", async || {
        let rows = admin.query(sessions, &[]).await.expect("sessions");
        found = rows.iter().map(|row| row.get(0)).collect();
        rows.iter().any(|row| row.get(1))
    })
    .await;
    found
}

/// The connection was in use when the others were closed.
#[tokio::test]
async fn connection_to_read_only_server_is_closed_on_return_to_pool() {
    let server = OwnServer::init(&["fsync=off"]);
    server.start();
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port());
    let (is_armed, arrived) = (Arc::new(AtomicBool::new(false)), Arc::new(Semaphore::new(0)));
    let may_go_on = Arc::new(Semaphore::new(0));
    let step: StatementHook = {
        let (is_armed, arrived, may_go_on) = (is_armed.clone(), arrived.clone(), may_go_on.clone());
        Arc::new(move |_| {
            let held = is_armed.swap(false, Ordering::SeqCst);
            let (arrived, may_go_on) = (arrived.clone(), may_go_on.clone());
            Box::pin(async move {
                if held {
                    arrived.add_permits(1);
                    may_go_on.acquire().await.expect("never closed").forget();
                }
            })
        })
    };
    let options = Options { statement_hook: Some(step), ..Options::default() };
    let store = Postgres::connect(&url, options).await.expect("connect");
    store.migrate().await.expect("migrate");
    is_armed.store(true, Ordering::SeqCst);
    let held = tokio::spawn({
        let store = store.clone();
        async move { store.task_counts().await }
    });
    arrived.acquire().await.expect("never closed").forget();

    let admin = server.connect().await;
    let read_only = "ALTER SYSTEM SET default_transaction_read_only = on";
    admin.batch_execute(read_only).await.expect("configure");
    admin.batch_execute("SELECT pg_reload_conf()").await.expect("reload");
    wait::until_async("the configuration is applied", async || {
        let setting = "SELECT current_setting('default_transaction_read_only')";
        admin.query_one(setting, &[]).await.expect("setting").get::<_, &str>(0) == "on"
    })
    .await;
    let refused = store.submit(submission("a")).await.expect_err("the server is read-only");
    assert!(refused.to_string().contains("read-only"), "{refused}");
    may_go_on.add_permits(1);
    held.await.expect("no panic").expect("a read");
    wait::until_async("every connection is closed", async || {
        let opened = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidegate'";
        admin.query_one(opened, &[]).await.expect("count").get::<_, i64>(0) == 0
    })
    .await;
}
