//! Reads what flags say.

use jiff::SignedDuration;

use crate::config::{Key, Setting, Value};

/// A duration. A bare number is none: nobody knows whether seconds are meant.
pub(crate) fn parse_duration(text: &str) -> Result<SignedDuration, String> {
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
pub(crate) fn parse_number(key: Key) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync {
    move |text| match Setting::by_key(key).value_type.parse("it", text)? {
        Value::Number(number) => u32::try_from(number).map_err(|error| error.to_string()),
        other => unreachable!("{key:?} is no number but {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use insta::{allow_duplicates, assert_snapshot};

    use super::*;

    #[test]
    fn duration_flag_requires_a_unit() {
        let good = [("90s", 90_000), ("1h30m", 5_400_000), ("-1.5s", -1_500), ("0s", 0)];
        for (text, ms) in good {
            assert_eq!(parse_duration(text).map(|duration| duration.as_millis()), Ok(ms), "{text}");
        }
        let mut errors = String::new();
        for number in ["5", "-5", "1.5", "0"] {
            let error = parse_duration(number).unwrap_err();
            assert!(
                error.starts_with(number) && error.contains(&format!(" {number}s or {number}ms")),
                "{error}"
            );
            errors.push_str(&format!("{error}\n"));
        }
        assert_snapshot!(
            errors,
            @"
            5 has no unit: write 5s or 5ms
            -5 has no unit: write -5s or -5ms
            1.5 has no unit: write 1.5s or 1.5ms
            0 has no unit: write 0s or 0ms
            "
        );
        for text in ["", "s", "1d", "nan", "5s5"] {
            let error = parse_duration(text).unwrap_err();
            allow_duplicates! {
                assert_snapshot!(
                    error,
                    @"it is no duration: write hours, minutes, seconds or milliseconds, such as 1h30m, 90s or 500ms"
                );
            }
        }
    }

    #[test]
    fn number_flag_is_bounded_by_its_setting() {
        let concurrency = parse_number(Key::WorkerConcurrency);
        assert_eq!(concurrency("100000"), Ok(100_000));
        let mut errors = String::new();
        for text in ["0", "-1", "3000000000"] {
            let error = concurrency(text).unwrap_err();
            assert!([text, " 1 ", "100000"].iter().all(|number| error.contains(number)), "{error}");
            errors.push_str(&format!("{error}\n"));
        }
        errors.push_str(&concurrency("many").unwrap_err());
        assert_snapshot!(
            errors,
            @r#"
            it is 0; it must be between 1 and 100000
            it is -1; it must be between 1 and 100000
            it is 3000000000; it must be between 1 and 100000
            it is no whole number: "many"
            "#
        );
    }
}
