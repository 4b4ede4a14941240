//! The pages that show commands with their output: every command runs, and prints what the page
//! says.
//!
//! A page is one session of a shell in an empty folder. A `text` block right behind an `sh` block is
//! what that block prints, both streams together, without what differs from run to run.
//! `scripts/bless` writes such blocks that differ.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Shell, clear_environment, normalize_output, numbers, without_numbers};
use insta::assert_snapshot;
use tidegate_core::request_stats::FallbackReason;
use tidegate_testkit::postgres::Server;
use tidegate_testkit::wait;

const QUICK_START: &str = "docs/quick-start.md";

/// The port that the pages name; a session takes a free one.
const PORT: &str = "8642";

/// The database that the pages name; a session has one of its own.
const POSTGRES: &str = "postgres://tidegate@db.internal/app";

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn page(path: &str) -> String {
    std::fs::read_to_string(file(path)).expect("read a page")
}

/// A command of a page, and what it prints, if the page says so.
struct Step {
    line: usize,
    commands: String,
    output: Option<String>,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = page.lines().enumerate().peekable();
    let mut is_right_behind = false;
    while let Some((number, line)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            is_right_behind &= line.is_empty();
            continue;
        };
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let text: String = inside.map(|line| format!("{line}\n")).collect();
        match language {
            "sh" => steps.push(Step { line: number + 1, commands: text, output: None }),
            "text" if is_right_behind => steps.last_mut().expect("a step").output = Some(text),
            _ => {}
        }
        is_right_behind = language == "sh";
    }
    steps
}

/// The configurations of a page.
fn tomls(page: &str) -> Vec<String> {
    let blocks = page.split("\n```toml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// Runs the steps of a page in one shell; gives what each of them printed.
fn session(shell: &Shell, steps: &[Step]) -> Vec<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("find a free port");
    let port = listener.local_addr().expect("an address").port().to_string();
    drop(listener);
    let mut script = String::from("exec 2>&1\n");
    let is_on_postgres = steps.iter().any(|step| step.commands.contains(POSTGRES));
    let database = is_on_postgres.then(|| Server::shared().empty_database());
    let url = database.as_ref().map_or_else(String::new, |database| database.url());
    for (number, step) in steps.iter().enumerate() {
        let commands = step.commands.replace(PORT, &port);
        script.push_str(&commands.replace(POSTGRES, &format!("'{url}'")));
        script.push_str(&format!("echo '== {number}'\n"));
    }
    // A page may leave processes behind only if it fails; then they end with the shell.
    script.push_str("jobs -p | xargs -r kill 2>/dev/null || true\n");
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command
        .args(["--norc", "-euo", "pipefail", "-c", &script])
        .current_dir(shell.path("."))
        .env("PATH", format!("{}:{path}", binary.display()))
        .stdin(Stdio::null());
    clear_environment(&mut command);
    let output = command.output().expect("run bash");
    let text = String::from_utf8(output.stdout).expect("UTF-8").replace(&port, PORT);
    // The shell's own word about a job that was killed.
    let said = text.lines().filter(|line| !line.starts_with("bash: line "));
    let text: String = said.map(|line| format!("{line}\n")).collect();
    let mut parts = Vec::new();
    let mut rest = text.as_str();
    for (number, step) in steps.iter().enumerate() {
        let mark = format!("== {number}\n");
        let Some((before, after)) = rest.split_once(&mark) else {
            panic!("line {}: it ended with {}: {rest}", step.line, output.status);
        };
        parts.push(before.to_owned());
        rest = after;
    }
    parts
}

fn is_true(path: &str) {
    let steps = steps(&page(path));
    assert!(steps.iter().any(|step| step.output.is_some()), "{path} has no examples");
    let shell = Shell::new();
    let printed = session(&shell, &steps);
    for (number, content) in tomls(&page(path)).into_iter().enumerate() {
        let name = format!("{number}.toml");
        shell.file(&name, content);
        shell.run_ok(&["config", "--config", &name]);
    }
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(file(path), blessed(&page(path), &steps, &printed)).expect("write a page");
        return;
    }
    for (step, printed) in steps.iter().zip(printed) {
        if let Some(output) = &step.output {
            assert_eq!(
                normalize_output(&printed),
                normalize_output(output),
                "{path}:{}",
                step.line
            );
        }
    }
}

/// Returns the page with the outputs that were printed. Lines that differ only in what differs from run to run stay
/// as they are.
fn blessed(page: &str, steps: &[Step], printed: &[String]) -> String {
    let mut page = page.to_owned();
    for (step, printed) in steps.iter().zip(printed) {
        let Some(output) = &step.output else { continue };
        if normalize_output(printed) == normalize_output(output) {
            continue;
        }
        let kept: Vec<&str> = output.lines().collect();
        let same = |line: &str| {
            kept.iter().copied().find(|kept| normalize_output(kept) == normalize_output(line))
        };
        let lines = printed.lines().map(|line| format!("{}\n", same(line).unwrap_or(line)));
        let block = |text: &str| format!("```sh\n{}```\n\n```text\n{text}```\n", step.commands);
        let updated = page.replacen(&block(output), &block(&lines.collect::<String>()), 1);
        assert_ne!(updated, page, "line {}: the block is not found", step.line);
        page = updated;
    }
    page
}

#[test]
fn blessed_page_has_the_printed_output_and_keeps_lines_that_differ_in_time_only() {
    let page = "# Page\n\n```sh\na\n```\n\n```text\ndone in 5 ms\nold\n```\n\nEnd.\n";
    let printed = ["done in 7 ms\nnew\n".to_owned()];
    let expected = page.replace("old", "new");
    assert_eq!(blessed(page, &steps(page), &printed), expected);
    let same = ["done in 7 ms\nold\n".to_owned()];
    assert_eq!(blessed(page, &steps(page), &same), page);
}

#[test]
fn quick_start_commands_print_documented_output() {
    is_true(QUICK_START);
}

#[test]
fn per_tenant_limits_guide_prints_documented_output() {
    is_true("docs/guides/per-tenant-limits.md");
}

#[test]
fn ordered_work_guide_prints_documented_output() {
    is_true("docs/guides/ordered-work.md");
}

#[test]
fn many_processes_guide_prints_documented_output() {
    is_true("docs/guides/many-processes.md");
}

#[test]
fn many_in_flight_guide_prints_documented_output() {
    is_true("docs/guides/many-in-flight.md");
}

#[test]
fn stuck_task_guide_prints_documented_output() {
    is_true("docs/guides/when-something-is-stuck.md");
}

/// Whoever reads only the README kills a worker and has a thousand results, by the commands that the
/// quick start goes through.
#[test]
fn readme_tour_completes_a_thousand_tasks() {
    let is_tour = |step: &Step| step.commands.contains("--each-line");
    let tour: Vec<Step> = steps(&page("README.md")).into_iter().filter(is_tour).collect();
    assert_eq!(tour.len(), 1, "the tour of the commands");
    let quick_start = page(QUICK_START);
    for line in tour[0].commands.lines() {
        assert!(quick_start.contains(line), "the quick start does not show {line:?}");
    }
    let shell = Shell::new();
    let printed = session(&shell, &tour);
    assert!(printed[0].ends_with("\n1000\n"), "{printed:?}");
    let results = std::fs::read_to_string(shell.path("results.jsonl")).expect("the results");
    let of = |what: &str| results.lines().filter(|line| line.contains(what)).count();
    assert_eq!((of("\"status\":200"), of("\"exit\":0")), (500, 500));
    let orders = (1..=500).filter(|order| results.contains(&format!("\"order {order}\\n\"")));
    assert_eq!(orders.count(), 500, "every line has its own result");
    let server = wait::until_some("the server has written its report", || {
        let text = std::fs::read_to_string(shell.path("server.txt")).expect("the report");
        (!text.is_empty()).then_some(text)
    });
    assert!(numbers(&server).ends_with(&[4, 0]), "at once, refused: {server}");
    assert_snapshot!(without_numbers(&server), @"N calls, at most N at once, N refused");
}

#[test]
fn postgres_connection_guide_prints_documented_output() {
    is_true("docs/guides/connect-to-postgres.md");
}

/// The binary lists the parameters that it knows when it refuses one.
#[test]
fn postgres_connection_guide_lists_every_url_parameter() {
    let url = "postgres://host/db?unknown=1";
    let printed = Shell::new().run(&["doctor", "--store", url]);
    let (_, known) = printed.trim_end().split_once("known are ").expect("a list of parameters");
    let guide = page("docs/guides/connect-to-postgres.md");
    let parameters: Vec<&str> = known.split(", ").collect();
    assert!(parameters.len() > 20, "{printed}");
    for parameter in parameters {
        assert!(guide.contains(&format!("`{parameter}`")), "{parameter} is not in the guide");
    }
}

/// Every guide is run here, in the tests of the documentation, or where there is a PostgreSQL.
#[test]
fn every_fallback_reason_is_documented() {
    let guide = page("docs/guides/why-is-it-slow.md");
    for reason in FallbackReason::ALL {
        let row = format!("\n| `{}` |", reason.as_str());
        assert_eq!(guide.matches(&row).count(), 1, "{reason:?} has one row in the table");
    }
}

#[test]
fn every_guide_is_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides");
    let sql = include_str!("../../../testkit/tests/postgres/sql.rs");
    let tests = [include_str!("guides.rs"), include_str!("documentation.rs"), sql].concat();
    let engine = include_str!("../../../engine/src/lib.rs");
    for entry in std::fs::read_dir(root).expect("read the guides") {
        let name: PathBuf = entry.expect("an entry").file_name().into();
        let name = name.to_string_lossy().into_owned();
        assert!(tests.contains(&name) || engine.contains(&name), "{name} is not tried");
    }
}
