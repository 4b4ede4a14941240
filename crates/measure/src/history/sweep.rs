//! Sweeps over the time of each limit and counts its holders.

use serde::{Deserialize, Serialize};

use tidegate_core::LimitScope;

use super::LimitRecord;
use super::attempt_end::AttemptEnd;
use super::capacity_changes::CapacityChanges;
use super::collect::{AppliedLimit, History};
use super::verify::ExpectedLimits;
use super::violation::{Violation, Violations};

/// What the history shows of one limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitReport {
    pub name: String,
    /// The capacity it was judged by: the caller's, or the largest if it was changed, or the one in
    /// force at the end. None is unlimited, unknown, or changed in a way that cannot be judged.
    pub capacity: Option<u32>,
    /// Whether the caller named the capacity, which then holds for the whole history.
    pub expected: bool,
    /// How it was changed while the records were written, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<CapacityChanges>,
    pub enters: u64,
    /// The most that was ever held at once, by weight.
    pub held_max: u64,
    /// Whether all of the capacity was in use at some time. A limit never reached proves little.
    pub reached: bool,
    pub violations: u64,
}

/// What changes at one instant. The order is the order in which things of one instant count: an
/// attempt ends before its end, and a capacity is in force for the enter that it allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    End { weight: u32 },
    Capacity { version: Option<i64>, capacity: Option<u32> },
    Enter { task: i64, weight: u32, given: u32 },
}

/// Sweeps every limit that the history or the caller names.
pub(super) fn sweep(
    history: &mut History,
    ends: &[AttemptEnd],
    expected: &ExpectedLimits,
    violations: &mut Violations,
) -> Vec<LimitReport> {
    for name in expected.names() {
        history.limits.number(name);
    }
    let changes = changes(history);
    let mut timelines = timelines(history, ends);
    let names = history.limits.all();
    let mut reports: Vec<LimitReport> = Vec::new();
    for ((name, timeline), changed) in names.iter().zip(&mut timelines).zip(changes) {
        timeline.sort_unstable();
        let swept = Sweep::new(name, expected.capacity(name), changed).run(timeline, violations);
        reports.extend(swept);
    }
    check_never_entered(&mut reports, names, violations);
    reports.sort_by(|one, other| one.name.cmp(&other.name));
    reports
}

/// How each limit was changed, in the order of the limits' numbers.
fn changes(history: &History) -> Vec<Option<CapacityChanges>> {
    let mut seen: Vec<Vec<&LimitRecord>> = vec![Vec::new(); history.limits.all().len()];
    for one in &history.limits_seen {
        if let Some(number) = history.limits.known(&one.name) {
            seen[number].push(one);
        }
    }
    seen.iter().map(|seen| CapacityChanges::from_records(seen)).collect()
}

/// A misspelt name would pass every check. A capacity of 0 expects that nothing enters.
fn check_never_entered(reports: &mut [LimitReport], names: &[String], violations: &mut Violations) {
    for report in reports {
        if report.expected && report.capacity > Some(0) && report.enters == 0 {
            report.violations += 1;
            let meant = find_full_name(&report.name, names);
            violations.add(Violation::LimitNeverEntered { limit: report.name.clone(), meant });
        }
    }
}

/// The whole name of a limit that was named without its scope, if the records have it.
fn find_full_name(name: &str, names: &[String]) -> Option<String> {
    let whole = [LimitScope::Group, LimitScope::Job, LimitScope::Workflow]
        .map(|scope| scope.limit_name(name));
    whole.into_iter().find(|whole| names.contains(whole))
}

/// All changes of each limit, in the order of the limits' numbers.
fn timelines(history: &mut History, ends: &[AttemptEnd]) -> Vec<Vec<(u64, Change)>> {
    let mut timelines = vec![Vec::new(); history.limits.all().len()];
    for seen in std::mem::take(&mut history.limits_seen) {
        let change = Change::Capacity { version: seen.version, capacity: seen.capacity };
        timelines[history.limits.number(&seen.name)].push((seen.t_ns, change));
    }
    for (attempt, settled) in history.attempts.iter().zip(ends) {
        for &AppliedLimit { limit, needed, given } in history.limits_of(attempt) {
            let (task, weight) = (attempt.task, needed.max(given));
            timelines[limit].push((attempt.enter_ns, Change::Enter { task, weight, given }));
            timelines[limit].push((settled.end_ns, Change::End { weight }));
        }
    }
    timelines
}

struct Sweep {
    report: LimitReport,
    held: u64,
    version: Option<i64>,
    /// Whether one capacity holds for the whole history.
    is_fixed: bool,
    /// Whether there ever was such a limit: somebody held it or told of it.
    exists: bool,
}

impl Sweep {
    fn new(name: &str, expected: Option<u32>, changed: Option<CapacityChanges>) -> Self {
        let changed = changed.filter(|_| expected.is_none());
        let report = LimitReport {
            name: name.to_owned(),
            capacity: expected.or(changed.as_ref().and_then(CapacityChanges::judged_by)),
            expected: expected.is_some(),
            changed,
            enters: 0,
            held_max: 0,
            reached: false,
            violations: 0,
        };
        let is_fixed = report.expected || report.changed.is_some();
        Self { exists: report.expected, report, held: 0, version: None, is_fixed }
    }

    fn run(
        mut self,
        timeline: &[(u64, Change)],
        violations: &mut Violations,
    ) -> Option<LimitReport> {
        for &(t_ns, change) in timeline {
            match change {
                Change::End { weight } => self.held -= u64::from(weight),
                Change::Capacity { version, capacity } => self.set_capacity(version, capacity),
                Change::Enter { task, weight, given } => {
                    self.check_slots(t_ns, task, weight, given, violations);
                    self.enter(t_ns, task, weight, violations);
                }
            }
        }
        self.exists.then_some(self.report)
    }

    fn set_capacity(&mut self, version: Option<i64>, capacity: Option<u32>) {
        self.exists = true;
        let old_news = version.is_some() && version < self.version;
        if !self.is_fixed && !old_news {
            self.version = version.or(self.version);
            self.report.capacity = capacity;
        }
    }

    /// Where there is a limit, a task holds its slots before it runs. Where nobody has set one
    /// there are none to hold; a workflow always has its one.
    fn check_slots(
        &mut self,
        t_ns: u64,
        task: i64,
        needed: u32,
        given: u32,
        violations: &mut Violations,
    ) {
        self.exists |= given > 0;
        let is_workflow =
            LimitScope::from_limit_name(&self.report.name) == Some(LimitScope::Workflow);
        if given < needed && (is_workflow || self.report.capacity.is_some()) {
            self.report.violations += 1;
            let limit = self.report.name.clone();
            violations.add(Violation::SlotMissing { limit, t_ns, task, given, needed });
        }
    }

    /// Only an enter can break a limit: what runs when a limit is lowered may finish.
    fn enter(&mut self, t_ns: u64, task: i64, weight: u32, violations: &mut Violations) {
        self.held += u64::from(weight);
        self.report.enters += 1;
        self.report.held_max = self.report.held_max.max(self.held);
        let Some(capacity) = self.report.capacity else {
            return;
        };
        self.report.reached |= self.held >= u64::from(capacity);
        if self.held > u64::from(capacity) {
            self.report.violations += 1;
            let (limit, held) = (self.report.name.clone(), self.held);
            violations.add(Violation::LimitExceeded { limit, t_ns, task, held, capacity });
        }
    }
}
