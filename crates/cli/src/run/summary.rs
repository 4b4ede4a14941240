//! What a run prints when it ends.

use std::fmt;

use tidegate_core::Limit;
use tidegate_measure::history::Report;
use tidegate_measure::table::{Table, counted, grouped};

use super::server::ServerStats;
use super::stats::{HeadingStats, RunStats, SlotUsage};

/// Everything a run found out.
#[derive(Debug)]
pub(crate) struct RunSummary<'a> {
    /// What was counted in this process.
    pub(crate) counts: &'a RunStats,
    /// Tasks of the run that other processes brought to their end meanwhile.
    pub(crate) completed_elsewhere: u64,
    /// How long it took.
    pub(crate) seconds: f64,
    /// The store's limits.
    pub(crate) limits: &'a [Limit],
    /// What the history checker found.
    pub(crate) report: &'a Report,
    /// What the server saw, if there was one.
    pub(crate) server: Option<ServerStats>,
}

impl RunSummary<'_> {
    /// Tasks that failed or were cancelled.
    pub(crate) fn failed(&self) -> u64 {
        self.counts.headings.values().map(|heading| heading.failed).sum()
    }

    fn completed(&self) -> u64 {
        self.counts.headings.values().map(|heading| heading.completed).sum()
    }

    fn tasks_table(&self) -> Table {
        let heads = ["tasks of", "done", "failed", "retries", "wait p50", "wait p99", "run p50"];
        let mut table = Table::new(&heads);
        for (name, heading) in &self.counts.headings {
            let HeadingStats { completed, failed, retries, waits_ns, runs_ns } = heading;
            table.row(vec![
                name.clone(),
                grouped(*completed),
                grouped(*failed),
                grouped(*retries),
                percentile_ms(waits_ns, 50),
                percentile_ms(waits_ns, 99),
                percentile_ms(runs_ns, 50),
            ]);
        }
        table
    }

    /// Groups and jobs; workflows are limits too, but there are many, each of one slot.
    fn limits(&self) -> Table {
        let mut table = Table::new(&["limit", "capacity", "most held", "mean held", "slot use"]);
        for (name, used) in &self.counts.limits {
            if name.starts_with("workflow:") {
                continue;
            }
            table.row(limit_row(name, self.capacity(name), used));
        }
        table
    }

    /// What a limit was judged by, or else what it is now.
    fn capacity(&self, name: &str) -> Option<u32> {
        let judged = self.report.limits.iter().find(|limit| limit.name == name);
        let stored = self.limits.iter().find(|limit| *limit.name == *name);
        judged.and_then(|limit| limit.capacity).or(stored.and_then(|limit| limit.capacity))
    }

    fn fmt_server(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(seen) = self.server else {
            return Ok(());
        };
        let of = seen.calls_max.map_or_else(String::new, |most| format!(" of {most} it takes"));
        writeln!(
            out,
            "\nserver: {}, at most {} at once{of}; {} refused, {} failed on purpose",
            counted(seen.calls, "call"),
            seen.concurrent_max,
            grouped(seen.refused),
            grouped(seen.failed)
        )
    }
}

impl fmt::Display for RunSummary<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.completed() as f64 / self.seconds.max(f64::EPSILON);
        let others = match self.completed_elsewhere {
            0 => String::new(),
            others => format!("; {} done by other processes", counted(others, "more task")),
        };
        writeln!(
            out,
            "{} done in {:.1} s ({rate:.0} per second), {} failed{others}\n",
            counted(self.completed(), "task"),
            self.seconds,
            grouped(self.failed())
        )?;
        self.tasks_table().fmt(out)?;
        write!(out, "\n{}", self.limits())?;
        self.report.changes().try_for_each(|change| writeln!(out, "{change}"))?;
        self.fmt_server(out)?;
        writeln!(
            out,
            "\nviolations: {} in {} ({} in order)",
            grouped(self.report.violations.total()),
            counted(self.report.attempts, "attempt"),
            counted(self.report.workflows, "workflow")
        )?;
        self.report.examples.iter().try_for_each(|example| writeln!(out, "  {example}"))
    }
}

fn limit_row(name: &str, capacity: Option<u32>, used: &SlotUsage) -> Vec<String> {
    let share = capacity
        .filter(|capacity| *capacity > 0)
        .map(|capacity| format!("{:.0} %", 100.0 * used.mean() / f64::from(capacity)));
    vec![
        name.to_owned(),
        capacity.map_or_else(|| "-".to_owned(), |capacity| capacity.to_string()),
        used.held_max.to_string(),
        format!("{:.1}", used.mean()),
        share.unwrap_or_else(|| "-".to_owned()),
    ]
}

/// A percentile in milliseconds.
fn percentile_ms(times_ns: &[u64], percent: usize) -> String {
    let mut sorted = times_ns.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).map_or_else(|| "-".to_owned(), |ns| format!("{} ms", ns / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_computed_from_observed_times() {
        let times: Vec<u64> = (1..=100).map(|ms| ms * 1_000_000).collect();
        assert_eq!(percentile_ms(&times, 50), "50 ms");
        assert_eq!(percentile_ms(&times, 99), "99 ms");
        assert_eq!(percentile_ms(&times[..1], 99), "1 ms");
        assert_eq!(percentile_ms(&[], 99), "-");
    }
}
