//! The page of the commands.

use clap::{Arg, Command, CommandFactory as _};

use super::table_row;
use crate::cli::Cli;

const INTRO: &str = "\
`tidegate COMMAND --help` says the same. Data goes to stdout, talk to stderr. The exit code is 0 when
all went well, 1 when something is wrong, 2 when the command was not understood.

Durations are written like `90s`, `1h30m` or `250ms`, times like `2030-01-31T08:00:00Z`. What is said
to be of the configuration is explained in [Configuration](configuration.md).
";

/// The page.
pub(crate) fn page() -> String {
    let mut root = Cli::command();
    root.build();
    let mut text = format!("# Commands\n\n{INTRO}\n## Flags of every command\n\n");
    text.push_str(&table("flag", root.get_arguments().filter(|argument| is_global(argument))));
    add_subcommands(&root, 2, &mut text);
    text
}

/// Whether every command takes it.
fn is_global(argument: &Arg) -> bool {
    ["store", "config_file", "otlp"].contains(&argument.get_id().as_str())
}

/// Adds the commands below a command, each with those below it.
fn add_subcommands(command: &Command, level: usize, text: &mut String) {
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for command in command.get_subcommands().filter(shown) {
        text.push_str(&section(command, level));
        add_subcommands(command, level + 1, text);
    }
}

fn section(command: &Command, level: usize) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let mut text = format!("\n{} {name}\n\n{}\n", "#".repeat(level), sentence(&about));
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    text.push_str(&format!("\n```text\n{usage}\n```\n"));
    let is_own = |argument: &&Arg| {
        let is_of_clap = ["help", "version"].contains(&argument.get_id().as_str());
        !is_global(argument) && !argument.is_hide_set() && !is_of_clap
    };
    let (named, placed): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(is_own).partition(|argument| argument.get_long().is_some());
    for (head, arguments) in [("argument", placed), ("flag", named)] {
        if !arguments.is_empty() {
            text.push_str(&format!("\n{}", table(head, arguments)));
        }
    }
    if let Some(examples) = command.get_after_help() {
        text.push_str(&format!("\n{}", code_block(&examples.to_string())));
    }
    text
}

/// The first line of a description is a heading, the rest are sentences: here all are.
fn sentence(about: &str) -> String {
    let (first, rest) = about.split_once("\n\n").unwrap_or((about, ""));
    let end = if first.ends_with(['.', '?']) { "" } else { "." };
    match rest {
        "" => format!("{first}{end}"),
        rest => format!("{first}{end}\n\n{rest}"),
    }
}

fn table<'a>(head: &str, arguments: impl IntoIterator<Item = &'a Arg>) -> String {
    let mut text = table_row(&[head, "meaning", "default"]) + "|---|---|---|\n";
    for argument in arguments {
        let (meaning, default) = description_and_default(argument);
        text.push_str(&table_row(&[
            &format!("`{}`", argument_syntax(argument)),
            &meaning,
            &default,
        ]));
    }
    text
}

/// How it is typed.
fn argument_syntax(argument: &Arg) -> String {
    let values = argument.get_value_names().unwrap_or_default();
    let value = values.iter().map(|name| format!(" {name}")).collect::<String>();
    match argument.get_long() {
        Some(long) if argument.get_action().takes_values() => format!("--{long}{value}"),
        Some(long) => format!("--{long}"),
        None => value.trim_start().to_owned(),
    }
}

/// What it means, and its default. A default that is words stands behind the meaning.
fn description_and_default(argument: &Arg) -> (String, String) {
    let help = argument.get_long_help().or(argument.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default().replace("\n\n", " ");
    let (mut help, words) = match help.split_once(" [default: ") {
        Some((help, words)) => (help.to_owned(), words.trim_end_matches(']').to_owned()),
        None => match help.split_once(". Default: ") {
            Some((help, words)) => (help.to_owned(), words.to_owned()),
            None => (help, String::new()),
        },
    };
    let choices = argument.get_possible_values();
    if argument.get_action().takes_values() && !choices.is_empty() {
        let names: Vec<&str> = choices.iter().map(clap::builder::PossibleValue::get_name).collect();
        help = format!("{help}: {}", names.join(", "));
    }
    let values: Vec<String> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    if argument.is_required_set() {
        return (help, "required".to_owned());
    }
    match values.is_empty() || !argument.get_action().takes_values() {
        true => (help, words),
        false => (help, format!("`{}`", values.join(","))),
    }
}

/// Examples as a block of code.
fn code_block(examples: &str) -> String {
    let lines = examples.lines().skip(1).map(|line| line.strip_prefix("  ").unwrap_or(line));
    let lines: Vec<&str> = lines.collect();
    format!("```sh\n{}\n```\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// The words of a line of a shell, without its quotes.
    fn split_shell_words(line: &str) -> Vec<String> {
        let (mut words, mut is_quoted) = (vec![String::new()], false);
        for sign in line.chars() {
            match (sign, words.last_mut()) {
                ('\'', _) => is_quoted = !is_quoted,
                (' ', _) if !is_quoted => words.push(String::new()),
                (sign, Some(word)) => word.push(sign),
                (_, None) => {}
            }
        }
        words
    }

    #[test]
    fn reference_examples_parse() {
        let page = page();
        let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        let mut examples = 0;
        for line in blocks.flat_map(str::lines) {
            for part in split_shell_words(line).split(|word| ["&", "|", ">"].contains(&&**word)) {
                let Some(start) = part.iter().position(|word| word == "tidegate") else { continue };
                let typed = Cli::try_parse_from(&part[start..]);
                assert!(typed.is_ok(), "{line}: {}", typed.unwrap_err());
                examples += 1;
            }
        }
        assert!(examples > 15, "{examples}");
    }
}
