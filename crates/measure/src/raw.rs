//! The fastest loops we can write by hand on each database, doing what an engine must: every task
//! is claimed, and completed or retried, on its own. No limits, no leases, no waking, no fairness.
//! What the engine reaches of these rates is the price of everything else it does.

pub mod postgres;
pub mod sqlite;
pub mod start_latency;

pub use postgres::RawPostgres;
pub use sqlite::{RawSqlite, Synchronous};
pub use start_latency::RawStartLatency;

/// The payload of every task: as long as that of the measurements it is compared with.
const PAYLOAD: [u8; 16] = *b"sixteen bytes...";

/// A claimed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub id: i64,
    pub kind: String,
    pub attempts: i32,
    pub payload: Vec<u8>,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    Retry,
}

/// The time all raw tasks are due at; a claim compares with it as an engine compares with now.
const DUE: i64 = 0;
