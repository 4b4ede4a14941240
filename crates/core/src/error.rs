//! Errors. The kind tells the caller what to do; the text is for people.

use std::fmt;

/// The result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The input breaks a rule. Nothing was written. Mend the input.
    Invalid,
    /// What was named does not exist. Nothing was written.
    NotFound,
    /// The store refuses for now (disk full, file read-only). Nothing was written.
    Refused,
    /// The store could not be reached or the call was cut off. The write **may have
    /// happened**: resolve it by token or unique key, not by guess.
    Unavailable,
    /// The store was made by a newer version, or what it holds contradicts itself.
    Incompatible,
}

/// An error of a store or of a rule.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error of the given kind. `text` says what is wrong, where, and what to do.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, message: text.into() }
    }

    /// Bad input.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, text)
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Refused | ErrorKind::Unavailable)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
