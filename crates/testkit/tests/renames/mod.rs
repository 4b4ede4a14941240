//! Checks that no name of `docs/development/renames.txt` that was replaced is declared again.

use std::path::Path;

use super::{Text, assert_none, has_word, root, texts};

/// A line of the list.
struct Rename<'a> {
    sort: &'a str,
    /// Path prefix of the files in which the old name must not be declared.
    prefix: &'a str,
    old: &'a str,
    new: &'a str,
    reason: &'a str,
}

impl<'a> Rename<'a> {
    /// Returns the rename of a line, or none for comments and empty lines.
    fn parse(line: &'a str) -> Option<Self> {
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let mut parts = line.splitn(5, " | ");
        let mut next = || parts.next().unwrap_or_default().trim();
        let (sort, prefix, old, new, reason) = (next(), next(), next(), next(), next());
        Some(Self { sort, prefix, old, new, reason })
    }

    /// Returns whether the old name was replaced, so that it must not come back.
    fn is_done(&self) -> bool {
        self.new != "kept" && !self.new.starts_with("open")
    }

    /// Returns the words that declare a name of this sort in Rust.
    fn keywords(&self) -> &'static [&'static str] {
        match self.sort {
            "fn" | "method" => &["fn "],
            "type" | "trait" | "test harness" => &["struct ", "enum ", "trait ", "type "],
            "const" => &["const ", "static "],
            "macro" => &["macro_rules! "],
            "module" => &["mod "],
            _ => &[],
        }
    }

    /// Returns the last part of the old name: lists name members with their type.
    fn old_word(&self) -> &'a str {
        let last = self.old.rsplit("::").next().unwrap_or(self.old);
        last.trim_end_matches(['!', '(', ')'])
    }

    fn is_declared_in(&self, text: &Text) -> bool {
        let path = text.path.to_string_lossy();
        if !path.starts_with(self.prefix) {
            return false;
        }
        if matches!(self.sort, "file" | "sql file") {
            return Path::new(self.old).file_name() == text.path.file_name();
        }
        text.is_rust()
            && self.keywords().iter().any(|keyword| {
                let declaration = format!("{keyword}{}", self.old_word());
                has_word(&text.content, &declaration)
            })
    }
}

/// Returns the old names that are declared, and lines that do not say enough.
fn faults(list: &str, texts: &[Text]) -> Vec<String> {
    let mut faults = Vec::new();
    for rename in list.lines().filter_map(Rename::parse) {
        if rename.new.is_empty() || (rename.new == "kept" && rename.reason.is_empty()) {
            faults.push(format!("{} {} needs a new name or a reason", rename.sort, rename.old));
        }
        if rename.is_done() {
            let declared = texts.iter().filter(|text| rename.is_declared_in(text));
            faults.extend(declared.map(|text| {
                let (sort, old, new) = (rename.sort, rename.old, rename.new);
                format!("{}: {sort} {old} has the name {new} now", text.path.display())
            }));
        }
    }
    faults
}

#[test]
fn replaced_names_are_not_declared_again() {
    let list = std::fs::read_to_string(root().join("docs/development/renames.txt"));
    let list = list.expect("read the list of renames");
    assert!(list.lines().filter_map(Rename::parse).count() > 1000, "the list is cut off");
    assert_none(faults(&list, &texts("crates")));
}

#[test]
fn rename_check_reports_old_name_only_where_it_is_replaced() {
    let list = "# a comment\n\
        type | crates/store | Draft | WorkingSet\n\
        method | crates/store | Draft::seal | finish_loading\n\
        file | crates/store | draft.rs | working_set.rs\n\
        fn | crates/store | claim | kept | the name of the verb\n\
        fn | crates/store | take | kept\n\
        flag | crates/cli | --workers | open: gone";
    let texts = [
        Text::new(
            "crates/store/src/draft.rs",
            "pub(super) struct Draft;\nfn seal() {}\nfn claim()",
        ),
        Text::new("crates/store/src/other.rs", "struct Drafts;\nlet seal = Draft::new();"),
        Text::new("crates/cli/src/draft.rs", "struct Draft;"),
    ];
    let expected = [
        "crates/store/src/draft.rs: type Draft has the name WorkingSet now",
        "crates/store/src/draft.rs: method Draft::seal has the name finish_loading now",
        "crates/store/src/draft.rs: file draft.rs has the name working_set.rs now",
        "fn take needs a new name or a reason",
    ];
    assert_eq!(faults(list, &texts), expected);
}
