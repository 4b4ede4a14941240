//! What to do about a state that breaks the rules.
//!
//! The plan follows the evidence: rows of tasks, places, slots and leases. Numbers that are kept
//! for speed are counted anew. A task that stands in no place, or in several of which none is
//! sound, goes back to the gate, which decides as it does for every task. Nothing that runs
//! under a lease is touched.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::{Check, Tally, weight_at};
use crate::bounds::JOB_WINDOW;
use crate::inspect::{SlotRow, Snapshot, TaskRow};
use crate::tables::{Class, Counters, Position};
use crate::{Hold, Limit, LimitId, TaskId, Token};

/// One step of a repair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "repair", rename_all = "snake_case")]
pub enum Repair {
    /// Takes a task out of a place.
    Leave {
        /// The task.
        task: TaskId,
        /// The place.
        position: Position,
    },
    /// Puts a task at the gate.
    Arrive {
        /// The task.
        task: TaskId,
    },
    /// Makes the limit of a workflow that is under way.
    MakeLimit {
        /// Its name.
        name: Arc<str>,
    },
    /// Ends a lease that nothing runs under.
    EndLease {
        /// Its token.
        token: Token,
    },
    /// Frees a slot whose holder may not hold it.
    FreeSlot {
        /// The limit.
        limit: LimitId,
        /// Its name, if it is there.
        name: Arc<str>,
        /// The slot's number.
        number: u32,
        /// Who held it.
        task: TaskId,
    },
    /// Gives a running task the slots it runs with.
    TakeSlots {
        /// The task.
        task: TaskId,
        /// The limit.
        limit: LimitId,
        /// Its name.
        name: Arc<str>,
        /// How many.
        weight: u32,
    },
    /// Notes that a running task holds slots.
    SetGated {
        /// The task.
        task: TaskId,
        /// The token it runs under.
        token: Token,
    },
    /// Writes the numbers of a limit as they were counted, and has its line looked at.
    Count {
        /// The limit as it is to be.
        limit: Limit,
    },
    /// Notes who carries a unique key.
    PutKey {
        /// The key.
        key: Arc<str>,
        /// The task, if one carries it.
        task: Option<TaskId>,
    },
    /// Moves the ids of tasks on.
    RaiseTaskIds {
        /// The last one that counts as given.
        last_task: TaskId,
    },
    /// Writes what the store keeps for its own use anew.
    Renew {
        /// What was wrong with it.
        fault: String,
    },
    /// Moves the numbers on that are given once.
    SetCounters {
        /// The numbers as they are to be.
        counters: Counters,
    },
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leave { task, position } => {
                write!(f, "task {task} no longer stands {}", position.place())
            }
            Self::Arrive { task } => write!(f, "task {task} is brought to the gate"),
            Self::MakeLimit { name } => write!(f, "limit {name} is made again"),
            Self::RaiseTaskIds { last_task } => write!(f, "ids of tasks go on after {last_task}"),
            Self::EndLease { token } => write!(f, "lease {token} is ended: nothing runs under it"),
            Self::FreeSlot { name, number, task, .. } => {
                write!(f, "slot {number} of {name} is taken from task {task}")
            }
            Self::TakeSlots { task, name, weight, .. } => {
                write!(f, "task {task}, which runs, is given {weight} of {name}")
            }
            Self::SetGated { task, .. } => write!(f, "task {task} is noted to run with slots"),
            Self::Count { limit } => write!(
                f,
                "{} is counted anew: {} held, {} waiting, {} set aside; its line is looked at",
                limit.name, limit.held, limit.waiting, limit.aside
            ),
            Self::PutKey { key, task: Some(task) } => {
                write!(f, "unique key {key:?} is noted for task {task}")
            }
            Self::Renew { fault } => write!(f, "written anew: {fault}"),
            Self::PutKey { key, task: None } => write!(f, "unique key {key:?} is free again"),
            Self::SetCounters { counters } => write!(
                f,
                "tokens go on after {} and places after {}",
                counters.token, counters.place
            ),
        }
    }
}

/// Whether the rest of the plan is yet to be made.
pub fn is_first_part(plan: &[Repair]) -> bool {
    matches!(plan.first(), Some(Repair::MakeLimit { .. }))
}

/// What to do about a state; nothing, if it breaks no rule. Limits that are missing come first and
/// alone, see [`is_first_part`].
pub fn plan(snapshot: &Snapshot) -> Vec<Repair> {
    if super::check(snapshot).is_empty() {
        return Vec::new();
    }
    let check = Check::new(snapshot, JOB_WINDOW);
    let missing = check.missing_workflows();
    if !missing.is_empty() {
        // The rest depends on them: whoever takes these steps asks again.
        return missing.into_iter().map(|name| Repair::MakeLimit { name: name.into() }).collect();
    }
    let mut plan = Plan { kept: vec![None; snapshot.tasks.len()], check, steps: Vec::new() };
    plan.places();
    plan.leases();
    let held = plan.slots();
    plan.limits(held);
    plan.keys();
    plan.numbers();
    plan.store();
    plan.steps
}

struct Plan<'a> {
    check: Check<'a>,
    /// Where each task stays; none for those that leave where they stood.
    kept: Vec<Option<Position>>,
    steps: Vec<Repair>,
}

impl<'a> Plan<'a> {
    fn snapshot(&self) -> &'a Snapshot {
        self.check.snapshot
    }

    /// What the store keeps for its own use.
    fn store(&mut self) {
        let faults = self.snapshot().faults.iter().cloned();
        self.steps.extend(faults.map(|fault| Repair::Renew { fault }));
    }

    fn places(&mut self) {
        for (place, task) in self.snapshot().tasks.iter().enumerate() {
            if task.is_orphan() {
                self.leave(task, |index, _| index > 0);
                continue;
            }
            let keep = self.place_to_keep(place, task);
            self.leave(task, |index, _| Some(index) != keep);
            self.kept[place] = keep.map(|index| task.positions[index]);
            if keep.is_none() {
                self.steps.push(Repair::Arrive { task: task.id });
            }
        }
    }

    fn leave(&mut self, task: &TaskRow, leaves: impl Fn(usize, Position) -> bool) {
        for (index, position) in task.positions.iter().enumerate() {
            if leaves(index, *position) {
                self.steps.push(Repair::Leave { task: task.id, position: *position });
            }
        }
    }

    /// Where a task stays: where it runs under a lease, or the one place it stands in, if it
    /// may stand there.
    fn place_to_keep(&self, place: usize, task: &TaskRow) -> Option<usize> {
        let has_lease = |position: &Position| {
            let leases = &self.snapshot().leases;
            let token = position.token();
            token.is_some_and(|token| {
                leases.binary_search_by_key(&token, |lease| lease.token).is_ok()
            })
        };
        let running = task.positions.iter().position(has_lease);
        // Who is not due must not start early, whatever else it is said to do.
        let is_scheduled = |position: &Position| matches!(position, Position::Scheduled(_));
        let scheduled = || task.positions.iter().position(is_scheduled);
        running.or_else(scheduled).or_else(|| {
            let [only] = task.positions[..] else { return None };
            self.is_sound(place, task, only).then_some(0)
        })
    }

    /// Who collects slots one after another, or waits to, starts over: nobody else can tell what
    /// it is still to get.
    fn is_sound(&self, place: usize, task: &TaskRow, position: Position) -> bool {
        match position {
            Position::Scheduled(_) | Position::Arrived => true,
            Position::Ready(row) => self.applying(place).all(|limit| {
                limit.since > row.stamp
                    || self.check.units(task.id, limit.id) == weight_at(limit, task)
            }),
            Position::Line(row) => {
                !matches!(row.class, Class::Reserving | Class::Seat)
                    && self.applying(place).any(|limit| limit.id == row.limit)
            }
            Position::Running(_) | Position::Final(_) => false,
        }
    }

    fn applying(&self, place: usize) -> impl Iterator<Item = &'a Limit> + use<'a> {
        let limits = &self.snapshot().limits;
        self.check.applying[place].into_iter().flatten().map(|limit| &limits[limit])
    }

    fn leases(&mut self) {
        let used: BTreeSet<Token> =
            self.kept.iter().filter_map(|position| position.as_ref()?.token()).collect();
        for lease in &self.snapshot().leases {
            if !used.contains(&lease.token) {
                self.steps.push(Repair::EndLease { token: lease.token });
            }
        }
    }

    /// Frees what nobody may hold, gives those that run what they run with, and counts what is
    /// held of every limit then.
    fn slots(&mut self) -> Vec<u32> {
        let mut held = vec![0; self.snapshot().limits.len()];
        for slot in &self.snapshot().slots {
            match self.check.limit_place(slot.limit).filter(|limit| self.may_hold(*slot, *limit)) {
                Some(limit) => held[limit] += 1,
                None => self.steps.push(Repair::FreeSlot {
                    limit: slot.limit,
                    name: self.check.name(slot.limit).into(),
                    number: slot.number,
                    task: slot.task,
                }),
            }
        }
        for place in 0..self.kept.len() {
            self.equip(place, &mut held);
        }
        self.give_turns(&mut held);
        held
    }

    /// A step that is not due keeps its turn: the first of a workflow that nobody holds.
    fn give_turns(&mut self, held: &mut [u32]) {
        let (tasks, limits) = (&self.snapshot().tasks, &self.snapshot().limits);
        let mut is_begun = vec![false; limits.len()];
        for (place, task) in tasks.iter().enumerate() {
            let Some(limit) = self.check.applying[place][2] else { continue };
            let is_first = !std::mem::replace(&mut is_begun[limit], true);
            let is_late = matches!(self.kept[place], Some(Position::Scheduled(_)));
            if is_first && is_late && held[limit] == 0 {
                let (task, name) = (task.id, limits[limit].name.clone());
                let limit_id = limits[limit].id;
                self.steps.push(Repair::TakeSlots { task, limit: limit_id, name, weight: 1 });
                held[limit] += 1;
            }
        }
    }

    fn may_hold(&self, slot: SlotRow, limit: usize) -> bool {
        let Some(place) = self.check.task_place(slot.task) else { return false };
        let (task, limit) = (&self.snapshot().tasks[place], &self.snapshot().limits[limit]);
        if !self.applying(place).any(|applying| applying.id == limit.id) {
            return false;
        }
        let is_whole = self.check.units(task.id, limit.id) == weight_at(limit, task);
        let admitted = match self.kept[place] {
            Some(Position::Running(_)) => true,
            Some(Position::Ready(row)) => row.gated,
            _ => limit.scope().hold() == Hold::Lifetime,
        };
        is_whole && admitted
    }

    /// What runs counts, whether there is room for it or not.
    fn equip(&mut self, place: usize, held: &mut [u32]) {
        let Some(Position::Running(token)) = self.kept[place] else { return };
        let task = &self.snapshot().tasks[place];
        let limits: Vec<&Limit> = self.applying(place).collect();
        if !limits.is_empty() && !task.gated {
            self.steps.push(Repair::SetGated { task: task.id, token });
        }
        for limit in limits {
            let weight = weight_at(limit, task);
            if self.check.units(task.id, limit.id) != weight {
                let (limit, name) = (limit.id, limit.name.clone());
                self.steps.push(Repair::TakeSlots { task: task.id, limit, name, weight });
                held[self.check.limit_place(limit).unwrap_or_default()] += weight;
            }
        }
    }

    fn limits(&mut self, held: Vec<u32>) {
        let tallies = self.tallies();
        for (place, limit) in self.snapshot().limits.iter().enumerate() {
            let (tally, before) = (tallies[place], self.check.found.len());
            self.check.line(limit, &tally);
            let mut mended = limit.clone();
            mended.held = held[place];
            mended.waiting = tally.waiting;
            mended.aside = tally.aside;
            mended.reserver = None;
            if let Some(share) = &mut mended.share {
                share.ahead = tally.ahead;
            }
            if mended != *limit || self.check.found.len() > before {
                mended.dirty = mended.waiting > 0 || mended.recalls(self.snapshot().now);
                self.steps.push(Repair::Count { limit: mended });
            }
        }
    }

    /// What the places say of every limit once the steps are taken.
    fn tallies(&self) -> Vec<Tally> {
        let mut tallies = vec![Tally::default(); self.snapshot().limits.len()];
        for (place, task) in self.snapshot().tasks.iter().enumerate() {
            let ahead = match self.kept[place] {
                Some(Position::Ready(row)) => {
                    let applying = &self.check.applying[place];
                    self.check.note_ready(task.id, applying, &mut tallies);
                    row.gated
                }
                Some(Position::Line(row)) => {
                    if let Some(limit) = self.check.limit_place(row.limit) {
                        let weight = weight_at(&self.snapshot().limits[limit], task);
                        tallies[limit].wait(row, weight);
                    }
                    row.passed
                }
                _ => false,
            };
            if let Some(job) = self.check.applying[place][1] {
                tallies[job].ahead += u32::from(ahead);
            }
        }
        tallies
    }

    fn keys(&mut self) {
        for (key, _) in self.check.stale_keys() {
            self.steps.push(Repair::PutKey { key, task: None });
        }
        // Of two that carry a key one has it; nobody can tell which is meant.
        let keys = self.snapshot().keys.iter();
        let carried = keys.filter(|(key, task)| self.check.carries(*task, key));
        let carried: BTreeSet<&Arc<str>> = carried.map(|(key, _)| key).collect();
        let mut loose = self.check.loose_keys();
        loose.retain(|(key, _)| !carried.contains(key));
        loose.sort_unstable();
        loose.dedup_by(|one, other| one.0 == other.0);
        for (key, task) in loose {
            self.steps.push(Repair::PutKey { key, task: Some(task) });
        }
    }

    fn numbers(&mut self) {
        let counters = self.check.numbers_used();
        if counters != self.snapshot().counters {
            self.steps.push(Repair::SetCounters { counters });
        }
        let Snapshot { last_task, highest_task, .. } = *self.snapshot();
        if last_task < highest_task {
            self.steps.push(Repair::RaiseTaskIds { last_task: highest_task });
        }
    }
}
