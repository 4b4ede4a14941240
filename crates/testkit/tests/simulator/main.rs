//! The simulator: many seeds, and bugs that are planted in the rules.

#[cfg(feature = "planted")]
mod planted;
mod seeds;
