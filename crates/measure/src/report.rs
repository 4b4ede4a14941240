//! The result line of a benchmark: JSON for machines, a table for people.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::table::{Table, grouped};

/// What one scenario measured on one store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultLine {
    pub scenario: String,
    pub store: String,
    pub tasks: u64,
    pub seconds: f64,
    pub tasks_per_s: f64,
    /// `tasks_per_s` over `raw_per_s`, unless the scenario compares with something else.
    pub ratio: Option<f64>,
    /// What the raw loop did beside it, on the same machine, at the same time.
    pub raw_per_s: Option<f64>,
    /// What the history checker found; none if it was not asked.
    pub violations: Option<u64>,
    pub batch: Option<u32>,
    /// What whoever reads it should know, which is no figure.
    #[serde(skip)]
    pub note: Option<String>,
    /// What only this scenario measures.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

impl ResultLine {
    /// A line for `tasks` done in `seconds`.
    pub fn new(
        scenario: impl Into<String>,
        store: impl Into<String>,
        tasks: u64,
        seconds: f64,
    ) -> Self {
        Self {
            scenario: scenario.into(),
            store: store.into(),
            tasks,
            seconds,
            tasks_per_s: rate(tasks, seconds),
            ratio: None,
            raw_per_s: None,
            violations: None,
            batch: None,
            note: None,
            extra: Map::new(),
        }
    }

    /// Says what the raw loop did, which gives the ratio.
    pub fn compared_with_raw(mut self, raw_per_s: f64) -> Self {
        self.raw_per_s = Some(raw_per_s);
        self.ratio = (raw_per_s > 0.0).then(|| self.tasks_per_s / raw_per_s);
        self
    }

    /// Says what the same work did in another way, which gives the ratio; the raw loop was measured
    /// as well.
    pub fn compared_with(mut self, other_per_s: f64, name: &str, raw_per_s: Option<f64>) -> Self {
        self.raw_per_s = raw_per_s;
        self.ratio = (other_per_s > 0.0).then(|| self.tasks_per_s / other_per_s);
        self.with_extra(name, other_per_s)
    }

    /// Says how many violations the history checker found.
    pub fn with_violations(mut self, violations: u64) -> Self {
        self.violations = Some(violations);
        self
    }

    /// Says how many tasks one transaction held.
    pub fn with_batch(mut self, batch: u32) -> Self {
        self.batch = Some(batch);
        self
    }

    /// Adds a figure that only this scenario has.
    pub fn with_extra(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(name.into(), value.into());
        self
    }

    /// The same for a figure that was not always measured.
    pub fn with_optional(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with_extra(name, value),
            None => self,
        }
    }

    /// Says something to whoever reads it.
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// One JSON object, without a line end.
    pub fn to_json(&self) -> String {
        // Only strings, numbers and a map with string keys: there is nothing that can fail.
        serde_json::to_string(self).expect("a line is always valid JSON")
    }
}

/// Zero time would make an infinite rate, which JSON cannot say.
fn rate(tasks: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { tasks as f64 / seconds } else { 0.0 }
}

/// Shows lines as an aligned table.
#[derive(Debug, Clone, Copy)]
pub struct ResultTable<'a>(pub &'a [ResultLine]);

const HEADS: [&str; 10] = [
    "scenario",
    "store",
    "batch",
    "tasks",
    "seconds",
    "tasks/s",
    "raw/s",
    "ratio",
    "violations",
    "extra",
];

impl fmt::Display for ResultTable<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&HEADS);
        for line in self.0 {
            table.row(cells(line));
        }
        table.fmt(out)
    }
}

fn cells(line: &ResultLine) -> Vec<String> {
    vec![
        line.scenario.clone(),
        line.store.clone(),
        or_dash(line.batch.map(|batch| batch.to_string())),
        grouped(line.tasks),
        format!("{:.2}", line.seconds),
        grouped(line.tasks_per_s.round() as u64),
        or_dash(line.raw_per_s.map(|rate| grouped(rate.round() as u64))),
        or_dash(line.ratio.map(|ratio| format!("{ratio:.2}"))),
        or_dash(line.violations.map(grouped)),
        extra(&line.extra),
    ]
}

fn extra(figures: &Map<String, Value>) -> String {
    let figures: Vec<String> =
        figures.iter().map(|(name, value)| format!("{name}={}", rounded(value))).collect();
    figures.join(" ")
}

/// A fraction to three places: more of them nobody reads. JSON has them all.
fn rounded(value: &Value) -> Value {
    let fraction = value.as_f64().filter(|_| value.is_f64());
    fraction.map_or_else(|| value.clone(), |fraction| ((fraction * 1e3).round() / 1e3).into())
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_relative_to_raw_loop() {
        let line = ResultLine::new("drain", "sqlite", 1_000, 2.0)
            .compared_with_raw(1_000.0)
            .with_batch(100);
        assert_eq!(line.tasks_per_s, 500.0);
        assert_eq!(line.ratio, Some(0.5));
    }

    #[test]
    fn report_json_is_one_line_and_round_trips() {
        let line = ResultLine::new("drain", "memory", 10, 0.0)
            .with_violations(0)
            .with_extra("p50_ms", 1.5);
        let json = line.to_json();
        assert!(!json.contains('\n'));
        assert_eq!(serde_json::from_str::<ResultLine>(&json).unwrap(), line);
    }

    #[test]
    fn report_table_shows_three_decimal_places() {
        let line = ResultLine::new("drain", "memory", 10, 1.0)
            .with_extra("ratio_max", 0.732_946_709)
            .with_extra("kills", 7)
            .with_extra("group:one", "1/1");
        let shown = ResultTable(&[line]).to_string();
        assert!(shown.ends_with("group:one=\"1/1\" kills=7 ratio_max=0.733\n"), "{shown}");
    }

    #[test]
    fn report_table_shows_dash_for_missing_value() {
        let shown = ResultTable(&[ResultLine::new("drain", "sqlite", 1_000, 2.0)]).to_string();
        assert_eq!(shown.lines().count(), 2);
        assert!(shown.lines().nth(1).unwrap().contains("-"));
    }
}
