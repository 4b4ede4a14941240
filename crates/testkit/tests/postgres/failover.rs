//! Several servers: work continues on a standby that was promoted.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::{
    Attempt, Claim, Completion, Finish, NewTask, Outcome, Store, StoreReader, Submission, TaskId,
    TaskState, WorkerId,
};
use tidegate_engine::{Context, Failure, Shutdown, Worker, time};
use tidegate_measure::postgres_server::StopMode;
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::own_server::OwnServer;
use tidegate_testkit::wait;
use tokio::task::JoinSet;

/// Longer than anything here may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tasks that are submitted before the primary is lost.
const TASKS: usize = 20;

fn claim() -> Claim {
    Claim {
        worker: WorkerId("worker".into()),
        queues: ["default".into()].into(),
        kinds: ["a".into()].into(),
        tasks_max: 3,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    }
}

fn submission() -> Submission {
    Submission { tasks: vec![NewTask::new("a", "null")], ..Submission::default() }
}

fn completed(attempts: &[Attempt]) -> Finish {
    let exit = |attempt: &Attempt| Completion {
        task: attempt.task,
        token: attempt.token,
        outcome: Outcome::Completed(b"1".to_vec()),
    };
    Finish { completions: attempts.iter().map(exit).collect(), claim: None }
}

/// Returns a primary and its synchronous standby, both started.
async fn pair() -> (OwnServer, OwnServer) {
    let primary = OwnServer::init(&["fsync=off"]);
    primary.start();
    let standby = OwnServer::standby_of(&primary);
    standby.start();
    let client = primary.connect().await;
    let synchronous = "ALTER SYSTEM SET synchronous_standby_names = '*'";
    client.batch_execute(synchronous).await.expect("configure");
    client.batch_execute("SELECT pg_reload_conf()").await.expect("reload");
    let state = "SELECT (SELECT sync_state FROM pg_stat_replication)";
    wait::until_async("the standby is synchronous", async || {
        let row = client.query_one(state, &[]).await.expect("state");
        row.get::<_, Option<&str>>(0) == Some("sync")
    })
    .await;
    (primary, standby)
}

async fn connect(primary: &OwnServer, standby: &OwnServer) -> Postgres {
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
        primary.port(),
        standby.port()
    );
    let store = Postgres::connect(&url, Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    store
}

/// Submits until a call succeeds, and returns the task. A connection that was lost with its server makes
/// a call fail, which says so.
async fn submit(store: &Postgres) -> TaskId {
    for _ in 0..100 {
        match store.submit(submission()).await {
            Ok(submitted) => return submitted[0].task,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    panic!("no submit succeeds");
}

/// Claims and completes until nothing is ready.
async fn drain(store: &Postgres) {
    for _ in 0..200 {
        let done = match store.claim(claim()).await {
            Ok(attempts) if attempts.is_empty() => return,
            Ok(attempts) => store.finish(completed(&attempts)).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            assert!(error.is_retryable(), "{error}");
        }
    }
    panic!("the tasks are not drained");
}

#[tokio::test]
async fn failover_to_promoted_standby_loses_no_acknowledged_task() {
    let (primary, standby) = pair().await;
    let store = connect(&primary, &standby).await;
    let mut acknowledged = Vec::new();
    for _ in 0..TASKS {
        acknowledged.push(submit(&store).await);
    }
    let attempts = store.claim(claim()).await.expect("claim");
    store.finish(completed(&attempts)).await.expect("finish");
    let finished: Vec<TaskId> = attempts.iter().map(|attempt| attempt.task).collect();
    assert!(!finished.is_empty());

    primary.stop(StopMode::Immediate);
    standby.promote();
    acknowledged.push(submit(&store).await);
    for task in &finished {
        let state = store.task(*task).await.expect("read").expect("kept").state;
        assert_eq!(state, TaskState::Completed, "an acknowledged completion is lost");
    }
    drain(&store).await;
    for task in acknowledged {
        let view = store.task(task).await.expect("read").expect("an acknowledged task is lost");
        assert_eq!(view.state, TaskState::Completed);
    }
}

/// Submitters under load.
const SUBMITTERS: usize = 4;

/// Tasks that are acknowledged before the primary is lost, and after that.
const ACKNOWLEDGED: usize = 200;

/// Submits until the stop flag is set, and returns the acknowledged tasks, each with its payload.
async fn submit_all(
    store: Postgres,
    submitter: usize,
    total: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
) -> Vec<(TaskId, String)> {
    let mut acknowledged = Vec::new();
    for number in 0.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let payload = format!("\"{submitter}-{number}\"");
        let tasks = vec![NewTask::new("work", payload.clone())];
        match store.submit(Submission { tasks, ..Submission::default() }).await {
            Ok(submitted) => {
                acknowledged.push((submitted[0].task, payload));
                total.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    acknowledged
}

async fn work(_: Context, _: String) -> Result<(), Failure> {
    time::sleep(Duration::from_millis(2)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_under_load_loses_no_acknowledged_task() {
    let (primary, standby) = pair().await;
    let store = connect(&primary, &standby).await;
    let (total, is_over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let mut submitters = JoinSet::new();
    for submitter in 0..SUBMITTERS {
        let (total, is_over) = (total.clone(), is_over.clone());
        submitters.spawn(submit_all(store.clone(), submitter, total, is_over));
    }
    let options = tidegate_engine::WorkerConfig {
        concurrency: 8,
        lease: Duration::from_secs(6),
        ..tidegate_engine::WorkerConfig::default()
    };
    let worker_store = connect(&primary, &standby).await;
    let worker = Worker::builder(Arc::new(worker_store))
        .config(options)
        .handle("work", work)
        .build()
        .expect("a worker");
    let shutdown = Shutdown::new();
    let worker = tokio::spawn(worker.run(shutdown.clone()));
    wait::until_async("tasks are acknowledged", async || {
        total.load(Ordering::SeqCst) >= ACKNOWLEDGED
    })
    .await;
    let acknowledged_before = total.load(Ordering::SeqCst);
    // `pg_ctl` blocks until the server has stopped, while the submitters go on.
    let (primary, standby) = tokio::task::spawn_blocking(move || {
        primary.stop(StopMode::Immediate);
        standby.promote();
        (primary, standby)
    })
    .await
    .expect("no panic");
    wait::until_async("tasks are acknowledged by the new primary", async || {
        total.load(Ordering::SeqCst) >= acknowledged_before + ACKNOWLEDGED
    })
    .await;
    is_over.store(true, Ordering::SeqCst);
    let acknowledged: Vec<(TaskId, String)> =
        submitters.join_all().await.into_iter().flatten().collect();
    assert_eq!(acknowledged.len(), total.load(Ordering::SeqCst));
    wait::until_async("every task is completed", async || {
        let counts = store.task_counts().await.expect("counts");
        counts.iter().all(|(state, count)| *state == TaskState::Completed || *count == 0)
    })
    .await;
    shutdown.stop();
    worker.await.expect("no panic").expect("the worker goes on through the failover");

    let sql = standby.connect().await;
    let ids: HashSet<TaskId> = acknowledged.iter().map(|(task, _)| *task).collect();
    assert_eq!(ids.len(), acknowledged.len(), "one id was acknowledged twice");
    for (task, payload) in &acknowledged {
        let view = store.task(*task).await.expect("read");
        let view = view.unwrap_or_else(|| panic!("task {task} {payload} is lost"));
        assert_eq!(view.state, TaskState::Completed, "task {task} {payload}");
        assert_eq!(view.crashes, 0, "task {task} {payload}");
    }
    let copies = "SELECT count(*), count(DISTINCT id) FROM tidegate.finished";
    let row = sql.query_one(copies, &[]).await.expect("count");
    let (rows, distinct): (i64, i64) = (row.get(0), row.get(1));
    assert_eq!(rows, distinct, "a task is kept twice");
    // Of a call that failed without an answer it is unknown whether it has committed.
    assert!(rows >= acknowledged.len() as i64, "{rows} of {}", acknowledged.len());
    drop(primary);
}

#[tokio::test]
async fn connections_to_server_that_became_read_only_are_closed() {
    let (primary, standby) = pair().await;
    let store = connect(&primary, &standby).await;
    submit(&store).await;
    store.task_counts().await.expect("counts");
    let listening = tokio::spawn({
        let store = store.clone();
        async move { store.wait_for_notification().await }
    });
    // The first wake-up comes from the LISTEN itself.
    tokio::time::timeout(PATIENCE, listening).await.expect("listening").expect("no panic");
    let old = primary.connect().await;
    let opened = "SELECT count(*), count(*) FILTER (WHERE query LIKE 'LISTEN%') \
        FROM pg_stat_activity WHERE application_name = 'tidegate' AND backend_type = 'client backend'";
    let before = old.query_one(opened, &[]).await.expect("count");
    assert!(before.get::<_, i64>(0) >= 3, "{before:?}");
    assert_eq!(before.get::<_, i64>(1), 1);

    let read_only = "ALTER SYSTEM SET default_transaction_read_only = on";
    old.batch_execute(read_only).await.expect("configure");
    old.batch_execute("SELECT pg_reload_conf()").await.expect("reload");
    standby.promote();
    // The server applies its configuration a moment later.
    let applied = "SELECT current_setting('default_transaction_read_only')";
    wait::until_async("the server is read-only", async || {
        old.query_one(applied, &[]).await.expect("setting").get::<_, &str>(0) == "on"
    })
    .await;
    submit(&store).await;
    drain(&store).await;
    store.task_counts().await.expect("counts");
    // A server process ends a moment after its connection.
    wait::until_async("every connection to the old primary is closed", async || {
        old.query_one(opened, &[]).await.expect("count").get::<_, i64>(0) == 0
    })
    .await;
}

/// Returns a primary and its asynchronous standby, and the URL of both for a user.
async fn asynchronous_pair(user: &str, parameters: &str) -> (OwnServer, OwnServer, String) {
    let (primary, standby) = pair().await;
    let client = primary.connect().await;
    client.batch_execute("ALTER SYSTEM RESET synchronous_standby_names").await.expect("configure");
    client.batch_execute("SELECT pg_reload_conf()").await.expect("reload");
    let ports = (primary.port(), standby.port());
    let url = format!(
        "postgres://{user}@127.0.0.1:{},127.0.0.1:{}/postgres{parameters}",
        ports.0, ports.1
    );
    (primary, standby, url)
}

/// Runs a store while its LISTEN connection is closed and the primary refuses a new one. Waits until the primary has
/// refused it, or until the standby has if `expects_standby`. Then the primary accepts connections, and the store must
/// listen there. Returns whether the store ever connected to the standby.
async fn listener_returns_to_the_primary(parameters: &str, expects_standby: bool) -> bool {
    let (primary, standby, url) = asynchronous_pair("few", parameters).await;
    let admin = primary.connect().await;
    admin.batch_execute("CREATE ROLE few SUPERUSER LOGIN").await.expect("a role");
    let store = Postgres::connect(&url, Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    let (mut listening, listener) = (JoinSet::new(), store.clone());
    listening.spawn(async move {
        loop {
            listener.wait_for_notification().await;
        }
    });
    const SESSIONS: &str = "FROM pg_stat_activity WHERE usename = 'few'";
    const LISTENERS: &str = "AND (query LIKE 'LISTEN%' OR query = 'SELECT 1')";
    let listens = async || {
        let count = format!("SELECT count(*) {SESSIONS} {LISTENERS}");
        admin.query_one(&count, &[]).await.expect("count").get::<_, i64>(0) == 1
    };
    wait::until_async("the store listens", &listens).await;
    // One session of the pool, one for heartbeats, and the listener. A connection attempt that was given up may leave
    // a session for a moment.
    let count = format!("SELECT count(*) {SESSIONS}");
    wait::until_async("the store has three sessions", async || {
        admin.query_one(&count, &[]).await.expect("count").get::<_, i64>(0) == 3
    })
    .await;
    // A superuser is not limited.
    let limit = "ALTER ROLE few NOSUPERUSER CONNECTION LIMIT 2";
    admin.batch_execute(limit).await.expect("limit the role");
    let end = format!("SELECT pg_terminate_backend(pid) {SESSIONS} {LISTENERS}");
    admin.batch_execute(&end).await.expect("end the listener");
    let refusal = match expects_standby {
        true => (&standby, "cannot execute LISTEN during recovery"),
        false => (&primary, "too many connections for role"),
    };
    wait::until_async(refusal.1, async || refusal.0.log().contains(refusal.1)).await;
    admin.batch_execute("ALTER ROLE few CONNECTION LIMIT -1").await.expect("lift the limit");
    wait::until_async("the store listens again", &listens).await;
    standby.log().contains("cannot execute LISTEN during recovery")
}

/// A standby executes no LISTEN.
#[tokio::test(flavor = "multi_thread")]
async fn listener_with_target_any_returns_to_primary() {
    assert!(listener_returns_to_the_primary("?target_session_attrs=any", true).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn listener_with_several_hosts_uses_no_standby_by_default() {
    assert!(!listener_returns_to_the_primary("", false).await);
}

/// With `target_session_attrs=any` a standby is accepted while the primary restarts, and refuses every
/// write. The store returns to the primary.
#[tokio::test(flavor = "multi_thread")]
async fn store_with_target_any_returns_to_restarted_primary() {
    let (primary, standby, url) = asynchronous_pair("postgres", "?target_session_attrs=any").await;
    let store = Postgres::connect(&url, Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");
    submit(&store).await;
    // The migration is one transaction, which the standby may replay after the primary has stopped or never.
    let reader = standby.connect().await;
    let has_schema = "SELECT to_regclass('tidegate.counters') IS NOT NULL";
    wait::until_async("the standby has the schema", async || {
        reader.query_one(has_schema, &[]).await.expect("read the standby").get(0)
    })
    .await;
    primary.stop(StopMode::Immediate);
    wait::until_async("the standby refuses a write", async || {
        let error = store.submit(submission()).await.expect_err("the primary is away");
        assert!(error.is_retryable(), "{error}");
        error.to_string().contains("read-only")
    })
    .await;
    primary.start();
    wait::until_async("a submission", async || store.submit(submission()).await.is_ok()).await;
}

#[tokio::test]
async fn standby_as_the_only_server_is_an_error_that_says_what_to_do() {
    let (_primary, standby) = pair().await;
    let url = |attributes: &str| {
        let port = standby.port();
        format!("postgres://postgres@127.0.0.1:{port}/postgres?target_session_attrs={attributes}")
    };
    let refused = Postgres::connect(&url("read-write"), Options::default()).await;
    let refused = refused.expect_err("a standby").to_string();
    for word in ["accepts no writes", "target_session_attrs=read-write", "add the primary"] {
        assert!(refused.contains(word), "{refused}");
    }
    let store = Postgres::connect(&url("any"), Options::default()).await.expect("connect");
    let refused = store.migrate().await.expect_err("a standby").to_string();
    for word in ["25006", "name the primary", "target_session_attrs=read-write"] {
        assert!(refused.contains(word), "{refused}");
    }
}
