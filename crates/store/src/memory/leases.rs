//! Leases: their renewal, and the expired ones.

use tidegate_core::tables::Lease;
use tidegate_core::{Millis, Token, WorkerId};

use super::WorkingState;

/// Renews a lease that has not expired. Returns false if the worker has no such lease.
pub(super) fn renew_unexpired_lease(
    state: &mut WorkingState,
    token: Token,
    worker: &WorkerId,
    expires_at: Millis,
) -> bool {
    let now = state.now;
    let is_valid = |lease: &&mut Lease| lease.worker == *worker && lease.expires_at > now;
    let Some(lease) = state.leases.get_mut(&token).filter(is_valid) else {
        return false;
    };
    state.lease_expiries.remove(&(lease.expires_at, token));
    state.lease_expiries.insert((expires_at, token));
    lease.expires_at = expires_at;
    true
}

/// Leases that expire at `at` or before, oldest first.
fn expired_leases(state: &WorkingState, at: Millis) -> impl Iterator<Item = &Lease> {
    let tokens = state.lease_expiries.range(..=(at, Token(i64::MAX)));
    tokens.filter_map(|(_, token)| state.leases.get(token))
}

/// Leases of a worker that expire at `at` or before, oldest first.
pub(super) fn expired_leases_of_worker(
    state: &WorkingState,
    at: Millis,
    worker: &WorkerId,
    max: u32,
) -> Vec<Token> {
    let of_worker = expired_leases(state, at).filter(|lease| lease.worker == *worker);
    of_worker.map(|lease| lease.token).take(max as usize).collect()
}

/// Leases that expire at `at` or before and that the reaper ends, oldest first.
pub(super) fn abandoned_leases(state: &WorkingState, at: Millis, max: u32) -> Vec<Token> {
    let abandoned =
        expired_leases(state, at).filter(|lease| !is_lease_left_to_worker(state, lease, at));
    abandoned.map(|lease| lease.token).take(max as usize).collect()
}

/// Whether the reaper leaves an expired lease to its worker, which sends heartbeats.
fn is_lease_left_to_worker(state: &WorkingState, lease: &Lease, at: Millis) -> bool {
    let heartbeat = state.workers.get(&lease.worker).and_then(|worker| worker.last_heartbeat);
    heartbeat.is_some_and(|last| last.expires_at > at && lease.expires_at + last.lease_ms > at)
}
