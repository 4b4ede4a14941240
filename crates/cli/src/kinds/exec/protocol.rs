//! What the worker and the guard say to each other: a line of JSON each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::deadline::Deadline;

/// What the guard is to start.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StartRequest {
    /// The file.
    pub(super) file: String,
    /// What it is called, and what it is told.
    pub(super) argv: Vec<String>,
    pub(super) stdin: String,
    pub(super) environment: BTreeMap<String, String>,
    /// Told again, line by line, when the lease is renewed.
    pub(super) deadline: Deadline,
}

/// What the guard tells.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SupervisorEvent {
    /// The command runs, in the process group of this number.
    Started(i32),
    /// It did not start, or had to be ended; nothing of it runs.
    Failed(String),
    /// It has ended, and nothing of it runs.
    Exited(CommandExit),
}

/// How a command ended.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CommandExit {
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) stdout: Captured,
    pub(super) stderr: Captured,
}

/// What a command wrote.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct Captured {
    pub(super) text: String,
    /// There was more than is kept.
    pub(super) is_truncated: bool,
}
