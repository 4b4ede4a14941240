//! The one place where SQLite's errors become ours.

use std::path::Path;

use rusqlite::ffi::{self, ErrorCode};
use tidegate_core::{Error, ErrorKind, Result};

/// Turns a driver's result into ours. The path of the file is put before the text by
/// [`at`], where it is known.
pub(super) trait SqliteResultExt<T> {
    fn into_store_result(self) -> Result<T>;
}

impl<T> SqliteResultExt<T> for rusqlite::Result<T> {
    fn into_store_result(self) -> Result<T> {
        self.map_err(|error| store_error(&error))
    }
}

pub(super) fn store_error(error: &rusqlite::Error) -> Error {
    let Some(code) = error.sqlite_error_code() else {
        return Error::new(
            ErrorKind::Incompatible,
            format!("a row cannot be read: {error}; run `tidegate doctor`"),
        );
    };
    // The file that readers and writers share has a fixed size, which a full disk cannot give.
    let has_no_room =
        error.sqlite_error().is_some_and(|error| error.extended_code == ffi::SQLITE_IOERR_SHMSIZE);
    match code {
        code if code == ErrorCode::DiskFull || has_no_room => Error::new(
            ErrorKind::Refused,
            "the disk is full; nothing was written, make room and try again",
        ),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => Error::new(
            ErrorKind::Refused,
            format!(
                "the file cannot be written to ({error}); nothing was written, mend the permissions \
                 of the file and of its folder: a reader too makes the files -wal and -shm there"
            ),
        ),
        ErrorCode::CannotOpen => Error::new(
            ErrorKind::Refused,
            format!(
                "the file cannot be opened ({error}); check that its folder exists and may be written \
                 to: a reader too makes the files -wal and -shm there"
            ),
        ),
        ErrorCode::NotADatabase => {
            Error::new(ErrorKind::Incompatible, "this is not an SQLite database; give another path")
        }
        ErrorCode::DatabaseCorrupt => Error::new(
            ErrorKind::Incompatible,
            format!("the file is damaged ({error}); restore it from a backup"),
        ),
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Error::new(
            ErrorKind::Unavailable,
            format!("another process has kept the file locked for too long ({error}); try again"),
        ),
        ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch => Error::new(
            ErrorKind::Incompatible,
            format!("the rows contradict each other ({error}); run `tidegate doctor`"),
        ),
        _ => Error::new(ErrorKind::Unavailable, format!("SQLite failed: {error}")),
    }
}

/// Names the file in an error that is about the file and not about the caller's input.
pub(super) fn with_file_path(path: &Path, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::NotFound => error,
        kind => Error::new(kind, format!("{}: {error}", path.display())),
    }
}

/// A word or number on disk that this version does not know.
pub(super) fn unknown_value_error(what: &str, found: impl std::fmt::Debug) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!("the {what} {found:?} is unknown to this version; run `tidegate doctor`"),
    )
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn sqlite_error_codes_map_to_error_kinds() {
        let kinds = [
            (ffi::SQLITE_FULL, ErrorKind::Refused),
            (ffi::SQLITE_IOERR_SHMSIZE, ErrorKind::Refused),
            (ffi::SQLITE_READONLY, ErrorKind::Refused),
            (ffi::SQLITE_CANTOPEN, ErrorKind::Refused),
            (ffi::SQLITE_NOTADB, ErrorKind::Incompatible),
            (ffi::SQLITE_CORRUPT, ErrorKind::Incompatible),
            (ffi::SQLITE_BUSY, ErrorKind::Unavailable),
            (ffi::SQLITE_IOERR, ErrorKind::Unavailable),
        ];
        for (code, kind) in kinds {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(store_error(&error).kind(), kind, "{error}");
        }
    }

    #[test]
    fn error_names_file_only_where_it_matters() {
        let path = Path::new("tasks.db");
        let full = with_file_path(path, Error::new(ErrorKind::Refused, "the disk is full"));
        assert_snapshot!(full, @"tasks.db: the disk is full");
        assert_eq!(with_file_path(path, Error::invalid("bad")).to_string(), "bad");
    }
}
