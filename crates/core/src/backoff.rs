//! When a failed task is tried again.

use serde::{Deserialize, Serialize};

use crate::TaskId;

/// Exponential back-off with jitter and a cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// The delay after the first failure, before jitter. Default: 1 s.
    pub base_ms: i64,
    /// No delay is longer. Default: 1 h.
    pub cap_ms: i64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base_ms: 1000, cap_ms: 3_600_000 }
    }
}

impl Backoff {
    /// The delay after `spent` attempts: between half of the exponential delay and all of it.
    /// The id spreads tasks that failed together; no random source is needed and every store
    /// comes to the same delay.
    pub fn delay_ms(&self, attempts_used: u32, task: TaskId) -> i64 {
        let exponent = attempts_used.saturating_sub(1).min(40);
        let full = self.base_ms.saturating_mul(1_i64 << exponent).clamp(1, self.cap_ms.max(1));
        let half = full / 2;
        let spread = (mix_bits((task.0 as u64) ^ (u64::from(attempts_used) << 48))
            % (full - half + 1) as u64) as i64;
        half + spread
    }
}

/// The finaliser of SplitMix64: neighbouring ids give unrelated numbers.
fn mix_bits(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_cap_with_jitter() {
        let backoff = Backoff { base_ms: 100, cap_ms: 1000 };
        for (spent, full) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (90, 1000)] {
            let delays: Vec<i64> = (0..200).map(|id| backoff.delay_ms(spent, TaskId(id))).collect();
            assert!(delays.iter().all(|d| (full / 2..=full).contains(d)), "{spent}: {delays:?}");
            assert!(delays.iter().any(|d| *d != delays[0]));
        }
    }
}
