//! What the tests of all crates share; never shipped.

pub mod postgres;
