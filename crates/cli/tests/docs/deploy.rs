//! What is in `deploy/`: alert rules that fire, a dashboard that asks for what there is, and a page for
//! every alert.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::common::{Shell, format_output};
use serde_json::{Value, json};
use tidegate_engine::metrics::descriptors::ALL;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[track_caller]
fn promtool(arguments: &[&str], folder: &Path) {
    let output =
        crate::prometheus::program("promtool").args(arguments).current_dir(folder).output();
    let output = output.expect("run promtool");
    assert!(output.status.success(), "{arguments:?}: {}", format_output(&output));
}

/// The rest of lines that begin so.
fn after(text: &str, mark: &str) -> BTreeSet<String> {
    let rests = text.lines().filter_map(|line| line.trim().strip_prefix(mark));
    rests.map(|rest| rest.trim().to_owned()).collect()
}

/// The queries of the dashboard.
fn panels() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&text("grafana/tidegate.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().expect("a query").to_owned()).collect()
}

/// Names of metrics in a text, without what a histogram appends.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("tidegate_"));
    names.map(|name| name.strip_suffix("_bucket").unwrap_or(name).to_owned()).collect()
}

#[track_caller]
fn assert_known(text: &str) {
    for name in metrics_in(text) {
        assert!(ALL.iter().any(|about| about.name == name), "there is no metric {name}");
    }
}

#[test]
fn alert_rules_are_valid_and_fire() {
    promtool(&["check", "config", "prometheus.yml"], &path("prometheus"));
    promtool(&["test", "rules", "rules_test.yml"], &path("prometheus"));
    assert_known(&text("prometheus/rules.yml"));
    assert_known(&text("prometheus/rules_test.yml"));
}

/// Each alert has a case in which it fires, and one in which it does not.
#[test]
fn every_alert_is_tested() {
    let tests = text("prometheus/rules_test.yml");
    let fires = after(&tests, "- alertname: ");
    assert_eq!(fires, after(&text("prometheus/rules.yml"), "- alert: "));
}

#[test]
fn alerts_and_runbooks_match() {
    let rules = text("prometheus/rules.yml");
    let alerts = after(&rules, "- alert: ");
    assert!(alerts.len() >= 7, "{alerts:?}");
    let entries = std::fs::read_dir(path("runbooks")).expect("runbooks");
    let pages = entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_owned());
    assert_eq!(pages.map(|page| page.into_string().unwrap()).collect::<BTreeSet<_>>(), alerts);
    let named = after(&rules, "runbook: ");
    let wanted = alerts.iter().map(|alert| format!("deploy/runbooks/{alert}.md")).collect();
    assert_eq!(named, wanted);
    let overview = text("README.md");
    for alert in &alerts {
        assert!(overview.contains(&format!("(runbooks/{alert}.md)")), "{alert} is not listed");
        let page = text(&format!("runbooks/{alert}.md"));
        assert!(page.starts_with(&format!("# {alert}\n")), "{alert}");
        assert_known(&page);
        for heading in ["What it means", "What to look at", "What to do"] {
            assert!(page.contains(&format!("\n## {heading}\n")), "{alert}: {heading}");
        }
    }
}

/// Commands that a runbook names can be typed.
#[test]
fn runbook_commands_exist() {
    let shell = Shell::new();
    let mut commands = BTreeSet::new();
    for entry in std::fs::read_dir(path("runbooks")).expect("runbooks") {
        let page = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        commands.extend(after(&page, "tidegate "));
        let quoted = page.split('`').skip(1).step_by(2);
        commands
            .extend(quoted.filter_map(|code| code.strip_prefix("tidegate ")).map(str::to_owned));
    }
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        let given = |word| if ["N", "ID"].contains(&word) { "1" } else { word };
        let words: Vec<&str> = command.split_whitespace().map(given).collect();
        let help = shell.run_ok(&[&words[..], &["--help"]].concat());
        for flag in words.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(flag), "{command}: there is no {flag}");
        }
    }
}

/// Prometheus takes every query of the dashboard, and knows what it asks for.
#[test]
fn dashboard_queries_use_known_metrics() {
    let panels = panels();
    let rule = |(number, expr): (usize, &String)| {
        let expr = expr.replace("$__rate_interval", "5m");
        json!({ "record": format!("panel:{number}"), "expr": expr })
    };
    let rules: Vec<Value> = panels.iter().enumerate().map(rule).collect();
    let shell = Shell::new();
    // JSON is YAML.
    let groups = json!({ "groups": [{ "name": "panels", "rules": rules }] });
    shell.file("panels.yml", groups.to_string());
    promtool(&["check", "rules", "panels.yml"], &shell.path(""));
    assert_known(&panels.join("\n"));
}
