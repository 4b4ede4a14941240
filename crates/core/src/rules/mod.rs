//! The verbs, written once over [`Tables`](crate::tables::Tables): one file each.

pub mod admission;
mod admit;
mod cancel;
mod claim;
mod finish;
mod heartbeat;
mod prune;
mod reap;
mod register;
mod release_slot;
mod repair;
mod retry;
mod set_job;
mod set_limit;
mod set_paused;
mod submit;

pub use admit::admit;
pub use cancel::{cancel, check_cancel};
pub use claim::claim;
pub use finish::{FailureDecision, check_finish, decide_after_failure, finish};
pub use heartbeat::{heartbeat, release_unlisted_leases};
pub use prune::{RUN_TIMES_RETENTION_MS, UNUSED_KIND_RETENTION_MS, prune};
pub use reap::reap;
pub use register::{clear_registered_capacity, register, resolve_registered_capacity};
pub use release_slot::release_slot;
pub use repair::repair;
pub use retry::{check_retry, retry};
pub use set_job::{check_set_job, set_job};
pub use set_limit::set_limit;
pub use set_paused::{check_set_paused, job_not_found, set_paused};
pub use submit::{attempt_not_running, check_submission, submit};
