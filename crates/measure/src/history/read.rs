//! Reads history files, a line at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Record;

/// Why a history could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read history {path}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("history {path}, line {line}", path = path.display())]
    Malformed { path: PathBuf, line: u64, source: serde_json::Error },
}

/// A last line that ends in the middle: its writer died, or the disk was full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutLine {
    pub path: PathBuf,
    pub line: u64,
}

/// Gives every record of the file at `path` to `take`, in the order of the file.
pub(super) fn read(path: &Path, mut take: impl FnMut(Record)) -> Result<Option<CutLine>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let mut file = BufReader::with_capacity(1 << 18, File::open(path).map_err(failed)?);
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        if file.read_until(b'\n', &mut text).map_err(failed)? == 0 {
            break;
        }
        match serde_json::from_slice(&text) {
            Ok(record) => take(record),
            // Only the last line can lack its end, so nothing after it is passed over.
            Err(_) if !text.ends_with(b"\n") => {
                return Ok(Some(CutLine { path: path.to_owned(), line }));
            }
            Err(source) => {
                return Err(Error::Malformed { path: path.to_owned(), line, source });
            }
        }
    }
    Ok(None)
}
