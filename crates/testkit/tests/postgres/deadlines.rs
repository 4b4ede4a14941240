//! Deadlines towards PostgreSQL, and calls whose caller has given up.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use tidegate_core::bounds::JOB_WINDOW_SIZE;
use tidegate_core::{
    Claim, Error, ErrorKind, Heartbeat, JobSpec, NewTask, Store, StoreReader, Submission, Token,
    WorkerId,
};
use tidegate_engine::time;
use tidegate_store::postgres::{Options, Postgres, StatementHook, Timeouts};
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::proxy::Proxy;
use tidegate_testkit::wait;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

/// The deadline of the calls under test.
const DEADLINE: Duration = Duration::from_millis(300);

/// Far more than a call with that deadline takes, and far less than any default.
const SOON: Duration = Duration::from_secs(4);

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

fn heartbeat(token: Token, lease_ms: i64) -> Heartbeat {
    Heartbeat {
        worker: WorkerId("worker".into()),
        tokens: vec![token],
        lease_ms,
        progress: vec![],
        run_times: vec![],
        report: None,
    }
}

#[expect(clippy::disallowed_methods, reason = "the test measures how long a call takes")]
fn now() -> Instant {
    Instant::now()
}

/// Runs a call that must fail for lack of an answer, and returns its error.
async fn fails_soon<T: std::fmt::Debug>(call: impl Future<Output = Result<T, Error>>) -> Error {
    let began_at = now();
    let error = call.await.expect_err("the proxy is silent");
    assert!(now() - began_at < SOON, "{error} after {:?}", now() - began_at);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    error
}

async fn migrated(database: &Database) {
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
}

async fn execute(database: &Database, sql: &str) {
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    client.batch_execute(sql).await.expect("execute");
}

/// Stops transactions before each statement while it is closed.
struct StatementGate {
    permits: Semaphore,
    /// One permit for each statement that came to the gate.
    statements: Semaphore,
}

impl StatementGate {
    fn open() -> Arc<Self> {
        let permits = Semaphore::new(Semaphore::MAX_PERMITS / 4);
        Arc::new(Self { permits, statements: Semaphore::new(0) })
    }

    fn close(&self) {
        self.permits.forget_permits(usize::MAX);
        self.statements.forget_permits(usize::MAX);
    }

    fn reopen(&self) {
        self.permits.add_permits(Semaphore::MAX_PERMITS / 4);
    }

    /// Waits until a statement has come to the gate.
    async fn wait_for_statement(&self) {
        self.statements.acquire().await.expect("never closed").forget();
    }

    /// Options of a store with one connection and this gate.
    fn options(self: &Arc<Self>, timeouts: Timeouts) -> Options {
        let gate = self.clone();
        let step = move |_: &'static str| {
            let gate = gate.clone();
            let wait = async move {
                gate.statements.add_permits(1);
                gate.permits.acquire().await.expect("never closed").forget();
            };
            Box::pin(wait) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
        };
        Options {
            pool_size: 1,
            statement_hook: Some(Arc::new(step)),
            timeouts,
            ..Options::default()
        }
    }
}

/// Starts a call on the store's runtime, and drops the caller before it has an answer.
async fn begin_and_give_up(call: impl Future) {
    let mut call = pin!(call);
    let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx)));
    assert!(polled.await.is_pending(), "the only connection is in use");
}

async fn lease_end(store: &Postgres, token: Token) -> i64 {
    let leases = store.snapshot().await.expect("a snapshot").leases;
    leases.iter().find(|lease| lease.token == token).expect("the lease").expires_at
}

#[tokio::test]
async fn request_without_reply_fails_at_deadline_and_connection_is_replaced() {
    let database = Server::shared().database();
    migrated(&database).await;
    let proxy = Proxy::start(&database).await.expect("a proxy");
    let timeouts = Timeouts { request: DEADLINE, connect: DEADLINE, ..Timeouts::default() };
    let options = Options { timeouts, ..Options::default() };
    let store = Postgres::connect(proxy.url(), options).await.expect("connect");
    store.submit(submission()).await.expect("submit");
    proxy.go_silent();
    let error = fails_soon(store.submit(submission())).await;
    let words = "did not answer within 0.3 s (postgres.request_timeout_ms)";
    assert!(error.to_string().contains(words), "{error}");
    proxy.deliver();
    // The connection that missed its deadline would never answer again.
    store.submit(submission()).await.expect("submit on a new connection");
    assert_eq!(store.claim(claim()).await.expect("claim").len(), 2);
}

/// A NAT gateway or a firewall has lost its connection table: every idle connection is dead, and only a request
/// finds that out. Without the detection of a lost network each of the calls below would miss its own deadline.
#[tokio::test]
async fn one_missed_deadline_replaces_every_connection_that_the_network_forgot() {
    const CONNECTIONS: u32 = 4;
    let database = Server::shared().database();
    migrated(&database).await;
    let proxy = Proxy::start(&database).await.expect("a proxy");
    let second = Duration::from_secs(1);
    let timeouts =
        Timeouts { request: second, heartbeat: second, read: second, ..Timeouts::default() };
    let gate = StatementGate::open();
    let options = Options { pool_size: CONNECTIONS as usize, ..gate.options(timeouts) };
    let store = Postgres::connect(proxy.url(), options).await.expect("connect");
    // The transactions wait for each other, so each has a connection.
    gate.close();
    let mut submits = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let store = store.clone();
        submits.spawn(async move { store.submit(submission()).await.expect("submit") });
    }
    for _ in 0..CONNECTIONS {
        gate.wait_for_statement().await;
    }
    gate.reopen();
    submits.join_all().await;
    let token = store.claim(claim()).await.expect("claim")[0].token;
    store.heartbeat(heartbeat(token, 30_000)).await.expect("a heartbeat");
    store.task_counts().await.expect("counts");
    let opened = proxy.connections();
    assert!(opened >= CONNECTIONS + 2, "{opened} connections");

    proxy.forget_connections();
    let error = fails_soon(store.submit(submission())).await;
    assert!(error.to_string().contains("did not answer within 1 s"), "{error}");
    store.heartbeat(heartbeat(token, 30_000)).await.expect("a heartbeat on a new connection");
    store.task_counts().await.expect("counts on a new connection");
    for _ in 0..=CONNECTIONS {
        store.submit(submission()).await.expect("submit on a new connection");
    }
    assert!(proxy.connections() >= opened + 3, "{} connections", proxy.connections());
}

#[tokio::test]
async fn heartbeat_deadline_is_at_most_one_third_of_lease() {
    let database = Server::shared().database();
    migrated(&database).await;
    let proxy = Proxy::start(&database).await.expect("a proxy");
    let store = Postgres::connect(proxy.url(), Options::default()).await.expect("connect");
    store.submit(submission()).await.expect("submit");
    let claimed = store.claim(claim()).await.expect("claim");
    let token = claimed[0].token;
    store.heartbeat(heartbeat(token, 900)).await.expect("a heartbeat");
    proxy.go_silent();
    let error = fails_soon(store.heartbeat(heartbeat(token, 900))).await;
    let words = "did not answer within 0.3 s (a third of the lease)";
    assert!(error.to_string().contains(words), "{error}");
    proxy.deliver();
    store.heartbeat(heartbeat(token, 900)).await.expect("a heartbeat on a new connection");
}

/// The verb under way keeps the store, and its connection cannot close in order.
#[tokio::test]
async fn drop_of_a_store_does_not_block_and_the_wait_for_it_ends_on_a_silent_network() {
    let database = Server::shared().database();
    migrated(&database).await;
    let proxy = Proxy::start(&database).await.expect("a proxy");
    let store = Postgres::connect(proxy.url(), Options::default()).await.expect("connect");
    store.submit(submission()).await.expect("submit");
    proxy.go_silent();
    begin_and_give_up(store.submit(submission())).await;
    let began_at = now();
    drop(store);
    assert!(now() - began_at < DEADLINE, "{:?}", now() - began_at);
    let closed = tokio::task::spawn_blocking(tidegate_store::postgres::wait_until_closed);
    closed.await.expect("no panic");
    assert!(now() - began_at < SOON, "{:?}", now() - began_at);
}

#[tokio::test]
async fn wait_for_connection_is_bounded_by_pool_wait_timeout() {
    let database = Server::shared().database();
    migrated(&database).await;
    let gate = StatementGate::open();
    let options = gate.options(Timeouts { pool_wait: DEADLINE, ..Timeouts::default() });
    let store = Postgres::connect(&database.url(), options).await.expect("connect");
    gate.close();
    let first = tokio::spawn({
        let store = store.clone();
        async move { store.submit(submission()).await }
    });
    gate.wait_for_statement().await;
    let error = fails_soon(store.submit(submission())).await;
    assert_snapshot!(
        error,
        @"all connections to PostgreSQL were in use for longer than the pool wait timeout (postgres.pool_wait_timeout_ms)"
    );
    gate.reopen();
    first.await.expect("joined").expect("the first submit has its connection");
}

/// The server refuses the LISTEN connection again and again, and answers heartbeats meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn pool_wait_ends_while_listen_connection_is_refused() {
    let database = Server::shared().database();
    migrated(&database).await;
    let role = database.name();
    let grants = format!(
        "CREATE ROLE {role} LOGIN CONNECTION LIMIT 2; GRANT ALL ON SCHEMA tidegate TO {role}; \
         GRANT ALL ON ALL TABLES IN SCHEMA tidegate TO {role}; \
         GRANT ALL ON ALL SEQUENCES IN SCHEMA tidegate TO {role}"
    );
    execute(&database, &grants).await;
    // Longer than the pauses between two attempts of the listener.
    let pool_wait = Duration::from_millis(1500);
    let timeouts = Timeouts { pool_wait, ..Timeouts::default() };
    let options = Options { pool_size: 1, timeouts, ..Options::default() };
    let url = database.url().replace("user=postgres", &format!("user={role}"));
    let store = Postgres::connect(&url, options).await.expect("connect");
    store.submit(submission()).await.expect("submit");
    let mut background = JoinSet::new();
    let (beating, listening) = (store.clone(), store.clone());
    background.spawn(async move {
        let mut interval = tokio::time::interval(Duration::from_millis(20));
        loop {
            interval.tick().await;
            beating.heartbeat(heartbeat(Token(0), 30_000)).await.expect("a heartbeat");
        }
    });
    background.spawn(async move {
        loop {
            listening.wait_for_notification().await;
        }
    });
    let (mut admin, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    let lock = admin.transaction().await.expect("begin");
    lock.batch_execute("LOCK TABLE tidegate.tasks").await.expect("lock");
    let first = tokio::spawn({
        let store = store.clone();
        async move { store.submit(submission()).await }
    });
    let waiting = "SELECT count(*) FROM pg_locks \
                   WHERE relation = 'tidegate.tasks'::regclass AND database = (SELECT oid FROM pg_database \
                   WHERE datname = current_database()) AND NOT granted";
    wait::until_async("the first submit waits for the lock", async || {
        lock.query_one(waiting, &[]).await.expect("locks").get::<_, i64>(0) > 0
    })
    .await;
    let error = fails_soon(store.submit(submission())).await;
    assert_snapshot!(
        error,
        @"all connections to PostgreSQL were in use for longer than the pool wait timeout (postgres.pool_wait_timeout_ms)"
    );
    lock.rollback().await.expect("unlock");
    first.await.expect("joined").expect("the first submit has its connection");
    assert!(background.try_join_next().is_none(), "a heartbeat failed");
    drop(background);
    drop(store);
    let drop_role = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    wait::until_async("the role has no session", async || {
        admin.batch_execute(&drop_role).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn claim_of_dropped_caller_claims_nothing() {
    let database = Server::shared().database();
    migrated(&database).await;
    let gate = StatementGate::open();
    let options = gate.options(Timeouts::default());
    let store = Postgres::connect(&database.url(), options).await.expect("connect");
    store.submit(submission()).await.expect("submit");
    gate.close();
    let blocked = tokio::spawn({
        let store = store.clone();
        async move { store.claim(Claim { kinds: ["none".into()].into(), ..claim() }).await }
    });
    gate.wait_for_statement().await;
    begin_and_give_up(store.claim(claim())).await;
    gate.reopen();
    blocked.await.expect("joined").expect("the first claim");
    let claimed = store.claim(claim()).await.expect("claim");
    assert_eq!(claimed.len(), 1, "the task is still there for a caller that waits");
}

#[tokio::test]
async fn heartbeat_of_dropped_caller_renews_nothing() {
    let database = Server::shared().database();
    migrated(&database).await;
    let gate = StatementGate::open();
    let options = gate.options(Timeouts::default());
    let store = Postgres::connect(&database.url(), options).await.expect("connect");
    store.submit(submission()).await.expect("submit");
    let token = store.claim(claim()).await.expect("claim")[0].token;
    let before = lease_end(&store, token).await;
    gate.close();
    let other = Heartbeat { tokens: vec![], ..heartbeat(token, 60_000) };
    let blocked = tokio::spawn({
        let (store, other) = (store.clone(), other.clone());
        async move { store.heartbeat(other).await }
    });
    gate.wait_for_statement().await;
    begin_and_give_up(store.heartbeat(heartbeat(token, 600_000))).await;
    gate.reopen();
    blocked.await.expect("joined").expect("the first heartbeat");
    // Each waits for the connection behind one more transaction of the abandoned heartbeat, if there is one.
    for _ in 0..5 {
        store.heartbeat(other.clone()).await.expect("a heartbeat behind the abandoned one");
    }
    assert_eq!(lease_end(&store, token).await, before, "the lease was not renewed");
}

/// The leases are renewed, and another session keeps the store from releasing one that the heartbeat does not list.
#[tokio::test]
async fn slow_release_of_unlisted_lease_does_not_delay_heartbeat() {
    let database = Server::shared().database();
    migrated(&database).await;
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    let two = Submission { tasks: vec![NewTask::new("a", "null"); 2], ..Submission::default() };
    store.submit(two).await.expect("submit");
    let one = Claim { tasks_max: 1, ..claim() };
    let short = Claim { lease_ms: 1500, ..one.clone() };
    let expired = store.claim(short).await.expect("claim")[0].token;
    let listed = store.claim(one).await.expect("claim")[0].token;
    let (mut other, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    wait::until_async("the lease expires", async || {
        let sql = "SELECT expires_at < extract(epoch FROM clock_timestamp()) * 1000 \
            FROM tidegate.leases WHERE token = $1";
        other.query_one(sql, &[&expired.0]).await.expect("the lease").get(0)
    })
    .await;
    let lock = other.transaction().await.expect("begin");
    let sql = "SELECT FROM tidegate.leases WHERE token = $1 FOR UPDATE";
    lock.execute(sql, &[&expired.0]).await.expect("lock");
    for _ in 0..3 {
        let began_at = now();
        // The deadline of a heartbeat with this lease is 2 s.
        let extended = store.heartbeat(heartbeat(listed, 6000)).await.expect("renewed");
        assert!(now() - began_at < Duration::from_millis(1800), "{:?}", now() - began_at);
        assert_eq!((extended.lost_leases.len(), extended.released_attempts), (0, 0));
    }
    lock.rollback().await.expect("rollback");
    let is_ready = "SELECT count(*) FROM tidegate.ready";
    wait::until_async("the lease is released", async || {
        store.heartbeat(heartbeat(listed, 6000)).await.expect("renewed");
        other.query_one(is_ready, &[]).await.expect("count").get::<_, i64>(0) == 1
    })
    .await;
}

/// A deadline that a step of ten thousand attempts misses.
const SHORT: Duration = Duration::from_millis(200);

/// A database with expired leases of 10,000 attempts, a store with a short deadline, and a session.
async fn many_expired(leases: u32) -> (Database, Postgres, tokio_postgres::Client) {
    let database = Server::shared().database();
    let direct = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    direct.migrate().await.expect("migrate");
    let tasks = vec![NewTask::new("a", "null"); 10_000];
    direct.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    for _ in 0..leases {
        let claim = Claim { tasks_max: 10_000 / leases, lease_ms: 1000, ..claim() };
        direct.claim(claim).await.expect("claim");
    }
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    assert_eq!(number(&client, "SELECT count(*) FROM tidegate.running_attempts").await, 10_000);
    wait::until_async("the leases expire", async || {
        let sql = "SELECT count(*) FROM tidegate.leases \
            WHERE expires_at >= extract(epoch FROM clock_timestamp()) * 1000";
        number(&client, sql).await == 0
    })
    .await;
    let timeouts = Timeouts { request: SHORT, heartbeat: SHORT, ..Timeouts::default() };
    let options = Options { timeouts, ..Options::default() };
    let store = Postgres::connect(&database.url(), options).await.expect("connect");
    (database, store, client)
}

async fn number(client: &tokio_postgres::Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.expect("a number").get(0)
}

/// Returns whether no lease is left and every task is ready again.
async fn is_all_ready(client: &tokio_postgres::Client) -> bool {
    let leases = number(client, "SELECT count(*) FROM tidegate.leases").await;
    leases == 0 && number(client, "SELECT count(*) FROM tidegate.ready").await == 10_000
}

#[tokio::test]
async fn reaper_with_a_short_deadline_ends_every_attempt_of_large_leases() {
    for leases in [1, 50] {
        let (_database, store, client) = many_expired(leases).await;
        wait::until_async("the attempts are ended", async || {
            if let Err(error) = store.reap().await {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
            is_all_ready(&client).await
        })
        .await;
        let crashed = "SELECT count(*) FROM tidegate.tasks WHERE crashes = 1";
        assert_eq!(number(&client, crashed).await, 10_000);
    }
}

#[tokio::test]
async fn heartbeats_with_a_short_deadline_release_every_attempt_of_large_leases() {
    for leases in [1, 50] {
        let (_database, store, client) = many_expired(leases).await;
        wait::until_async("the attempts are released", async || {
            let extend = Heartbeat { tokens: vec![], ..heartbeat(Token(0), 30_000) };
            if let Err(error) = store.heartbeat(extend).await {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
            is_all_ready(&client).await
        })
        .await;
        let crashed = "SELECT count(*) FROM tidegate.tasks WHERE crashes > 0 OR attempts_used > 0";
        assert_eq!(number(&client, crashed).await, 0);
    }
}

/// A claim takes tasks out of the window of a job while another process fills it. The claim is the last of the two
/// to commit, so only the step behind its commit can find that there is room.
#[tokio::test]
async fn claim_whose_caller_is_gone_does_not_leave_its_job_waiting() {
    let database = Server::shared().database();
    migrated(&database).await;
    let is_armed = Arc::new(AtomicU32::new(0));
    let (arrived, permits) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let step: StatementHook = {
        let (is_armed, arrived, permits) = (is_armed.clone(), arrived.clone(), permits.clone());
        Arc::new(move |sql| {
            let is_held = sql == "COMMIT" && is_armed.swap(0, SeqCst) == 1;
            let (arrived, permits) = (arrived.clone(), permits.clone());
            Box::pin(async move {
                if is_held {
                    arrived.add_permits(1);
                    permits.acquire().await.expect("never closed").forget();
                }
            })
        })
    };
    let options = Options { statement_hook: Some(step), ..Options::default() };
    let store = Postgres::connect(&database.url(), options).await.expect("connect");
    let other = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    let submit = async |number: u32| {
        let of_job = NewTask { job: Some("j".into()), ..NewTask::new("a", "null") };
        let jobs = vec![JobSpec { concurrency: Some(100), ..JobSpec::new("j") }];
        let tasks = vec![of_job; number as usize];
        let submission = Submission { jobs, tasks, ..Submission::default() };
        store.submit(submission).await.expect("submit");
    };
    submit(JOB_WINDOW_SIZE - 1).await;
    let one = Claim { tasks_max: 1, ..claim() };
    assert_eq!(store.claim(one).await.expect("claim").len(), 1, "the window has two places");
    is_armed.store(1, SeqCst);
    let abandoned = tokio::spawn({
        let (store, four) = (store.clone(), Claim { tasks_max: 4, ..claim() });
        async move { store.claim(four).await }
    });
    arrived.acquire().await.expect("never closed").forget();
    submit(4).await;
    other.admit().await.expect("the window is full");
    abandoned.abort();
    assert!(abandoned.await.expect_err("aborted").is_cancelled());
    permits.add_permits(1);
    wait::until_async("the abandoned claim ends", async || store.pending_calls() == 0).await;
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    let running = number(&client, "SELECT count(*) FROM tidegate.running_attempts").await;
    assert_eq!(running, 5, "the abandoned claim has committed");
    let ready = number(&client, "SELECT count(*) FROM tidegate.ready").await;
    assert_eq!(ready, i64::from(JOB_WINDOW_SIZE - 1 + 4 - 5), "all others have passed the window");
}

/// Longer than the deadline of a request, and than the timeouts of the server that belong to it.
const LONG: Duration = Duration::from_secs(2);

/// Blocks the tables of tasks for a while.
async fn lock_tasks(database: &Database) -> tokio::task::JoinHandle<()> {
    lock_for_long(database, "LOCK TABLE tidegate.tasks, tidegate.finished").await
}

async fn lock_for_long(database: &Database, sql: &'static str) -> tokio::task::JoinHandle<()> {
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    let (locked, is_locked) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let lock = client.transaction().await.expect("begin");
        lock.batch_execute(sql).await.expect("lock");
        locked.send(()).expect("the test waits");
        time::sleep(LONG).await;
        lock.rollback().await.expect("rollback");
    });
    is_locked.await.expect("locked");
    task
}

/// Pauses one transaction before its second statement.
fn pausing(is_armed: &Arc<AtomicU32>) -> StatementHook {
    let is_armed = is_armed.clone();
    Arc::new(move |_| {
        let counted = is_armed.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        Box::pin(async move {
            if counted == Ok(1) {
                time::sleep(LONG).await;
            }
        })
    })
}

const SLOW_MIGRATION: &[(&str, &str)] = &[("9999_slow", "-- Online: a test\nSELECT pg_sleep(2)")];

#[tokio::test]
async fn maintenance_and_table_reads_may_exceed_request_deadline() {
    let database = Server::shared().database();
    migrated(&database).await;
    let statements = Arc::new(AtomicU32::new(0));
    let timeouts = Timeouts { request: DEADLINE, ..Timeouts::default() };
    let options =
        Options { timeouts, statement_hook: Some(pausing(&statements)), ..Options::default() };
    let store = Postgres::connect(&database.url(), options).await.expect("connect");
    store.submit(submission()).await.expect("submit");

    let locked = lock_tasks(&database).await;
    fails_soon(store.submit(submission())).await;
    store.snapshot().await.expect("a snapshot");
    locked.await.expect("no panic");
    let locked = lock_tasks(&database).await;
    store.prune().await.expect("prune");
    locked.await.expect("no panic");
    let locked = lock_tasks(&database).await;
    store.repair().await.expect("repair");
    locked.await.expect("no panic");
    // The server ends a transaction that is idle for longer than the deadline of a request.
    for verb in ["prune", "repair", "snapshot"] {
        statements.store(2, SeqCst);
        match verb {
            "prune" => store.prune().await.map(drop),
            "repair" => store.repair().await.map(drop),
            _ => store.snapshot().await.map(drop),
        }
        .expect(verb);
        assert_eq!(statements.load(SeqCst), 0, "{verb} has paused");
    }
    statements.store(2, SeqCst);
    // The fast path has one statement only.
    let keyed = NewTask { unique_key: Some("k".into()), ..NewTask::new("a", "null") };
    fails_soon(store.submit(Submission { tasks: vec![keyed], ..Submission::default() })).await;
    statements.store(0, SeqCst);
    store.migrate_with_extra(SLOW_MIGRATION).await.expect("migrate");
}

#[tokio::test]
async fn version_check_of_a_migration_may_take_longer_than_a_request() {
    let database = Server::shared().database();
    migrated(&database).await;
    let timeouts = Timeouts { request: DEADLINE, ..Timeouts::default() };
    let options = Options { timeouts, ..Options::default() };
    let store = Postgres::connect(&database.url(), options).await.expect("connect");
    let locked = lock_for_long(&database, "LOCK TABLE tidegate.migrations").await;
    store.migrate().await.expect("nothing to migrate");
    locked.await.expect("no panic");
}

#[tokio::test]
async fn maintenance_and_table_reads_fail_at_their_own_deadlines() {
    let database = Server::shared().database();
    migrated(&database).await;
    let statements = Arc::new(AtomicU32::new(0));
    let timeouts = Timeouts { read: DEADLINE, maintenance: DEADLINE, ..Timeouts::default() };
    let options =
        Options { timeouts, statement_hook: Some(pausing(&statements)), ..Options::default() };
    let store = Postgres::connect(&database.url(), options).await.expect("connect");
    let locked = lock_tasks(&database).await;
    fails_soon(store.snapshot()).await;
    fails_soon(store.prune()).await;
    locked.await.expect("no panic");
    for verb in ["prune", "repair", "snapshot"] {
        statements.store(2, SeqCst);
        let error = match verb {
            "prune" => fails_soon(store.prune()).await,
            "repair" => fails_soon(store.repair()).await,
            _ => fails_soon(store.snapshot()).await,
        };
        let setting = if verb == "snapshot" { "read" } else { "maintenance" };
        let words = format!("did not answer within 0.3 s (postgres.{setting}_timeout_ms)");
        assert!(error.to_string().contains(&words), "{verb}: {error}");
        statements.store(0, SeqCst);
    }
    let error = fails_soon(store.migrate_with_extra(SLOW_MIGRATION)).await;
    assert!(error.to_string().contains("0.3 s"), "{error}");
    assert_snapshot!(error, @"PostgreSQL did not answer within 0.3 s (postgres.maintenance_timeout_ms); the connection was closed");
    store.submit(submission()).await.expect("the deadline of a request is longer");
}

#[tokio::test]
async fn missing_counters_row_is_reported_at_once() {
    let database = Server::shared().database();
    migrated(&database).await;
    let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    execute(&database, "DELETE FROM tidegate.counters").await;
    let error = store.claim(claim()).await.expect_err("no counters");
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains("tidegate.counters"), "{error}");
    assert_snapshot!(
        error,
        @"a statement that always returns one row returned none; the row of the table tidegate.counters is missing: restore the database from a backup (WITH moment AS MATERIALIZED ()"
    );
}

/// Everything that a session can have set, except for the transaction's own state.
const SESSION: &str = "SELECT name, setting FROM pg_settings ORDER BY name";

#[tokio::test]
async fn submit_in_leaves_session_settings_of_caller_unchanged() {
    let database = Server::shared().database();
    migrated(&database).await;
    let timeouts = Timeouts { request: Duration::from_millis(1234), ..Timeouts::default() };
    let options = Options { timeouts, ..Options::default() };
    let store = Postgres::connect(&database.url(), options).await.expect("connect");
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    let settings = |rows: Vec<tokio_postgres::Row>| -> Vec<(String, Option<String>)> {
        rows.iter().map(|row| (row.get("name"), row.get("setting"))).collect()
    };
    let transaction = client.transaction().await.expect("begin");
    let before = settings(transaction.query(SESSION, &[]).await.expect("settings"));
    store.submit_in(&transaction, &submission()).await.expect("submit");
    let after = settings(transaction.query(SESSION, &[]).await.expect("settings"));
    assert!(before.iter().any(|(name, _)| name == "statement_timeout"));
    assert_eq!(after, before);
    transaction.commit().await.expect("commit");
    assert_eq!(settings(client.query(SESSION, &[]).await.expect("settings")), before);
    assert_eq!(store.claim(claim()).await.expect("claim").len(), 1);
}
