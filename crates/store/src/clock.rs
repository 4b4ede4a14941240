//! The one place where a store reads the system's clock.

use std::time::SystemTime;

use tidegate_core::Millis;

/// Milliseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the stores without a server of their own read time here"
)]
pub fn system_now() -> Millis {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as Millis
}

/// Whether every one of these notes holds for three quarters of the time from now until
/// `until`: then none has to be written again. Where one is, all are.
pub(crate) fn are_expiries_late_enough(
    mut notes: impl Iterator<Item = Option<Millis>>,
    now: Millis,
    until: Millis,
) -> bool {
    let long_enough = now.saturating_add(until.saturating_sub(now) / 4 * 3);
    notes.all(|note| note.is_some_and(|noted| noted >= long_enough))
}
