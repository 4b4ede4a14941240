//! What tidegate says about itself, and how it is proved.
//!
//! - [`history`]: handlers write down when they ran; the checker reads it afterwards and says
//!   whether a limit was ever exceeded, an order broken, or a task completed twice.
//! - [`audit`]: who held which slot after every commit of a PostgreSQL, read from its log.
//! - [`raw`]: the fastest loops we can write by hand on each database. The engine is compared
//!   with them, so that its rates mean the same on a fast machine as on a slow one.
//! - [`scenarios`]: what `tidegate bench` runs.
//! - [`server`]: a PostgreSQL to oneself, for what needs command over the server.
//! - [`report`]: the line each benchmark prints.
//! - [`table`]: aligned columns for people.
//! - [`clock`]: the one place of this crate that reads a clock.

pub mod audit;
pub mod clock;
pub mod history;
pub mod postgres_server;
pub mod raw;
pub mod report;
pub mod scenarios;
pub mod table;
