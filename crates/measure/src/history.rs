//! The history: what handlers did, written as they did it, and the checker that reads it.
//!
//! Every worker appends to a file when a handler starts and ends; a harness appends when it kills
//! or pauses a process. All times are [`crate::clock::monotonic_ns`], so the files of one machine
//! merge into one exact history. [`verify`] reads it and counts every violation.

mod changed;
mod claims;
mod completion;
mod completions;
mod gather;
mod in_use;
mod order;
mod peak;
mod read;
mod record;
mod recovery;
mod report;
mod settle;
mod sweep;
mod verify;
mod violation;
mod writer;

pub use changed::Changed;
pub use claims::Claims;
pub use completions::Completions;
pub use in_use::{InUse, in_use};
pub use peak::most_at_once;
pub use read::{CutLine, Error};
pub use record::{Claim, Enter, Exit, Hold, Leave, LimitSeen, Outcome, Process, Record, Signal};
pub use recovery::Recovery;
pub use report::Report;
pub use sweep::LimitReport;
pub use verify::{Expected, ExpectedError, verify};
pub use violation::{Counts, Violation};
pub use writer::Writer;
