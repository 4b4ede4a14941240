//! Workers that are told to end, or that stand still for longer than their leases.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Shell, expect_exit, format_output, numbers, without_numbers};
use insta::assert_snapshot;
use rustix::process::{Pid, Signal, kill_process};
use tidegate_core::{NewTask, Store, StoreReader, Submission, TaskState};
use tidegate_engine::time;
use tidegate_measure::history::{Outcome, Record};
use tidegate_store::OpenOptions;
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::wait;

/// A store, and the folder that its workers run in.
struct SignalHarness {
    shell: Shell,
    url: String,
    store: Arc<dyn Store>,
    inspect: Arc<dyn StoreReader>,
    _database: Option<Database>,
}

impl SignalHarness {
    async fn sqlite() -> Self {
        let shell = Shell::new();
        let url = format!("sqlite:{}", shell.path("tasks.db").display());
        Self::new(shell, url, None).await
    }

    async fn postgres() -> Self {
        let database = Server::shared().database();
        Self::new(Shell::new(), database.url(), Some(database)).await
    }

    async fn new(shell: Shell, url: String, database: Option<Database>) -> Self {
        let opened = tidegate_store::open(&url, OpenOptions::default()).await.expect("open");
        opened.store.migrate().await.expect("migrate");
        Self { shell, url, store: opened.store, inspect: opened.reader, _database: database }
    }

    fn worker(&self, history: &str, arguments: &[&str]) -> Child {
        let mut command = self.shell.command(&["worker", "--store", &self.url]);
        command.args(["--history", history]).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start a worker")
    }

    async fn submit(&self, kind: &str, payload: &str, tasks: usize) {
        let task = NewTask { max_attempts: Some(9), ..NewTask::new(kind, payload) };
        let tasks = vec![task; tasks];
        let submission = Submission { tasks, ..Submission::default() };
        self.store.submit(submission).await.expect("submit");
    }

    fn history(&self, name: &str) -> Vec<Record> {
        let text = std::fs::read_to_string(self.shell.path(name)).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
    }

    async fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        wait::until_async(what, async || is_so()).await;
    }

    async fn count(&self, state: TaskState) -> u64 {
        self.inspect.task_counts().await.expect("counts").get(&state).copied().unwrap_or(0)
    }
}

fn send(signal: Signal, to: &Child) {
    let pid = Pid::from_raw(to.id() as i32).expect("a process");
    kill_process(pid, signal).expect("send a signal");
}

fn entered(records: &[Record]) -> BTreeMap<i64, u32> {
    let mut times = BTreeMap::new();
    for record in records {
        if let Record::Enter(enter) = record {
            *times.entry(enter.task).or_default() += 1;
        }
    }
    times
}

/// 100 run and 50 wait when the signal comes.
async fn drains(lab: SignalHarness) {
    lab.submit("sleep", "{\"ms\": 3000}", 150).await;
    let worker = lab.worker("first.jsonl", &["--concurrency", "100"]);
    lab.wait_until("a hundred in flight", || entered(&lab.history("first.jsonl")).len() == 100)
        .await;
    send(Signal::TERM, &worker);
    let told = format_output(&worker.wait_with_output().expect("wait"));
    assert_eq!(
        numbers(&expect_exit(0, &told))[..3],
        [100, 0, 0],
        "completed, failed, to be retried: {told}"
    );
    let first = entered(&lab.history("first.jsonl"));
    assert_eq!(
        (lab.count(TaskState::Completed).await, lab.count(TaskState::Pending).await),
        (100, 50)
    );
    let rest = lab.worker("rest.jsonl", &["--concurrency", "100", "--until-idle"]);
    let told = format_output(&rest.wait_with_output().expect("wait"));
    assert_eq!(numbers(&expect_exit(0, &told))[0], 50, "completed: {told}");
    let rest = entered(&lab.history("rest.jsonl"));
    assert!(first.values().chain(rest.values()).all(|times| *times == 1), "none is run again");
    assert!(rest.keys().all(|task| !first.contains_key(task)), "none is run again");
}

#[tokio::test]
async fn worker_with_hundred_tasks_in_flight_drains_on_sqlite() {
    drains(SignalHarness::sqlite().await).await;
}

#[tokio::test]
async fn worker_with_hundred_tasks_in_flight_drains_on_postgres() {
    drains(SignalHarness::postgres().await).await;
}

/// Waits until a worker has said something; the rest of it is read and dropped.
fn wait_for_stderr(worker: &mut Child, text: &str) {
    let mut lines = BufReader::new(worker.stderr.take().expect("a pipe")).lines();
    let said = lines.by_ref().find(|line| line.as_ref().is_ok_and(|line| line.contains(text)));
    said.unwrap_or_else(|| panic!("it ended without saying {text:?}")).expect("UTF-8");
    std::thread::spawn(move || lines.for_each(drop));
}

/// Two signals at once, as `timeout` sends them to a process and to its group: the second comes when
/// the first was surely received, so that the system does not make one of them.
#[tokio::test]
async fn two_immediate_signals_count_as_one() {
    let lab = SignalHarness::sqlite().await;
    lab.submit("sleep", "{\"ms\": 3000}", 10).await;
    let mut worker = lab.worker("first.jsonl", &[]);
    lab.wait_until("ten in flight", || entered(&lab.history("first.jsonl")).len() == 10).await;
    send(Signal::TERM, &worker);
    wait_for_stderr(&mut worker, "draining: what runs may finish");
    send(Signal::TERM, &worker);
    let told = format_output(&worker.wait_with_output().expect("wait"));
    let summary = expect_exit(0, &told);
    assert_eq!(numbers(&summary)[..3], [10, 0, 0], "completed, failed, to be retried: {told}");
    assert_snapshot!(
        without_numbers(summary.lines().next().expect("a summary")),
        @"N completed, N failed, N to be retried, N snoozed, N released, N cancelled, N lost"
    );
}

/// Signals are sent until it ends: those of the first second change nothing, the next one stops it.
#[tokio::test]
async fn later_signal_stops_running_tasks() {
    let lab = SignalHarness::sqlite().await;
    lab.submit("sleep", "{\"ms\": 600000}", 3).await;
    let mut worker = lab.worker("first.jsonl", &[]);
    lab.wait_until("three in flight", || entered(&lab.history("first.jsonl")).len() == 3).await;
    let began = time::now();
    wait::until_async("the worker ends", async || {
        send(Signal::TERM, &worker);
        worker.try_wait().expect("look").is_some()
    })
    .await;
    assert!(time::now() - began >= Duration::from_secs(1), "those at once are one");
    let told = format_output(&worker.wait_with_output().expect("wait"));
    assert!(told.contains("0 completed") && told.contains("3 released"), "{told}");
}

/// Its next heartbeat says so.
#[tokio::test]
async fn draining_worker_reports_stopping() {
    let lab = SignalHarness::sqlite().await;
    lab.submit("sleep", "{\"ms\": 600000}", 1).await;
    let mut worker = lab.worker("first.jsonl", &["--lease", "1s"]);
    lab.wait_until("one in flight", || entered(&lab.history("first.jsonl")).len() == 1).await;
    send(Signal::TERM, &worker);
    let seen = || lab.shell.run_ok(&["workers", "--store", &lab.url]);
    lab.wait_until("it to say that it stops", || seen().contains("no: stopping")).await;
    worker.kill().expect("kill");
    worker.wait().expect("wait");
}

/// Processes that were started as `sleep TIME`.
fn sleepers(duration: &str) -> usize {
    let wanted = format!("sleep\0{duration}\0").into_bytes();
    let folders = std::fs::read_dir("/proc").expect("a Linux").flatten();
    folders
        .filter(|folder| std::fs::read(folder.path().join("cmdline")).is_ok_and(|c| c == wanted))
        .count()
}

/// It stands still past its lease, and others take its tasks over. When it goes on it stops its
/// handlers, and nothing that it says is taken.
async fn stands_still(lab: SignalHarness, duration: &str) {
    let exec = format!("{{\"argv\": [\"sleep\", \"{duration}\"]}}");
    lab.submit("exec", &exec, 1).await;
    lab.submit("sleep", "{\"ms\": 600000}", 1).await;
    let options = ["--lease", "2s", "--exec-allow", "sleep"];
    let ran = |name: &str| entered(&lab.history(name)).len() == 2;
    let first = lab.worker("first.jsonl", &options);
    lab.wait_until("the first to run both", || ran("first.jsonl") && sleepers(duration) == 1).await;
    send(Signal::STOP, &first);
    let mut second = lab.worker("second.jsonl", &options);
    // A command of a worker that stands still ends before the lease does.
    lab.wait_until("the second to run both", || ran("second.jsonl") && sleepers(duration) == 1)
        .await;
    send(Signal::CONT, &first);
    let left = |name: &str| {
        lab.history(name).iter().filter(|record| matches!(record, Record::Leave(_))).count()
    };
    lab.wait_until("the first to stop both", || {
        left("first.jsonl") == 2 && sleepers(duration) == 1
    })
    .await;
    send(Signal::TERM, &first);
    let told = format_output(&first.wait_with_output().expect("wait"));
    assert_eq!(
        numbers(&expect_exit(0, &told))[..3],
        [0, 0, 0],
        "completed, failed, to be retried: {told}"
    );
    let taken =
        |record: &Record| matches!(record, Record::Exit(exit) if exit.outcome != Outcome::Lost);
    assert_eq!(lab.history("first.jsonl").iter().filter(|record| taken(record)).count(), 0);
    assert_eq!(left("second.jsonl"), 0, "the second goes on");
    assert_eq!(lab.count(TaskState::Processing).await, 2);
    second.kill().expect("kill the second");
    second.wait().expect("wait");
    lab.wait_until("its command to end with it", || sleepers(duration) == 0).await;
}

#[tokio::test]
async fn frozen_worker_changes_nothing_on_sqlite() {
    stands_still(SignalHarness::sqlite().await, "611.1").await;
}

#[tokio::test]
async fn frozen_worker_changes_nothing_on_postgres() {
    stands_still(SignalHarness::postgres().await, "611.2").await;
}
