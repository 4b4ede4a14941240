//! What the tests of all crates share; never shipped.

pub mod authority;
pub mod conformance;
pub mod events;
pub mod model;
pub mod own_server;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;
pub mod simulator;
pub mod stores;
pub mod tier;
pub mod wait;
