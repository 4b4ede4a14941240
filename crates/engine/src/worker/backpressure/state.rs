//! How many tasks may be claimed: a function of what was read, and of the brakes that are on.
//!
//! A brake goes on at one mark and off at another, so that a reading that wavers around a mark
//! does not make it flap. Memory and latency do not make single claims smaller only, which the
//! next claim would make up for: they leave a part of the permits unused.

use std::fmt;
use std::time::Duration;

use tidegate_core::{Error, MemoryUsage, Result};

/// Workers with fewer permits claim with the last one: a tenth of them is no batch.
const LOW_CAPACITY_CONCURRENCY_MIN: u32 = 20;

/// The marks at which a worker claims less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackpressureThresholds {
    /// Percent of the permits that must be free for a claim of its own; with fewer it waits for a
    /// moment, and a claim that goes along with exits does not. It is off at twice as many. 0
    /// never waits. Workers with fewer than 20 permits do not wait. Default: 10.
    pub free_capacity_low_percent: u32,
    /// Percent of the memory above which half of the permits are used. It is off 10 below. 100
    /// never is. Default: 80.
    pub memory_high_percent: u32,
    /// Latency of the store's calls, or of the start of a handler behind the answer to its claim,
    /// above which 30 % of the permits are left unused. It is off at half of it. How long tasks
    /// run does not count. Default: 500 ms.
    pub latency_high: Duration,
}

impl Default for BackpressureThresholds {
    fn default() -> Self {
        Self {
            free_capacity_low_percent: 10,
            memory_high_percent: 80,
            latency_high: Duration::from_millis(500),
        }
    }
}

impl BackpressureThresholds {
    pub(crate) fn check(&self) -> Result<()> {
        let percents = [self.free_capacity_low_percent, self.memory_high_percent];
        if percents.iter().any(|percent| *percent > 100) || self.latency_high.is_zero() {
            return Err(Error::invalid(format!(
                "the marks of a worker are percents up to 100 and a latency above 0, not {self:?}"
            )));
        }
        Ok(())
    }
}

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackpressureSignals {
    /// Permits in all.
    pub(crate) concurrency: u32,
    /// Permits in the hands of handlers and of claims under way.
    pub(crate) in_use: u32,
    pub(crate) memory: Option<MemoryUsage>,
    /// Of the store's calls.
    pub(crate) store_latency: Duration,
    /// From the answer to a claim until its handlers begin.
    pub(crate) start_latency: Duration,
}

impl BackpressureSignals {
    pub(crate) fn is_full(&self) -> bool {
        self.in_use >= self.concurrency
    }
}

/// Why a worker claims as many tasks as it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackpressureReason {
    /// There is room, and nothing against it.
    None,
    /// Too few permits are free for a batch.
    LowCapacity,
    /// The memory is nearly full: half of the permits are used.
    Memory,
    /// The store is slow: 30 % of the permits are left unused.
    StoreLatency,
    /// Handlers begin late: 30 % of the permits are left unused.
    StartLatency,
    /// The worker shuts down.
    Stopping,
}

impl BackpressureReason {
    /// Every reason.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::LowCapacity,
        Self::Memory,
        Self::StoreLatency,
        Self::StartLatency,
        Self::Stopping,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "room",
            Self::LowCapacity => "permits",
            Self::Memory => "memory",
            Self::StoreLatency => "store_latency",
            Self::StartLatency => "start_latency",
            Self::Stopping => "stopping",
        }
    }
}

impl fmt::Display for BackpressureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Which brakes are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BackpressureState {
    pub(crate) is_capacity_low: bool,
    pub(crate) is_memory_high: bool,
    /// The memory is halfway from its mark to being full.
    pub(crate) is_memory_critical: bool,
    pub(crate) is_store_slow: bool,
    pub(crate) are_starts_slow: bool,
}

impl BackpressureState {
    /// The brakes after these readings.
    pub(crate) fn next_state(
        self,
        signals: &BackpressureSignals,
        thresholds: &BackpressureThresholds,
    ) -> Self {
        Self {
            is_capacity_low: self.next_capacity_low(signals, thresholds),
            is_memory_high: self.next_memory_high(signals, thresholds),
            is_memory_critical: is_memory_critical(signals, thresholds),
            is_store_slow: is_latency_high(self.is_store_slow, signals.store_latency, thresholds),
            are_starts_slow: is_latency_high(
                self.are_starts_slow,
                signals.start_latency,
                thresholds,
            ),
        }
    }

    fn next_capacity_low(
        self,
        signals: &BackpressureSignals,
        thresholds: &BackpressureThresholds,
    ) -> bool {
        let low = if self.is_capacity_low {
            2 * thresholds.free_capacity_low_percent
        } else {
            thresholds.free_capacity_low_percent
        };
        let free = signals.concurrency.saturating_sub(signals.in_use);
        signals.concurrency >= LOW_CAPACITY_CONCURRENCY_MIN
            && u64::from(free) * 100 < u64::from(low) * u64::from(signals.concurrency)
    }

    fn next_memory_high(
        self,
        signals: &BackpressureSignals,
        thresholds: &BackpressureThresholds,
    ) -> bool {
        let off = if self.is_memory_high { 10 } else { 0 };
        let high = u64::from(thresholds.memory_high_percent.saturating_sub(off));
        signals.memory.is_some_and(|memory| memory.used_percent() > high)
    }

    /// How many of the permits may be used: never none.
    fn usable_concurrency(self, concurrency: u32) -> u32 {
        self.reduce(concurrency).min(concurrency)
    }

    /// What the brakes leave of a number, at least one.
    fn reduce(self, number: u32) -> u32 {
        let mut percent = 100;
        if self.is_memory_high {
            percent /= 2;
        }
        if self.is_store_slow || self.are_starts_slow {
            percent = percent * 7 / 10;
        }
        u32::try_from(u64::from(number) * percent / 100).unwrap_or(u32::MAX).max(1)
    }

    /// How many tasks one claim may ask for.
    pub(crate) fn claim_budget(self, signals: &BackpressureSignals, batch_size: u32) -> u32 {
        let room = self.usable_concurrency(signals.concurrency).saturating_sub(signals.in_use);
        room.min(self.reduce(batch_size))
    }

    /// Why it is not more. The strongest brake counts.
    pub(crate) fn reason(self, signals: &BackpressureSignals) -> BackpressureReason {
        if signals.is_full() || self.is_capacity_low {
            BackpressureReason::LowCapacity
        } else if self.is_memory_high {
            BackpressureReason::Memory
        } else if self.is_store_slow {
            BackpressureReason::StoreLatency
        } else if self.are_starts_slow {
            BackpressureReason::StartLatency
        } else {
            BackpressureReason::None
        }
    }
}

fn is_memory_critical(signals: &BackpressureSignals, thresholds: &BackpressureThresholds) -> bool {
    let high = u64::from(thresholds.memory_high_percent);
    signals.memory.is_some_and(|memory| memory.used_percent() > (high + 100).div_ceil(2))
}

fn is_latency_high(was_high: bool, latency: Duration, thresholds: &BackpressureThresholds) -> bool {
    let high = if was_high { thresholds.latency_high / 2 } else { thresholds.latency_high };
    latency > high
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLDS: BackpressureThresholds = BackpressureThresholds {
        free_capacity_low_percent: 10,
        memory_high_percent: 80,
        latency_high: Duration::from_millis(500),
    };

    fn idle_signals(concurrency: u32) -> BackpressureSignals {
        BackpressureSignals {
            concurrency,
            in_use: 0,
            memory: None,
            store_latency: Duration::ZERO,
            start_latency: Duration::ZERO,
        }
    }

    fn signals_with_memory(used: u64) -> BackpressureSignals {
        BackpressureSignals {
            memory: Some(MemoryUsage { used_bytes: used, limit_bytes: 100 }),
            ..idle_signals(100)
        }
    }

    fn signals_with_latency(store_ms: u64, start_ms: u64) -> BackpressureSignals {
        BackpressureSignals {
            store_latency: Duration::from_millis(store_ms),
            start_latency: Duration::from_millis(start_ms),
            ..idle_signals(100)
        }
    }

    fn state_after(signals: &BackpressureSignals) -> BackpressureState {
        BackpressureState::default().next_state(signals, &THRESHOLDS)
    }

    #[test]
    fn claim_without_backpressure_takes_the_free_capacity() {
        for (taken, wanted) in [(0, 50), (50, 50), (60, 40), (99, 1), (100, 0), (120, 0)] {
            let readings = BackpressureSignals { in_use: taken, ..idle_signals(100) };
            assert_eq!(
                BackpressureState::default().claim_budget(&readings, 50),
                wanted,
                "{taken} taken"
            );
        }
        assert_eq!(
            state_after(&idle_signals(100)).reason(&idle_signals(100)),
            BackpressureReason::None
        );
    }

    #[test]
    fn low_capacity_delays_batches_except_on_small_workers() {
        let taken = |maximum, taken| BackpressureSignals { in_use: taken, ..idle_signals(maximum) };
        assert!(!state_after(&taken(100, 90)).is_capacity_low, "a tenth is enough");
        assert!(state_after(&taken(100, 91)).is_capacity_low);
        let held = state_after(&taken(100, 91));
        assert!(
            held.next_state(&taken(100, 81), &THRESHOLDS).is_capacity_low,
            "19 are not twice a tenth"
        );
        assert!(!held.next_state(&taken(100, 80), &THRESHOLDS).is_capacity_low);
        assert_eq!(
            held.claim_budget(&taken(100, 91), 50),
            9,
            "the last are kept from batches only"
        );
        assert!(state_after(&taken(20, 19)).is_capacity_low);
        assert!(!state_after(&taken(19, 18)).is_capacity_low);
        assert!(!state_after(&taken(1, 0)).is_capacity_low);
        let off = BackpressureThresholds { free_capacity_low_percent: 0, ..THRESHOLDS };
        assert!(!BackpressureState::default().next_state(&taken(100, 99), &off).is_capacity_low);
    }

    #[test]
    fn high_memory_halves_claims_until_below_lower_threshold() {
        assert!(!state_after(&signals_with_memory(80)).is_memory_high);
        let high = state_after(&signals_with_memory(81));
        assert!(high.is_memory_high);
        assert_eq!(high.claim_budget(&signals_with_memory(81), 50), 25);
        assert_eq!(
            high.claim_budget(&BackpressureSignals { in_use: 49, ..signals_with_memory(81) }, 50),
            1
        );
        assert_eq!(
            high.claim_budget(&BackpressureSignals { in_use: 50, ..signals_with_memory(81) }, 50),
            0,
            "half is used"
        );
        assert_eq!(high.reason(&signals_with_memory(81)), BackpressureReason::Memory);
        assert!(
            high.next_state(&signals_with_memory(71), &THRESHOLDS).is_memory_high,
            "it does not flap"
        );
        assert!(!high.next_state(&signals_with_memory(70), &THRESHOLDS).is_memory_high);
        assert_eq!(
            [90, 91].map(|used| state_after(&signals_with_memory(used)).is_memory_critical),
            [false, true]
        );
        assert!(
            !state_after(&idle_signals(100)).is_memory_high,
            "where it cannot be read it does not brake"
        );
        let never = BackpressureThresholds { memory_high_percent: 100, ..THRESHOLDS };
        assert_eq!(
            BackpressureState::default().next_state(&signals_with_memory(100), &never),
            BackpressureState::default()
        );
    }

    #[test]
    fn high_latency_reduces_claims_by_thirty_percent() {
        assert_eq!(state_after(&signals_with_latency(500, 500)), BackpressureState::default());
        for (readings, reason) in [
            (signals_with_latency(501, 0), BackpressureReason::StoreLatency),
            (signals_with_latency(0, 501), BackpressureReason::StartLatency),
        ] {
            let high = state_after(&readings);
            assert_eq!(high.claim_budget(&readings, 50), 35);
            assert_eq!(high.claim_budget(&BackpressureSignals { in_use: 69, ..readings }, 50), 1);
            assert_eq!(high.claim_budget(&BackpressureSignals { in_use: 70, ..readings }, 50), 0);
            assert_eq!(high.reason(&readings), reason);
            assert_eq!(
                high.next_state(&signals_with_latency(251, 251), &THRESHOLDS),
                high.next_state(&readings, &THRESHOLDS)
            );
            assert_eq!(
                high.next_state(&signals_with_latency(250, 250), &THRESHOLDS),
                BackpressureState::default()
            );
        }
        assert_eq!(
            state_after(&signals_with_latency(501, 501))
                .claim_budget(&signals_with_latency(501, 501), 50),
            35,
            "once, not twice"
        );
    }

    #[test]
    fn claim_under_all_backpressure_takes_at_least_one_task() {
        let all = BackpressureState {
            is_capacity_low: true,
            is_memory_high: true,
            is_memory_critical: true,
            is_store_slow: true,
            are_starts_slow: true,
        };
        assert_eq!(all.claim_budget(&idle_signals(100), 100), 35);
        for maximum in 1..4 {
            assert_eq!(all.claim_budget(&idle_signals(maximum), 1), 1, "of {maximum} permits");
        }
        assert_eq!(
            all.claim_budget(&BackpressureSignals { in_use: 1, ..idle_signals(2) }, 1),
            0,
            "one runs"
        );
    }

    #[test]
    fn memory_limit_of_zero_bytes_is_full() {
        assert_eq!(MemoryUsage { used_bytes: 0, limit_bytes: 0 }.used_percent(), 100);
        assert_eq!(MemoryUsage { used_bytes: u64::MAX, limit_bytes: u64::MAX }.used_percent(), 100);
    }
}
