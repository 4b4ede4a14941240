//! The advisory lock that makes processes take turns at writing.

use std::fs::File;
use std::path::Path;

/// A lock on an empty file beside the database. Not on the database itself: closing any handle
/// of that file would undo SQLite's own locks in this process.
pub(super) struct Lock {
    file: Option<File>,
}

impl Lock {
    /// A folder that cannot be written to has no lock file. SQLite's own lock still keeps
    /// writers apart there, only less fairly.
    pub(super) fn open(database: &Path) -> Self {
        let mut name = database.as_os_str().to_owned();
        name.push("-lock");
        let file = File::options().create(true).truncate(false).write(true).open(&name).ok();
        Self { file }
    }

    /// Waits for the turn, which ends when the guard is dropped.
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn { file: self.file.as_ref().filter(|file| file.lock().is_ok()) }
    }
}

pub(super) struct Turn<'a> {
    file: Option<&'a File>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.file {
            // It is unlocked at the latest when the process ends.
            let _ = file.unlock();
        }
    }
}
