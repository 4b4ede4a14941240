//! The invariants, as far as one committed state can show them. `doctor` runs them on a live
//! store, the testkit after every step.

use std::collections::{BTreeMap, BTreeSet};

use crate::inspect::{Snapshot, TaskRow};
use crate::tables::{Class, LineRow, Position};
use crate::{Hold, Limit, LimitId, Scope, TaskId};

/// One broken rule, in words.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Violation {
    /// Which rule.
    pub rule: &'static str,
    /// What was found.
    pub found: String,
}

/// Checks one committed state.
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let mut check =
        Check { snapshot, tasks: BTreeMap::new(), limits: BTreeMap::new(), found: vec![] };
    check.tasks = snapshot.tasks.iter().map(|task| (task.id, task)).collect();
    check.limits = snapshot.limits.iter().map(|limit| (limit.id, limit)).collect();
    check.one_position_each();
    check.unique_keys();
    check.leases();
    check.slots();
    check.counts();
    check.lines();
    check.found
}

/// Checks a state at rest: nothing may be left over.
pub fn check_at_rest(snapshot: &Snapshot) -> Vec<Violation> {
    let mut found = check(snapshot);
    let mut left = |what: &str, number: usize| {
        if number > 0 {
            found.push(Violation {
                rule: "at rest nothing is left",
                found: format!("{number} {what}"),
            });
        }
    };
    left("slots are held", snapshot.slots.len());
    left("tasks are unfinished", snapshot.tasks.len());
    left("limits have a line", snapshot.limits.iter().filter(|limit| limit.waiting > 0).count());
    found
}

struct Check<'a> {
    snapshot: &'a Snapshot,
    tasks: BTreeMap<TaskId, &'a TaskRow>,
    limits: BTreeMap<LimitId, &'a Limit>,
    found: Vec<Violation>,
}

impl Check<'_> {
    fn fault(&mut self, rule: &'static str, found: String) {
        self.found.push(Violation { rule, found });
    }

    fn one_position_each(&mut self) {
        for task in &self.snapshot.tasks {
            if task.positions.len() != 1 {
                let found = format!("task {} stands in {:?}", task.id, task.positions);
                self.fault("a task is in exactly one state", found);
            }
        }
    }

    fn unique_keys(&mut self) {
        let mut seen = BTreeSet::new();
        for task in &self.snapshot.tasks {
            if let Some(key) = &task.unique_key
                && !seen.insert(key)
            {
                let found = format!("{key:?} is carried by task {} and another", task.id);
                self.fault("a unique key has one unfinished task", found);
            }
        }
    }

    fn leases(&mut self) {
        let tokens: BTreeSet<_> = self.snapshot.leases.iter().map(|lease| lease.token).collect();
        for task in &self.snapshot.tasks {
            if let Some(Position::Running(token)) = task.positions.first()
                && !tokens.contains(token)
            {
                let found = format!("task {} runs under token {token}, which is gone", task.id);
                self.fault("what runs has a lease", found);
            }
        }
    }

    fn slots(&mut self) {
        let mut held: BTreeMap<(TaskId, LimitId), u32> = BTreeMap::new();
        let mut numbers = BTreeSet::new();
        for slot in &self.snapshot.slots {
            *held.entry((slot.task, slot.limit)).or_default() += 1;
            if !numbers.insert((slot.limit, slot.number)) {
                let found = format!("slot {} of {}", slot.number, self.name(slot.limit));
                self.fault("a slot has one holder", found);
            }
        }
        for (&(task, limit), &units) in &held {
            self.slot_has_reason(task, limit, units);
        }
        for task in self.snapshot.tasks.iter().collect::<Vec<_>>() {
            self.holds_what_it_needs(task, &held);
        }
    }

    /// Attempt slots belong to tasks that are ready, running or reserving; lifetime slots to
    /// any unfinished task.
    fn slot_has_reason(&mut self, id: TaskId, limit: LimitId, units: u32) {
        let rule = "a slot is held by a task that may hold it";
        let name = self.name(limit);
        let (Some(task), Some(limit)) = (self.tasks.get(&id), self.limits.get(&limit)) else {
            return self.fault(rule, format!("{units} of {name} by task {id}, which is not there"));
        };
        if !applies(limit, task) {
            return self.fault(rule, format!("{units} of {name} by task {id}, which needs none"));
        }
        let holds = match task.positions.first() {
            Some(Position::Ready(row)) => row.gated,
            Some(Position::Running(_)) => task.gated,
            Some(Position::Line(row)) => row.class == Class::Reserving,
            _ => false,
        };
        if limit.scope().hold() == Hold::Attempt && !holds {
            let found = format!("{units} of {name} by task {id}, which is not admitted");
            self.fault(rule, found);
        }
    }

    /// A task the gate let through holds what its limits ask for. A limit that began later
    /// adopts what runs and sends back what is ready.
    fn holds_what_it_needs(&mut self, task: &TaskRow, held: &BTreeMap<(TaskId, LimitId), u32>) {
        let stamp = match task.positions.first() {
            Some(Position::Ready(row)) => row.stamp,
            Some(Position::Running(_)) => i64::MAX,
            _ => return,
        };
        for limit in self.snapshot.limits.iter().filter(|limit| applies(limit, task)) {
            let weight = if limit.scope() == Scope::Group { task.weight } else { 1 };
            let units = held.get(&(task.id, limit.id)).copied().unwrap_or_default();
            if limit.since <= stamp && units != weight {
                let found =
                    format!("task {} needs {weight} of {} and holds {units}", task.id, limit.name);
                self.fault("what is admitted holds its slots", found);
            }
        }
    }

    fn counts(&mut self) {
        for limit in &self.snapshot.limits {
            let held = self.snapshot.slots.iter().filter(|slot| slot.limit == limit.id).count();
            let lines: Vec<LineRow> = self.line(limit.id);
            let aside = lines.iter().filter(|row| !row.class.is_in_turn()).count();
            let evidence = (held as u32, lines.len() as u32, aside as u32);
            let counted = (limit.held, limit.waiting, limit.aside);
            if evidence != counted {
                let found = format!(
                    "{} counts {counted:?} held, waiting and set aside; there are {evidence:?}",
                    limit.name
                );
                self.fault("numbers kept for speed equal the evidence", found);
            }
            let ahead = self.ahead_of(limit);
            if let Some(share) = limit.share
                && share.ahead != ahead
            {
                let found =
                    format!("{} counts {} ahead; there are {ahead}", limit.name, share.ahead);
                self.fault("numbers kept for speed equal the evidence", found);
            }
        }
    }

    /// Tasks of a job that passed its line and are not yet claimed.
    fn ahead_of(&self, limit: &Limit) -> u32 {
        let is_ahead = |task: &&TaskRow| match task.positions.first() {
            Some(Position::Ready(row)) => row.gated,
            Some(Position::Line(row)) => row.passed,
            _ => false,
        };
        self.snapshot.tasks.iter().filter(|task| applies(limit, task)).filter(is_ahead).count()
            as u32
    }

    fn line(&self, limit: LimitId) -> Vec<LineRow> {
        let row = |task: &TaskRow| match task.positions.first() {
            Some(Position::Line(row)) if row.limit == limit => Some(*row),
            _ => None,
        };
        self.snapshot.tasks.iter().filter_map(row).collect()
    }

    /// No head of a line has room, unless somebody is about to look.
    fn lines(&mut self) {
        for limit in &self.snapshot.limits {
            let head = self.line(limit.id).into_iter().filter(|row| row.class.is_in_turn()).min();
            let Some(head) = head else { continue };
            let Some(task) = self.tasks.get(&head.task) else {
                continue;
            };
            let weight = if limit.scope() == Scope::Group { task.weight } else { 1 };
            let room = limit.fits(weight) && (head.passed || limit.has_window());
            if room && !limit.dirty {
                let found = format!(
                    "task {} waits for {} ({} of {:?} held)",
                    head.task, limit.name, limit.held, limit.capacity
                );
                self.fault("nobody waits beside a free slot", found);
            }
        }
    }

    fn name(&self, limit: LimitId) -> String {
        self.limits.get(&limit).map_or_else(|| format!("limit {limit}"), |l| l.name.to_string())
    }
}

/// Whether a limit applies to a task.
fn applies(limit: &Limit, task: &TaskRow) -> bool {
    let Some((_, of)) = limit.name.split_once(':') else {
        return false;
    };
    match limit.scope() {
        Scope::Group => &**task.group.as_ref().unwrap_or(&task.kind) == of,
        Scope::Job => task.job.as_deref() == Some(of),
        Scope::Workflow => task.workflow.as_deref() == Some(of),
    }
}
