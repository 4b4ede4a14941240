//! A schema that changes under workers that do not know the change: real processes go on.

use std::fs::File;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::common::{Shell, expect_exit, without_numbers};
use insta::assert_snapshot;
use rustix::process::{Pid, Signal, kill_process};
use tidegate_core::{ErrorKind, NewTask, Store, StoreReader, Submission, TaskId, TaskState};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::wait;
use tokio_postgres::{Client, NoTls};

const WORKERS: usize = 3;

/// How long a task may take on a machine that has other things to do; a fleet that waits for a lock
/// would take as long as the lock is held.
const TASK_MAX: Duration = Duration::from_secs(20);

/// What a newer program brings: a column with a default and an index, on the tables that every claim
/// and every finish write.
const MORE: &[(&str, &str)] = &[(
    "9998_more",
    "-- Online: a column that nobody names, and an index.
    ALTER TABLE tidegate.ready ADD COLUMN extra bigint NOT NULL DEFAULT 7;
    ALTER TABLE tidegate.tasks ADD COLUMN extra bigint NOT NULL DEFAULT 7;
    CREATE INDEX ready_extra ON tidegate.ready (extra);",
)];

/// The same, and a step that no older program bears.
const OTHER: &[(&str, &str)] =
    &[MORE[0], ("9999_other", "ALTER TABLE tidegate.paused_queues RENAME TO q;")];

struct MigratingFleet {
    shell: Shell,
    url: String,
    store: Postgres,
    workers: Vec<Child>,
    _database: Database,
}

impl Drop for MigratingFleet {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

impl MigratingFleet {
    async fn start() -> Self {
        let database = Server::shared().database();
        let url = database.url();
        let store = Postgres::connect(&url, Options::default()).await.expect("connect");
        store.migrate().await.expect("migrate");
        let mut fleet =
            Self { shell: Shell::new(), url, store, workers: Vec::new(), _database: database };
        fleet.workers = (0..WORKERS).map(|number| fleet.worker(number)).collect();
        fleet
    }

    fn worker(&self, number: usize) -> Child {
        let log = File::create(self.log(number)).expect("a log");
        let mut command = self.shell.command(&["worker", "--store", &self.url]);
        command.stdout(Stdio::null()).stderr(log).spawn().expect("start a worker")
    }

    fn log(&self, number: usize) -> std::path::PathBuf {
        self.shell.path(&format!("worker{number}.log"))
    }

    async fn submit(&self) -> TaskId {
        let tasks = vec![NewTask::new("noop", "null")];
        let submission = Submission { tasks, ..Submission::default() };
        self.store.submit(submission).await.expect("submit")[0].task
    }

    /// One task after another is submitted and runs to its end.
    async fn assert_progress(&self, tasks: usize) {
        for _ in 0..tasks {
            tokio::time::timeout(TASK_MAX, self.assert_runs_task()).await.expect("the fleet waits");
        }
    }

    async fn assert_runs_task(&self) {
        let task = self.submit().await;
        let state = async || self.store.task(task).await.expect("task").expect("it is kept").state;
        wait::until_async("the task completes", async || state().await == TaskState::Completed)
            .await;
    }

    /// Workers end when they are told to, and none of them had anything to complain about.
    fn stop(&mut self) {
        for worker in &mut self.workers {
            assert_eq!(worker.try_wait().expect("look"), None, "it runs");
            kill_process(Pid::from_child(worker), Signal::TERM).expect("stop");
        }
        for (number, mut worker) in std::mem::take(&mut self.workers).into_iter().enumerate() {
            let status = worker.wait().expect("wait");
            let log = std::fs::read_to_string(self.log(number)).expect("a log");
            assert!(status.success(), "{log}");
            let faults = ["error", "ERROR", "WARN"];
            assert!(!faults.iter().any(|fault| log.contains(fault)), "{log}");
        }
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// Waits until a migration has been refused a lock: it is tried again and again.
async fn wait_for_attempt(client: &Client) {
    let waits = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND query LIKE '-- Online:%'";
    let count = async || client.query_one(waits, &[]).await.expect("look").get::<_, i64>(0);
    wait::until_async("the migration begins", async || count().await > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_continue_during_migration() {
    let mut fleet = MigratingFleet::start().await;
    fleet.assert_progress(5).await;
    let mut other = connect(&fleet.url).await;
    let looker = connect(&fleet.url).await;
    let long = other.transaction().await.expect("begin");
    long.batch_execute("SELECT FROM tidegate.ready; SELECT FROM tidegate.tasks")
        .await
        .expect("look");
    let newer = fleet.store.clone();
    let migration = tokio::spawn(async move { newer.migrate_with_extra(MORE).await });
    wait_for_attempt(&looker).await;
    fleet.assert_progress(20).await;
    assert!(!migration.is_finished(), "it waits for the long transaction");
    long.commit().await.expect("commit");
    migration.await.expect("it ends").expect("migrate");
    fleet.assert_progress(20).await;
    fleet.store.migrate().await.expect("a program of the version before goes on");
    let submitted = fleet.shell.run(&["submit", "noop", "--store", &fleet.url]);
    assert!(submitted.starts_with("exit 0\n"), "and starts: {submitted}");
    let sound = fleet.shell.run(&["doctor", "--store", &fleet.url]);
    assert!(sound.starts_with("exit 0\n"), "{sound}");
    fleet.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn migration_that_live_workers_do_not_support_is_rejected() {
    let mut fleet = MigratingFleet::start().await;
    fleet.assert_progress(5).await;
    let refused = fleet.store.migrate_with_extra(OTHER).await.expect_err("workers live");
    assert_eq!(refused.kind(), ErrorKind::Incompatible);
    let workers = fleet.store.workers().await.expect("workers");
    for worker in workers {
        assert!(refused.to_string().contains(&*worker.id.0), "{refused}");
    }
    fleet.assert_progress(5).await;
    fleet.stop();
    fleet.store.migrate_with_extra(OTHER).await.expect("nobody lives");
    let told = fleet.shell.run(&["submit", "noop", "--store", &fleet.url]);
    assert_snapshot!(
        without_numbers(&expect_exit(1, &told)),
        @"error: the database has version N of the tidegate schema and this program knows N; use a newer tidegate"
    );
}

/// Whoever looks at a database that nobody has migrated is told what to do.
#[test]
fn database_without_schema_names_migrate_command() {
    let database = Server::shared().empty_database();
    let (shell, url) = (Shell::new(), database.url());
    let commands = [
        "task list",
        "task show 1",
        "task explain 1",
        "task wait 1",
        "task cancel 1",
        "task retry 1",
        "job list",
        "job show nightly",
        "job pause nightly",
        "job cancel nightly",
        "queue list",
        "queue pause mail",
        "workflow list",
        "workflow show order",
        "workers",
        "concurrency status",
        "concurrency unset partner",
        "doctor",
        "prune",
    ];
    for command in commands {
        let words: Vec<&str> = command.split(' ').chain(["--store", &url]).collect();
        let told = shell.run(&words);
        let says = told.starts_with("exit 1\nerror: ") && told.contains("run `tidegate migrate`");
        assert!(says, "{command}: {told}");
    }
    shell.run_ok(&["migrate", "--store", &url]);
    shell.run_ok(&["task", "list", "--store", &url]);
}
