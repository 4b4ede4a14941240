//! Several processes on one file take turns at writing, whoever wants it more. What is counted is
//! turns, in the order of the ids they gave: how long one takes says nothing about the order.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rusqlite::Connection;
use tempfile::TempDir;
use tidegate_core::{Claim, Heartbeat, NewTask, Store, StoreReader, Submission, Token, WorkerId};
use tidegate_store::sqlite::{Options, Sqlite};
use tidegate_testkit::wait;

const FILE: &str = "TIDEGATE_TEST_FAIR_FILE";
const NAME: &str = "TIDEGATE_TEST_FAIR_NAME";

/// Processes that always have more to write than fits into one turn.
const GREEDY: usize = 4;

/// Calls in flight in each of them: a multiple of what shares a commit, so that the next turn is
/// wanted as soon as one ends, also where the callers are slow to call again.
const CALLS: usize = 2000;

/// The one that has one call at a time.
const GUEST: &str = "guest";

/// Tasks of one round: more than a hundred turns.
const TASKS: i64 = 30_000;

/// Rounds in which the turns are not in order because the machine did not let a process run.
const ROUNDS_MAX: u32 = 10;

/// Commits wait for the disk: a turn is long and leaves the processors to the others.
fn open(path: &Path) -> Sqlite {
    Sqlite::open(path, Options::default()).unwrap()
}

async fn submit(store: &Sqlite, kind: &str) {
    let tasks = vec![NewTask::new(kind, "{}")];
    store.submit(Submission { tasks, ..Submission::default() }).await.unwrap();
}

/// Not a test of its own: the child of the next one.
#[tokio::test]
async fn child_process_writes_until_killed() {
    let (Some(path), Ok(name)) = (std::env::var_os(FILE), std::env::var(NAME)) else {
        return;
    };
    let store = open(&PathBuf::from(path));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..CALLS {
        let (store, name) = (store.clone(), name.clone());
        calls.spawn(async move {
            loop {
                submit(&store, &name).await;
            }
        });
    }
    calls.join_next().await;
}

/// A child that is killed when the test ends, however it ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(path: &Path, number: usize) -> Killed {
    let own = std::env::current_exe().unwrap();
    let child = Command::new(own)
        .args(["child_process_writes_until_killed", "--exact"])
        .env(FILE, path)
        .env(NAME, format!("greedy {number}"))
        .stdout(Stdio::null())
        .spawn();
    Killed(child.unwrap())
}

/// Returns the writer of each task after the first ones, in order.
fn writers(file: &Connection, after: i64) -> Vec<String> {
    let sql = "select lanes.kind from tasks join lanes on lanes.id = tasks.lane where tasks.id > ? order by tasks.id";
    let mut rows = file.prepare(sql).unwrap();
    rows.query_map([after], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn number(file: &Connection, sql: &str) -> i64 {
    file.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// How many turns of others lie between two of this one, ascending.
fn waits(turns: &[String], name: &str) -> Vec<usize> {
    let own = turns.iter().enumerate().filter(|(_, turn)| *turn == name).map(|(at, _)| at);
    let own: Vec<usize> = own.collect();
    let mut waits: Vec<usize> = own.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
    waits.sort_unstable();
    waits
}

/// Writes as the guest until all processes have written enough, and returns the turns meanwhile.
async fn measured_turns(store: &Sqlite, file: &Connection) -> Vec<String> {
    let last = || number(file, "select max(id) from tasks");
    let begin = last();
    while last() < begin + TASKS {
        submit(store, GUEST).await;
    }
    let mut turns = writers(file, begin);
    turns.dedup();
    turns
}

/// Checks that the guest waits for one turn of each other process and that the other processes have equal shares.
fn in_order(turns: &[String]) -> Result<(), String> {
    let of_guest = waits(turns, GUEST);
    let of = |name: String| turns.iter().filter(|turn| **turn == name).count();
    let mut shares: Vec<usize> = (0..GREEDY).map(|number| of(format!("greedy {number}"))).collect();
    shares.sort_unstable();
    let most = of_guest.get(of_guest.len() * 9 / 10);
    let is_in_order =
        most.is_some_and(|most| *most <= 2 * GREEDY) && shares[0] * 5 >= shares[GREEDY - 1] * 4;
    let fault = || format!("shares of {shares:?} turns; the guest waited {of_guest:?} turns");
    if is_in_order { Ok(()) } else { Err(fault()) }
}

#[tokio::test]
async fn processes_write_in_turn() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("tasks.db");
    let store = open(&path);
    store.migrate().await.unwrap();
    let children: Vec<Killed> = (0..GREEDY).map(|number| start(&path, number)).collect();
    let file = Connection::open(&path).unwrap();
    while number(&file, "select count(*) from lanes") <= GREEDY as i64 {
        submit(&store, GUEST).await;
    }
    // A process that the machine does not let run is not in the queue, so one round in order is enough.
    let mut faults = 0;
    while let Err(fault) = in_order(&measured_turns(&store, &file).await) {
        faults += 1;
        assert!(faults < ROUNDS_MAX, "{fault}");
    }
    drop(children);
    // Processes that were killed in the middle of a turn or in the queue left nothing locked.
    submit(&store, GUEST).await;
}

fn heartbeat(tokens: Vec<Token>, lease_ms: i64) -> Heartbeat {
    let (worker, progress, ran) = (WorkerId("worker".into()), vec![], vec![]);
    Heartbeat { worker, tokens, lease_ms, progress, run_times: ran, report: None }
}

fn lock_file(path: &Path, end: &str) -> File {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    File::options().write(true).open(name).expect("a lock file")
}

/// The heartbeat was taken out of the queue and waited for the turn of this process when its caller gave up.
#[tokio::test]
async fn heartbeat_of_dropped_caller_waiting_for_its_turn_renews_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("tasks.db");
    let store = open(&path);
    store.migrate().await.unwrap();
    submit(&store, "mail").await;
    let claim = Claim {
        worker: WorkerId("worker".into()),
        queues: ["default".into()].into(),
        kinds: ["mail".into()].into(),
        tasks_max: 1,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    };
    let token = store.claim(claim).await.unwrap()[0].token;
    let before = store.snapshot().await.unwrap().leases;
    let turn = lock_file(&path, "-lock");
    turn.lock().unwrap();
    let late = tokio::spawn({
        let store = store.clone();
        async move { store.heartbeat(heartbeat(vec![token], 600_000)).await }
    });
    // A process that waits for the turn holds the lock before it.
    let last_room = lock_file(&path, "-lock1");
    wait::until_async("the heartbeat waits for the turn", async || {
        let is_free = last_room.try_lock().is_ok();
        if is_free {
            last_room.unlock().unwrap();
        }
        !is_free
    })
    .await;
    late.abort();
    late.await.expect_err("the caller is gone");
    turn.unlock().unwrap();
    store.heartbeat(heartbeat(vec![], 30_000)).await.unwrap();
    assert_eq!(store.snapshot().await.unwrap().leases, before);
}
