//! Finished tasks on PostgreSQL: they leave the table that work goes through, and are removed by the day.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tidegate_core::bounds::DAY_MS;
use tidegate_core::reader::TaskFilter;
use tidegate_core::{
    Attempt, Claim, Completion, Finish, Kind, Millis, NewTask, Outcome, Registration, RetryOutcome,
    Store, StoreReader, Submission, TaskState, WorkerId,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::wait;
use tokio_postgres::{Client, NoTls};

const START: Millis = 20_000 * DAY_MS + 1_000;

/// One store at a time of its own, and a connection to look at its tables.
struct FinishedHarness {
    store: Postgres,
    client: Client,
    now: Arc<AtomicI64>,
    /// Dropped last: the data goes with it.
    database: Database,
}

async fn client(database: &Database) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

impl FinishedHarness {
    async fn new() -> Self {
        let database = Server::shared().database();
        let now = Arc::new(AtomicI64::new(START));
        let read = now.clone();
        let clock = Arc::new(move || read.load(Ordering::SeqCst));
        let options = Options { clock: Some(clock), ..Options::default() };
        let store = Postgres::connect(&database.url(), options).await.expect("connect");
        store.migrate().await.expect("migrate");
        Self { store, client: client(&database).await, now, database }
    }

    async fn kind(&self, completed: Option<u32>, failed: Option<u32>) {
        let kind = Kind {
            remove_on_completed_days: completed,
            remove_on_failed_days: failed,
            ..Kind::new("a")
        };
        let registration = Registration { kinds: vec![kind], ..Registration::default() };
        self.store.register(registration).await.expect("register");
    }

    /// Claims tasks and ends them.
    async fn work(&self, tasks: usize, outcome: &Outcome) -> Vec<Attempt> {
        let new = (0..tasks).map(|_| NewTask::new("a", "null")).collect();
        self.store
            .submit(Submission { tasks: new, ..Submission::default() })
            .await
            .expect("submit");
        let claim = Claim {
            worker: WorkerId("w".into()),
            queues: ["default".into()].into(),
            kinds: ["a".into()].into(),
            tasks_max: tasks as u32,
            lease_ms: 30_000,
            poll_interval_ms: 1000,
        };
        let claimed = self.store.claim(claim).await.expect("claim");
        assert_eq!(claimed.len(), tasks);
        let exit = |one: &Attempt| Completion {
            task: one.task,
            token: one.token,
            outcome: outcome.clone(),
        };
        let exits = claimed.iter().map(exit).collect();
        let finished =
            self.store.finish(Finish { completions: exits, claim: None }).await.expect("finish");
        assert!(finished.lost_attempts.is_empty());
        claimed
    }

    async fn count(&self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM tidegate.{table}");
        self.client.query_one(&sql, &[]).await.expect(table).get(0)
    }

    /// Days after the start that have a partition.
    async fn days(&self) -> Vec<i32> {
        let sql = "SELECT substr(c.relname, 10)::int - 20000 FROM pg_inherits i
                   JOIN pg_class c ON c.oid = i.inhrelid
                   WHERE i.inhparent = 'tidegate.finished'::regclass AND c.relname ~ '[0-9]$'
                   ORDER BY 1";
        let rows = self.client.query(sql, &[]).await.expect("partitions");
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn prune(&self) -> u32 {
        self.store.prune().await.expect("prune").tasks
    }

    fn advance(&self, ms: i64) {
        self.now.fetch_add(ms, Ordering::SeqCst);
    }
}

fn done() -> Outcome {
    Outcome::Completed(b"\"well\"".to_vec())
}

fn failed() -> Outcome {
    Outcome::Failed { error: "no".into(), retryable: false, retry_in_ms: None }
}

#[tokio::test]
async fn finished_tasks_are_moved_out_of_tasks_table() {
    let lab = FinishedHarness::new().await;
    lab.kind(None, Some(3)).await;
    lab.work(5, &done()).await;
    lab.work(2, &failed()).await;
    assert_eq!((lab.count("tasks").await, lab.count("finished").await), (0, 7));
    assert_eq!((lab.count("finished_forever").await, lab.count("finished_default").await), (5, 0));
    let states = [TaskState::Failed];
    let filter = TaskFilter { states: states.into(), tasks_max: 10, ..TaskFilter::default() };
    let listed = lab.store.tasks(filter).await.expect("tasks");
    assert_eq!(listed.iter().map(|task| task.id.0).collect::<Vec<_>>(), [6, 7]);
    let shown = lab.store.task(listed[0].id).await.expect("task").expect("it is there");
    assert_eq!(
        (shown.error.as_deref(), shown.payload.as_deref()),
        (Some("no"), Some(&b"null"[..]))
    );
}

#[tokio::test]
async fn prune_drops_partition_of_expired_day() {
    let lab = FinishedHarness::new().await;
    lab.kind(Some(2), Some(5)).await;
    assert_eq!(lab.days().await, [3, 4, 6, 7], "made when the kind is");
    lab.work(40, &done()).await;
    lab.work(3, &failed()).await;
    lab.advance(DAY_MS);
    lab.work(10, &done()).await;
    assert_eq!((lab.prune().await, lab.days().await), (0, vec![3, 4, 5, 6, 7, 8]));
    lab.advance(2 * DAY_MS);
    assert_eq!((lab.prune().await, lab.count("finished").await), (40, 13));
    assert_eq!(lab.days().await, [4, 5, 6, 7, 8, 9, 10]);
    lab.advance(30 * DAY_MS);
    assert_eq!((lab.prune().await, lab.count("finished").await), (13, 0));
    assert_eq!(lab.days().await, [36, 37, 39, 40]);
}

#[tokio::test]
async fn finished_task_without_partition_is_pruned() {
    let lab = FinishedHarness::new().await;
    lab.kind(Some(1), None).await;
    lab.advance(9 * DAY_MS);
    lab.work(4, &done()).await;
    assert_eq!(lab.count("finished_default").await, 4);
    // Of the days to come, the one that strays are of is left out.
    assert_eq!((lab.prune().await, lab.days().await), (0, vec![12]));
    lab.advance(2 * DAY_MS);
    assert_eq!((lab.prune().await, lab.count("finished").await), (4, 0));
}

#[tokio::test]
async fn prune_does_not_wait_for_reader_of_finished_tasks() {
    let lab = FinishedHarness::new().await;
    lab.kind(Some(1), None).await;
    lab.work(4, &done()).await;
    lab.advance(3 * DAY_MS);
    let mut reader = client(&lab.database).await;
    let reading = reader.transaction().await.expect("begin");
    reading.query("SELECT * FROM tidegate.finished", &[]).await.expect("read");
    assert_eq!((lab.prune().await, lab.count("finished").await), (0, 4), "left for the next time");
    lab.work(1, &done()).await;
    reading.commit().await.expect("commit");
    assert_eq!((lab.prune().await, lab.count("finished").await), (4, 1));
}

#[tokio::test]
async fn retry_moves_failed_task_back_with_its_payload() {
    let lab = FinishedHarness::new().await;
    lab.kind(Some(2), Some(5)).await;
    let claimed = lab.work(2, &failed()).await;
    let back = lab.store.retry(vec![claimed[0].task, claimed[0].task]).await.expect("retry");
    assert_eq!(back, [RetryOutcome::Retried, RetryOutcome::Unfinished]);
    assert_eq!((lab.count("tasks").await, lab.count("finished").await), (1, 1));
    let shown = lab.store.task(claimed[0].task).await.expect("task").expect("it is there");
    assert_eq!((shown.state, shown.error, shown.finished_at), (TaskState::Pending, None, None));
    assert_eq!(shown.payload.as_deref(), Some(&b"null"[..]));
}

/// Somebody makes the partition of a day while a task is on its way to where those are kept whose day
/// has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finish_racing_with_creation_of_partition_stores_task_in_it() {
    let lab = FinishedHarness::new().await;
    lab.kind(Some(4_000), None).await;
    lab.client
        .batch_execute("DROP TABLE tidegate.finished_24001")
        .await
        .expect("drop the partition");
    // As `rotate_finished_partitions` does it.
    let made = "BEGIN; CREATE TABLE tidegate.finished_24001 (LIKE tidegate.finished INCLUDING ALL);
                ALTER TABLE tidegate.finished ATTACH PARTITION tidegate.finished_24001
                FOR VALUES FROM (24001) TO (24002)";
    lab.client.batch_execute(made).await.expect("make the partition");
    let monitor = client(&lab.database).await;
    let commit = async {
        let waits = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let count = async || monitor.query_one(waits, &[]).await.expect("waits").get::<_, i64>(0);
        wait::until_async("a statement waits for a lock", async || count().await > 0).await;
        lab.client.batch_execute("COMMIT").await.expect("commit");
    };
    let outcome = done();
    tokio::join!(lab.work(1, &outcome), commit);
    assert_eq!((lab.count("finished_24001").await, lab.count("finished_default").await), (1, 0));
}
