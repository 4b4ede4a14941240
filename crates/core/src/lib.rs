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

mod backoff;
pub mod bounds;
mod day_window;
mod error;
pub mod fault_injection;
mod id;
pub mod invariants;
mod kind;
mod limit;
pub mod name;
mod outcome;
pub mod payload;
mod ranking;
pub mod reader;
pub mod request_stats;
pub mod rules;
mod store;
pub mod tables;
mod task;
mod worker_report;

pub use backoff::Backoff;
pub use day_window::DayWindow;
pub use error::{Error, ErrorKind, Result};
pub use id::{LaneId, LimitId, Millis, TaskId, Token, WorkerId};
pub use invariants::repair;
pub use kind::Kind;
pub use limit::{
    CapacitySource, FairShare, Limit, LimitScope, PauseCause, SlotLifetime, check_capacity,
};
pub use outcome::{
    AttemptCounts, Completion, Outcome, Transition, transition_after_completion,
    transition_after_crash, transition_after_slot_release,
};
pub use ranking::{FAIR_TAG_SCALE, GUARANTEED_SLOT_RANK, ready_rank};
pub use reader::StoreReader;
pub use store::{
    AdmitReply, Attempt, CancelOutcome, Claim, Finish, FinishReply, Heartbeat, HeartbeatReply,
    HeldSlot, JobSpec, LostAttempt, PauseTarget, Progress, PruneReply, ReapReply, RegisterReply,
    RegisteredCapacityChange, Registration, ReleaseOutcome, ReleaseSlot, RetryOutcome,
    RunTimeSample, SetJob, SetLimit, SetPaused, Store, Submission, SubmittedTask,
};
pub use task::{NewTask, OnFailure, TaskState};
pub use worker_report::{MemoryUsage, WorkerReport};
