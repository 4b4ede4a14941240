//! One record of the history: one JSON object on one line.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::clock::monotonic_ns;

/// What happened. The name of the kind is the only key of the object: `{"enter":{...}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// A handler is about to run. Written before its first instruction.
    Enter(StartRecord),
    /// A handler has returned, or was dropped. Written before the store is told.
    Leave(HandlerEndRecord),
    /// The store has answered: this is how the attempt ended.
    Exit(CompletionRecord),
    /// The store has answered a call for work.
    Claim(ClaimRecord),
    /// A process knows this capacity from now on.
    Limit(LimitRecord),
    /// A harness killed the process.
    Kill(SignalRecord),
    /// A harness paused the process.
    Stop(SignalRecord),
    /// A harness let the process go on.
    Cont(SignalRecord),
}

/// One start of one process. The number alone is not enough: the system uses it again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Differs for every start. Empty in a signal whose sender knows only the number; it then means
    /// the last process of that number that had begun by then.
    #[serde(default)]
    pub start: String,
}

/// The start of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRecord {
    pub t_ns: u64,
    pub process: Process,
    pub task: i64,
    pub attempt: u32,
    pub token: i64,
    pub kind: String,
    /// Whose limit it counts against; none is the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Slots it takes of its group's limit.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// The slots the store says it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<HeldSlots>,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(weight: &u32) -> bool {
    *weight == 1
}

/// How much of a limit an attempt holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldSlots {
    pub name: String,
    pub weight: u32,
}

/// The end of a handler. From here on the store may give the slots to another worker, which can
/// enter before this process has read the store's answer: without this record that looks like one
/// holder too many. A writer that leaves it out takes the time of its `exit` when the handler returns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerEndRecord {
    pub t_ns: u64,
    pub process: Process,
    pub task: i64,
    pub token: i64,
}

/// The end of an attempt, as the store accepted it; `lost` if the store refused the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletionRecord {
    pub t_ns: u64,
    pub process: Process,
    pub task: i64,
    pub token: i64,
    pub outcome: Outcome,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Completed,
    Failed,
    Retry,
    Snoozed,
    Released,
    Cancelled,
    Lost,
}

/// A call for work, as the worker that made it saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// When the answer came.
    pub t_ns: u64,
    pub process: Process,
    /// From before the request left to the answer.
    pub took_ns: u64,
    /// Tasks that were asked for at most.
    pub wanted: u32,
    /// Attempts that the same call ended.
    pub ended: u32,
    /// Tasks that came.
    pub found: u32,
}

/// A capacity a process has learned. To be written before the first `enter` it allows: whoever
/// raises a limit writes before raising, whoever lowers it after lowering.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRecord {
    pub t_ns: u64,
    pub process: Process,
    pub name: String,
    /// None is unlimited.
    pub capacity: Option<u32>,
    /// The version in the store; 0 where there is no such limit. Who knows only versions does not
    /// know when they came into force, so a limit of several is judged by the largest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
}

/// What a harness did to a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalRecord {
    pub t_ns: u64,
    pub process: Process,
}

impl Process {
    /// This process, the same at every call.
    pub fn current() -> Self {
        static START: OnceLock<String> = OnceLock::new();
        let start = START.get_or_init(|| format!("{:x}", monotonic_ns()));
        Self { pid: std::process::id(), start: start.clone() }
    }

    /// A process of which only the number is known, for signals.
    pub fn by_pid(pid: u32) -> Self {
        Self { pid, start: String::new() }
    }
}

impl SignalRecord {
    /// Something done to `process` now.
    pub fn now(process: Process) -> Self {
        Self { t_ns: monotonic_ns(), process }
    }
}
