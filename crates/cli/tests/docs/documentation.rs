//! The examples of the documentation run, and the reference of the run file names every key.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Shell, format_output};

const RUN_FILE: &str = "docs/reference/run-file.md";
const KINDS: &str = "docs/reference/kinds.md";
const LIMIT_CALLS: &str = "docs/guides/limit-calls-to-an-api.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("read a page")
}

/// The fenced blocks of a page in one language: the line they begin at, and their text.
fn blocks(page: &str, language: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(found) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let text: String = inside.map(|line| format!("{line}\n")).collect();
        if found == language {
            blocks.push((number + 1, text));
        }
    }
    blocks
}

/// The part of a page under one heading, up to the next of the same or a higher level.
fn part<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).expect(heading);
    let level = heading.len() - heading.trim_start_matches('#').len();
    let ends = (1..=level).filter_map(|level| rest.find(&format!("\n{} ", "#".repeat(level))));
    &rest[..ends.min().unwrap_or(rest.len())]
}

/// The keys in the first column of a table.
fn keys_of_table(part: &str) -> BTreeSet<String> {
    let key = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    part.lines().filter_map(key).collect()
}

/// The words that the binary knows where it refuses `nonsense`: it lists them behind it.
fn known(file: &str) -> BTreeSet<String> {
    let shell = Shell::new();
    shell.file("a.toml", file);
    let told = shell.run(&["run", "a.toml"]);
    assert!(!told.starts_with("exit 0\n"), "{file}: {told}");
    let (_, list) = told.split_once("`nonsense`").unwrap_or_else(|| panic!("{file}: {told}"));
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn documented_run_files_run() {
    for path in [RUN_FILE, LIMIT_CALLS] {
        let page = page(path);
        let mut files = blocks(&page, "toml");
        assert!(!files.is_empty(), "{path} has no examples");
        files.extend(blocks(&page, "jsonl"));
        for (line, text) in files {
            let shell = Shell::new();
            let name = if text.starts_with('{') { "a.jsonl" } else { "a.toml" };
            shell.file(name, &text);
            let told = shell.run(&["run", name]);
            assert!(told.starts_with("exit 0\n"), "{path}:{line}: {told}");
            shell.run_ok(&["doctor", "--at-rest"]);
        }
    }
}

#[test]
fn run_file_reference_lists_every_section_and_key() {
    let page = page(RUN_FILE);
    let sections = known("[[nonsense]]\n");
    let headings: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## `["))
        .map(|heading| heading.trim_matches(|c| "[]`".contains(c)).to_owned())
        .collect();
    assert_eq!(headings, sections);
    for section in sections {
        let heading = match &*section {
            "server" => "## `[server]`".to_owned(),
            section => format!("## `[[{section}]]`"),
        };
        let table = keys_of_table(part(&page, &heading));
        assert_eq!(table, known(&format!("[[{section}]]\nnonsense = 1\n")), "{heading}");
    }
    let mut task = known("[[task]]\nnonsense = 1\n");
    task.retain(|key| key != "job" && key != "workflow");
    let step = known("[[workflow]]\nname = \"w\"\nsteps = [{ nonsense = 1 }]\n");
    assert_eq!(step, task, "the page says that a step has the keys of a task without these two");
}

#[test]
fn kind_reference_lists_every_kind_and_payload() {
    let (run_file, page) = (page(RUN_FILE), page(KINDS));
    let kinds = known("[[task]]\nkind = \"nonsense\"\n");
    for kind in kinds.iter().filter(|kind| *kind != "noop") {
        let task = format!("[[task]]\nkind = \"{kind}\"\npayload = {{ nonsense = 1 }}\n");
        let table = keys_of_table(part(&page, &format!("## `{kind}`")));
        assert_eq!(table, known(&task), "{kind}");
    }
    part(&page, "## `noop`");
    let list = part(&run_file, "## `[[task]]`");
    assert!(kinds.iter().all(|kind| list.contains(&format!("`{kind}`"))), "{kinds:?}");
}

/// Pastes commands into a shell; gives its exit code, stdout and stderr.
fn paste(shell: &Shell, commands: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .args(["-e", "-c", commands])
        .current_dir(shell.path("."))
        .env("PATH", format!("{}:{path}", binary.display()))
        .env_remove("TIDEGATE_STORE")
        .stdin(Stdio::null())
        .output();
    format_output(&output.expect("run a shell"))
}

#[test]
fn limit_calls_guide_commands_run() {
    let page = page(LIMIT_CALLS);
    let shell = Shell::new();
    shell.file("partner.toml", &blocks(&page, "toml")[0].1);
    let commands: String = blocks(&page, "sh").into_iter().map(|(_, text)| text).collect();
    let told = paste(&shell, &commands);
    assert!(told.starts_with("exit 0\n"), "{told}");
}

#[test]
fn kind_reference_payloads_are_accepted() {
    let is_submit = |text: &String| text.contains("tidegate submit");
    let texts = blocks(&page(KINDS), "sh").into_iter().map(|(_, text)| text);
    let submits: String = texts.filter(is_submit).collect();
    assert_eq!(paste(&Shell::new(), &submits), "exit 0\n1\n2\n");
}

#[test]
fn kind_reference_worker_commands_start() {
    let is_worker = |text: &String| text.contains("tidegate worker");
    let texts = blocks(&page(KINDS), "sh").into_iter().map(|(_, text)| text);
    let workers: Vec<String> = texts.filter(is_worker).collect();
    assert_eq!(workers.len(), 2);
    for worker in workers {
        let told = paste(&Shell::new(), &format!("{} --until-idle", worker.trim_end()));
        assert!(told.starts_with("exit 0\n"), "{told}");
    }
}

/// Links from one page to another lead somewhere, and so do their anchors.
#[test]
fn documentation_links_resolve() {
    let mut pages = vec![PathBuf::from("README.md")];
    pages.extend(["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(PathBuf::from));
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).expect("read a folder") {
            let path = folder.join(entry.expect("read an entry").file_name());
            match path.extension() {
                None => folders.push(path),
                Some(_) => pages.push(path),
            }
        }
    }
    for path in &pages {
        let text = page(&path.to_string_lossy());
        for (_, target) in text.match_indices("](").map(|(at, _)| text.split_at(at + 2)) {
            let target = target.split(')').next().unwrap_or_default();
            if target.starts_with("https://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let folder = path.parent().expect("a folder");
            let file = if file.is_empty() { path.clone() } else { folder.join(file) };
            assert!(root().join(&file).exists(), "{}: {target}", path.display());
            if !anchor.is_empty() {
                let anchors = anchors(&page(&file.to_string_lossy()));
                assert!(anchors.contains(anchor), "{}: {target}: {anchors:?}", path.display());
            }
        }
    }
}

/// The anchors that the headings of a page get.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| -> String {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}
