//! Appends records to a file that many processes may share.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::Record;

/// Long enough for a record with a few limits, so that most are written without growing.
const USUAL_LINE: usize = 384;

/// A history file, open for appending. Clones share the file.
#[derive(Debug, Clone)]
pub struct Writer {
    file: Arc<File>,
}

impl Writer {
    /// Opens the file at `path`, making it if there is none.
    pub fn append(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self { file: Arc::new(file) })
    }

    /// Appends one record.
    ///
    /// The line goes out in one write and is not kept back: what was written survives the death of
    /// the process, and the system keeps the lines of several writers whole.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        let mut line = Vec::with_capacity(USUAL_LINE);
        serde_json::to_writer(&mut line, record)?;
        line.push(b'\n');
        (&*self.file).write_all(&line)
    }
}
