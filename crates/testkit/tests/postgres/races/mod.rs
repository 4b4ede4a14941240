//! Two transactions of the store on PostgreSQL, interleaved at every statement boundary.
//!
//! One verb is held before its k-th statement, for every k; the other runs as far as it can: to
//! its end, or until it waits for a lock. Then the first is let go. Then both are over, every
//! invariant holds, and everything that is left is worked off with the keeper off: claim and
//! finish are called, and nothing else.

mod admission;
mod concurrent_workers;
mod due_tasks;
mod hand_off;
mod harness;
mod inbox;
mod lease_lists;
mod operator;
mod return_to_queue;
mod stride;
mod submit_from_handler;
