//! Reads the variables of the environment.

use std::ffi::OsString;

use anyhow::anyhow;

use super::settings::{FILE_VARIABLE, Key, SETTINGS, Setting};
use super::value_type::Value;
use crate::suggest::suggest;

const PREFIX: &str = "TIDEGATE_";

/// What the variables set, and which of them. An empty one sets nothing.
pub(crate) fn read(
    variables: &[(OsString, OsString)],
) -> anyhow::Result<Vec<(Key, Value, &'static str)>> {
    let mut values = Vec::new();
    for setting in &SETTINGS {
        let said = |name: &'static str| {
            let (_, text) = variables.iter().find(|(variable, _)| variable == name)?;
            (!text.is_empty()).then_some((name, text))
        };
        let Some((name, text)) = setting.variables().find_map(said) else { continue };
        let text = text.to_str().ok_or_else(|| anyhow!("{name} is not UTF-8"))?;
        let value = setting.value_type.parse("it", text);
        values.push((setting.key, value.map_err(|error| anyhow!("read {name}: {error}"))?, name));
    }
    Ok(values)
}

/// Notes about variables that look like a mistyped one. Others may have variables with this
/// beginning too, so what is near to none is not spoken of.
pub(crate) fn mistyped_notes(variables: &[(OsString, OsString)]) -> Vec<String> {
    let names = SETTINGS.iter().flat_map(Setting::variables).chain([FILE_VARIABLE]);
    let known: Vec<&str> = names.filter_map(|name| name.strip_prefix(PREFIX)).collect();
    let note = |(name, _): &(OsString, OsString)| {
        let word = name.to_str()?.strip_prefix(PREFIX)?;
        let meant = suggest(word, &known).filter(|meant| *meant != word)?;
        Some(format!("unknown variable {PREFIX}{word}; did you mean {PREFIX}{meant}?"))
    };
    variables.iter().filter_map(note).collect()
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn variables_are_parsed_by_type_of_setting() {
        let given = variables(&[
            ("TIDEGATE_STORE", ""),
            ("TIDEGATE_WORKER_CONCURRENCY", " 7 "),
            ("TIDEGATE_WORKER_QUEUES", "a, b,"),
            ("TIDEGATE_CONCURRENCY_LIMITS", "mail=3, job:x = 1"),
        ]);
        let limits = [("group:mail".to_owned(), 3), ("job:x".to_owned(), 1)];
        assert_eq!(
            read(&given).unwrap(),
            [
                (Key::WorkerConcurrency, Value::Number(7), "TIDEGATE_WORKER_CONCURRENCY"),
                (
                    Key::WorkerQueues,
                    Value::List(vec!["a".to_owned(), "b".to_owned()]),
                    "TIDEGATE_WORKER_QUEUES"
                ),
                (Key::Limits, Value::Limits(limits.into()), "TIDEGATE_CONCURRENCY_LIMITS"),
            ]
        );
    }

    #[test]
    fn prefixed_variable_takes_precedence_over_bare_one() {
        let bare = ("MAX_CONCURRENT_TASKS", "2");
        let read = |pairs: &[(&str, &str)]| read(&variables(pairs)).unwrap().pop();
        let said =
            |number, name| Some((Key::WorkerMaxConcurrentTasks, Value::Number(number), name));
        assert_eq!(read(&[bare]), said(2, "MAX_CONCURRENT_TASKS"));
        let prefixed = ("TIDEGATE_MAX_CONCURRENT_TASKS", "3");
        assert_eq!(read(&[bare, prefixed]), said(3, "TIDEGATE_MAX_CONCURRENT_TASKS"));
        let empty = ("TIDEGATE_MAX_CONCURRENT_TASKS", "");
        assert_eq!(read(&[empty, bare]), said(2, "MAX_CONCURRENT_TASKS"));
        let whole = ("TIDEGATE_WORKER_MAX_CONCURRENT_TASKS", "4");
        assert_eq!(read(&[bare, prefixed, whole]), said(4, "TIDEGATE_WORKER_MAX_CONCURRENT_TASKS"));
    }

    #[test]
    fn unknown_variable_is_noted_only_if_similar() {
        let given = variables(&[("TIDEGATE_STOER", "x"), ("TIDEGATE_STORE", "x")]);
        assert_snapshot!(
            mistyped_notes(&given).join("\n"),
            @"unknown variable TIDEGATE_STOER; did you mean TIDEGATE_STORE?"
        );
        let others = ["PG_DIR", "PG_BIN", "PG_FROM", "BLESS", "TASKS", "PROCESSES", "KILLS"];
        for other in others.map(|name| format!("{PREFIX}{name}")) {
            assert_eq!(mistyped_notes(&variables(&[(&other, "x")])), [""; 0], "{other}");
        }
    }
}
