//! Waits for conditions in other processes and on servers, which send no signal to the test. The functions
//! pause between two checks: a busy loop would take the processor from the process that the test waits for.

use std::time::{Duration, Instant};

/// Pause between two checks of a condition.
const INTERVAL: Duration = Duration::from_millis(10);

/// Maximum wait for a condition. It is long, so that a test does not fail only because the machine is busy.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
///
/// # Panics
///
/// If the condition does not hold within a minute.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    until_some(what, || condition().then_some(()));
}

/// Waits until `value` returns a value, and returns it.
///
/// # Panics
///
/// If it returns no value within a minute.
#[track_caller]
pub fn until_some<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    let latest = now() + TIMEOUT;
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(now() < latest, "waited for {TIMEOUT:?}: {what}");
        pause_thread();
    }
}

/// Waits until a condition holds, without blocking the thread of the runtime.
///
/// # Panics
///
/// If the condition does not hold within a minute.
pub async fn until_async(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    until_some_async(what, async || condition().await.then_some(())).await;
}

/// Waits until `value` returns a value, without blocking the thread of the runtime, and returns it.
///
/// # Panics
///
/// If it returns no value within a minute.
pub async fn until_some_async<T>(what: &str, mut value: impl AsyncFnMut() -> Option<T>) -> T {
    let latest = now() + TIMEOUT;
    loop {
        if let Some(value) = value().await {
            return value;
        }
        assert!(now() < latest, "waited for {TIMEOUT:?}: {what}");
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
