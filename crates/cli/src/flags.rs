//! Reads what flags say.

use jiff::SignedDuration;

use crate::config::{Key, Setting, Value};

/// A duration. A bare number is none: nobody knows whether seconds are meant.
pub(crate) fn duration(text: &str) -> Result<SignedDuration, String> {
    let is_number = text.trim().parse::<f64>().is_ok_and(f64::is_finite);
    text.parse().map_err(|_| match (is_number, text.trim()) {
        (true, number) => format!("{number} has no unit: write {number}s or {number}ms"),
        (false, _) => {
            "it is no duration: write hours, minutes, seconds or milliseconds, such as 1h30m, 90s \
             or 500ms"
                .to_owned()
        }
    })
}

/// A number within the bounds of its setting.
pub(crate) fn number(key: Key) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync {
    move |text| match Setting::of(key).shape.parse("it", text)? {
        Value::Number(number) => u32::try_from(number).map_err(|error| error.to_string()),
        other => unreachable!("{key:?} is no number but {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        let good = [("90s", 90_000), ("1h30m", 5_400_000), ("-1.5s", -1_500), ("0s", 0)];
        for (text, ms) in good {
            assert_eq!(duration(text).map(|duration| duration.as_millis()), Ok(ms), "{text}");
        }
        for number in ["5", "-5", "1.5", "0"] {
            let error = format!("{number} has no unit: write {number}s or {number}ms");
            assert_eq!(duration(number), Err(error));
        }
        for text in ["", "s", "1d", "nan", "5s5"] {
            let error = duration(text).unwrap_err();
            assert!(error.starts_with("it is no duration: write hours, "), "{error}");
        }
    }

    #[test]
    fn numbers_have_the_bounds_of_their_setting() {
        let concurrency = number(Key::WorkerConcurrency);
        assert_eq!(concurrency("100000"), Ok(100_000));
        for text in ["0", "-1", "3000000000"] {
            let error = format!("it is {text}; it must be between 1 and 100000");
            assert_eq!(concurrency(text), Err(error));
        }
        assert_eq!(concurrency("many"), Err("it is no whole number: \"many\"".to_owned()));
    }
}
