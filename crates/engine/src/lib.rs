//! The client and the worker of tidegate.
//!
//! A [`Client`] submits [`Task`]s to a store. A [`WorkerRow`] claims them, runs their handlers
//! under a lease that it renews, and reports how they ended. A [`Maintenance`] does what no worker
//! is responsible for: it takes back the tasks of workers that died, and removes what is old.
//!
//! `examples/handlers.rs` shows every way to write a handler.

mod client;
mod handler;
pub mod id;
pub mod maintenance;
pub mod metrics;
mod observer;
mod outage;
mod shutdown;
mod task;
pub mod time;
mod trace;
mod worker;

pub use client::Client;
pub use handler::{Context, Failure, Handler, IntoResult, KindConfig};
pub use maintenance::Maintenance;
pub use metrics::Metrics;
pub use observer::{AttemptOutcome, ClaimStats, Observer};
#[cfg(unix)]
pub use shutdown::shutdown_on_signals;
pub use shutdown::{Shutdown, ShutdownPhase};
pub use task::Task;
pub use tidegate_core::{
    Attempt, CancelOutcome, DayWindow, Error, ErrorKind, JobSpec, Kind, MemoryUsage, OnFailure,
    Result, Store, StoreReader, SubmittedTask, TaskId, Token, WorkerId, WorkerReport,
};
pub use tidegate_macros::task;
pub use worker::{
    BackpressureReason, BackpressureThresholds, Worker, WorkerBuilder, WorkerConfig, WorkerPool,
    WorkerStatus, WorkerSummary,
};

/// What the attribute's code needs, wherever it stands.
#[doc(hidden)]
pub mod private {
    pub use serde::Serialize;
}

/// The programs in the documentation are compiled.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/guides/embed.md")]
    struct Embed;

    #[doc = include_str!("../../../docs/guides/limit-calls-to-an-api.md")]
    struct LimitCalls;
}
