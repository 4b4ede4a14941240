//! The page of the settings.

use tidegate_measure::table::grouped;

use super::table_row;
use crate::config::{DEFAULT_FILE, FILE_VARIABLE, SETTINGS, Setting, ValueType, section_names};

/// The page.
pub(crate) fn page() -> String {
    let mut text = format!("# Configuration\n\n{}\n{}", intro(), example_file());
    text.push_str(&format!("\n{LIMITS_SECTION}\n## Settings\n"));
    SETTINGS.iter().for_each(|setting| text.push_str(&section(setting)));
    text
}

fn intro() -> String {
    format!(
        "\
A setting may be said by a flag, by a variable of the environment, or by a file. A flag is stronger
than a variable, a variable than the file, the file than a [profile](#profile), a profile than the
default. `tidegate config` shows what holds and where each value comes from; it never shows the
password of a store.

The file is `{DEFAULT_FILE}` in the current folder, if it is there, or the one that `--config FILE` or the
variable `{FILE_VARIABLE}` names, which must be there. An empty `{FILE_VARIABLE}` reads no file. The
file has at most 1 MiB. It is checked as a whole before a command does anything: an unknown key, a
value of another type or out of bounds is an error that names the line and the column, and the key
that may be meant.

A variable that is empty sets nothing. A list has commas between its items, and limits are written
`NAME=N,NAME=N`; such a variable takes the place of the whole list of the file. A name with
`TIDEGATE_` that is nearly that of a setting is noted on stderr. Where a setting has several variables, the first that
is listed and says something holds.
"
    )
}

const LIMITS_SECTION: &str = "\
## Limits of the configuration

`worker`, `run` and `submit` tell the store the limits when they start. For one group, who says what
is the capacity, strongest first: an operator (`tidegate concurrency set`), the configuration and the
`[[limit]]` of a run file, a worker (`--max-concurrent`), a submit (`--limit`, only where nothing is
set). An operator's word stays until `tidegate concurrency unset`; `worker` and `run` note it. Between
the configuration and a run file, the one that was told last holds.

- A bare name is that of a group, and the group of a task is its kind unless it names another.
- `\"job:NAME\"` is the limit of a job. It is set at the first start that finds the job; a job that
  `tidegate submit` or `tidegate run` makes has it from its first task.
- A limit that is taken out of the file stays in the store, as one that is taken out of a run file
  does: `tidegate concurrency unset NAME` removes it.
";

/// A file with every setting.
fn example_file() -> String {
    let mut text = "## A file with every setting\n\n```toml\n".to_owned();
    for section in [""].into_iter().chain(section_names()) {
        let settings = SETTINGS.iter().filter(|setting| setting.section_and_key().0 == section);
        let mut lines: String = settings.map(|setting| setting.example_lines() + "\n").collect();
        if !section.is_empty() {
            lines = format!("\n[{section}]\n{lines}");
        }
        text.push_str(&lines);
    }
    text + "```\n"
}

fn section(setting: &Setting) -> String {
    let mut text = format!("\n### `{}`\n\n{}\n\n", setting.name, setting.description);
    let default = match (setting.default_description, setting.default) {
        (Some(words), _) => words.to_owned(),
        (None, "") => "none".to_owned(),
        (None, default) => format!("`{default}`"),
    };
    let flag = setting.flag.map_or_else(|| "none".to_owned(), |flag| format!("`{flag}`"));
    text.push_str(&table_row(&["type", "default", "variable", "flag"]));
    text.push_str("|---|---|---|---|\n");
    let variables: Vec<String> = setting.variables().map(|name| format!("`{name}`")).collect();
    let variables = variables.join(", ");
    text.push_str(&table_row(&[&describe_type(setting.value_type), &default, &variables, &flag]));
    text.push_str(&format!("\n```toml\n{}\n```\n", setting.example_file()));
    text
}

fn describe_type(shape: ValueType) -> String {
    match shape {
        ValueType::Store => "URL of a [store](stores.md)".to_owned(),
        ValueType::Log => "string".to_owned(),
        ValueType::Address => "address with a port, or a port".to_owned(),
        ValueType::Profile => "`production`, `staging` or `development`".to_owned(),
        ValueType::Number { low, high } => {
            format!("whole number, {} to {}", grouped(low as u64), grouped(high as u64))
        }
        ValueType::Queues | ValueType::Kinds => "array of names".to_owned(),
        ValueType::Strings => "array of strings".to_owned(),
        ValueType::Limits => {
            "table of names and whole numbers, 0 to 2,147,483,647; at most 10,000".to_owned()
        }
    }
}
