//! What the checker found: JSON for machines, a table for people.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CutLine, LimitReport, Recovery, Violation, ViolationCounts};
use crate::table::{Table, counted, grouped};

/// What a history proves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub files: u64,
    pub records: u64,
    /// Last lines that end in the middle; they are left out.
    pub cut_lines: Vec<CutLine>,
    pub processes: u64,
    pub workflows: u64,
    pub attempts: u64,
    /// Tasks with a completed attempt.
    pub completed: u64,
    /// Attempts that a kill ended.
    pub killed: u64,
    /// Attempts that were paused and then lost; they count up to the pause.
    pub paused: u64,
    /// Attempts of which no end is known; they count up to the last record of their process.
    pub open: u64,
    /// Attempts that began while another attempt of the same task still ran.
    pub beside_another: u64,
    pub limits: Vec<LimitReport>,
    pub recovery: Recovery,
    pub violations: ViolationCounts,
    /// The first violations of all.
    pub examples: Vec<Violation>,
}

impl Report {
    /// Whether there is no violation.
    pub fn is_clean(&self) -> bool {
        self.violations.total() == 0
    }

    /// What is to be said of limits that were changed while the records were written.
    pub fn changes(&self) -> impl Iterator<Item = String> {
        let words = |limit: &LimitReport| {
            limit.changed.as_ref().map(|changed| format!("{} {changed}", limit.name))
        };
        self.limits.iter().filter_map(words)
    }

    fn limits(&self) -> Table {
        let mut table =
            Table::new(&["limit", "capacity", "most held", "reached", "enters", "violations"]);
        for limit in &self.limits {
            table.row(vec![
                limit.name.clone(),
                capacity(limit),
                limit.held_max.to_string(),
                if limit.reached { "yes" } else { "no" }.to_owned(),
                grouped(limit.enters),
                grouped(limit.violations),
            ]);
        }
        table
    }

    fn figures(&self) -> Table {
        let mut table = Table::new(&["history", ""]);
        let figures = [
            ("files", self.files),
            ("records", self.records),
            ("processes", self.processes),
            ("workflows", self.workflows),
            ("tasks completed", self.completed),
            ("attempts", self.attempts),
            ("  ended by a kill", self.killed),
            ("  paused and lost", self.paused),
            ("  open, ended at the last record of their process", self.open),
            ("  beside another of the same task", self.beside_another),
        ];
        for (name, figure) in figures {
            table.row(vec![name.to_owned(), grouped(figure)]);
        }
        table
    }

    fn fmt_recovery(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recovery { count, never, p50_ms, max_ms } = &self.recovery;
        if count + never == 0 {
            return Ok(());
        }
        write!(out, "\nrecovery after a kill: {}", counted(*count, "task"))?;
        if let (Some(p50_ms), Some(max_ms)) = (p50_ms, max_ms) {
            write!(out, ", p50 {p50_ms:.1} ms, max {max_ms:.1} ms")?;
        }
        writeln!(out, "; {never} did not run again")
    }

    fn fmt_violations(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "\nviolations: {}", grouped(self.violations.total()))?;
        for (name, count) in self.violations.named().into_iter().filter(|(_, count)| *count > 0) {
            writeln!(out, "  {name}: {}", grouped(count))?;
        }
        for example in &self.examples {
            writeln!(out, "  {example}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures().fmt(out)?;
        for cut in &self.cut_lines {
            writeln!(out, "cut off and left out: {}, line {}", cut.path.display(), cut.line)?;
        }
        if !self.limits.is_empty() {
            write!(out, "\n{}", self.limits())?;
            self.changes().try_for_each(|change| writeln!(out, "{change}"))?;
        }
        self.fmt_recovery(out)?;
        self.fmt_violations(out)
    }
}

fn capacity(limit: &LimitReport) -> String {
    limit.capacity.map_or_else(|| "-".to_owned(), |capacity| capacity.to_string())
}
