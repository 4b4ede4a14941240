//! What a history must not show.

use std::fmt;

use serde::{Deserialize, Serialize};

/// So many are kept in full; all are counted. A broken limit breaks thousands of times.
const EXAMPLES_MAX: usize = 50;

/// One thing that must not have happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Violation {
    /// An enter raised what is held above the capacity in force.
    LimitExceeded { limit: String, t_ns: u64, task: i64, held: u64, capacity: u32 },
    /// A task ran without the slots of a limit that applies to it.
    SlotMissing { limit: String, t_ns: u64, task: i64, given: u32, needed: u32 },
    /// A limit was to be proved that no attempt ever held, so nothing was proved.
    LimitNeverEntered {
        limit: String,
        /// The limit of the records whose name lacks only its scope.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        meant: Option<String>,
    },
    /// Two attempts of one workflow ran at the same time.
    WorkflowOverlap { workflow: String, t_ns: u64, task: i64, running: i64 },
    /// A task entered before an earlier task of its workflow had ended for good.
    WorkflowOrder { workflow: String, t_ns: u64, task: i64, earlier: i64 },
    /// A task was completed more than once.
    CompletedTwice { task: i64, times: u64 },
    /// Two attempts had the same token, so neither could be told from the other.
    TokenReused { task: i64, token: i64, t_ns: u64 },
    /// An end with no beginning, or a second end: the history itself is not whole.
    StrayEnd { task: i64, token: i64, t_ns: u64 },
}

/// How often each kind of violation was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViolationCounts {
    pub limit_exceeded: u64,
    pub slot_missing: u64,
    pub limit_never_entered: u64,
    pub workflow_overlap: u64,
    pub workflow_order: u64,
    pub completed_twice: u64,
    pub token_reused: u64,
    pub stray_end: u64,
}

impl ViolationCounts {
    /// All kinds together.
    pub fn total(&self) -> u64 {
        self.named().iter().map(|(_, count)| count).sum()
    }

    /// Every kind by its name.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("limit exceeded", self.limit_exceeded),
            ("slot missing", self.slot_missing),
            ("limit never entered", self.limit_never_entered),
            ("workflow overlap", self.workflow_overlap),
            ("workflow order", self.workflow_order),
            ("completed twice", self.completed_twice),
            ("token reused", self.token_reused),
            ("stray end", self.stray_end),
        ]
    }

    fn add(&mut self, violation: &Violation) {
        let count = match violation {
            Violation::LimitExceeded { .. } => &mut self.limit_exceeded,
            Violation::SlotMissing { .. } => &mut self.slot_missing,
            Violation::LimitNeverEntered { .. } => &mut self.limit_never_entered,
            Violation::WorkflowOverlap { .. } => &mut self.workflow_overlap,
            Violation::WorkflowOrder { .. } => &mut self.workflow_order,
            Violation::CompletedTwice { .. } => &mut self.completed_twice,
            Violation::TokenReused { .. } => &mut self.token_reused,
            Violation::StrayEnd { .. } => &mut self.stray_end,
        };
        *count += 1;
    }
}

/// Violations as they are found.
#[derive(Debug, Default)]
pub(super) struct Violations {
    pub(super) counts: ViolationCounts,
    pub(super) examples: Vec<Violation>,
}

impl Violations {
    pub(super) fn add(&mut self, violation: Violation) {
        self.counts.add(&violation);
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(violation);
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LimitExceeded { limit, t_ns, task, held, capacity } => {
                write!(out, "{t_ns}: task {task} entered {limit} as holder {held} of {capacity}")
            }
            Self::SlotMissing { limit, t_ns, task, given, needed } => {
                write!(
                    out,
                    "{t_ns}: task {task} entered with {given} of its {needed} slots of {limit}"
                )
            }
            Self::LimitNeverEntered { limit, meant: None } => {
                write!(out, "no attempt ever held {limit}")
            }
            Self::LimitNeverEntered { limit, meant: Some(meant) } => {
                write!(out, "no attempt ever held {limit}; did you mean {meant}?")
            }
            Self::WorkflowOverlap { workflow, t_ns, task, running } => {
                write!(
                    out,
                    "{t_ns}: task {task} of workflow {workflow} entered while task {running} ran"
                )
            }
            Self::WorkflowOrder { workflow, t_ns, task, earlier } => {
                write!(
                    out,
                    "{t_ns}: task {task} of workflow {workflow} entered before task {earlier} had ended"
                )
            }
            Self::CompletedTwice { task, times } => {
                write!(out, "task {task} was completed {times} times")
            }
            Self::TokenReused { task, token, t_ns } => {
                write!(out, "{t_ns}: task {task} entered again with token {token}")
            }
            Self::StrayEnd { task, token, t_ns } => {
                write!(out, "{t_ns}: task {task}, token {token}: an end without a beginning")
            }
        }
    }
}
