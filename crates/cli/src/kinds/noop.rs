//! Does nothing.

use tidegate_engine::{Context, Failure};

/// Anything, and nothing of it is looked at.
pub(crate) type Payload = serde::de::IgnoredAny;

pub(crate) async fn run(_: Context, _: Payload) -> Result<(), Failure> {
    Ok(())
}
