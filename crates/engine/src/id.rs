//! The one place where the engine rolls a die.

use tidegate_core::WorkerId;
use uuid::Uuid;

/// A new worker id. Every start of a worker takes one: a worker that was started again is
/// never taken for the one before.
pub fn new_worker_id() -> WorkerId {
    WorkerId(new_uuid().to_string().into())
}

/// Random bits, for jitter only.
pub(crate) fn random_bits() -> u64 {
    new_uuid().as_u128() as u64
}

#[expect(clippy::disallowed_methods, reason = "the engine's random source")]
fn new_uuid() -> Uuid {
    Uuid::now_v7()
}
