//! Data for stdout, in the form that was asked for, and how an error is told.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::ExitCode;

use serde::Serialize;
use tidegate_core::{Millis, TaskState};
use tidegate_measure::table::printable;

use crate::stderr::print_message;

/// Writes data. All of it goes out in one piece, so that a reader who leaves early ends it.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes one JSON object per line.
pub(crate) fn print_json<T: Serialize>(items: impl IntoIterator<Item = T>) -> anyhow::Result<()> {
    let mut text = String::new();
    for item in items {
        text.push_str(&serde_json::to_string(&item)?);
        text.push('\n');
    }
    Ok(print(&text)?)
}

/// Tells what went wrong. A reader of stdout that went away is no fault.
pub(crate) fn print_error(error: &anyhow::Error) -> ExitCode {
    let left = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    if error.chain().any(|cause| cause.downcast_ref().is_some_and(left)) {
        return ExitCode::SUCCESS;
    }
    print_message_lines(&format!("error: {error:#}"));
    ExitCode::FAILURE
}

/// An error repeats what it was given: names, paths, lines of files. None of it may move the
/// cursor.
fn print_message_lines(text: &str) {
    for line in text.lines() {
        print_message!("{}", printable(line));
    }
}

/// Tells that a command was not understood.
pub(crate) fn print_usage_error(error: &clap::Error) -> ExitCode {
    print_message_lines(&error.to_string());
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// A moment of the store's clock, as a date.
pub(crate) fn format_date(at: Millis) -> String {
    jiff::Timestamp::from_millisecond(at).map_or_else(|_| at.to_string(), |at| at.to_string())
}

/// A duration in the unit that suits it.
pub(crate) fn format_duration(ms: i64) -> String {
    match ms {
        ..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{:.1} s", ms as f64 / 1e3),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms / 1000 % 60),
        3_600_000..86_400_000 => format!("{} h {} min", ms / 3_600_000, ms / 60_000 % 60),
        _ => format!("{} d {} h", ms / 86_400_000, ms / 3_600_000 % 24),
    }
}

/// The states of unfinished tasks.
pub(crate) const STATES_UNFINISHED: [TaskState; 4] =
    [TaskState::Scheduled, TaskState::Pending, TaskState::Blocked, TaskState::Processing];

/// How many tasks are in each of these states, for a row of a table.
pub(crate) fn state_counts(tasks: &BTreeMap<TaskState, u64>, states: &[TaskState]) -> Vec<String> {
    states.iter().map(|state| tasks.get(state).copied().unwrap_or(0).to_string()).collect()
}

/// A text, or a sign that there is none.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A word as a shell takes it.
pub(crate) fn shell_quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@+%".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn duration_is_shown_in_suitable_unit() {
        let texts = [5, 1500, 61_000, 3_660_000, 90_000_000].map(format_duration);
        let numbers = texts.each_ref().map(|text| text.replace(char::is_alphabetic, ""));
        assert_eq!(numbers, ["5 ", "1.5 ", "1  1 ", "1  1 ", "1  1 "]);
        assert_snapshot!(texts.join(", "), @"5 ms, 1.5 s, 1 min 1 s, 1 h 1 min, 1 d 1 h");
    }

    #[test]
    fn argument_is_quoted_where_shell_requires_it() {
        assert_eq!(
            ["a/b.toml", "a b", "it's", ""].map(shell_quoted),
            ["a/b.toml", "'a b'", r"'it'\''s'", "''"]
        );
    }

    #[test]
    fn dates_are_in_utc() {
        assert_eq!(format_date(0), "1970-01-01T00:00:00Z");
    }
}
