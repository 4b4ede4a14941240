//! The simulator: many seeds, and bugs that are planted in the rules.

#[cfg(feature = "fault_injection")]
mod injected_bugs;
mod seeds;
