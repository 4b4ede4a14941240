//! The verbs, written once over [`Tables`](crate::tables::Tables): one file each.

mod admit;
mod cancel;
mod claim;
mod extend;
mod finish;
pub mod gate;
mod pause;
mod prune;
mod reap;
mod register;
mod release;
mod repair;
mod retry;
mod set_job;
mod set_limit;
mod submit;

pub use admit::admit;
pub use cancel::{cancel, check_cancel};
pub use claim::claim;
pub use extend::{extend, release_unlisted};
pub use finish::{Decision, check_finish, decide_failed, finish};
pub use pause::{check_pause, no_job, pause};
pub use prune::{KIND_KEPT_MS, PACE_KEPT_MS, prune};
pub use reap::reap;
pub use register::{forget_registered, reconsider, register};
pub use release::release;
pub use repair::repair;
pub use retry::{check_retry, retry};
pub use set_job::{check_set_job, set_job};
pub use set_limit::set_limit;
pub use submit::{check_submission, stopped, submit};
