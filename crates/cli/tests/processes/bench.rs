//! The scenarios on a real PostgreSQL, small: every line has the figures it is to have.

use crate::common::Shell;
use serde_json::Value;
use tidegate_measure::postgres_server::Programs;
use tidegate_testkit::postgres::{Database, Server};

/// The lines that a scenario gives.
fn lines(shell: &Shell, url: &str, arguments: &[&str]) -> Vec<Value> {
    let all = [&["bench"], arguments, &["--json", "--store", url]].concat();
    let told = shell.run_ok(&all);
    told.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn measured(arguments: &[&str]) -> Vec<Value> {
    let database: Database = Server::shared().database();
    lines(&Shell::new(), &database.url(), arguments)
}

#[track_caller]
fn has(line: &Value, figures: &[&str]) {
    for name in figures {
        let figure = if line[name].is_null() { &line["extra"][name] } else { &line[name] };
        assert!(figure.as_f64().is_some_and(|figure| figure > 0.0), "{name}: {line}");
    }
}

#[test]
fn limit_scenarios_report_unlimited_and_raw_loop_rates() {
    for way in ["concurrency-enabled", "concurrency-mixed", "concurrency-high"] {
        let [line] = &measured(&[way, "--tasks", "500", "--rounds", "1"])[..] else {
            panic!("{way} gives one line");
        };
        has(line, &["ratio", "raw_per_s", "unlimited_per_s", "per_worker", "writes"]);
        has(line, &["round_trips", "round_trip_ms", "writes_unlimited"]);
    }
}

#[test]
fn failure_and_progress_scenarios_report_with_and_without_limit() {
    for scenario in ["failures", "progress"] {
        let size = ["--tasks", "400", "--rounds", "1", "--batch", "20", "--percent", "10"];
        let [unlimited, limited] = &measured(&[&[scenario][..], &size].concat())[..] else {
            panic!("{scenario} gives two lines");
        };
        assert!(unlimited["extra"]["limit"].is_null(), "{unlimited}");
        has(limited, &["limit"]);
        for line in [unlimited, limited] {
            has(line, &["ratio", "without_per_s", "ratio_min", "ratio_max", "percent"]);
            has(line, &["round_trips", "round_trips_without", "writes", "writes_without"]);
        }
    }
}

#[test]
fn drain_scenarios_report_raw_loop_rate() {
    let baseline = measured(&["concurrency-baseline", "--tasks", "500", "--rounds", "1"]);
    let drain =
        ["throughput", "--tasks", "500", "--rounds", "1", "--batch", "10", "--processes", "1"];
    let throughput = measured(&drain);
    for line in baseline.iter().chain(&throughput) {
        has(line, &["ratio", "raw_per_s", "per_worker", "writes", "round_trips", "round_trip_ms"]);
    }
}

#[test]
fn limit_on_backlog_scenario_reports_steps() {
    let lines = measured(&["limit-on-backlog", "--tasks", "2000", "--before", "1s"]);
    has(&lines[0], &["ratio", "raw_per_s", "before_per_s", "step_max", "set_s"]);
}

#[test]
fn held_snapshot_scenario_reports_pages_per_task() {
    let lines = measured(&["held-snapshot", "--tasks", "3000", "--hold", "100ms"]);
    has(&lines[0], &["ratio", "raw_per_s", "pages_per_task", "pages_per_task_without", "held_s"]);
}

#[test]
fn explain_scenario_records_and_compares_plans() {
    let (shell, url) = (Shell::new(), Server::shared().url("postgres"));
    let arguments = ["explain", "--tasks", "3000", "--folder", "plans"];
    let plans = |lines: &[Value]| -> Vec<String> {
        lines
            .iter()
            .map(|line| line["extra"]["plan"].as_str().unwrap_or("none").to_owned())
            .collect()
    };
    let first = lines(&shell, &url, &arguments);
    assert_eq!(plans(&first), ["new"; 7]);
    let second = lines(&shell, &url, &arguments);
    assert_eq!(plans(&second), ["same"; 7]);
    has(&second[0], &["pages_per_task", "pages_per_task_before"]);
    let path = shell.path("plans/concurrency-baseline.txt");
    let record = std::fs::read_to_string(&path).expect("a record");
    std::fs::write(&path, record.replace("Index Cond", "Filter")).expect("change it");
    let third = lines(&shell, &url, &arguments);
    assert_eq!(plans(&third)[0], "changed");
}

/// On a server of its own, with a store on SQLite beside it, and with workers that are killed.
#[test]
fn job_quota_scenario_reports_usage() {
    let programs = Programs::find(None).expect("find a PostgreSQL");
    let bin = programs.bin().to_str().expect("a plain path");
    let size = ["--jobs", "5", "--concurrency", "2", "--processes", "2", "--seed", "7"];
    let time = ["--answer-ms-min", "50", "--answer-ms-max", "100"];
    let window = ["--window-from", "1s", "--window-to", "1500ms"];
    let killed = ["--faults", "--kill-interval", "700ms", "--lease", "500ms"];
    let stores: [&[&str]; 2] = [&["--pg-bin", bin], &["--store", "sqlite:tasks.db"]];
    for (store, faults) in stores.into_iter().zip([&killed[..], &[]]) {
        let shell = Shell::new();
        let all = ["bench", "job-quota", "--json", "--tasks", "120"];
        let told = shell.run_ok(&[&all[..], store, &size, &time, &window, faults].concat());
        let line: Value = serde_json::from_str(&told).expect("JSON");
        has(&line, &["ratio", "running", "job_min", "claims", "claim_p99_ms", "claim_max_ms"]);
        assert_eq!((&line["violations"], &line["extra"]["held_max"]), (&0.into(), &2.into()));
        assert_eq!(line["extra"]["kills"].as_u64() > Some(0), !faults.is_empty(), "{line}");
        assert!(line["ratio"].as_f64() <= Some(1.0), "{line}");
    }
}

#[test]
fn job_quota_scenario_fails_if_window_outlasts_jobs() {
    let shell = Shell::new();
    let mut arguments = vec!["bench", "job-quota", "--store", "sqlite:tasks.db", "--jobs", "2"];
    arguments.extend(["--tasks", "4", "--processes", "1", "--answer-ms-min", "1"]);
    arguments.extend(["--answer-ms-max", "5", "--window-from", "0s", "--window-to", "60s"]);
    let told = shell.run(&arguments);
    assert!(told.starts_with("exit 1\n"), "{told}");
    assert!(told.contains("2 of 2 jobs started their last task before the end"), "{told}");
}
