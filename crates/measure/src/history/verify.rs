//! Reads a history and says what it proves.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use super::attempt_end::{AttemptEnd, EndSource, attempt_ends};
use super::collect::History;
use super::report::Report;
use super::{Error, double_completions, order, read, recovery, sweep};

/// Capacities that the caller knows; each holds for the whole history, whatever the records say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpectedLimits {
    capacities: BTreeMap<String, u32>,
}

/// An expectation that is not written as `NAME=N`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a limit and its capacity, written NAME=N")]
pub struct ExpectedLimitError(String);

impl ExpectedLimits {
    /// Expects `name` to have `capacity`.
    pub fn with(mut self, name: impl Into<String>, capacity: u32) -> Self {
        self.capacities.insert(name.into(), capacity);
        self
    }

    /// Reads expectations written as `NAME=N`.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, ExpectedLimitError> {
        texts.into_iter().try_fold(Self::default(), |expected, text| {
            let (name, capacity) =
                text.rsplit_once('=').ok_or_else(|| ExpectedLimitError(text.to_owned()))?;
            let capacity =
                u32::from_str(capacity).map_err(|_| ExpectedLimitError(text.to_owned()))?;
            Ok(expected.with(name, capacity))
        })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.capacities.keys()
    }

    pub(super) fn capacity(&self, name: &str) -> Option<u32> {
        self.capacities.get(name).copied()
    }
}

/// Reads all `files` as one history and checks it.
pub fn verify<P: AsRef<Path>>(files: &[P], expected: &ExpectedLimits) -> Result<Report, Error> {
    let mut history = History::default();
    let mut cut_lines = Vec::new();
    for file in files {
        cut_lines.extend(read::read(file.as_ref(), |record| history.add_record(record))?);
    }
    history.finish();
    let mut report = check(history, expected);
    report.files = files.len() as u64;
    report.cut_lines = cut_lines;
    Ok(report)
}

fn check(mut history: History, expected: &ExpectedLimits) -> Report {
    let ends = attempt_ends(&history);
    let mut violations = std::mem::take(&mut history.violations);
    let limits = sweep::sweep(&mut history, &ends, expected, &mut violations);
    order::check(&history, &ends, &mut violations);
    let completed = double_completions::check(&history, &mut violations);
    Report {
        files: 0,
        records: history.records,
        cut_lines: Vec::new(),
        processes: history.processes.len() as u64,
        workflows: history.workflows.all().len() as u64,
        attempts: history.attempts.len() as u64,
        completed,
        killed: count(&ends, EndSource::Killed),
        paused: count(&ends, EndSource::Paused),
        open: count(&ends, EndSource::Open),
        beside_another: order::count_overlapping_attempts(&history, &ends),
        limits,
        recovery: recovery::measure(&history),
        violations: violations.counts,
        examples: violations.examples,
    }
}

fn count(ends: &[AttemptEnd], ending: EndSource) -> u64 {
    ends.iter().filter(|end| end.ending == ending).count() as u64
}
