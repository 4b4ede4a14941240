//! Sessions of the store on the server: their settings, and the threads that serve them.

use std::sync::mpsc::channel;
use std::time::Duration;

use tidegate_core::{Inspect, NewTask, Store, Submission};
use tidegate_store::postgres::{Options, Postgres, Timeouts};
use tidegate_testkit::postgres::{Database, Server};
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
async fn server_ends_a_statement_whose_client_has_given_up() {
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
async fn options_of_the_url_reach_every_session() {
    let database = Server::shared().database();
    let url = format!("{}&options=-c%20default_transaction_read_only%3Don", database.url());
    let store = Postgres::connect(&url, Options::default()).await.expect("connect");
    let refused = store.submit(submission("a")).await.expect_err("the session is read-only");
    assert!(refused.to_string().contains("read-only"), "{refused}");
}

/// `submit_in` runs on the runtime of its caller. A connection that it opens for the pool must not depend on the
/// threads of that runtime.
#[test]
fn connection_that_submit_in_opened_works_while_its_caller_blocks() {
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
async fn socket_is_reported_as_not_encrypted() {
    let database = Server::shared().database();
    // As in libpq, a socket is not encrypted whatever the mode is.
    let url = format!("{}&sslmode=require", database.url());
    let store = Postgres::connect(&url, Options::default()).await.expect("connect");
    let encryption = store.encryption().expect("known after the first connection");
    assert!(encryption.is_socket && !encryption.is_encrypted, "{encryption:?}");
}
