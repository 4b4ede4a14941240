//! The one place where a store reads the system's clock.

use std::time::SystemTime;

use tidegate_core::Millis;

/// Milliseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the stores without a server of their own read time here"
)]
pub fn system() -> Millis {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as Millis
}
