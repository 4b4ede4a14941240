//! Waits for conditions of other processes and of servers, which send no signal to the test. A test that polls
//! without a pause takes the processor from the process that it waits for.

use std::time::{Duration, Instant};

/// Pause between two looks.
const INTERVAL: Duration = Duration::from_millis(10);

/// How long a condition may take. A run on a busy machine must not fail for its slowness.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
///
/// # Panics
///
/// If the condition does not hold within a minute.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_some(what, || is_so().then_some(()));
}

/// Waits until there is a value, and returns it.
///
/// # Panics
///
/// If there is no value within a minute.
#[track_caller]
pub fn until_some<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    let latest = now() + PATIENCE;
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(now() < latest, "waited for {PATIENCE:?}: {what}");
        pause_thread();
    }
}

/// Waits in a runtime until a condition holds.
///
/// # Panics
///
/// If the condition does not hold within a minute.
pub async fn until_async(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let latest = now() + PATIENCE;
    while !is_so().await {
        assert!(now() < latest, "waited for {PATIENCE:?}: {what}");
        pause().await;
    }
}

#[expect(clippy::disallowed_methods, reason = "the test waits for another process")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the test waits for another process")]
fn pause_thread() {
    std::thread::sleep(INTERVAL);
}

#[expect(clippy::disallowed_methods, reason = "the test waits for another process")]
async fn pause() {
    tokio::time::sleep(INTERVAL).await;
}
