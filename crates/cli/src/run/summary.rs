//! What a run prints when it ends.

use std::fmt;

use tidegate_core::Limit;
use tidegate_measure::history::Report;
use tidegate_measure::table::{Table, grouped};

use super::server::Seen;
use super::watch::{Counts, Heading, Use};

/// Everything a run found out.
#[derive(Debug)]
pub(crate) struct Summary<'a> {
    /// What was counted in this process.
    pub(crate) counts: &'a Counts,
    /// How long it took.
    pub(crate) seconds: f64,
    /// The store's limits.
    pub(crate) limits: &'a [Limit],
    /// What the history checker found.
    pub(crate) report: &'a Report,
    /// What the server saw, if there was one.
    pub(crate) server: Option<Seen>,
}

impl Summary<'_> {
    /// Tasks that failed or were cancelled.
    pub(crate) fn failed(&self) -> u64 {
        self.counts.headings.values().map(|heading| heading.failed).sum()
    }

    fn completed(&self) -> u64 {
        self.counts.headings.values().map(|heading| heading.completed).sum()
    }

    fn tasks(&self) -> Table {
        let heads = ["tasks of", "done", "failed", "retries", "wait p50", "wait p99", "run p50"];
        let mut table = Table::new(&heads);
        for (name, heading) in &self.counts.headings {
            let Heading { completed, failed, retries, waits_ns, runs_ns } = heading;
            table.row(vec![
                name.clone(),
                grouped(*completed),
                grouped(*failed),
                grouped(*retries),
                milliseconds(waits_ns, 50),
                milliseconds(waits_ns, 99),
                milliseconds(runs_ns, 50),
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
            let limit = self.limits.iter().find(|limit| *limit.name == **name);
            table.row(limit_row(name, limit.and_then(|limit| limit.capacity), used));
        }
        table
    }

    fn fmt_server(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(seen) = self.server else {
            return Ok(());
        };
        let of = seen.calls_max.map_or_else(String::new, |most| format!(" of {most} it takes"));
        writeln!(
            out,
            "\nserver: {} calls, at most {} at once{of}; {} refused, {} failed on purpose",
            grouped(seen.calls),
            seen.most,
            grouped(seen.refused),
            grouped(seen.failed)
        )
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.completed() as f64 / self.seconds.max(f64::EPSILON);
        writeln!(
            out,
            "{} tasks done in {:.1} s ({rate:.0} per second), {} failed\n",
            grouped(self.completed()),
            self.seconds,
            grouped(self.failed())
        )?;
        self.tasks().fmt(out)?;
        write!(out, "\n{}", self.limits())?;
        self.fmt_server(out)?;
        writeln!(
            out,
            "\nviolations: {} in {} attempts ({} workflows in order)",
            grouped(self.report.violations.total()),
            grouped(self.report.attempts),
            grouped(self.report.workflows)
        )?;
        self.report.examples.iter().try_for_each(|example| writeln!(out, "  {example}"))
    }
}

fn limit_row(name: &str, capacity: Option<u32>, used: &Use) -> Vec<String> {
    let share = capacity
        .filter(|capacity| *capacity > 0)
        .map(|capacity| format!("{:.0} %", 100.0 * used.mean() / f64::from(capacity)));
    vec![
        name.to_owned(),
        capacity.map_or_else(|| "-".to_owned(), |capacity| capacity.to_string()),
        used.most.to_string(),
        format!("{:.1}", used.mean()),
        share.unwrap_or_else(|| "-".to_owned()),
    ]
}

/// A percentile in milliseconds.
fn milliseconds(times_ns: &[u64], percent: usize) -> String {
    let mut sorted = times_ns.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).map_or_else(|| "-".to_owned(), |ns| format!("{} ms", ns / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_seen() {
        let times: Vec<u64> = (1..=100).map(|ms| ms * 1_000_000).collect();
        assert_eq!(milliseconds(&times, 50), "50 ms");
        assert_eq!(milliseconds(&times, 99), "99 ms");
        assert_eq!(milliseconds(&times[..1], 99), "1 ms");
        assert_eq!(milliseconds(&[], 99), "-");
    }
}
