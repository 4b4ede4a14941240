//! The parts of `tidegate run`: submitting a file so that it can be continued, watching it being
//! worked off, and the summary.

mod chunked_submit;
mod progress;
mod server;
mod stall;
mod stats;
mod summary;

pub(crate) use chunked_submit::{
    is_checkpoint_kind, remaining_tasks, remove_checkpoints, submit, was_run_before,
};
pub(crate) use progress::Progress;
pub(crate) use server::{Server, ServerStats as ServerSeen};
pub(crate) use stall::StallDetector;
pub(crate) use stats::RunObserver;
pub(crate) use summary::RunSummary;
