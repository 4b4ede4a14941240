//! What only a file can do: be opened again, by several at once, after a crash, when it is full,
//! foreign, newer or read-only. That the verbs keep the rules is the conformance suite's matter.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use insta::{allow_duplicates, assert_snapshot};
use rusqlite::Connection;
use tempfile::TempDir;
use tidegate_core::invariants::{check, check_idle_store};
use tidegate_core::reader::{NotRunningReason, TaskFilter};
use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, ErrorKind, Finish, Heartbeat, NewTask, Outcome,
    Result, SetLimit, Store, StoreReader, Submission, TaskId, TaskState, WorkerId,
};
use tidegate_store::sqlite::{Options, Sqlite, Synchronous};

const JSON: &[u8] = b"{}";

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("tasks.db")
}

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path, quick()).unwrap()
}

/// A test survives the loss of power.
fn quick() -> Options {
    Options { synchronous: Synchronous::Normal, ..Options::default() }
}

async fn fresh(path: &Path) -> Sqlite {
    let store = open(path);
    store.migrate().await.unwrap();
    store
}

fn tasks(tasks: Vec<NewTask>) -> Submission {
    Submission { jobs: vec![], tasks, ..Submission::default() }
}

async fn submit(store: &Sqlite, new: Vec<NewTask>) -> Result<Vec<TaskId>> {
    let submitted = store.submit(tasks(new)).await?;
    Ok(submitted.into_iter().map(|submitted| submitted.task).collect())
}

fn names(names: &[&str]) -> Arc<[Arc<str>]> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

fn claim(worker: &str, tasks_max: u32) -> Claim {
    Claim {
        worker: WorkerId(worker.into()),
        queues: names(&["default"]),
        kinds: names(&["mail", "scan"]),
        tasks_max,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    }
}

fn done(attempts: &[Attempt]) -> Vec<Completion> {
    let exit = |attempt: &Attempt| Completion {
        task: attempt.task,
        token: attempt.token,
        outcome: Outcome::Completed(JSON.to_vec()),
    };
    attempts.iter().map(exit).collect()
}

async fn sound(store: &Sqlite) {
    assert_eq!(check(&store.snapshot().await.unwrap()), []);
}

#[tokio::test]
async fn tasks_are_kept_when_file_is_reopened() {
    let folder = TempDir::new().unwrap();
    let store = fresh(&file(&folder)).await;
    let new = NewTask { priority: 3, ..NewTask::new("mail", br#"{"to":"x"}"#) };
    let ids = submit(&store, vec![new]).await.unwrap();
    drop(store);
    let store = open(&file(&folder));
    store.migrate().await.unwrap();
    let view = store.task(ids[0]).await.unwrap().unwrap();
    assert_eq!((&*view.kind, view.priority, view.state), ("mail", 3, TaskState::Pending));
    assert_eq!(view.payload.as_deref(), Some(&br#"{"to":"x"}"#[..]));
    let more = submit(&store, vec![NewTask::new("mail", JSON)]).await.unwrap();
    assert!(more[0] > ids[0]);
}

#[tokio::test]
async fn task_ids_are_not_reused_after_reopen() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder);
    let mut last = TaskId(0);
    for _ in 0..3 {
        let store = fresh(&path).await;
        let kind = tidegate_core::Kind {
            remove_on_failed_days: Some(0),
            ..tidegate_core::Kind::new("mail")
        };
        let registration = tidegate_core::Registration { kinds: vec![kind], ..Default::default() };
        store.register(registration).await.unwrap();
        let ids = submit(&store, vec![NewTask::new("mail", JSON)]).await.unwrap();
        assert!(ids[0] > last);
        last = ids[0];
        store.cancel(ids).await.unwrap();
        assert!(store.snapshot().await.unwrap().tasks.is_empty());
    }
}

fn without_folder(error: &tidegate_core::Error, folder: &TempDir) -> String {
    error.to_string().replace(&folder.path().display().to_string(), "FOLDER")
}

#[tokio::test]
async fn file_without_schema_is_rejected_with_instructions() {
    let folder = TempDir::new().unwrap();
    let store = open(&file(&folder));
    let errors =
        [store.admit().await.unwrap_err(), StoreReader::task_counts(&store).await.unwrap_err()];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        allow_duplicates! {
            assert_snapshot!(
                without_folder(&error, &folder),
                @"FOLDER/tasks.db: the file has no tidegate schema yet; run `tidegate migrate`"
            );
        }
        assert!(error.to_string().contains("tasks.db"), "{error}");
    }
    store.migrate().await.unwrap();
    store.admit().await.unwrap();
    assert!(store.task_counts().await.unwrap().is_empty());
}

#[tokio::test]
async fn file_of_newer_version_is_rejected() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder);
    let store = fresh(&path).await;
    let newer = Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    // Whoever has it open notices, too.
    let running = store.admit().await.unwrap_err();
    let reading = store.task_counts().await.unwrap_err();
    let migrating = store.migrate().await.unwrap_err();
    drop(store);
    let opening = Sqlite::open(&path, quick()).unwrap_err();
    for error in [running, reading, migrating, opening] {
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        allow_duplicates! {
            assert_snapshot!(
                without_folder(&error, &folder),
                @"FOLDER/tasks.db: the file has schema 99, made by a newer version of tidegate; this one knows schemas up to 1, use the newer one"
            );
        }
    }
}

#[tokio::test]
async fn file_of_an_earlier_build_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder);
    let earlier = Connection::open(&path).unwrap();
    earlier
        .execute_batch(
            "create table migration (version integer primary key, name text not null,
                 checksum text not null, applied_at integer not null, oldest integer) strict;
             insert into migration values (1, '0001_tasks', 'x', 1, 1), (7, '0007_heartbeats', 'x', 1, 4);
             pragma application_id = 1952737140;
             pragma user_version = 7;",
        )
        .unwrap();
    drop(earlier);
    let before = std::fs::read(&path).unwrap();
    let error = Sqlite::open(&path, quick()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("schema 7 of an earlier build of tidegate"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before, "nothing is written");
}

#[tokio::test]
async fn foreign_or_missing_file_is_rejected() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "not a database, and long enough to be sure of it".repeat(50)).unwrap();
    assert_eq!(Sqlite::open(&text, quick()).unwrap_err().kind(), ErrorKind::Incompatible);
    let foreign = folder.path().join("theirs.db");
    Connection::open(&foreign).unwrap().execute_batch("create table theirs (x)").unwrap();
    assert_eq!(Sqlite::open(&foreign, quick()).unwrap_err().kind(), ErrorKind::Incompatible);
    let error = Sqlite::open(folder.path().join("no/such/file.db"), quick()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("file.db"), "{error}");
}

#[tokio::test]
async fn tasks_with_several_limits_run_and_finish() {
    let folder = TempDir::new().unwrap();
    let store = fresh(&file(&folder)).await;
    let set = |capacity| SetLimit {
        name: "group:mail".to_owned(),
        capacity: Some(capacity),
        source: CapacitySource::Operator,
    };
    store.set_limit(set(2)).await.unwrap();
    let mut new: Vec<NewTask> = (0..20).map(|_| NewTask::new("mail", JSON)).collect();
    for (i, task) in new.iter_mut().enumerate() {
        task.job = (i % 3 == 0).then(|| "night".to_owned());
        task.workflow = (i % 5 == 0).then(|| "steps".to_owned());
    }
    let ids = submit(&store, new).await.unwrap();
    sound(&store).await;
    let mut running = store.claim(claim("a", 10)).await.unwrap();
    assert_eq!(running.len(), 2);
    let slots = running.iter().flat_map(|attempt| &attempt.slots);
    let mut of_group: Vec<u32> =
        slots.filter(|slot| &*slot.name == "group:mail").map(|slot| slot.number).collect();
    of_group.sort_unstable();
    assert_eq!(of_group, [0, 1]);
    sound(&store).await;
    let last = store.explain(ids[19]).await.unwrap().unwrap();
    let NotRunningReason::InWaitQueue { limit, held: 2, queue_position: place, holders, .. } =
        last.reason
    else {
        panic!("{last:?}");
    };
    assert_eq!(&*limit, "group:mail");
    assert!(place > 1);
    assert_eq!(holders.len(), 2);
    assert_eq!(holders[0].worker, Some(WorkerId("a".into())));
    store.set_limit(set(3)).await.unwrap();
    let mut finished = 0;
    while !running.is_empty() {
        finished += running.len();
        let next = Finish { completions: done(&running), claim: Some(claim("a", 10)) };
        let outcome = store.finish(next).await.unwrap();
        assert!(outcome.lost_attempts.is_empty() && outcome.claimed.len() <= 3);
        running = outcome.claimed;
        sound(&store).await;
    }
    assert_eq!(finished, 20);
    assert_eq!(check_idle_store(&store.snapshot().await.unwrap()), []);
    let completed =
        TaskFilter { states: vec![TaskState::Completed], tasks_max: 100, ..Default::default() };
    assert_eq!(store.tasks(completed).await.unwrap().len(), 20);
}

#[tokio::test]
async fn duplicate_completion_in_one_finish_is_rejected() {
    let folder = TempDir::new().unwrap();
    let store = fresh(&file(&folder)).await;
    submit(&store, vec![NewTask::new("mail", JSON), NewTask::new("scan", JSON)]).await.unwrap();
    let running = store.claim(claim("a", 10)).await.unwrap();
    let exits = [done(&running), done(&running)].concat();
    let finished = store.finish(Finish { completions: exits, claim: None }).await.unwrap();
    assert_eq!(finished.lost_attempts.len(), 2);
    assert_eq!(check_idle_store(&store.snapshot().await.unwrap()), []);
}

#[tokio::test]
async fn two_handles_share_a_file() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder);
    let (one, two) = (fresh(&path).await, fresh(&path).await);
    one.set_limit(SetLimit {
        name: "group:scan".to_owned(),
        capacity: Some(3),
        source: CapacitySource::Operator,
    })
    .await
    .unwrap();
    let mut ids = Vec::new();
    for (round, store) in [&one, &two].into_iter().cycle().take(20).enumerate() {
        let kind = if round % 4 < 2 { "mail" } else { "scan" };
        ids.extend(submit(store, vec![NewTask::new(kind, JSON); 5]).await.unwrap());
    }
    let work = |store: Sqlite, name: &'static str| async move {
        let mut done_here = Vec::new();
        let mut running = store.claim(claim(name, 4)).await.unwrap();
        while !running.is_empty() {
            done_here.extend(running.iter().map(|attempt| attempt.task));
            // What one store finishes here the other must not take for running.
            let next = Finish { completions: done(&running), claim: Some(claim(name, 4)) };
            let finished = store.finish(next).await.unwrap();
            assert!(finished.lost_attempts.is_empty());
            running = finished.claimed;
        }
        done_here
    };
    let (here, there) = tokio::join!(work(one.clone(), "a"), work(two.clone(), "b"));
    let mut all = [here, there].concat();
    let left = work(one.clone(), "a").await;
    all.extend(left);
    all.sort_unstable();
    assert_eq!(all, ids);
    assert_eq!(check_idle_store(&two.snapshot().await.unwrap()), []);
}

#[tokio::test]
async fn commit_of_another_handle_wakes_waiting_handle() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder);
    let (one, two) = (fresh(&path).await, fresh(&path).await);
    // The first call may return at once for what happened before.
    let waiting = tokio::spawn(async move {
        loop {
            one.wait_for_notification().await;
            if one.task_counts().await.unwrap().contains_key(&TaskState::Pending) {
                return;
            }
        }
    });
    submit(&two, vec![NewTask::new("mail", JSON)]).await.unwrap();
    waiting.await.unwrap();
}

/// Counts the commits of others.
struct Commits {
    connection: Connection,
    last: i64,
}

impl Commits {
    fn of(path: &Path) -> Self {
        let connection = Connection::open(path).unwrap();
        let last = Self::version(&connection);
        Self { connection, last }
    }

    fn version(connection: &Connection) -> i64 {
        connection.pragma_query_value(None, "data_version", |row| row.get(0)).unwrap()
    }

    /// Whether somebody has committed since the last look.
    fn is_new(&mut self) -> bool {
        let before = std::mem::replace(&mut self.last, Self::version(&self.connection));
        before != self.last
    }
}

#[tokio::test]
async fn idle_workers_make_no_commits() {
    const WORKERS: usize = 4;
    let folder = TempDir::new().unwrap();
    let path = file(&folder);
    let now = Arc::new(AtomicI64::new(1_700_000_000_000));
    let clock = now.clone();
    let options = Options { clock: Arc::new(move || clock.load(Ordering::SeqCst)), ..quick() };
    let store = Sqlite::open(&path, options.clone()).unwrap();
    store.migrate().await.unwrap();
    submit(&store, vec![NewTask::new("mail", JSON), NewTask::new("scan", JSON)]).await.unwrap();
    let running = store.claim(claim("worker 0", 9)).await.unwrap();
    store.finish(Finish { completions: done(&running), claim: None }).await.unwrap();
    let stores = (0..WORKERS).map(|_| Sqlite::open(&path, options.clone()).unwrap());
    let stores: Vec<Sqlite> = stores.collect();
    let mut commits = Commits::of(&path);
    // What the ten polls of each worker, and of its keeper, commit.
    let mut polls = async || {
        let mut number = 0;
        for (worker, store) in stores.iter().enumerate().cycle().take(10 * WORKERS) {
            assert!(store.claim(claim(&format!("worker {worker}"), 9)).await.unwrap().is_empty());
            number += usize::from(commits.is_new());
            store.admit().await.unwrap();
            store.reap().await.unwrap();
            store.prune().await.unwrap();
            number += usize::from(commits.is_new());
        }
        number
    };
    // The first worker was seen before, by another handle.
    assert_eq!(polls().await, WORKERS - 1);
    assert_eq!(polls().await, 0);
    now.fetch_add(7_000, Ordering::SeqCst);
    assert_eq!(polls().await, 0);
    // Less than three quarters of the lease are left: each says once that it lives.
    now.fetch_add(1_000, Ordering::SeqCst);
    assert_eq!(polls().await, WORKERS);
    assert_eq!(polls().await, 0);
}

/// Whether somebody is woken in the time of several looks.
async fn is_woken(store: &Sqlite) -> bool {
    tokio::time::timeout(Duration::from_millis(200), store.wait_for_notification()).await.is_ok()
}

#[tokio::test]
async fn wait_for_notification_ignores_own_and_irrelevant_commits() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder);
    let (one, two) = (fresh(&path).await, fresh(&path).await);
    submit(&two, vec![NewTask::new("mail", JSON); 3]).await.unwrap();
    while is_woken(&one).await {}
    let mut commits = Commits::of(&path);
    let waiting = async { is_woken(&one).await };
    let working = async {
        let running = two.claim(claim("b", 2)).await.unwrap();
        assert!(commits.is_new());
        let extend = Heartbeat {
            worker: WorkerId("b".into()),
            tokens: vec![running[0].token],
            lease_ms: 60_000,
            progress: vec![],
            run_times: vec![],
            report: None,
        };
        two.heartbeat(extend).await.unwrap();
        assert!(commits.is_new());
        two.finish(Finish { completions: done(&running), claim: None }).await.unwrap();
        assert!(commits.is_new());
    };
    let (woken, ()) = tokio::join!(waiting, working);
    assert!(!woken, "woken for a claim, a heartbeat or an end");
    // Its own commits are no news of others either, whatever they are.
    submit(&one, vec![NewTask::new("mail", JSON)]).await.unwrap();
    while is_woken(&one).await {}
    two.claim(claim("b", 1)).await.unwrap();
    assert!(!is_woken(&one).await, "woken for its own submit");
    submit(&two, vec![NewTask::new("mail", JSON)]).await.unwrap();
    one.wait_for_notification().await;
}

#[tokio::test]
async fn commands_in_one_commit_fail_independently() {
    let folder = TempDir::new().unwrap();
    let store = fresh(&file(&folder)).await;
    store
        .set_limit(SetLimit {
            name: "group:mail".to_owned(),
            capacity: Some(1),
            source: CapacitySource::Operator,
        })
        .await
        .unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for i in 0..200 {
        let store = store.clone();
        // Every fourth has, after a good task, one that can never run.
        let heavy = NewTask { weight: 2, ..NewTask::new("mail", JSON) };
        let new = match i % 4 {
            0 => vec![NewTask::new("scan", JSON), heavy],
            _ => vec![NewTask::new("scan", JSON), NewTask::new("mail", JSON)],
        };
        calls.spawn(async move { (i % 4 == 0, submit(&store, new).await) });
    }
    let mut stored = 0;
    while let Some(call) = calls.join_next().await {
        let (is_bad, outcome) = call.unwrap();
        match outcome {
            Ok(ids) => stored += ids.len(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid),
        }
        assert!(!is_bad || stored % 2 == 0);
    }
    assert_eq!(stored, 300);
    assert_eq!(store.snapshot().await.unwrap().tasks.len(), 300);
    sound(&store).await;
}

#[tokio::test]
async fn full_disk_rejects_writes_and_store_recovers() {
    let folder = TempDir::new().unwrap();
    let store = fresh(&file(&folder)).await;
    let payload = [&b"\""[..], &[b'x'; 4000][..], &b"\""[..]].concat();
    store.set_page_count_max(200).await.unwrap();
    let mut stored = 0;
    let error = loop {
        match submit(&store, vec![NewTask::new("mail", payload.clone()); 5]).await {
            Ok(ids) => stored += ids.len(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_snapshot!(
        without_folder(&error, &folder),
        @"FOLDER/tasks.db: the disk is full; nothing was written, make room and try again"
    );
    assert!(stored > 0);
    assert_eq!(store.snapshot().await.unwrap().tasks.len(), stored);
    sound(&store).await;
    store.set_page_count_max(1_000_000).await.unwrap();
    let more = submit(&store, vec![NewTask::new("mail", payload); 5]).await.unwrap();
    assert_eq!(store.snapshot().await.unwrap().tasks.len(), stored + more.len());
    let claimed = store.claim(claim("a", 10_000)).await.unwrap();
    assert_eq!(claimed.len(), stored + more.len());
    sound(&store).await;
}

#[cfg(unix)]
#[tokio::test]
async fn read_only_file_can_be_read() {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    let folder = TempDir::new().unwrap();
    let path = file(&folder);
    let store = fresh(&path).await;
    submit(&store, vec![NewTask::new("mail", JSON)]).await.unwrap();
    drop(store);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    if std::fs::OpenOptions::new().write(true).open(&path).is_err() {
        return read_only(&path).await;
    }
    // The superuser may write everywhere: somebody else tries.
    chown(folder.path(), Some(NOBODY), None).unwrap();
    for entry in folder.path().read_dir().unwrap() {
        chown(entry.unwrap().path(), Some(NOBODY), None).unwrap();
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["child_process_reads_read_only_file", "--exact"])
        .env(READ_ONLY, &path)
        .uid(NOBODY)
        .status();
    match status {
        Ok(status) => assert!(status.success()),
        Err(error) => eprintln!("nobody may run this test ({error}): it was not tried"),
    }
}

const READ_ONLY: &str = "TIDEGATE_TEST_READ_ONLY";

/// Not a test of its own: the child of the one before.
#[tokio::test]
async fn child_process_reads_read_only_file() {
    if let Some(path) = std::env::var_os(READ_ONLY) {
        read_only(&PathBuf::from(path)).await;
    }
}

async fn read_only(path: &Path) {
    let store = open(path);
    let error = store.submit(tasks(vec![NewTask::new("mail", JSON)])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("tasks.db"), "{error}");
    assert_eq!(store.task_counts().await.unwrap()[&TaskState::Pending], 1);
}

const CHILD: &str = "TIDEGATE_TEST_SUBMIT_UNTIL_KILLED";

/// Not a test of its own: the child of the next one. It says which tasks are stored, until it
/// is killed.
#[tokio::test]
async fn child_process_submits_until_killed() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let store = Sqlite::open(PathBuf::from(path), Options::default()).unwrap();
    loop {
        for id in submit(&store, vec![NewTask::new("mail", JSON); 3]).await.unwrap() {
            println!("stored {id}");
        }
        let running = store.claim(claim("child", 2)).await.unwrap();
        store.finish(Finish { completions: done(&running[..1]), claim: None }).await.unwrap();
    }
}

#[tokio::test]
async fn acknowledged_tasks_survive_a_kill() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder);
    drop(fresh(&path).await);
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "child_process_submits_until_killed",
                "--exact",
                "--nocapture",
                "--test-threads",
                "1",
            ])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = Vec::new();
        for line in said {
            let line = line.unwrap();
            // The harness puts words of its own before the first.
            if let Some((_, id)) = line.split_once("stored ") {
                acknowledged.push(TaskId(id.parse().unwrap()));
            }
            if acknowledged.len() == 60 {
                // SIGKILL on Unix, in the middle of whatever it does.
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(acknowledged.len() >= 60);
        let store = open(&path);
        for id in acknowledged {
            assert!(store.task(id).await.unwrap().is_some(), "task {id} is lost");
        }
        sound(&store).await;
    }
}

/// A task that becomes due, and a job whose next start comes, wake whoever found nothing.
#[tokio::test]
async fn wait_for_notification_ends_when_task_becomes_due() {
    let folder = TempDir::new().unwrap();
    let store = fresh(&file(&folder)).await;
    let claim = || claim("b", 9);
    let soon = NewTask {
        run_at: Some(StoreReader::now(&store).await.unwrap() + 150),
        ..NewTask::new("mail", JSON)
    };
    store.submit(Submission { tasks: vec![soon], ..Submission::default() }).await.unwrap();
    assert_eq!(store.claim(claim()).await.unwrap(), []);
    let mut claimed = 0;
    while claimed == 0 {
        store.wait_for_notification().await;
        claimed = store.claim(claim()).await.unwrap().len();
    }

    let job = tidegate_core::JobSpec { delay_ms: 150, ..tidegate_core::JobSpec::new("j") };
    let of_job = NewTask { job: Some("j".into()), ..NewTask::new("mail", JSON) };
    let tasks = vec![of_job.clone(), of_job];
    store.submit(Submission { jobs: vec![job], tasks, ..Submission::default() }).await.unwrap();
    for _ in 0..2 {
        while store.claim(claim()).await.unwrap().is_empty() {
            store.wait_for_notification().await;
        }
    }
}
