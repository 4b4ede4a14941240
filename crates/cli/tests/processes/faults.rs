//! Short runs of what PostgreSQL must survive: limits that change all the time, with an audit of
//! every commit, crashes of the server, and workers that are killed. The scenarios themselves are
//! commands: `tidegate bench limit-changes`, `restarts` and `chaos`.

use std::process::Output;

use crate::common::{Shell, expect_exit, format_output, normalize_output};
use insta::assert_snapshot;
use serde_json::Value;
use tidegate_measure::postgres_server::Programs;
use tidegate_testkit::postgres::Server;

/// Runs a scenario on a server of its own.
fn bench(arguments: &[&str]) -> (Output, Value) {
    let programs = Programs::find(None).expect("find a PostgreSQL");
    let bin = programs.bin().to_str().expect("a plain path");
    let mut all = vec!["bench", "--json"];
    all.extend(arguments);
    all.extend(["--pg-bin", bin]);
    let output = Shell::new().command(&all).output().expect("run the scenario");
    let line = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", format_output(&output)));
    (output, line)
}

const CHANGES: [&str; 7] =
    ["limit-changes", "--seconds", "3", "--processes", "3", "--interval", "50ms"];

#[test]
fn limit_changes_scenario_has_no_violation() {
    let (output, line) = bench(&CHANGES);
    assert!(output.status.success(), "{}", format_output(&output));
    assert_eq!(line["violations"], 0, "{}", format_output(&output));
    let figure = |name: &str| line["extra"][name].as_u64().unwrap_or_default();
    for name in ["changes", "commits", "taken", "drains"] {
        assert!(figure(name) > 4, "{name}: {}", format_output(&output));
    }
}

#[test]
fn limit_changes_scenario_with_inject_over_limitd_limit_fails() {
    let mut arguments = CHANGES.to_vec();
    arguments.push("--inject-over-limit");
    let (output, line) = bench(&arguments);
    assert!(!output.status.success(), "{}", format_output(&output));
    assert!(line["extra"]["audit_violations"].as_u64() > Some(0), "{}", format_output(&output));
    assert!(format_output(&output).contains("took slots of"), "{}", format_output(&output));
}

#[test]
fn limit_changes_scenario_without_logical_wal_is_rejected() {
    let database = Server::shared().database();
    let told = Shell::new().run(&["bench", "limit-changes", "--store", &database.url()]);
    assert!(told.starts_with("exit 1\n"), "{told}");
    assert!(told.contains("wal_level = logical"), "{told}");
    let told = Shell::new().run(&["bench", "limit-changes", "--store", "sqlite:tasks.db"]);
    assert_snapshot!(
        expect_exit(1, &normalize_output(&told)),
        @"error: the audit reads the log of a PostgreSQL; --store has to name one"
    );
}

#[test]
fn restarts_scenario_loses_no_task() {
    let (output, line) = bench(&[
        "restarts",
        "--restarts",
        "2",
        "--processes",
        "3",
        "--tasks",
        "800",
        "--interval",
        "1s",
        "--lease",
        "5s",
    ]);
    assert!(output.status.success(), "{}", format_output(&output));
    assert_eq!(line["violations"], 0, "{}", format_output(&output));
    assert_eq!(line["extra"]["restarts"], 2, "{}", format_output(&output));
    assert!(line["extra"]["resumed_max_ms"].as_f64() > Some(0.0), "{}", format_output(&output));
}

#[test]
fn chaos_scenario_on_postgres_loses_no_task() {
    let database = Server::shared().database();
    let shell = Shell::new();
    let url = database.url();
    let mut arguments = vec!["bench", "chaos", "--json", "--store", &url, "--seed", "7"];
    arguments.extend(["--processes", "4", "--tasks", "1000", "--kills", "10"]);
    let output = shell.command(&arguments).output().expect("run the scenario");
    assert!(output.status.success(), "{}", format_output(&output));
    let line: Value = serde_json::from_slice(&output.stdout).expect("a line");
    assert_eq!((&line["violations"], &line["extra"]["kills"]), (&0.into(), &10.into()));
    shell.run_ok(&["doctor", "--at-rest", "--store", &url]);
}
