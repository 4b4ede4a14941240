//! The documentation and the files in `deploy/` agree with the binary.

#[path = "../common/mod.rs"]
mod common;
#[path = "../prometheus/mod.rs"]
mod prometheus;

mod deploy;
mod documentation;
mod guides;
mod reference;
