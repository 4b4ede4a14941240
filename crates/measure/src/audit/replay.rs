//! Who holds what, commit by commit.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use super::decode::{Change, Row};

/// So many violations are kept in full; all are counted.
const EXAMPLES_MAX: usize = 50;

/// A slot: the id of its limit, and its number.
type Slot = (i64, i64);

/// What an audit has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Commits that changed a limit, a slot or a lease.
    pub commits: u64,
    /// Slots that somebody held after a commit and had not held before it.
    pub taken: u64,
    /// Changes of a capacity.
    pub changes: u64,
    /// Changes that left more held than the new capacity, which then had to drain.
    pub drains: u64,
    /// The most that was held of one limit.
    pub held_max: u64,
    /// Commits that broke a rule.
    pub violations: u64,
    /// The first of them.
    pub examples: Vec<Violation>,
}

/// A commit that must not have happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// It took a slot and left more held than the limit in force.
    Exceeded { lsn: u64, limit: String, held: u64, capacity: u64, takers: Vec<i64> },
    /// It took a slot that another one holds, or wrote the same holder down twice.
    Shared { lsn: u64, limit: String, number: i64, holders: Vec<i64> },
}

/// The tables of the evidence as they were after the last commit.
#[derive(Debug, Default)]
pub struct Replay {
    capacity_reduction: u32,
    limits: HashMap<i64, Limit>,
    slots: HashMap<Slot, i64>,
    leases: HashMap<i64, Lease>,
    holders: HashMap<Slot, Vec<i64>>,
    held: HashMap<i64, u64>,
    /// Who held the slots that this commit touches, before it.
    before: HashMap<Slot, Vec<i64>>,
    changed: BTreeSet<i64>,
    findings: Findings,
}

#[derive(Debug)]
struct Limit {
    name: String,
    capacity: Option<i64>,
}

/// What a lease lists. The first tasks are those that hold slots.
#[derive(Debug, Clone, Default)]
struct Lease {
    tasks: Vec<i64>,
    limits: Vec<i64>,
    numbers: Vec<i64>,
}

impl Lease {
    fn holdings(&self) -> impl Iterator<Item = (Slot, i64)> {
        let slots = self.limits.iter().copied().zip(self.numbers.iter().copied());
        slots.zip(self.tasks.iter().copied())
    }
}

impl Replay {
    /// Nothing is held yet. Every limit is judged as if it had `less` than it has.
    pub fn new(capacity_reduction: u32) -> Self {
        Self { capacity_reduction, ..Self::default() }
    }

    /// Takes one change of the log.
    pub(super) fn apply(&mut self, change: Change<'_>) -> anyhow::Result<()> {
        match change {
            Change::Put { table, key, row } => {
                if let Some(key) = key {
                    self.remove(table, &key)?;
                }
                self.put(table, &row)?;
            }
            Change::Removed { table, key } => self.remove(table, &key)?,
            Change::Commit { lsn } => self.commit(lsn),
        }
        Ok(())
    }

    fn put(&mut self, table: &str, row: &Row<'_>) -> anyhow::Result<()> {
        match table {
            "limits" => {
                let name = match row.cell("name")? {
                    super::decode::Cell::Text(name) => name,
                    _ => "",
                };
                self.put_limit(row.number("id")?, name, row.cell("capacity")?.number()?);
            }
            "slots" => {
                let slot = (row.number("limit_id")?, row.number("number")?);
                self.put_slot(slot, row.number("task")?);
            }
            "leases" => {
                let list = |column| row.cell(column)?.numbers();
                let (tasks, limits, numbers) = (list("tasks")?, list("limits")?, list("numbers")?);
                self.put_lease(row.number("token")?, tasks, limits, numbers)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn remove(&mut self, table: &str, key: &Row<'_>) -> anyhow::Result<()> {
        match table {
            "limits" => {
                self.limits.remove(&key.number("id")?);
            }
            "slots" => {
                let slot = (key.number("limit_id")?, key.number("number")?);
                if let Some(task) = self.slots.remove(&slot) {
                    self.release_slot(slot, task);
                }
            }
            "leases" => {
                let gone = self.leases.remove(&key.number("token")?).unwrap_or_default();
                gone.holdings().for_each(|(slot, task)| self.release_slot(slot, task));
            }
            _ => {}
        }
        Ok(())
    }

    /// A limit has this capacity; none is unlimited.
    pub fn put_limit(&mut self, id: i64, name: &str, capacity: Option<i64>) {
        let before = self.limits.insert(id, Limit { name: name.to_owned(), capacity });
        if before.is_none_or(|before| before.capacity != capacity) {
            self.changed.insert(id);
        }
    }

    /// A row of `slots`.
    pub fn put_slot(&mut self, slot: (i64, i64), task: i64) {
        if let Some(before) = self.slots.insert(slot, task) {
            self.release_slot(slot, before);
        }
        self.hold_slot(slot, task);
    }

    /// A lease and what it lists; a list of which nothing is said is as it was.
    pub fn put_lease(
        &mut self,
        token: i64,
        tasks: Option<Vec<i64>>,
        limits: Option<Vec<i64>>,
        numbers: Option<Vec<i64>>,
    ) -> anyhow::Result<()> {
        let before = self.leases.remove(&token).unwrap_or_default();
        let now = Lease {
            tasks: tasks.unwrap_or_else(|| before.tasks.clone()),
            limits: limits.unwrap_or_else(|| before.limits.clone()),
            numbers: numbers.unwrap_or_else(|| before.numbers.clone()),
        };
        anyhow::ensure!(
            now.limits.len() == now.numbers.len() && now.limits.len() <= now.tasks.len(),
            "lease {token} lists {} limits, {} numbers and {} tasks",
            now.limits.len(),
            now.numbers.len(),
            now.tasks.len()
        );
        before.holdings().for_each(|(slot, task)| self.release_slot(slot, task));
        now.holdings().for_each(|(slot, task)| self.hold_slot(slot, task));
        self.leases.insert(token, now);
        Ok(())
    }

    /// Whether anybody holds anything.
    pub fn holds_anything(&self) -> bool {
        !self.holders.is_empty()
    }

    /// What was there at the beginning is not a change.
    pub(super) fn clear_changes(&mut self) {
        self.before.clear();
        self.changed.clear();
    }

    fn hold_slot(&mut self, slot: Slot, task: i64) {
        self.remember_holders(slot);
        self.holders.entry(slot).or_default().push(task);
        *self.held.entry(slot.0).or_default() += 1;
    }

    fn release_slot(&mut self, slot: Slot, task: i64) {
        self.remember_holders(slot);
        let Some(holders) = self.holders.get_mut(&slot) else {
            return;
        };
        if let Some(place) = holders.iter().position(|holder| *holder == task) {
            holders.swap_remove(place);
            *self.held.entry(slot.0).or_default() -= 1;
        }
        if holders.is_empty() {
            self.holders.remove(&slot);
        }
    }

    /// Remembers who held a slot before this commit.
    fn remember_holders(&mut self, slot: Slot) {
        let holders = &self.holders;
        self.before.entry(slot).or_insert_with(|| holders.get(&slot).cloned().unwrap_or_default());
    }

    /// Judges what this commit has made.
    pub fn commit(&mut self, lsn: u64) {
        self.findings.commits += 1;
        let mut takers: HashMap<i64, Vec<i64>> = HashMap::new();
        for (slot, before) in std::mem::take(&mut self.before) {
            let now = self.holders.get(&slot).cloned().unwrap_or_default();
            let new = now.iter().copied().filter(|task| !before.contains(task));
            takers.entry(slot.0).or_default().extend(new);
            if now.len() > before.len().max(1) {
                self.report_shared_slot(lsn, slot, now);
            }
        }
        for (limit, takers) in takers {
            if !takers.is_empty() {
                self.check_capacity(lsn, limit, takers);
            }
        }
        for limit in std::mem::take(&mut self.changed) {
            self.findings.changes += 1;
            let held = self.held_of(limit);
            let is_over = self.capacity(limit).is_some_and(|capacity| held > capacity);
            self.findings.drains += u64::from(is_over);
        }
    }

    fn check_capacity(&mut self, lsn: u64, limit: i64, takers: Vec<i64>) {
        let held = self.held_of(limit);
        self.findings.taken += takers.len() as u64;
        self.findings.held_max = self.findings.held_max.max(held);
        if let Some(capacity) = self.capacity(limit).filter(|capacity| held > *capacity) {
            let limit = self.name(limit);
            self.violate(Violation::Exceeded { lsn, limit, held, capacity, takers });
        }
    }

    fn report_shared_slot(&mut self, lsn: u64, (limit, number): Slot, holders: Vec<i64>) {
        let limit = self.name(limit);
        self.violate(Violation::Shared { lsn, limit, number, holders });
    }

    fn violate(&mut self, violation: Violation) {
        self.findings.violations += 1;
        if self.findings.examples.len() < EXAMPLES_MAX {
            self.findings.examples.push(violation);
        }
    }

    fn held_of(&self, limit: i64) -> u64 {
        self.held.get(&limit).copied().unwrap_or_default()
    }

    fn capacity(&self, limit: i64) -> Option<u64> {
        let capacity = self.limits.get(&limit)?.capacity?;
        Some((capacity - i64::from(self.capacity_reduction)).max(0) as u64)
    }

    fn name(&self, limit: i64) -> String {
        self.limits.get(&limit).map_or_else(|| format!("limit {limit}"), |one| one.name.clone())
    }

    /// What was found.
    pub fn into_findings(self) -> Findings {
        self.findings
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { commits, taken, changes, drains, violations, .. } = self;
        writeln!(
            out,
            "audit of {commits} commits: {taken} slots taken, {changes} changes of a capacity, \
             {drains} of them below what was held; violations: {violations}"
        )?;
        self.examples.iter().try_for_each(|example| writeln!(out, "  {example}"))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |lsn: &u64| format!("{:X}/{:X}", lsn >> 32, lsn & u64::from(u32::MAX));
        match self {
            Self::Exceeded { lsn, limit, held, capacity, takers } => write!(
                out,
                "commit {}: tasks {takers:?} took slots of {limit}, and {held} of {capacity} are held",
                place(lsn)
            ),
            Self::Shared { lsn, limit, number, holders } => write!(
                out,
                "commit {}: slot {number} of {limit} is held by tasks {holders:?}",
                place(lsn)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: i64 = 1;

    fn replay(capacity: i64) -> Replay {
        let mut replay = Replay::new(0);
        replay.put_limit(LIMIT, "group:a", Some(capacity));
        replay.clear_changes();
        replay
    }

    fn lease(replay: &mut Replay, token: i64, holdings: &[(i64, i64)]) {
        let tasks = holdings.iter().map(|(_, task)| *task).collect();
        let numbers: Vec<i64> = holdings.iter().map(|(number, _)| *number).collect();
        let limits = vec![LIMIT; numbers.len()];
        replay.put_lease(token, Some(tasks), Some(limits), Some(numbers)).unwrap();
    }

    fn gone(replay: &mut Replay, number: i64) {
        let task = replay.slots.remove(&(LIMIT, number)).unwrap();
        replay.release_slot((LIMIT, number), task);
    }

    #[test]
    fn replay_reports_slot_taken_beyond_limit() {
        let mut replay = replay(1);
        replay.put_slot((LIMIT, 1), 10);
        replay.commit(1);
        replay.put_slot((LIMIT, 2), 11);
        replay.commit(2);
        let found = replay.into_findings();
        assert_eq!((found.commits, found.taken, found.violations), (2, 2, 1));
        let limit = "group:a".to_owned();
        let exceeded =
            Violation::Exceeded { lsn: 2, limit, held: 2, capacity: 1, takers: vec![11] };
        assert_eq!(found.examples, [exceeded]);
    }

    #[test]
    fn replay_of_lowered_limit_reports_only_new_slots() {
        let mut replay = replay(2);
        replay.put_slot((LIMIT, 1), 10);
        replay.put_slot((LIMIT, 2), 11);
        replay.commit(1);
        replay.put_limit(LIMIT, "group:a", Some(1));
        replay.commit(2);
        gone(&mut replay, 2);
        replay.commit(3);
        assert_eq!(replay.findings.violations, 0);
        assert_eq!((replay.findings.changes, replay.findings.drains), (1, 1));
        // One slot is held, as many as there are; the number changes hands, which takes it.
        replay.put_slot((LIMIT, 1), 12);
        replay.commit(4);
        assert_eq!(replay.findings.violations, 0);
        replay.put_slot((LIMIT, 2), 13);
        replay.commit(5);
        assert_eq!(replay.into_findings().violations, 1);
    }

    #[test]
    fn replay_reports_hand_off_while_limit_is_exceeded() {
        let mut replay = replay(2);
        lease(&mut replay, 100, &[(1, 10), (2, 11)]);
        replay.commit(1);
        replay.put_limit(LIMIT, "group:a", Some(1));
        replay.commit(2);
        lease(&mut replay, 100, &[(1, 10)]);
        lease(&mut replay, 101, &[(2, 12)]);
        replay.commit(3);
        assert_eq!(replay.into_findings().violations, 1);
    }

    #[test]
    fn replay_of_slot_moved_to_lease_and_back_counts_no_take() {
        let mut replay = replay(1);
        replay.put_slot((LIMIT, 1), 10);
        replay.commit(1);
        replay.put_limit(LIMIT, "group:a", Some(0));
        replay.commit(2);
        lease(&mut replay, 100, &[(1, 10)]);
        gone(&mut replay, 1);
        replay.commit(3);
        replay.put_slot((LIMIT, 1), 10);
        lease(&mut replay, 100, &[]);
        replay.commit(4);
        let found = replay.into_findings();
        assert_eq!((found.taken, found.violations), (1, 0));
    }

    #[test]
    fn replay_reports_slot_with_two_holders_once() {
        let mut replay = replay(5);
        replay.put_slot((LIMIT, 1), 10);
        lease(&mut replay, 100, &[(1, 11)]);
        replay.commit(1);
        replay.put_slot((LIMIT, 2), 12);
        replay.commit(2);
        assert_eq!(replay.into_findings().violations, 1);
    }

    #[test]
    fn replay_keeps_slot_list_of_unchanged_lease_row() {
        let mut replay = replay(1);
        lease(&mut replay, 100, &[(1, 10)]);
        replay.commit(1);
        replay.put_lease(100, None, None, None).unwrap();
        replay.commit(2);
        replay.put_slot((LIMIT, 2), 11);
        replay.commit(3);
        assert_eq!(replay.into_findings().violations, 1);
    }

    #[test]
    fn replay_with_reduced_limit_reports_violation() {
        let mut replay = Replay::new(1);
        replay.put_limit(LIMIT, "group:a", Some(1));
        replay.put_slot((LIMIT, 1), 10);
        replay.commit(1);
        assert_eq!(replay.into_findings().violations, 1);
    }
}
