//! Holds its slots for a while.

use std::time::Duration;

use serde::Deserialize;
use tidegate_engine::{Context, Failure, time};

/// How to sleep.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Payload {
    /// For how long.
    ms: u32,
    /// Fails at the first so many attempts, to show retries. Default: never.
    #[serde(default)]
    fail_attempts: u32,
}

pub(crate) async fn run(context: Context, payload: Payload) -> Result<(), Failure> {
    time::sleep(Duration::from_millis(payload.ms.into())).await;
    if context.attempt_number() <= payload.fail_attempts {
        return Err(Failure::retryable("failed as asked by `fail_attempts`"));
    }
    Ok(())
}
