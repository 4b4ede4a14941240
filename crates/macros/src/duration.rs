//! Durations and times of day, read while the caller's code is compiled.

/// Reads `30s`, `500ms`, `5m`, `2h` or `1d` as milliseconds.
pub(crate) fn parse_duration_ms(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a duration; write it like \"500ms\", \"30s\" or \"5m\"");
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let (number, unit) = text.split_at(unit_at);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(unit_ms).filter(|ms| *ms > 0).ok_or_else(bad)
}

/// Reads `HH:MM` as milliseconds after midnight.
pub(crate) fn parse_time_of_day_ms(text: &str) -> Result<i64, String> {
    let bad = || format!("{text:?} is not a time of day; write it as HH:MM");
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
    fn duration_literal_is_parsed() {
        assert_eq!(parse_duration_ms("500ms"), Ok(500));
        assert_eq!(parse_duration_ms("2h"), Ok(7_200_000));
        for bad in ["", "5", "s", "0s", "-1s", "5 s", "5w", "99999999999999999999d"] {
            assert!(parse_duration_ms(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn time_of_day_literal_is_parsed() {
        assert_eq!(parse_time_of_day_ms("01:30"), Ok(5_400_000));
        for bad in ["24:00", "1", "a:b", "12:60"] {
            assert!(parse_time_of_day_ms(bad).is_err(), "{bad:?}");
        }
    }
}
