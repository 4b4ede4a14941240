//! The history: what handlers did, written as they did it, and the checker that reads it.
//!
//! Every worker appends to a file when a handler starts and ends; a harness appends when it kills
//! or pauses a process. All times are [`crate::clock::monotonic_ns`], so the files of one machine
//! merge into one exact history. [`verify`] reads it and counts every violation.

mod attempt_end;
mod capacity_changes;
mod claim_times;
mod collect;
mod completion_times;
mod double_completions;
mod limit_usage;
mod order;
mod peak;
mod read;
mod record;
mod recovery;
mod report;
mod sweep;
mod verify;
mod violation;
mod writer;

pub use capacity_changes::CapacityChanges;
pub use claim_times::ClaimTimes;
pub use completion_times::CompletionTimes;
pub use limit_usage::{LimitUsage, limit_usage};
pub use peak::peak_concurrency;
pub use read::{CutLine, Error};
pub use record::{
    ClaimRecord, CompletionRecord, HandlerEndRecord, HeldSlots, LimitRecord, Outcome, Process,
    Record, SignalRecord, StartRecord,
};
pub use recovery::Recovery;
pub use report::Report;
pub use sweep::LimitReport;
pub use verify::{ExpectedLimitError, ExpectedLimits, verify};
pub use violation::{Violation, ViolationCounts};
pub use writer::Writer;
