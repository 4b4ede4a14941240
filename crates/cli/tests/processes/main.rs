//! Tests that start several processes, send signals to them or measure them. They run one at a time: `.config/nextest.toml`
//! puts this binary into the group `process`.

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "not every test uses all of it")]
#[path = "../fleet/mod.rs"]
mod fleet;
#[path = "../prometheus/mod.rs"]
mod prometheus;
#[allow(dead_code, reason = "without the feature `top` only a part of it is used")]
#[path = "../pty/mod.rs"]
mod pty;

mod bench;
mod examples;
mod faults;
mod limits;
mod metrics;
#[cfg(target_os = "linux")]
mod migrate;
#[cfg(feature = "otel")]
mod otel;
mod quota;
mod run;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(all(feature = "top", target_os = "linux"))]
mod top;
mod worker;
