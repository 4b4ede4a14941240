//! The page of the settings.

use tidegate_measure::table::grouped;

use super::row;
use crate::config::{FILE, FILE_VARIABLE, SETTINGS, Setting, Shape, sections};

/// The page.
pub(crate) fn page() -> String {
    let mut text = format!("# Configuration\n\n{}\n{}", intro(), example());
    text.push_str(&format!("\n{LIMITS}\n## Settings\n"));
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

The file is `{FILE}` in the current folder, if it is there, or the one that `--config FILE` or the
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

const LIMITS: &str = "\
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
fn example() -> String {
    let mut text = "## A file with every setting\n\n```toml\n".to_owned();
    for section in [""].into_iter().chain(sections()) {
        let settings = SETTINGS.iter().filter(|setting| setting.place().0 == section);
        let mut lines: String = settings.map(|setting| setting.lines() + "\n").collect();
        if !section.is_empty() {
            lines = format!("\n[{section}]\n{lines}");
        }
        text.push_str(&lines);
    }
    text + "```\n"
}

fn section(setting: &Setting) -> String {
    let mut text = format!("\n### `{}`\n\n{}\n\n", setting.name, setting.meaning);
    let default = match (setting.default_words, setting.default) {
        (Some(words), _) => words.to_owned(),
        (None, "") => "none".to_owned(),
        (None, default) => format!("`{default}`"),
    };
    let flag = setting.flag.map_or_else(|| "none".to_owned(), |flag| format!("`{flag}`"));
    text.push_str(&row(&["type", "default", "variable", "flag"]));
    text.push_str("|---|---|---|---|\n");
    let variables: Vec<String> = setting.variables().map(|name| format!("`{name}`")).collect();
    let variables = variables.join(", ");
    text.push_str(&row(&[&words(setting.shape), &default, &variables, &flag]));
    text.push_str(&format!("\n```toml\n{}\n```\n", setting.sample()));
    text
}

fn words(shape: Shape) -> String {
    match shape {
        Shape::Store => "URL of a [store](stores.md)".to_owned(),
        Shape::Log => "string".to_owned(),
        Shape::Address => "address with a port, or a port".to_owned(),
        Shape::Profile => "`production`, `staging` or `development`".to_owned(),
        Shape::Number { low, high } => {
            format!("whole number, {} to {}", grouped(low as u64), grouped(high as u64))
        }
        Shape::Queues | Shape::Kinds => "array of names".to_owned(),
        Shape::Words => "array of strings".to_owned(),
        Shape::Limits => {
            "table of names and whole numbers, 0 to 2,147,483,647; at most 10,000".to_owned()
        }
    }
}
