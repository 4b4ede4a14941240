//! The pages that are made from the code are as the code makes them. `TIDEGATE_BLESS=1` writes them.

use std::path::{Path, PathBuf};

use crate::common::Shell;
use insta::assert_snapshot;

fn path(page: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(format!("{page}.md"))
}

#[track_caller]
fn check(page: &str) {
    let made = Shell::new().run_ok(&["reference", page]);
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(path(page), &made).expect("write a page");
    }
    let kept = std::fs::read_to_string(path(page)).unwrap_or_default();
    let difference = made.lines().zip(kept.lines()).find(|(made, kept)| made != kept);
    let how = "TIDEGATE_BLESS=1 cargo test -p tidegate-cli --test docs reference";
    assert!(made == kept, "{page} is not as the code makes it; `{how}` writes it: {difference:?}");
}

#[test]
fn command_reference_is_up_to_date() {
    check("commands");
}

#[test]
fn configuration_reference_is_up_to_date() {
    check("configuration");
}

#[test]
fn metrics_reference_is_up_to_date() {
    check("metrics");
}

/// Every example of the page is a good file, the one with every setting too.
#[test]
fn configuration_reference_examples_are_valid() {
    let page = Shell::new().run_ok(&["reference", "configuration"]);
    let examples: Vec<&str> = page.split("```toml\n").skip(1).collect();
    assert!(examples.len() > 10, "{}", examples.len());
    for example in examples {
        let example = example.split("```").next().unwrap_or_default();
        let shell = Shell::new();
        shell.file("tidegate.toml", example);
        let held = shell.run_ok(&["config"]);
        assert!(held.contains("tidegate.toml:"), "{example}: {held}");
    }
}

/// The help of every command that the page of the commands lists.
#[test]
fn help_of_every_command_matches_its_snapshot() {
    let (shell, mut text) = (Shell::new(), String::new());
    let page = shell.run_ok(&["reference", "commands"]);
    let heading =
        |line: &str| line.trim_start_matches('#').strip_prefix(" tidegate").map(str::to_owned);
    let names: Vec<String> =
        page.lines().filter(|line| line.starts_with("##")).filter_map(heading).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in [String::new()].iter().chain(&names) {
        let words: Vec<&str> = name.split_whitespace().chain(["--help"]).collect();
        text.push_str(&format!("$ tidegate {}\n{}\n", words.join(" "), shell.run_ok(&words)));
    }
    assert_snapshot!(text);
}
