//! How many random cases a test run tries. The small tier runs for every change; the full tier is chosen by
//! `scripts/test --full`, which sets `TIDEGATE_TEST_TIER=full`. Both tiers run the same tests with the same
//! assertions: only the number of seeds, generated sequences and repetitions differs.

use std::fmt;
use std::str::FromStr;

/// Chooses the tier: `full`, or `small`, which is the default.
const TIER_VARIABLE: &str = "TIDEGATE_TEST_TIER";

/// Numbers of cases of one test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cases<T> {
    /// Cases that a run for a change tries.
    pub small: T,
    /// Cases that `scripts/test --full` tries.
    pub full: T,
}

impl<T: Copy> Cases<T> {
    /// Returns the number for the tier of this run.
    ///
    /// # Panics
    ///
    /// If the environment names a tier that does not exist.
    pub fn of_this_run(self) -> T {
        self.of_tier(std::env::var(TIER_VARIABLE).ok().as_deref())
    }

    fn of_tier(self, tier: Option<&str>) -> T {
        match tier {
            None | Some("" | "small") => self.small,
            Some("full") => self.full,
            Some(other) => panic!("{TIER_VARIABLE} is {other:?}; it must be `small` or `full`"),
        }
    }
}

impl<T: Copy + FromStr<Err: fmt::Debug>> Cases<T> {
    /// Returns the number in an environment variable, or else the number for the tier of this run.
    ///
    /// # Panics
    ///
    /// If the variable holds no number.
    pub fn or_from(self, variable: &str) -> T {
        match std::env::var(variable) {
            Ok(number) => number.parse().expect(variable),
            Err(_) => self.of_this_run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tier_selects_number_of_cases() {
        let cases = Cases { small: 1, full: 10 };
        assert_eq!(
            [None, Some(""), Some("small"), Some("full")].map(|tier| cases.of_tier(tier)),
            [1, 1, 1, 10]
        );
    }

    #[test]
    #[should_panic(expected = "must be `small` or `full`")]
    fn unknown_tier_panics() {
        Cases { small: 1, full: 10 }.of_tier(Some("ful"));
    }
}
