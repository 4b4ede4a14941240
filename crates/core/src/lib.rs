//! The nouns, the rules and the store seam of tidegate.
//!
//! Nothing here reads a clock, opens a file or rolls a die: time comes in with the
//! transaction, and jitter is derived from the attempt's token. The verbs in [`rules`] are
//! written once, over the [`Tables`](tables::Tables) a store offers inside one transaction.
//!
//! A task walks one way:
//!
//! ```text
//! submit -> gate (admit | park) -> claim -> run -> finish -> hand-off -> claim
//! ```

pub mod bounds;
pub mod check;
mod error;
mod id;
pub mod inspect;
mod kind;
mod limit;
pub mod name;
mod order;
mod outcome;
pub mod payload;
pub mod planted;
mod report;
pub mod requests;
mod retry;
pub mod rules;
mod store;
pub mod tables;
mod task;
mod window;

pub use check::repair;
pub use error::{Error, Kind as ErrorKind, Result};
pub use id::{LaneId, LimitId, Millis, TaskId, Token, WorkerId};
pub use inspect::Inspect;
pub use kind::Kind;
pub use limit::{Halt, Hold, Limit, Scope, Share, Source, check_capacity};
pub use order::{RANK_RESERVED, SHARE_SCALE, ready_rank};
pub use outcome::{Exit, Ledger, Next, Outcome, after_death, after_exit, after_fence};
pub use report::{Memory, WorkerReport};
pub use retry::Backoff;
pub use store::{
    Admitted, Attempt, CancelOutcome, Claim, Extend, Extended, Finish, Finished, JobSpec, Lost,
    Pausable, Pause, Progress, Pruned, Ran, Reaped, Registered, RegisteredChange, Registration,
    Release, ReleaseOutcome, RetryOutcome, SetJob, SetLimit, SlotHeld, Store, Submission,
    Submitted,
};
pub use task::{NewTask, OnFailure, State};
pub use window::DayWindow;
