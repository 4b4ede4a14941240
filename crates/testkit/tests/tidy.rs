//! The rules of the house that no lint can check. Each check is a function from what it looks at
//! to the list of faults, so that the tests below it can show it a fault.

mod renames;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// Which of our crates a crate may build upon. Tests and examples (dev-dependencies) are free.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("macros", &[]),
    ("store", &["core"]),
    ("engine", &["core", "macros"]),
    ("measure", &["core", "store", "engine"]),
    ("cli", &["core", "macros", "store", "engine", "measure"]),
    ("testkit", &["core", "macros", "store", "engine", "measure"]),
];

/// The most lines a Rust file has, tests apart.
const LINES_MAX: usize = 600;

/// The reason of files that are to be divided by area.
const NOT_DIVIDED: &str = "became longer with its names; to be divided by area";

/// Files that may be longer, each with the reason.
const LONG_FILES: &[(&str, &str)] = &[
    ("crates/cli/src/commands/bench.rs", NOT_DIVIDED),
    ("crates/core/src/invariants.rs", NOT_DIVIDED),
    ("crates/core/src/rules/admission.rs", NOT_DIVIDED),
    ("crates/store/src/memory/tables.rs", NOT_DIVIDED),
    ("crates/store/src/postgres/claim.rs", NOT_DIVIDED),
    ("crates/store/src/postgres/claim_cursors.rs", NOT_DIVIDED),
    ("crates/store/src/postgres/mod.rs", NOT_DIVIDED),
    ("crates/store/src/postgres/working_set.rs", NOT_DIVIDED),
];

/// Folders that are made by tools and not by us.
const IGNORED_FOLDERS: &[&str] = &[".git", "target", "node_modules", ".venv", "__pycache__"];

/// Put together here, so that this file does not find itself.
const UNFINISHED_MARKS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// A text file, by its path from the root of the workspace.
#[derive(Debug)]
struct Text {
    path: PathBuf,
    content: String,
}

impl Text {
    fn new(path: &str, content: impl Into<String>) -> Text {
        Text { path: path.into(), content: content.into() }
    }

    fn is_rust(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "rs")
    }

    fn is_test(&self) -> bool {
        self.path.iter().any(|part| part == "tests" || part == "tests.rs")
    }
}

// The checks

/// Dependencies between our crates that `ARROWS` does not have.
fn forbidden_dependencies(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().expect("packages");
    packages.iter().flat_map(forbidden_dependencies_of).collect()
}

fn forbidden_dependencies_of(package: &Value) -> Vec<String> {
    let Some(from) = own_name(package) else {
        return vec![format!("{} is not named tidegate-*", package["name"])];
    };
    let Some((_, allowed)) = ALLOWED_DEPENDENCIES.iter().find(|(name, _)| *name == from) else {
        return vec![format!("{from} is a new crate: say in ARROWS what it may build upon")];
    };
    let dependencies = package["dependencies"].as_array().expect("dependencies");
    dependencies
        .iter()
        .filter(|dependency| dependency["kind"] != "dev")
        .filter_map(own_name)
        .filter(|to| !allowed.contains(to))
        .map(|to| format!("{from} must not know {to}"))
        .collect()
}

/// Dependencies that no Rust file of their package names. A dev-dependency may be used anywhere in the
/// package, a dependency must be used in `src` or in the build script.
fn unused_dependencies(package: &Value, texts: &[Text]) -> Vec<String> {
    let is_named = |name: &str, texts: &mut dyn Iterator<Item = &Text>| {
        texts.filter(|text| text.is_rust()).any(|text| has_word(&text.content, name))
    };
    let dependencies = package["dependencies"].as_array().expect("dependencies");
    let is_unused = |dependency: &&Value| {
        let name = dependency["rename"].as_str().or(dependency["name"].as_str()).expect("a name");
        let name = name.replace('-', "_");
        let is_for_tests = dependency["kind"] == "dev";
        let is_in_reach = |text: &&Text| {
            is_for_tests || text.path.iter().any(|part| part == "src" || part == "build.rs")
        };
        !is_named(&name, &mut texts.iter().filter(is_in_reach))
    };
    let package = package["name"].as_str().expect("a name");
    let unused = dependencies.iter().filter(is_unused);
    unused.map(|dependency| format!("{package} does not use {}", dependency["name"])).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_letter) && !text[at + word.len()..].starts_with(is_letter)
    })
}

fn own_name(package: &Value) -> Option<&str> {
    package["name"].as_str()?.strip_prefix("tidegate-")
}

/// Rust files above `LINES_MAX` lines, and exceptions that are not needed any more.
fn long_files(texts: &[Text], exceptions: &[(&str, &str)]) -> Vec<String> {
    let is_long = |text: &&Text| {
        text.is_rust() && !text.is_test() && text.content.lines().count() > LINES_MAX
    };
    let long: BTreeSet<&Path> = texts.iter().filter(is_long).map(|text| &*text.path).collect();
    let excepted: BTreeSet<&Path> = exceptions.iter().map(|(path, _)| Path::new(path)).collect();
    let too_long = long
        .difference(&excepted)
        .map(|path| format!("{} has more than {LINES_MAX} lines", path.display()));
    let needless = excepted
        .difference(&long)
        .map(|path| format!("{} needs no exception from the length", path.display()));
    too_long.chain(needless).collect()
}

/// Lines that are marked as unfinished.
fn unfinished_marks(texts: &[Text]) -> Vec<String> {
    faulty_lines(texts, |line| {
        let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.any(|word| UNFINISHED_MARKS.contains(&word))
    })
}

/// Lines with the path of a folder that only one machine has.
fn machine_paths(texts: &[Text]) -> Vec<String> {
    let begins_path = |before: Option<char>| {
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || "_-.~})".contains(c))
    };
    faulty_lines(texts, |line| {
        MACHINE_FOLDERS.iter().any(|folder| {
            line.match_indices(folder).any(|(at, _)| begins_path(line[..at].chars().next_back()))
        })
    })
}

fn faulty_lines(texts: &[Text], is_faulty: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for text in texts {
        for (index, line) in text.content.lines().enumerate() {
            if is_faulty(line) {
                faults.push(format!("{}:{}: {}", text.path.display(), index + 1, line.trim()));
            }
        }
    }
    faults
}

/// Migrations `NNNN_name.sql` of one folder that do not count 0001, 0002, 0003...
fn migration_gaps(file_names: &[&str]) -> Vec<String> {
    let mut sorted = file_names.to_vec();
    sorted.sort_unstable();
    let expected = (1..).map(|number| format!("{number:04}_"));
    sorted
        .iter()
        .zip(expected)
        .filter(|(name, prefix)| !name.starts_with(prefix.as_str()) || !name.ends_with(".sql"))
        .map(|(name, prefix)| format!("{name} stands where {prefix}*.sql is expected"))
        .collect()
}

/// SQL files that no Rust file names in a string, by the path from its own folder.
fn unused_sql(texts: &[Text]) -> Vec<String> {
    let named: BTreeSet<PathBuf> =
        texts.iter().filter(|text| text.is_rust()).flat_map(sql_files_named_by).collect();
    texts
        .iter()
        .filter(|text| text.path.extension().is_some_and(|extension| extension == "sql"))
        .filter(|text| !named.contains(&text.path))
        .map(|text| format!("{} is not included by any Rust file", text.path.display()))
        .collect()
}

fn sql_files_named_by(text: &Text) -> Vec<PathBuf> {
    let folder = text.path.parent().expect("a file is in a folder");
    text.content
        .split('"')
        .filter(|string| string.ends_with(".sql"))
        .map(|string| normalized(&folder.join(string)))
        .collect()
}

fn normalized(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                result.pop();
            }
            Component::CurDir => {}
            part => result.push(part),
        }
    }
    result
}

// What they look at

fn root() -> PathBuf {
    normalized(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
}

/// All text files below a folder of the workspace.
fn texts(folder: &str) -> Vec<Text> {
    let mut texts = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("read a folder of the workspace") {
            let entry = entry.expect("read an entry");
            let (name, kind) = (entry.file_name(), entry.file_type().expect("file type"));
            if kind.is_dir() && !IGNORED_FOLDERS.iter().any(|foreign| name == *foreign) {
                folders.push(entry.path());
            } else if kind.is_file()
                && name != "Cargo.lock"
                && let Ok(content) = fs::read_to_string(entry.path())
            {
                let path = entry.path().strip_prefix(root()).expect("below the root").to_owned();
                texts.push(Text { path, content });
            }
        }
    }
    texts
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("run cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

#[track_caller]
fn assert_none(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn crates_depend_only_on_allowed_crates() {
    assert_none(forbidden_dependencies(&metadata()));
}

#[test]
fn every_dependency_is_used() {
    let metadata = metadata();
    for package in metadata["packages"].as_array().expect("packages") {
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        let folder = manifest.parent().and_then(Path::file_name).expect("the folder of a crate");
        let texts = texts(&format!("crates/{}", folder.display()));
        assert_none(unused_dependencies(package, &texts));
    }
}

#[test]
fn source_files_are_short() {
    assert_none(long_files(&texts(""), LONG_FILES));
}

#[test]
fn sources_have_no_unfinished_marks() {
    assert_none(unfinished_marks(&texts("")));
}

#[test]
fn sources_have_no_machine_paths() {
    assert_none(machine_paths(&texts("")));
}

#[test]
fn migration_numbers_have_no_gaps() {
    for store in ["sqlite", "postgres"] {
        let folder = format!("crates/store/src/{store}/migrations");
        if !root().join(&folder).exists() {
            continue;
        }
        let texts = texts(&folder);
        let names: Vec<&str> =
            texts.iter().filter_map(|text| text.path.file_name()?.to_str()).collect();
        assert_none(migration_gaps(&names));
    }
}

#[test]
fn every_sql_file_is_used() {
    assert_none(unused_sql(&texts("crates/store/src")));
}

// Each check finds what it is there for

fn workspace(crates: &[(&str, &[(&str, Value)])]) -> Value {
    let package = |(name, dependencies): &(&str, &[(&str, Value)])| {
        let dependency = |(name, kind): &(&str, Value)| json!({ "name": name, "kind": kind });
        let dependencies: Vec<Value> = dependencies.iter().map(dependency).collect();
        json!({ "name": name, "dependencies": dependencies })
    };
    json!({ "packages": crates.iter().map(package).collect::<Vec<_>>() })
}

#[test]
fn crate_check_reports_forbidden_dependency() {
    for (from, to) in [
        ("core", "store"),
        ("macros", "core"),
        ("store", "engine"),
        ("engine", "store"),
        ("measure", "cli"),
        ("cli", "testkit"),
        ("store", "testkit"),
        ("testkit", "cli"),
    ] {
        let (package, other) = (format!("tidegate-{from}"), format!("tidegate-{to}"));
        for kind in [Value::Null, json!("build")] {
            let workspace = workspace(&[(&package, &[("serde", Value::Null), (&other, kind)])]);
            assert_eq!(forbidden_dependencies(&workspace), [format!("{from} must not know {to}")]);
        }
        let for_tests = workspace(&[(&package, &[(&other, json!("dev"))])]);
        assert_none(forbidden_dependencies(&for_tests));
    }
}

#[test]
fn crate_check_reports_unlisted_crate() {
    assert_eq!(forbidden_dependencies(&workspace(&[("tidegate-new", &[])])).len(), 1);
    assert_eq!(forbidden_dependencies(&workspace(&[("other", &[])])).len(), 1);
}

#[test]
fn dependency_check_reports_unused_dependency() {
    let package = json!({ "name": "a", "dependencies": [
        { "name": "serde-json", "kind": null },
        { "name": "uuid", "kind": null },
        { "name": "tempfile", "kind": "dev" },
        { "name": "rand", "kind": "dev" },
        { "name": "tokio", "kind": null, "rename": "runtime" },
    ] });
    let texts = [
        Text::new(
            "crates/a/src/lib.rs",
            "use serde_json::Value;\nuse runtime::spawn;\nlet uuids = 1;",
        ),
        Text::new("crates/a/tests/a.rs", "use uuid::Uuid;\nuse tempfile::tempdir;"),
        Text::new("crates/a/Cargo.toml", "rand = 1"),
    ];
    let unused = ["a does not use \"uuid\"", "a does not use \"rand\""];
    assert_eq!(unused_dependencies(&package, &texts), unused);
}

#[test]
fn file_length_check_reports_long_file_and_needless_exception() {
    let lines = |count| "\n".repeat(count);
    let texts = [
        Text::new("crates/a/src/long.rs", lines(LINES_MAX + 1)),
        Text::new("crates/a/src/full.rs", lines(LINES_MAX)),
        Text::new("crates/a/tests/long.rs", lines(LINES_MAX + 1)),
        Text::new("docs/long.md", lines(LINES_MAX + 1)),
    ];
    assert_eq!(long_files(&texts, &[]), ["crates/a/src/long.rs has more than 600 lines"]);
    assert_none(long_files(&texts, &[("crates/a/src/long.rs", "a table")]));
    let needless = [("crates/a/src/long.rs", "a table"), ("crates/a/src/full.rs", "a table")];
    assert_eq!(long_files(&texts, &needless).len(), 1);
}

#[test]
fn mark_check_reports_unfinished_mark() {
    for mark in UNFINISHED_MARKS {
        let texts = [Text::new("a.rs", format!("fine\n// {mark}: later\n{mark}S_OF_A_USER\n"))];
        assert_eq!(unfinished_marks(&texts), [format!("a.rs:2: // {mark}: later")]);
    }
}

#[test]
fn path_check_reports_machine_path() {
    for folder in MACHINE_FOLDERS {
        let texts = [
            Text::new("a.md", format!("see {folder}me/notes\n")),
            Text::new("b.md", format!("see https://example.com{folder}page and $ROOT_1{folder}x")),
            Text::new("c.toml", format!("path=\"{folder}x\"")),
        ];
        let faulty: Vec<String> = machine_paths(&texts);
        assert_eq!(faulty.len(), 2, "{faulty:?}");
    }
}

#[test]
fn migration_check_reports_gap() {
    assert_none(migration_gaps(&["0002_jobs.sql", "0001_tasks.sql"]));
    assert_eq!(migration_gaps(&["0001_tasks.sql", "0003_jobs.sql"]).len(), 1);
    assert_eq!(migration_gaps(&["0000_tasks.sql"]).len(), 1);
    assert_eq!(migration_gaps(&["0001_tasks.sql", "0001_jobs.sql"]).len(), 1);
    assert_eq!(migration_gaps(&["0001_tasks.sql", "readme.md"]).len(), 1);
}

#[test]
fn sql_check_reports_unused_file() {
    let texts = [
        Text::new("src/sqlite/finish.rs", r#"include_str!("queries/finish.sql")"#),
        Text::new("src/sqlite/deep/admit.rs", r#"include_str!("../queries/admit.sql")"#),
        Text::new("src/sqlite/queries/finish.sql", ""),
        Text::new("src/sqlite/queries/admit.sql", ""),
        Text::new("src/postgres/queries/finish.sql", ""),
    ];
    let unused = ["src/postgres/queries/finish.sql is not included by any Rust file"];
    assert_eq!(unused_sql(&texts), unused);
}
