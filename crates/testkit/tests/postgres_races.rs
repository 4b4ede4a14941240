//! Two transactions of the store on PostgreSQL, interleaved at every statement boundary.
//!
//! One verb is held before its k-th statement, for every k; the other runs as far as it can: to
//! its end, or until it waits for a lock. Then the first is let go. Then both are over, every
//! invariant holds, and everything that is left is worked off with the keeper off: claim and
//! finish are called, and nothing else.

#[path = "postgres_races/behalf.rs"]
mod behalf;
#[path = "postgres_races/cases.rs"]
mod cases;
#[path = "postgres_races/lab.rs"]
mod lab;
#[path = "postgres_races/many.rs"]
mod many;
#[path = "postgres_races/operator.rs"]
mod operator;
#[path = "postgres_races/packed.rs"]
mod packed;
#[path = "postgres_races/recall.rs"]
mod recall;
#[path = "postgres_races/relay.rs"]
mod relay;
