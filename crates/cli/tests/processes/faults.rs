//! Short runs of what PostgreSQL must survive: limits that change all the time, with an audit of
//! every commit, crashes of the server, and workers that are killed. The scenarios themselves are
//! commands: `tidegate bench limit-changes`, `restarts` and `chaos`.

use std::process::Output;

use crate::common::{Shell, expect_exit, plain, shown};
use insta::assert_snapshot;
use serde_json::Value;
use tidegate_measure::server::Programs;
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
        .unwrap_or_else(|error| panic!("{error}: {}", shown(&output)));
    (output, line)
}

const CHANGES: [&str; 7] =
    ["limit-changes", "--seconds", "3", "--processes", "3", "--interval", "50ms"];

#[test]
fn no_commit_exceeds_a_limit_that_changes_all_the_time() {
    let (output, line) = bench(&CHANGES);
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(line["violations"], 0, "{}", shown(&output));
    let figure = |name: &str| line["extra"][name].as_u64().unwrap_or_default();
    for name in ["changes", "commits", "taken", "drains"] {
        assert!(figure(name) > 4, "{name}: {}", shown(&output));
    }
}

#[test]
fn an_audit_that_is_told_of_lower_limits_fails() {
    let mut arguments = CHANGES.to_vec();
    arguments.push("--secretly-raise");
    let (output, line) = bench(&arguments);
    assert!(!output.status.success(), "{}", shown(&output));
    assert!(line["extra"]["audit_violations"].as_u64() > Some(0), "{}", shown(&output));
    assert!(shown(&output).contains("took slots of"), "{}", shown(&output));
}

#[test]
fn a_server_whose_log_cannot_be_read_is_told_of() {
    let database = Server::shared().database();
    let told = Shell::new().run(&["bench", "limit-changes", "--store", &database.url()]);
    assert!(told.starts_with("exit 1\n"), "{told}");
    assert!(told.contains("wal_level = logical"), "{told}");
    let told = Shell::new().run(&["bench", "limit-changes", "--store", "sqlite:tasks.db"]);
    assert_snapshot!(
        expect_exit(1, &plain(&told)),
        @"error: the audit reads the log of a PostgreSQL; --store has to name one"
    );
}

#[test]
fn crashes_of_the_server_lose_nothing() {
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
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(line["violations"], 0, "{}", shown(&output));
    assert_eq!(line["extra"]["restarts"], 2, "{}", shown(&output));
    assert!(line["extra"]["resumed_max_ms"].as_f64() > Some(0.0), "{}", shown(&output));
}

#[test]
fn killed_workers_lose_nothing() {
    let database = Server::shared().database();
    let shell = Shell::new();
    let url = database.url();
    let mut arguments = vec!["bench", "chaos", "--json", "--store", &url, "--seed", "7"];
    arguments.extend(["--processes", "4", "--tasks", "1000", "--kills", "10"]);
    let output = shell.command(&arguments).output().expect("run the scenario");
    assert!(output.status.success(), "{}", shown(&output));
    let line: Value = serde_json::from_slice(&output.stdout).expect("a line");
    assert_eq!((&line["violations"], &line["extra"]["kills"]), (&0.into(), &10.into()));
    shell.good(&["doctor", "--at-rest", "--store", &url]);
}
