//! Several processes on one store. The test starts its own binary again, several times; the
//! children find the store by the address in an environment variable.
//!
//! What happens at the same time is seen from outside of the store, in a folder: a handler makes
//! a file for each slot it holds and removes it when it returns. Making a file that exists
//! fails, so no slot ever has two holders; and its number is below the capacity. What it must
//! hold is told by the task itself, so that one that ran past the gate is seen.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use tidegate_core::{Attempt, Claim, Completion, Finish, NewTask, TaskState, WorkerId};

use super::super::fixture::{Backend, Fixture, Handle, claim_request, completed_outcome, task};
use super::concurrent_workers::pause;

/// Where a child finds the store, and the folder.
const ADDRESS_VARIABLE: &str = "TIDEGATE_RACE_AT";
const FOLDER_VARIABLE: &str = "TIDEGATE_RACE_FOLDER";

/// The case that children run again, in the module of its store.
const CASE: &str = "races::limits_are_exact_across_processes";

const PROCESSES: usize = 3;
const WORKERS: usize = 3;
const TASKS: usize = 240;
const LIMITS: [(&str, u32); 3] = [("one", 1), ("four", 4), ("heavy", 5)];

/// A folder that goes with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(address: &str) -> Self {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (address, std::process::id()).hash(&mut hasher);
        let path = std::env::temp_dir().join(format!("tidegate-race-{:016x}", hasher.finish()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The parent: submits, starts the children, and looks at what they left.
pub(super) async fn run_processes(fx: &Fixture) {
    let Some(address) = fx.backend().address() else {
        return;
    };
    for (name, capacity) in LIMITS {
        fx.set_limit(&format!("group:{name}"), Some(capacity)).await;
    }
    let folder = Folder::new(&address);
    let mut children: Vec<Child> = (0..PROCESSES).map(|_| start(&address, &folder.0)).collect();
    // They start while there is nothing to do, and meet the tasks as they come.
    for chunk in new_tasks().chunks(20) {
        fx.submit_all(chunk.to_vec()).await;
        pause().await;
    }
    for child in &mut children {
        while child.try_wait().expect("a child").is_none() {
            pause().await;
        }
        assert!(child.wait().expect("a child").success(), "a child saw a violation");
    }
    let counts = fx.reader.task_counts().await.expect("counts");
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(TaskState::Completed, TASKS as u64)]);
    let left = fs::read_dir(&folder.0).expect("the folder").filter_map(Result::ok);
    let (accepted, slots): (Vec<_>, Vec<_>) =
        left.partition(|file| file.file_name().to_string_lossy().starts_with("done"));
    assert_eq!((accepted.len(), slots.len()), (TASKS, 0), "each accepted once, all slots left");
    fx.check_at_rest().await;
}

fn new_tasks() -> Vec<NewTask> {
    let of = |i: usize| match i % 5 {
        0 => task("one"),
        1 | 2 => task("four"),
        3 => NewTask { weight: 1 + (i as u32 / 5) % 3, ..task("heavy") },
        _ => NewTask { workflow: Some(format!("w{}", i % 3)), ..task("free") },
    };
    (0..TASKS).map(of).collect()
}

/// Returns the full name of the running case: the test harness gives it to the thread of the test.
fn case_name() -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    assert!(
        name.ends_with(CASE),
        "the thread of the test is called {name:?}; run without --test-threads"
    );
    name.to_owned()
}

fn start(address: &str, folder: &Path) -> Child {
    let own = std::env::current_exe().expect("the test's own binary");
    Command::new(own)
        .args([&*case_name(), "--exact", "--nocapture"])
        .env(ADDRESS_VARIABLE, address)
        .env(FOLDER_VARIABLE, folder)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("start a child")
}

/// In a child: works until nothing is left. False in every other process.
pub async fn is_child<B: Backend>() -> bool {
    let (Ok(address), Ok(folder)) =
        (std::env::var(ADDRESS_VARIABLE), std::env::var(FOLDER_VARIABLE))
    else {
        return false;
    };
    let backend = B::from_address(&address).expect("an address that another process can use");
    let handle = backend.open(Arc::new(tidegate_store::clock::system_now)).await;
    let mut working = Vec::new();
    for number in 0..WORKERS {
        let (handle, folder) = (handle.clone(), PathBuf::from(&folder));
        working.push(tokio::spawn(async move { work(&handle, &folder, number).await }));
    }
    for worker in working {
        worker.await.expect("a worker");
    }
    true
}

async fn work(handle: &Handle, folder: &Path, number: usize) {
    let worker = WorkerId(format!("process {} worker {number}", std::process::id()).into());
    let kinds = ["one", "four", "heavy", "free"];
    let claim = Claim { worker, lease_ms: 600_000, ..claim_request("", &kinds, 1 + number as u32) };
    let mut exits: Vec<Completion> = Vec::new();
    loop {
        let finish = Finish { completions: std::mem::take(&mut exits), claim: Some(claim.clone()) };
        let reported = finish.completions.clone();
        let finished = handle.store.finish(finish).await.expect("finish");
        assert_eq!(finished.lost_attempts, [], "a live lease was lost");
        for exit in reported {
            File::create_new(folder.join(format!("done {}", exit.task))).expect("accepted twice");
        }
        if finished.claimed.is_empty() {
            if is_over(handle).await {
                return;
            }
            pause().await;
        }
        for attempt in finished.claimed {
            exits.push(run(&attempt, folder).await);
        }
    }
}

async fn is_over(handle: &Handle) -> bool {
    let counts = handle.reader.task_counts().await.expect("counts");
    counts.get(&TaskState::Completed).copied().unwrap_or_default() == TASKS as u64
}

/// Whether there is such a limit in this race. Workflows have theirs always.
fn is_limited(limit_name: &str) -> bool {
    let group = limit_name.strip_prefix("group:");
    group.is_none_or(|group| LIMITS.iter().any(|(name, _)| *name == group))
}

async fn run(attempt: &Attempt, folder: &Path) -> Completion {
    for (name, needed) in attempt.required_limits().iter().filter(|(name, _)| is_limited(name)) {
        assert_eq!(attempt.held_slots_of(name), *needed, "slots of {name} of {attempt:?}");
    }
    let mut held = Vec::new();
    for slot in &attempt.slots {
        let capacity = LIMITS.iter().find(|(name, _)| slot.name.ends_with(name));
        assert!(slot.number < capacity.map_or(1, |(_, capacity)| *capacity), "{slot:?}");
        let path = folder.join(format!("{} {}", slot.name.replace(':', "-"), slot.number));
        File::create_new(&path).unwrap_or_else(|error| panic!("{slot:?} has a holder: {error}"));
        held.push(path);
    }
    tokio::task::yield_now().await;
    for path in held {
        fs::remove_file(path).expect("its own file");
    }
    Completion { task: attempt.task, token: attempt.token, outcome: completed_outcome() }
}
