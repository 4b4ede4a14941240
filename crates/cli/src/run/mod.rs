//! The parts of `tidegate run`: submitting a file so that it can be continued, watching it being
//! worked off, and the summary.

mod parts;
mod progress;
mod server;
mod summary;
mod watch;

pub(crate) use parts::{finish, has_work, is_mark, remaining, submit};
pub(crate) use progress::Progress;
pub(crate) use server::Server;
pub(crate) use summary::Summary;
pub(crate) use watch::Watch;
