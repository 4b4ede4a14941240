//! The advisory lock that makes processes take turns at writing, in the order in which they come.
//!
//! One file lock is not enough: whoever unlocks it can lock it again before the process that was
//! woken for it runs, so a busy process would keep the turn for itself. So there is a queue: a row
//! of rooms, each a file lock, and the last one is the turn. Whoever wants a turn enters the first
//! room, and leaves a room only when it has entered the next. Nobody passes those inside; and
//! whoever ends a turn finds the first room taken, or nobody waits.
//!
//! So one process more than there are files, the one with the turn and one before the first room
//! among them, take turns in exact order. Of more than that, the one that has just come may pass
//! those who wait outside as the first room is left, but only once before all inside had a turn.
//!
//! The system unlocks the files of a process that ends, however it ends. One that is frozen holds
//! up those behind it until it goes on, as it would with SQLite's own lock.

use std::fs::File;
use std::path::Path;

/// What the names of the files end with: the rooms in order, then the turn. Each room costs
/// 0.4 us per turn.
const LOCK_FILE_SUFFIXES: [&str; 4] = ["-lock3", "-lock2", "-lock1", "-lock"];

/// Locks on empty files beside the database. Not on the database itself: closing any handle of
/// that file would undo SQLite's own locks in this process.
pub(super) struct FileLock {
    queue_files: Vec<File>,
}

impl FileLock {
    /// A folder that cannot be written to has no lock files. SQLite's own lock still keeps
    /// writers apart there, only less fairly.
    pub(super) fn open(database: &Path) -> Self {
        let open = |end: &&str| {
            let mut name = database.as_os_str().to_owned();
            name.push(end);
            let file = File::options().create(true).truncate(false).write(true).open(&name);
            let log = |error: &std::io::Error| {
                let path = Path::new(&name).display();
                tracing::info!(%path, %error, "no lock file; SQLite's own lock is less fair");
            };
            file.inspect_err(log).ok()
        };
        Self { queue_files: LOCK_FILE_SUFFIXES.iter().filter_map(open).collect() }
    }

    /// Waits for the turn, which ends when the guard is dropped.
    pub(super) fn acquire(&self) -> FileLockGuard<'_> {
        let mut inside = FileLockGuard { locked_file: None };
        for room in &self.queue_files {
            // The room before is left when this one is entered.
            let locked = room.lock();
            if let Err(error) = &locked {
                tracing::debug!(%error, "a lock file could not be locked");
            }
            inside = FileLockGuard { locked_file: locked.is_ok().then_some(room) };
        }
        inside
    }
}

/// Where a process is in the queue: at the end, it has the turn.
pub(super) struct FileLockGuard<'a> {
    locked_file: Option<&'a File>,
}

impl Drop for FileLockGuard<'_> {
    fn drop(&mut self) {
        if let Some(room) = self.locked_file {
            // It is unlocked at the latest when the process ends.
            if let Err(error) = room.unlock() {
                tracing::debug!(%error, "a lock file could not be unlocked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use tempfile::TempDir;

    use super::*;

    const FOLDER_VARIABLE: &str = "TIDEGATE_TEST_TURNS_FOLDER";
    const NAME_VARIABLE: &str = "TIDEGATE_TEST_TURNS_NAME";

    /// Processes that want the next turn as soon as they end one.
    const BUSY_PROCESSES: usize = 4;

    /// Turns of the one that comes now and then.
    const MEASURED_TURNS: usize = 200;

    /// Rounds in which the turns are not in order because the machine did not let a process run.
    const ROUNDS_MAX: u32 = 10;

    /// A child that is killed when the test ends, however it ends.
    struct KillOnDrop(Child);

    impl Drop for KillOnDrop {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// The lock, and the list of who had a turn: one byte each.
    struct LockLog {
        lock: FileLock,
        log: File,
        path: PathBuf,
    }

    impl LockLog {
        fn open(folder: &Path) -> Self {
            let path = folder.join("list");
            let log = File::options().create(true).append(true).open(&path).unwrap();
            Self { lock: FileLock::open(&folder.join("tasks.db")), log, path }
        }

        /// Has a turn, which takes as long as a commit.
        fn lock_and_log(&self, name: u8) {
            let _turn = self.lock.acquire();
            (&self.log).write_all(&[name]).unwrap();
            self.log.sync_all().unwrap();
        }

        fn logged_turns(&self) -> Vec<u8> {
            std::fs::read(&self.path).unwrap()
        }
    }

    /// Not a test of its own: the child of the next one.
    #[test]
    fn child_process_takes_turns_until_killed() {
        let (Some(folder), Ok(name)) =
            (std::env::var_os(FOLDER_VARIABLE), std::env::var(NAME_VARIABLE))
        else {
            return;
        };
        let place = LockLog::open(Path::new(&folder));
        loop {
            place.lock_and_log(name.as_bytes()[0]);
        }
    }

    fn spawn_locking_process(folder: &Path, name: u8) -> KillOnDrop {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["sqlite::file_lock::tests::child_process_takes_turns_until_killed", "--exact"])
            .env(FOLDER_VARIABLE, folder)
            .env(NAME_VARIABLE, char::from(name).to_string())
            .stdout(Stdio::null())
            .spawn();
        KillOnDrop(child.unwrap())
    }

    /// Takes turns beside the children, and returns all turns meanwhile.
    fn measured_turns(place: &LockLog) -> Vec<u8> {
        let from = place.logged_turns().len();
        for _ in 0..MEASURED_TURNS {
            place.lock_and_log(b'-');
        }
        place.logged_turns().split_off(from)
    }

    /// Checks that no process has two turns in a row while others wait, and that between two turns of one process lies
    /// a turn of each other one.
    fn in_order(turns: &[u8], greedy: &[u8]) -> Result<(), String> {
        let mut waits: Vec<usize> = turns.split(|turn| *turn == b'-').map(<[u8]>::len).collect();
        waits.sort_unstable();
        let of = |name: &u8| turns.iter().filter(|turn| *turn == name).count();
        let mut shares: Vec<usize> = greedy.iter().map(of).collect();
        shares.sort_unstable();
        let again = turns.windows(2).filter(|pair| pair[0] == pair[1]).count();
        let is_in_order = again * 100 <= turns.len()
            && waits[MEASURED_TURNS * 9 / 10] <= 2 * BUSY_PROCESSES
            && shares[0] * 5 >= shares[BUSY_PROCESSES - 1] * 4;
        let fault = || {
            format!(
                "shares of {shares:?} turns, {again} of {} were taken again, waits of {waits:?} turns",
                turns.len()
            )
        };
        if is_in_order { Ok(()) } else { Err(fault()) }
    }

    #[test]
    fn file_lock_serves_processes_in_order() {
        let folder = TempDir::new().unwrap();
        let place = LockLog::open(folder.path());
        let greedy: Vec<u8> = (b'a'..).take(BUSY_PROCESSES).collect();
        let children: Vec<KillOnDrop> =
            greedy.iter().map(|name| spawn_locking_process(folder.path(), *name)).collect();
        while !greedy.iter().all(|name| place.logged_turns().contains(name)) {
            place.lock_and_log(b'-');
        }
        // A process that the machine does not let run is not in the queue, so one round in order is enough.
        let mut faults = 0;
        while let Err(fault) = in_order(&measured_turns(&place), &greedy) {
            faults += 1;
            assert!(faults < ROUNDS_MAX, "{fault}");
        }
        drop(children);
        // Processes that were killed with the turn or in the queue left nothing locked.
        place.lock_and_log(b'-');
    }
}
