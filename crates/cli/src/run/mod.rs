//! The parts of `tidegate run`: submitting a file so that it can be continued, watching it being
//! worked off, and the summary.

mod parts;
mod progress;
mod server;
mod stall;
mod summary;
mod watch;

pub(crate) use parts::{finish, is_mark, remaining, submit, was_run_before};
pub(crate) use progress::Progress;
pub(crate) use server::{Seen as ServerSeen, Server};
pub(crate) use stall::Stall;
pub(crate) use summary::Summary;
pub(crate) use watch::Watch;
