//! Several servers: work continues on a standby that was promoted.

use std::time::Duration;

use tidegate_core::{
    Attempt, Claim, Exit, Finish, Inspect, NewTask, Outcome, State, Store, Submission, TaskId,
    WorkerId,
};
use tidegate_measure::server::Stop;
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::own_server::OwnServer;

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
        poll_ms: 1000,
    }
}

fn submission() -> Submission {
    Submission { tasks: vec![NewTask::new("a", "null")], ..Submission::default() }
}

fn completed(attempts: &[Attempt]) -> Finish {
    let exit = |attempt: &Attempt| Exit {
        task: attempt.task,
        token: attempt.token,
        outcome: Outcome::Completed(b"1".to_vec()),
    };
    Finish { exits: attempts.iter().map(exit).collect(), claim: None }
}

/// Returns a primary and its synchronous standby, both started.
async fn pair() -> (OwnServer, OwnServer) {
    let primary = OwnServer::make(&["fsync=off"]);
    primary.start();
    let standby = OwnServer::standby_of(&primary);
    standby.start();
    let client = primary.connect().await;
    let synchronous = "ALTER SYSTEM SET synchronous_standby_names = '*'";
    client.batch_execute(synchronous).await.expect("configure");
    client.batch_execute("SELECT pg_reload_conf()").await.expect("reload");
    let state = "SELECT pg_sleep(0.05), (SELECT sync_state FROM pg_stat_replication)";
    while client.query_one(state, &[]).await.expect("state").get::<_, Option<&str>>(1)
        != Some("sync")
    {}
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
async fn work_continues_on_a_promoted_standby_and_no_acknowledged_task_is_lost() {
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

    primary.stop(Stop::Immediate);
    standby.promote();
    acknowledged.push(submit(&store).await);
    for task in &finished {
        let state = store.task(*task).await.expect("read").expect("kept").state;
        assert_eq!(state, State::Completed, "an acknowledged completion is lost");
    }
    drain(&store).await;
    for task in acknowledged {
        let view = store.task(task).await.expect("read").expect("an acknowledged task is lost");
        assert_eq!(view.state, State::Completed);
    }
}

#[tokio::test]
async fn connections_to_a_server_that_became_read_only_are_closed() {
    let (primary, standby) = pair().await;
    let store = connect(&primary, &standby).await;
    submit(&store).await;
    store.counts().await.expect("counts");
    let listening = tokio::spawn({
        let store = store.clone();
        async move { store.changed().await }
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
    let applied = "SELECT pg_sleep(0.02), current_setting('default_transaction_read_only')";
    while old.query_one(applied, &[]).await.expect("setting").get::<_, &str>(1) != "on" {}
    submit(&store).await;
    drain(&store).await;
    store.counts().await.expect("counts");
    // A server process ends a moment after its connection.
    let left = async {
        loop {
            old.batch_execute("SELECT pg_sleep(0.02)").await.expect("sleep");
            let row = old.query_one(opened, &[]).await.expect("count");
            if row.get::<_, i64>(0) == 0 {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, left).await.expect("connections to the old primary stay open");
}
