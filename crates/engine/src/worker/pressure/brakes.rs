//! How many tasks may be claimed: a function of what was read, and of the brakes that are on.
//!
//! A brake goes on at one mark and off at another, so that a reading that wavers around a mark
//! does not make it flap. Memory and latency do not make single claims smaller only, which the
//! next claim would make up for: they leave a part of the permits unused.

use std::fmt;
use std::time::Duration;

use tidegate_core::{Error, Memory, Result};

/// Workers with fewer permits claim with the last one: a tenth of them is no batch.
const FEW_PERMITS: u32 = 20;

/// The marks at which a worker claims less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Percent of the permits that must be free for a claim of its own; with fewer it waits for a
    /// moment, and a claim that goes along with exits does not. It is off at twice as many. 0
    /// never waits. Workers with fewer than 20 permits do not wait. Default: 10.
    pub permits_low_percent: u32,
    /// Percent of the memory above which half of the permits are used. It is off 10 below. 100
    /// never is. Default: 80.
    pub memory_high_percent: u32,
    /// Latency of the store's calls, or of the start of a handler behind the answer to its claim,
    /// above which 30 % of the permits are left unused. It is off at half of it. How long tasks
    /// run does not count. Default: 500 ms.
    pub latency_high: Duration,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            permits_low_percent: 10,
            memory_high_percent: 80,
            latency_high: Duration::from_millis(500),
        }
    }
}

impl Marks {
    pub(crate) fn check(&self) -> Result<()> {
        let percents = [self.permits_low_percent, self.memory_high_percent];
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
pub(crate) struct Readings {
    /// Permits in all.
    pub(crate) maximum: u32,
    /// Permits in the hands of handlers and of claims under way.
    pub(crate) taken: u32,
    pub(crate) memory: Option<Memory>,
    /// Of the store's calls.
    pub(crate) store_latency: Duration,
    /// From the answer to a claim until its handlers begin.
    pub(crate) start_latency: Duration,
}

impl Readings {
    pub(crate) fn is_full(&self) -> bool {
        self.taken >= self.maximum
    }
}

/// Why a worker claims as many tasks as it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There is room, and nothing against it.
    Room,
    /// Too few permits are free for a batch.
    Permits,
    /// The memory is nearly full: half of the permits are used.
    Memory,
    /// The store is slow: 30 % of the permits are left unused.
    StoreLatency,
    /// Handlers begin late: 30 % of the permits are left unused.
    StartLatency,
    /// The worker shuts down.
    Stopping,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 6] = [
        Self::Room,
        Self::Permits,
        Self::Memory,
        Self::StoreLatency,
        Self::StartLatency,
        Self::Stopping,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Permits => "permits",
            Self::Memory => "memory",
            Self::StoreLatency => "store_latency",
            Self::StartLatency => "start_latency",
            Self::Stopping => "stopping",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Which brakes are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Brakes {
    pub(crate) permits: bool,
    pub(crate) memory: bool,
    /// The memory is halfway from its mark to being full.
    pub(crate) memory_hard: bool,
    pub(crate) store: bool,
    pub(crate) starts: bool,
}

impl Brakes {
    /// The brakes after these readings.
    pub(crate) fn after(self, readings: &Readings, marks: &Marks) -> Self {
        Self {
            permits: self.permits_after(readings, marks),
            memory: self.memory_after(readings, marks),
            memory_hard: is_hard(readings, marks),
            store: is_late(self.store, readings.store_latency, marks),
            starts: is_late(self.starts, readings.start_latency, marks),
        }
    }

    fn permits_after(self, readings: &Readings, marks: &Marks) -> bool {
        let low =
            if self.permits { 2 * marks.permits_low_percent } else { marks.permits_low_percent };
        let free = readings.maximum.saturating_sub(readings.taken);
        readings.maximum >= FEW_PERMITS
            && u64::from(free) * 100 < u64::from(low) * u64::from(readings.maximum)
    }

    fn memory_after(self, readings: &Readings, marks: &Marks) -> bool {
        let off = if self.memory { 10 } else { 0 };
        let high = u64::from(marks.memory_high_percent.saturating_sub(off));
        readings.memory.is_some_and(|memory| memory.percent() > high)
    }

    /// How many of the permits may be used: never none.
    fn usable(self, maximum: u32) -> u32 {
        self.part_of(maximum).min(maximum)
    }

    /// What the brakes leave of a number, at least one.
    fn part_of(self, number: u32) -> u32 {
        let mut percent = 100;
        if self.memory {
            percent /= 2;
        }
        if self.store || self.starts {
            percent = percent * 7 / 10;
        }
        u32::try_from(u64::from(number) * percent / 100).unwrap_or(u32::MAX).max(1)
    }

    /// How many tasks one claim may ask for.
    pub(crate) fn claim(self, readings: &Readings, batch: u32) -> u32 {
        let room = self.usable(readings.maximum).saturating_sub(readings.taken);
        room.min(self.part_of(batch))
    }

    /// Why it is not more. The strongest brake counts.
    pub(crate) fn reason(self, readings: &Readings) -> Reason {
        if readings.is_full() || self.permits {
            Reason::Permits
        } else if self.memory {
            Reason::Memory
        } else if self.store {
            Reason::StoreLatency
        } else if self.starts {
            Reason::StartLatency
        } else {
            Reason::Room
        }
    }
}

fn is_hard(readings: &Readings, marks: &Marks) -> bool {
    let high = u64::from(marks.memory_high_percent);
    readings.memory.is_some_and(|memory| memory.percent() > (high + 100).div_ceil(2))
}

fn is_late(was_late: bool, latency: Duration, marks: &Marks) -> bool {
    let high = if was_late { marks.latency_high / 2 } else { marks.latency_high };
    latency > high
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks = Marks {
        permits_low_percent: 10,
        memory_high_percent: 80,
        latency_high: Duration::from_millis(500),
    };

    fn idle(maximum: u32) -> Readings {
        Readings {
            maximum,
            taken: 0,
            memory: None,
            store_latency: Duration::ZERO,
            start_latency: Duration::ZERO,
        }
    }

    fn with_memory(used: u64) -> Readings {
        Readings { memory: Some(Memory { used, limit: 100 }), ..idle(100) }
    }

    fn late(store_ms: u64, start_ms: u64) -> Readings {
        Readings {
            store_latency: Duration::from_millis(store_ms),
            start_latency: Duration::from_millis(start_ms),
            ..idle(100)
        }
    }

    fn on(readings: &Readings) -> Brakes {
        Brakes::default().after(readings, &MARKS)
    }

    #[test]
    fn without_pressure_a_claim_follows_the_free_permits() {
        for (taken, wanted) in [(0, 50), (50, 50), (60, 40), (99, 1), (100, 0), (120, 0)] {
            let readings = Readings { taken, ..idle(100) };
            assert_eq!(Brakes::default().claim(&readings, 50), wanted, "{taken} taken");
        }
        assert_eq!(on(&idle(100)).reason(&idle(100)), Reason::Room);
    }

    #[test]
    fn few_free_permits_are_gathered_and_small_workers_use_the_last() {
        let taken = |maximum, taken| Readings { taken, ..idle(maximum) };
        assert!(!on(&taken(100, 90)).permits, "a tenth is enough");
        assert!(on(&taken(100, 91)).permits);
        let held = on(&taken(100, 91));
        assert!(held.after(&taken(100, 81), &MARKS).permits, "19 are not twice a tenth");
        assert!(!held.after(&taken(100, 80), &MARKS).permits);
        assert_eq!(held.claim(&taken(100, 91), 50), 9, "the last are kept from batches only");
        assert!(on(&taken(20, 19)).permits);
        assert!(!on(&taken(19, 18)).permits);
        assert!(!on(&taken(1, 0)).permits);
        let off = Marks { permits_low_percent: 0, ..MARKS };
        assert!(!Brakes::default().after(&taken(100, 99), &off).permits);
    }

    #[test]
    fn memory_above_its_mark_halves_and_goes_off_below_the_lower_one() {
        assert!(!on(&with_memory(80)).memory);
        let high = on(&with_memory(81));
        assert!(high.memory);
        assert_eq!(high.claim(&with_memory(81), 50), 25);
        assert_eq!(high.claim(&Readings { taken: 49, ..with_memory(81) }, 50), 1);
        assert_eq!(high.claim(&Readings { taken: 50, ..with_memory(81) }, 50), 0, "half is used");
        assert_eq!(high.reason(&with_memory(81)), Reason::Memory);
        assert!(high.after(&with_memory(71), &MARKS).memory, "it does not flap");
        assert!(!high.after(&with_memory(70), &MARKS).memory);
        assert_eq!([90, 91].map(|used| on(&with_memory(used)).memory_hard), [false, true]);
        assert!(!on(&idle(100)).memory, "where it cannot be read it does not brake");
        let never = Marks { memory_high_percent: 100, ..MARKS };
        assert_eq!(Brakes::default().after(&with_memory(100), &never), Brakes::default());
    }

    #[test]
    fn latency_above_its_mark_takes_thirty_percent() {
        assert_eq!(on(&late(500, 500)), Brakes::default());
        for (readings, reason) in
            [(late(501, 0), Reason::StoreLatency), (late(0, 501), Reason::StartLatency)]
        {
            let high = on(&readings);
            assert_eq!(high.claim(&readings, 50), 35);
            assert_eq!(high.claim(&Readings { taken: 69, ..readings }, 50), 1);
            assert_eq!(high.claim(&Readings { taken: 70, ..readings }, 50), 0);
            assert_eq!(high.reason(&readings), reason);
            assert_eq!(high.after(&late(251, 251), &MARKS), high.after(&readings, &MARKS));
            assert_eq!(high.after(&late(250, 250), &MARKS), Brakes::default());
        }
        assert_eq!(on(&late(501, 501)).claim(&late(501, 501), 50), 35, "once, not twice");
    }

    #[test]
    fn all_brakes_leave_at_least_one() {
        let all =
            Brakes { permits: true, memory: true, memory_hard: true, store: true, starts: true };
        assert_eq!(all.claim(&idle(100), 100), 35);
        for maximum in 1..4 {
            assert_eq!(all.claim(&idle(maximum), 1), 1, "of {maximum} permits");
        }
        assert_eq!(all.claim(&Readings { taken: 1, ..idle(2) }, 1), 0, "one runs");
    }

    #[test]
    fn a_limit_of_zero_bytes_is_full() {
        assert_eq!(Memory { used: 0, limit: 0 }.percent(), 100);
        assert_eq!(Memory { used: u64::MAX, limit: u64::MAX }.percent(), 100);
    }
}
