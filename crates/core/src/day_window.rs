//! The part of a day in which tasks of a kind may be claimed.

use serde::{Deserialize, Serialize};

use crate::bounds::DAY_MS;
use crate::{Error, Millis, Result};

/// From `start_ms` (included) to `end_ms` (excluded) after midnight UTC. An end before the
/// start reaches over midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayWindow {
    /// When claiming begins, in milliseconds after midnight UTC.
    pub start_ms: i64,
    /// When claiming ends, in milliseconds after midnight UTC.
    pub end_ms: i64,
}

impl DayWindow {
    /// Reads `HH:MM` twice.
    pub fn parse(start: &str, end: &str) -> Result<Self> {
        let window = Self { start_ms: parse_time_of_day(start)?, end_ms: parse_time_of_day(end)? };
        window.check()?;
        Ok(window)
    }

    /// Refuses a window that is never or always open by accident.
    pub fn check(&self) -> Result<()> {
        let inside = |ms: i64| (0..DAY_MS).contains(&ms);
        if !inside(self.start_ms) || !inside(self.end_ms) || self.start_ms == self.end_ms {
            return Err(Error::invalid(
                "window_start and window_end must be two different times of one day",
            ));
        }
        Ok(())
    }

    /// Whether a task may be claimed now.
    pub fn is_open(&self, now: Millis) -> bool {
        let time = now.rem_euclid(DAY_MS);
        if self.start_ms < self.end_ms {
            (self.start_ms..self.end_ms).contains(&time)
        } else {
            time >= self.start_ms || time < self.end_ms
        }
    }
}

fn parse_time_of_day(text: &str) -> Result<i64> {
    let bad = || Error::invalid(format!("{text:?} is not a time of day; write it as HH:MM"));
    let (hours, minutes) = text.split_once(':').ok_or_else(bad)?;
    let part = |part: &str, below: i64| {
        part.parse::<i64>().ok().filter(|n| (0..below).contains(n)).ok_or_else(bad)
    };
    Ok((part(hours, 24)? * 60 + part(minutes, 60)?) * 60_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn day_window_may_span_midnight() {
        let hour = |h: i64| 17 * DAY_MS + h * 3_600_000;
        let day = DayWindow::parse("09:00", "17:00").unwrap();
        assert_eq!([8, 9, 16, 17].map(|h| day.is_open(hour(h))), [false, true, true, false]);
        let night = DayWindow::parse("22:00", "06:00").unwrap();
        assert_eq!(
            [21, 22, 0, 5, 6].map(|h| night.is_open(hour(h))),
            [false, true, true, true, false]
        );
    }

    #[test]
    fn day_window_with_invalid_times_is_rejected() {
        for (start, end) in [("9", "10:00"), ("24:00", "01:00"), ("08:00", "08:00"), ("a:b", "1:2")]
        {
            assert!(DayWindow::parse(start, end).is_err(), "{start} {end}");
        }
    }
}
