//! Worker processes on one file: limits are kept and reached, also when workers are killed.
//!
//! `TIDEGATE_TASKS`, `TIDEGATE_PROCESSES` and `TIDEGATE_KILLS` make it larger. The scenarios
//! themselves are commands, `tidegate bench limits` and `chaos`, and run on any store.

use std::path::PathBuf;

use crate::common::{Shell, without_numbers};
use insta::assert_snapshot;
use serde_json::Value;

fn setting(name: &str, default: u64) -> String {
    let set = std::env::var(name).ok().and_then(|text| text.parse().ok());
    set.unwrap_or(default).to_string()
}

/// Runs a scenario; gives whether it was good, its line, and what it said.
fn bench(shell: &Shell, scenario: &str, more: &[&str]) -> (bool, Value, String) {
    let (tasks, processes) = (setting("TIDEGATE_TASKS", 3000), setting("TIDEGATE_PROCESSES", 4));
    let permits = (800 / processes.parse::<u64>().unwrap()).max(100).to_string();
    let mut arguments = vec!["bench", scenario, "--json", "--store", "sqlite:tasks.db"];
    arguments.extend(["--tasks", &tasks, "--processes", &processes, "--permits", &permits]);
    arguments.extend(more);
    let output = shell.command(&arguments).output().expect("run the scenario");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{said}", String::from_utf8_lossy(&output.stdout))
    });
    (output.status.success(), line, said)
}

fn histories(shell: &Shell) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(shell.path("histories")).expect("read the histories");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files
}

fn verify(shell: &Shell, limits: &[&str]) -> String {
    let files = histories(shell);
    let mut arguments = vec!["verify"];
    arguments.extend(files.iter().map(|file| file.to_str().expect("a plain path")));
    limits.iter().for_each(|limit| arguments.extend(["--limit", limit]));
    shell.run(&arguments)
}

const LIMITS: [&str; 4] = ["group:one=1", "group:four=4", "group:five-hundred=500", "job:quota=8"];

#[test]
fn limits_scenario_keeps_and_reaches_limits() {
    let shell = Shell::new();
    let (good, line, said) =
        bench(&shell, "limits", &["--hold-ms", "900", "--histories", "histories"]);
    assert!(good, "{line}\n{said}");
    assert_eq!(line["violations"], 0, "{said}");
    assert_eq!(line["extra"]["group:five-hundred"], "500/500", "{said}");

    let report = verify(&shell, &LIMITS);
    assert!(report.starts_with("exit 0\n"), "{report}");
    let report = verify(&shell, &["group:four=3"]);
    assert!(report.starts_with("exit 1\n"), "a limit of one less must be seen broken: {report}");
    let violation = report
        .lines()
        .find(|line| line.contains("group:four") && line.starts_with("  "))
        .expect(&report);
    assert_snapshot!(without_numbers(violation), @"N: task N entered group:four as holder N of N");
    shell.run_ok(&["doctor", "--at-rest", "--store", "sqlite:tasks.db"]);
}

#[test]
fn limits_scenario_finds_inject_over_limitd_limit() {
    let shell = Shell::new();
    let (good, line, said) = bench(&shell, "limits", &["--hold-ms", "900", "--inject-over-limit"]);
    assert!(!good, "{line}\n{said}");
    assert!(line["violations"].as_u64() > Some(0), "{line}\n{said}");
}

#[test]
fn chaos_scenario_on_sqlite_loses_no_task_and_leaks_no_slot() {
    let shell = Shell::new();
    let kills = setting("TIDEGATE_KILLS", 20);
    let (good, line, said) = bench(&shell, "chaos", &["--kills", &kills, "--lease", "2s"]);
    assert!(good, "{line}\n{said}");
    assert_eq!(line["violations"], 0, "{said}");
    assert_eq!(line["extra"]["kills"].to_string(), kills, "{said}");
    assert!(line["extra"]["recovered"].as_u64() > Some(0), "{line}\n{said}");
    shell.run_ok(&["doctor", "--at-rest", "--store", "sqlite:tasks.db"]);
}
