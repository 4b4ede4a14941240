//! The one place where the engine rolls a die.

use tidegate_core::WorkerId;
use uuid::Uuid;

/// A new worker id. Every start of a worker takes one: a worker that was started again is
/// never taken for the one before.
pub fn worker() -> WorkerId {
    WorkerId(uuid().to_string().into())
}

/// Random bits, for jitter only.
pub(crate) fn random() -> u64 {
    uuid().as_u128() as u64
}

#[expect(clippy::disallowed_methods, reason = "the engine's random source")]
fn uuid() -> Uuid {
    Uuid::now_v7()
}
