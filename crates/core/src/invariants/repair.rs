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

use super::{Checker, LimitTally, required_slots};
use crate::bounds::JOB_WINDOW_SIZE;
use crate::reader::{Snapshot, SnapshotSlot, SnapshotTask};
use crate::tables::{Counters, Position, WaitReason};
use crate::{Limit, LimitId, SlotLifetime, TaskId, Token};

/// One step of a repair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "repair", rename_all = "snake_case")]
pub enum Repair {
    /// Takes a task out of a place.
    RemovePosition {
        /// The task.
        task: TaskId,
        /// The place.
        position: Position,
    },
    /// Puts a task at the gate.
    PutInInbox {
        /// The task.
        task: TaskId,
    },
    /// Makes the limit of a workflow that is under way.
    CreateWorkflowLimit {
        /// Its name.
        name: Arc<str>,
    },
    /// Ends a lease that nothing runs under.
    DeleteLease {
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
    AcquireSlots {
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
    SetHoldsSlots {
        /// The task.
        task: TaskId,
        /// The token it runs under.
        token: Token,
    },
    /// Writes the numbers of a limit as they were counted, and has its line looked at.
    RecountLimit {
        /// The limit as it is to be.
        limit: Limit,
    },
    /// Notes who carries a unique key.
    SetUniqueKeyOwner {
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
    RepairStoreFault {
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
            Self::RemovePosition { task, position } => {
                write!(f, "task {task} no longer stands {}", position.describe())
            }
            Self::PutInInbox { task } => write!(f, "task {task} is brought to the gate"),
            Self::CreateWorkflowLimit { name } => write!(f, "limit {name} is made again"),
            Self::RaiseTaskIds { last_task } => write!(f, "ids of tasks go on after {last_task}"),
            Self::DeleteLease { token } => {
                write!(f, "lease {token} is ended: nothing runs under it")
            }
            Self::FreeSlot { name, number, task, .. } => {
                write!(f, "slot {number} of {name} is taken from task {task}")
            }
            Self::AcquireSlots { task, name, weight, .. } => {
                write!(f, "task {task}, which runs, is given {weight} of {name}")
            }
            Self::SetHoldsSlots { task, .. } => write!(f, "task {task} is noted to run with slots"),
            Self::RecountLimit { limit } => write!(
                f,
                "{} is counted anew: {} held, {} waiting, {} set aside; its line is looked at",
                limit.name, limit.held, limit.waiting, limit.skipped
            ),
            Self::SetUniqueKeyOwner { key, task: Some(task) } => {
                write!(f, "unique key {key:?} is noted for task {task}")
            }
            Self::RepairStoreFault { fault } => write!(f, "written anew: {fault}"),
            Self::SetUniqueKeyOwner { key, task: None } => {
                write!(f, "unique key {key:?} is free again")
            }
            Self::SetCounters { counters } => write!(
                f,
                "tokens go on after {} and places after {}",
                counters.last_token, counters.last_admission_seq
            ),
        }
    }
}

/// Whether the rest of the plan is yet to be made.
pub fn is_partial_plan(plan: &[Repair]) -> bool {
    matches!(plan.first(), Some(Repair::CreateWorkflowLimit { .. }))
}

/// What to do about a state; nothing, if it breaks no rule. Limits that are missing come first and
/// alone, see [`is_first_part`].
pub fn plan_repairs(snapshot: &Snapshot) -> Vec<Repair> {
    if super::check(snapshot).is_empty() {
        return Vec::new();
    }
    let check = Checker::new(snapshot, JOB_WINDOW_SIZE);
    let missing = check.missing_workflow_limits();
    if !missing.is_empty() {
        // The rest depends on them: whoever takes these steps asks again.
        return missing
            .into_iter()
            .map(|name| Repair::CreateWorkflowLimit { name: name.into() })
            .collect();
    }
    let mut plan = Planner {
        kept_positions: vec![None; snapshot.tasks.len()],
        checker: check,
        steps: Vec::new(),
    };
    plan.plan_positions();
    plan.plan_leases();
    let held = plan.plan_slots();
    plan.plan_limits(held);
    plan.plan_unique_keys();
    plan.plan_counters();
    plan.plan_store_faults();
    plan.steps
}

struct Planner<'a> {
    checker: Checker<'a>,
    /// Where each task stays; none for those that leave where they stood.
    kept_positions: Vec<Option<Position>>,
    steps: Vec<Repair>,
}

impl<'a> Planner<'a> {
    fn snapshot(&self) -> &'a Snapshot {
        self.checker.snapshot
    }

    /// What the store keeps for its own use.
    fn plan_store_faults(&mut self) {
        let faults = self.snapshot().store_faults.iter().cloned();
        self.steps.extend(faults.map(|fault| Repair::RepairStoreFault { fault }));
    }

    fn plan_positions(&mut self) {
        for (place, task) in self.snapshot().tasks.iter().enumerate() {
            if task.is_orphan() {
                self.remove_positions(task, |index, _| index > 0);
                continue;
            }
            let keep = self.position_to_keep(place, task);
            self.remove_positions(task, |index, _| Some(index) != keep);
            self.kept_positions[place] = keep.map(|index| task.positions[index]);
            if keep.is_none() {
                self.steps.push(Repair::PutInInbox { task: task.id });
            }
        }
    }

    fn remove_positions(&mut self, task: &SnapshotTask, leaves: impl Fn(usize, Position) -> bool) {
        for (index, position) in task.positions.iter().enumerate() {
            if leaves(index, *position) {
                self.steps.push(Repair::RemovePosition { task: task.id, position: *position });
            }
        }
    }

    /// Where a task stays: where it runs under a lease, or the one place it stands in, if it
    /// may stand there.
    fn position_to_keep(&self, place: usize, task: &SnapshotTask) -> Option<usize> {
        let has_lease = |position: &Position| {
            let leases = &self.snapshot().leases;
            let token = position.running_token();
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
            self.is_position_consistent(place, task, only).then_some(0)
        })
    }

    /// Who collects slots one after another, or waits to, starts over: nobody else can tell what
    /// it is still to get.
    fn is_position_consistent(
        &self,
        place: usize,
        task: &SnapshotTask,
        position: Position,
    ) -> bool {
        match position {
            Position::Scheduled(_) | Position::Inbox => true,
            Position::Ready(row) => self.limits_of_task(place).all(|limit| {
                limit.applies_from_version > row.limits_version
                    || self.checker.held_slot_count(task.id, limit.id)
                        == required_slots(limit, task)
            }),
            Position::Waiting(row) => {
                !matches!(row.wait_reason, WaitReason::Reserving | WaitReason::WaitingToReserve)
                    && self.limits_of_task(place).any(|limit| limit.id == row.limit)
            }
            Position::Running(_) | Position::Finished(_) => false,
        }
    }

    fn limits_of_task(&self, place: usize) -> impl Iterator<Item = &'a Limit> + use<'a> {
        let limits = &self.snapshot().limits;
        self.checker.limits_by_task[place].into_iter().flatten().map(|limit| &limits[limit])
    }

    fn plan_leases(&mut self) {
        let used: BTreeSet<Token> = self
            .kept_positions
            .iter()
            .filter_map(|position| position.as_ref()?.running_token())
            .collect();
        for lease in &self.snapshot().leases {
            if !used.contains(&lease.token) {
                self.steps.push(Repair::DeleteLease { token: lease.token });
            }
        }
    }

    /// Frees what nobody may hold, gives those that run what they run with, and counts what is
    /// held of every limit then.
    fn plan_slots(&mut self) -> Vec<u32> {
        let mut held = vec![0; self.snapshot().limits.len()];
        for slot in &self.snapshot().slots {
            match self
                .checker
                .limit_index(slot.limit)
                .filter(|limit| self.may_hold_slot(*slot, *limit))
            {
                Some(limit) => held[limit] += 1,
                None => self.steps.push(Repair::FreeSlot {
                    limit: slot.limit,
                    name: self.checker.limit_name(slot.limit).into(),
                    number: slot.number,
                    task: slot.task,
                }),
            }
        }
        for place in 0..self.kept_positions.len() {
            self.acquire_slots_for_running(place, &mut held);
        }
        self.acquire_workflow_slots(&mut held);
        held
    }

    /// A step that is not due keeps its turn: the first of a workflow that nobody holds.
    fn acquire_workflow_slots(&mut self, held: &mut [u32]) {
        let (tasks, limits) = (&self.snapshot().tasks, &self.snapshot().limits);
        let mut is_begun = vec![false; limits.len()];
        for (place, task) in tasks.iter().enumerate() {
            let Some(limit) = self.checker.limits_by_task[place][2] else { continue };
            let is_first = !std::mem::replace(&mut is_begun[limit], true);
            let is_late = matches!(self.kept_positions[place], Some(Position::Scheduled(_)));
            if is_first && is_late && held[limit] == 0 {
                let (task, name) = (task.id, limits[limit].name.clone());
                let limit_id = limits[limit].id;
                self.steps.push(Repair::AcquireSlots { task, limit: limit_id, name, weight: 1 });
                held[limit] += 1;
            }
        }
    }

    fn may_hold_slot(&self, slot: SnapshotSlot, limit: usize) -> bool {
        let Some(place) = self.checker.task_index(slot.task) else { return false };
        let (task, limit) = (&self.snapshot().tasks[place], &self.snapshot().limits[limit]);
        if !self.limits_of_task(place).any(|applying| applying.id == limit.id) {
            return false;
        }
        let is_whole =
            self.checker.held_slot_count(task.id, limit.id) == required_slots(limit, task);
        let admitted = match self.kept_positions[place] {
            Some(Position::Running(_)) => true,
            Some(Position::Ready(row)) => row.holds_slots,
            _ => limit.scope().slot_lifetime() == SlotLifetime::Task,
        };
        is_whole && admitted
    }

    /// What runs counts, whether there is room for it or not.
    fn acquire_slots_for_running(&mut self, place: usize, held: &mut [u32]) {
        let Some(Position::Running(token)) = self.kept_positions[place] else { return };
        let task = &self.snapshot().tasks[place];
        let limits: Vec<&Limit> = self.limits_of_task(place).collect();
        if !limits.is_empty() && !task.holds_slots {
            self.steps.push(Repair::SetHoldsSlots { task: task.id, token });
        }
        for limit in limits {
            let weight = required_slots(limit, task);
            if self.checker.held_slot_count(task.id, limit.id) != weight {
                let (limit, name) = (limit.id, limit.name.clone());
                self.steps.push(Repair::AcquireSlots { task: task.id, limit, name, weight });
                held[self.checker.limit_index(limit).unwrap_or_default()] += weight;
            }
        }
    }

    fn plan_limits(&mut self, held: Vec<u32>) {
        let tallies = self.collect_limit_tallies();
        for (place, limit) in self.snapshot().limits.iter().enumerate() {
            let (tally, before) = (tallies[place], self.checker.violations.len());
            self.checker.check_wait_queue(limit, &tally);
            let mut mended = limit.clone();
            mended.held = held[place];
            mended.waiting = tally.waiting;
            mended.skipped = tally.skipped;
            mended.reserving_task = None;
            if let Some(share) = &mut mended.fair_share {
                share.in_window = tally.in_window;
            }
            if mended != *limit || self.checker.violations.len() > before {
                mended.dirty =
                    mended.waiting > 0 || mended.has_excess_admissions(self.snapshot().now);
                self.steps.push(Repair::RecountLimit { limit: mended });
            }
        }
    }

    /// What the places say of every limit once the steps are taken.
    fn collect_limit_tallies(&self) -> Vec<LimitTally> {
        let mut tallies = vec![LimitTally::default(); self.snapshot().limits.len()];
        for (place, task) in self.snapshot().tasks.iter().enumerate() {
            let ahead = match self.kept_positions[place] {
                Some(Position::Ready(row)) => {
                    let applying = &self.checker.limits_by_task[place];
                    self.checker.count_ready_holder(task.id, applying, &mut tallies);
                    row.holds_slots
                }
                Some(Position::Waiting(row)) => {
                    if let Some(limit) = self.checker.limit_index(row.limit) {
                        let weight = required_slots(&self.snapshot().limits[limit], task);
                        tallies[limit].add_waiter(row, weight);
                    }
                    row.in_job_window
                }
                _ => false,
            };
            if let Some(job) = self.checker.limits_by_task[place][1] {
                tallies[job].in_window += u32::from(ahead);
            }
        }
        tallies
    }

    fn plan_unique_keys(&mut self) {
        for (key, _) in self.checker.stale_unique_keys() {
            self.steps.push(Repair::SetUniqueKeyOwner { key, task: None });
        }
        // Of two that carry a key one has it; nobody can tell which is meant.
        let keys = self.snapshot().unique_keys.iter();
        let carried = keys.filter(|(key, task)| self.checker.has_unique_key(*task, key));
        let carried: BTreeSet<&Arc<str>> = carried.map(|(key, _)| key).collect();
        let mut loose = self.checker.unrecorded_unique_keys();
        loose.retain(|(key, _)| !carried.contains(key));
        loose.sort_unstable();
        loose.dedup_by(|one, other| one.0 == other.0);
        for (key, task) in loose {
            self.steps.push(Repair::SetUniqueKeyOwner { key, task: Some(task) });
        }
    }

    fn plan_counters(&mut self) {
        let counters = self.checker.counters_in_use();
        if counters != self.snapshot().counters {
            self.steps.push(Repair::SetCounters { counters });
        }
        let Snapshot { last_task_id: last_task, highest_task_id: highest_task, .. } =
            *self.snapshot();
        if last_task < highest_task {
            self.steps.push(Repair::RaiseTaskIds { last_task: highest_task });
        }
    }
}
