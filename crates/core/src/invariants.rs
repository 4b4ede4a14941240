//! The invariants, as far as one committed state can show them. `doctor` runs them on a live
//! store, the testkit after every step; so they are worked out in one pass over each table.
//! What is broken is mended by a plan, see [`repair`].

pub mod repair;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::bounds::JOB_WINDOW_SIZE;
use crate::reader::{Snapshot, SnapshotTask};
use crate::tables::{Counters, Position, WaitReason, WaiterRow};
use crate::{Limit, LimitId, LimitScope, SlotLifetime, TaskId};

/// One broken rule, in words.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Violation {
    /// Which rule.
    pub rule: &'static str,
    /// What was found.
    pub details: String,
}

/// Checks one committed state.
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    check_with_job_window(snapshot, JOB_WINDOW_SIZE)
}

/// Checks one committed state of a store whose jobs have a window of this size.
pub fn check_with_job_window(snapshot: &Snapshot, job_window: u32) -> Vec<Violation> {
    let mut check = Checker::new(snapshot, job_window);
    check.check_positions();
    check.check_unique_keys();
    check.check_counters();
    check.check_leases();
    check.check_slots();
    let tallies = check.collect_limit_tallies();
    check.check_limit_counts(&tallies);
    check.check_wait_queues(&tallies);
    check.check_reserving_tasks();
    check.check_reserving_tasks_can_proceed();
    check.check_workflows();
    check.check_store_faults();
    check.violations
}

/// Checks a state at rest: nothing may be left over.
pub fn check_idle_store(snapshot: &Snapshot) -> Vec<Violation> {
    check_idle_store_except(snapshot, |_| false)
}

/// As [`check_at_rest`], where unfinished tasks of some kinds may be left.
pub fn check_idle_store_except(
    snapshot: &Snapshot,
    may_remain: impl Fn(&str) -> bool,
) -> Vec<Violation> {
    let unfinished = snapshot.tasks.iter().filter(|task| !may_remain(&task.kind)).count();
    let mut found = check(snapshot);
    let mut left = |what: &str, number: usize| {
        if number > 0 {
            found.push(Violation {
                rule: "at rest nothing is left",
                details: format!("{number} {what}"),
            });
        }
    };
    left("slots are held", snapshot.slots.len());
    left("tasks are unfinished", unfinished);
    left("leases are held", snapshot.leases.len());
    left("limits have a line", snapshot.limits.iter().filter(|limit| limit.waiting > 0).count());
    found
}

struct Checker<'a> {
    snapshot: &'a Snapshot,
    job_window_size: u32,
    /// The limits' places in the snapshot, by scope and by what they limit.
    limits_by_name: Vec<(LimitScope, &'a str, usize)>,
    /// For every task the places of the limits that apply to it.
    limits_by_task: Vec<LimitIndexes>,
    /// How many slots each task holds of each limit, ascending.
    held_slots: Vec<(TaskId, LimitId, u32)>,
    violations: Vec<Violation>,
}

/// The places of a task's limits in the snapshot: group, job, workflow.
type LimitIndexes = [Option<usize>; 3];

/// What the evidence says of a limit.
#[derive(Debug, Clone, Copy, Default)]
struct LimitTally {
    held: u32,
    waiting: u32,
    skipped: u32,
    in_window: u32,
    first_waiter: Option<(WaiterRow, u32)>,
    /// Somebody holds a slot and has not begun, and how many do.
    ready_holder: Option<TaskId>,
    ready_holders: u32,
    /// Somebody waits to reserve.
    waiting_to_reserve: Option<TaskId>,
    /// The lightest of those that are too heavy.
    lightest_too_heavy: Option<WaiterRow>,
}

impl<'a> Checker<'a> {
    fn new(snapshot: &'a Snapshot, job_window: u32) -> Self {
        let name = |(place, limit): (usize, &'a Limit)| {
            let (_, of) = limit.name.split_once(':')?;
            Some((limit.scope(), of, place))
        };
        let mut names: Vec<_> = snapshot.limits.iter().enumerate().filter_map(name).collect();
        names.sort_unstable();
        let (applying, held, found) = (vec![], vec![], vec![]);
        let mut check = Self {
            snapshot,
            job_window_size: job_window,
            limits_by_name: names,
            limits_by_task: applying,
            held_slots: held,
            violations: found,
        };
        check.limits_by_task =
            snapshot.tasks.iter().map(|task| check.limits_of_task(task)).collect();
        check.held_slots = count_held_slots(snapshot);
        check
    }

    /// What the store keeps for its own use.
    fn check_store_faults(&mut self) {
        let violation = |fault: &String| Violation {
            rule: "what is kept for speed is right",
            details: fault.clone(),
        };
        self.violations.extend(self.snapshot.store_faults.iter().map(violation));
    }

    fn limits_of_task(&self, task: &SnapshotTask) -> LimitIndexes {
        let group = task.group.as_ref().unwrap_or(&task.kind);
        [
            self.limit_index_by_name(LimitScope::Group, group),
            task.job.as_ref().and_then(|job| self.limit_index_by_name(LimitScope::Job, job)),
            task.workflow
                .as_ref()
                .and_then(|workflow| self.limit_index_by_name(LimitScope::Workflow, workflow)),
        ]
    }

    fn limit_index_by_name(&self, scope: LimitScope, owner: &str) -> Option<usize> {
        let at =
            self.limits_by_name.binary_search_by(|(s, o, _)| (*s, *o).cmp(&(scope, owner))).ok()?;
        Some(self.limits_by_name[at].2)
    }

    fn limit_index(&self, id: LimitId) -> Option<usize> {
        self.snapshot.limits.binary_search_by_key(&id, |limit| limit.id).ok()
    }

    fn task_index(&self, id: TaskId) -> Option<usize> {
        self.snapshot.tasks.binary_search_by_key(&id, |task| task.id).ok()
    }

    fn held_slot_count(&self, task: TaskId, limit: LimitId) -> u32 {
        let at = self.held_slots.binary_search_by(|(t, l, _)| (*t, *l).cmp(&(task, limit)));
        at.map_or(0, |at| self.held_slots[at].2)
    }

    fn add_violation(&mut self, rule: &'static str, found: String) {
        self.violations.push(Violation { rule, details: found });
    }

    fn check_positions(&mut self) {
        for task in &self.snapshot.tasks {
            let places: Vec<&str> = task.positions.iter().map(Position::describe).collect();
            if task.is_orphan() {
                let (id, places) = (task.id, places[1..].join(" and "));
                let found = format!("task {id} stands {places}, and has ended or is not there");
                self.add_violation("what stands somewhere is an unfinished task", found);
            } else if places.len() != 1 {
                let places =
                    if places.is_empty() { "nowhere".into() } else { places.join(" and ") };
                self.add_violation(
                    "a task is in exactly one state",
                    format!("task {} stands {places}", task.id),
                );
            }
        }
    }

    fn check_unique_keys(&mut self) {
        let mut seen = BTreeSet::new();
        for task in &self.snapshot.tasks {
            if let Some(key) = &task.unique_key
                && !seen.insert(key)
            {
                let found = format!("{key:?} is carried by task {} and another", task.id);
                self.add_violation("a unique key has one unfinished task", found);
            }
        }
        let rule = "a unique key is noted for the task that carries it";
        for (key, task) in self.stale_unique_keys() {
            self.add_violation(
                rule,
                format!("{key:?} is noted for task {task}, which does not carry it"),
            );
        }
        for (key, task) in self.unrecorded_unique_keys() {
            self.add_violation(rule, format!("{key:?} is carried by task {task} and not noted"));
        }
    }

    fn has_unique_key(&self, task: TaskId, key: &str) -> bool {
        let task = self.task_index(task).map(|place| &self.snapshot.tasks[place]);
        task.is_some_and(|task| task.unique_key.as_deref() == Some(key))
    }

    /// Keys that are noted for a task that has ended, or never had them.
    fn stale_unique_keys(&self) -> Vec<(Arc<str>, TaskId)> {
        let keys = self.snapshot.unique_keys.iter();
        keys.filter(|(key, task)| !self.has_unique_key(*task, key)).cloned().collect()
    }

    /// Keys of unfinished tasks that are not noted.
    fn unrecorded_unique_keys(&self) -> Vec<(Arc<str>, TaskId)> {
        let noted: BTreeSet<&(Arc<str>, TaskId)> = self.snapshot.unique_keys.iter().collect();
        let carried = self.snapshot.tasks.iter();
        let carried = carried.filter_map(|task| Some((task.unique_key.clone()?, task.id)));
        carried.filter(|key| !noted.contains(key)).collect()
    }

    /// No token and no place in line can be given a second time.
    fn check_counters(&mut self) {
        let (counters, used) = (self.snapshot.counters, self.counters_in_use());
        let rule = "numbers are given once";
        if counters.last_token < used.last_token {
            let found = format!(
                "token {} is in use, and the last one given is {}",
                used.last_token, counters.last_token
            );
            self.add_violation(rule, found);
        }
        let Snapshot { last_task_id: last_task, highest_task_id: highest_task, .. } =
            *self.snapshot;
        if last_task < highest_task {
            let found =
                format!("task {highest_task} is there, and the last id given is {last_task}");
            self.add_violation(rule, found);
        }
        if counters.last_admission_seq < used.last_admission_seq {
            let found = format!(
                "place {} is taken, and the last one given is {}",
                used.last_admission_seq, counters.last_admission_seq
            );
            self.add_violation(rule, found);
        }
    }

    /// The counters as the rows show them, where these are further.
    fn counters_in_use(&self) -> Counters {
        let mut used = self.snapshot.counters;
        for lease in &self.snapshot.leases {
            used.last_token = used.last_token.max(lease.token.0);
        }
        for position in self.snapshot.tasks.iter().flat_map(|task| &task.positions) {
            match position {
                Position::Running(token) => used.last_token = used.last_token.max(token.0),
                Position::Waiting(row) => {
                    used.last_admission_seq = used.last_admission_seq.max(row.admission_seq)
                }
                _ => {}
            }
        }
        used
    }

    /// A lease lasts exactly as long as something runs under it.
    fn check_leases(&mut self) {
        let leases = &self.snapshot.leases;
        let mut in_use = vec![false; leases.len()];
        for task in &self.snapshot.tasks {
            let Some(token) = task.positions.iter().find_map(Position::running_token) else {
                continue;
            };
            match leases.binary_search_by_key(&token, |lease| lease.token) {
                Ok(place) => in_use[place] = true,
                Err(_) => {
                    let found = format!("task {} runs under token {token}, which is gone", task.id);
                    self.add_violation("what runs has a lease", found);
                }
            }
        }
        for (lease, _) in leases.iter().zip(in_use).filter(|(_, in_use)| !in_use) {
            let found = format!("nothing runs under token {} of {}", lease.token, lease.worker);
            self.add_violation("a lease ends with its last attempt", found);
        }
    }

    fn check_slots(&mut self) {
        for pair in self.snapshot.slots.windows(2) {
            if (pair[0].limit, pair[0].number) == (pair[1].limit, pair[1].number) {
                let found =
                    format!("slot {} of {}", pair[0].number, self.limit_name(pair[0].limit));
                self.add_violation("a slot has one holder", found);
            }
        }
        for (task, limit, units) in self.held_slots.clone() {
            self.check_slot_holder(task, limit, units);
        }
        for place in 0..self.snapshot.tasks.len() {
            self.check_required_slots(place);
        }
    }

    /// Attempt slots belong to tasks that are ready, running or reserving; lifetime slots to
    /// any unfinished task.
    fn check_slot_holder(&mut self, id: TaskId, limit_id: LimitId, units: u32) {
        let rule = "a slot is held by a task that may hold it";
        let places = (self.task_index(id), self.limit_index(limit_id));
        let (Some(task_place), Some(limit_place)) = places else {
            let name = self.limit_name(limit_id);
            let found = match places.1 {
                Some(_) => format!("{units} of {name} by task {id}, which is not there"),
                None => format!("{units} of {name}, which is not there, by task {id}"),
            };
            return self.add_violation(rule, found);
        };
        if !self.limits_by_task[task_place].contains(&Some(limit_place)) {
            let name = self.limit_name(limit_id);
            return self
                .add_violation(rule, format!("{units} of {name} by task {id}, which needs none"));
        }
        let task = &self.snapshot.tasks[task_place];
        let holds = match task.positions.first() {
            Some(Position::Ready(row)) => row.holds_slots,
            Some(Position::Running(_)) => task.holds_slots,
            Some(Position::Waiting(row)) => row.wait_reason == WaitReason::Reserving,
            _ => false,
        };
        if !holds
            && self.snapshot.limits[limit_place].scope().slot_lifetime() == SlotLifetime::Attempt
        {
            let name = self.limit_name(limit_id);
            let found = format!("{units} of {name} by task {id}, which is not admitted");
            self.add_violation(rule, found);
        }
    }

    /// A task the gate let through holds what its limits ask for. A limit that began later
    /// adopts what runs and sends back what is ready.
    fn check_required_slots(&mut self, place: usize) {
        let task = &self.snapshot.tasks[place];
        let stamp = match task.positions.first() {
            Some(Position::Ready(row)) => row.limits_version,
            Some(Position::Running(_)) => i64::MAX,
            _ => return,
        };
        for limit in self.limits_by_task[place].into_iter().flatten() {
            let limit = &self.snapshot.limits[limit];
            let (weight, units) =
                (required_slots(limit, task), self.held_slot_count(task.id, limit.id));
            if limit.applies_from_version <= stamp && units != weight {
                let found =
                    format!("task {} needs {weight} of {} and holds {units}", task.id, limit.name);
                self.add_violation("what is admitted holds its slots", found);
            }
        }
    }

    /// What tasks and slots say of every limit.
    fn collect_limit_tallies(&self) -> Vec<LimitTally> {
        let mut tallies = vec![LimitTally::default(); self.snapshot.limits.len()];
        for slot in &self.snapshot.slots {
            if let Some(place) = self.limit_index(slot.limit) {
                tallies[place].held += 1;
            }
        }
        for (task, applying) in self.snapshot.tasks.iter().zip(&self.limits_by_task) {
            let ahead = match task.positions.first() {
                Some(Position::Ready(row)) => {
                    self.count_ready_holder(task.id, applying, &mut tallies);
                    row.holds_slots
                }
                Some(Position::Waiting(row)) => {
                    if let Some(place) = self.limit_index(row.limit) {
                        let weight = required_slots(&self.snapshot.limits[place], task);
                        tallies[place].add_waiter(*row, weight);
                    }
                    row.in_job_window
                }
                _ => false,
            };
            if let Some(job) = applying[1] {
                tallies[job].in_window += u32::from(ahead);
            }
        }
        tallies
    }

    fn count_ready_holder(
        &self,
        task: TaskId,
        applying: &LimitIndexes,
        tallies: &mut [LimitTally],
    ) {
        for place in applying.iter().flatten() {
            if self.held_slot_count(task, self.snapshot.limits[*place].id) > 0 {
                tallies[*place].ready_holder = Some(task);
                tallies[*place].ready_holders += 1;
            }
        }
    }

    fn check_limit_counts(&mut self, tallies: &[LimitTally]) {
        for (limit, tally) in self.snapshot.limits.iter().zip(tallies) {
            let evidence = (tally.held, tally.waiting, tally.skipped);
            let counted = (limit.held, limit.waiting, limit.skipped);
            if evidence != counted {
                let found = format!(
                    "{} counts {counted:?} held, waiting and set aside; there are {evidence:?}",
                    limit.name
                );
                self.add_violation("numbers kept for speed equal the evidence", found);
            }
            if let Some(share) = limit.fair_share
                && share.in_window != tally.in_window
            {
                let found = format!(
                    "{} counts {} ahead; there are {}",
                    limit.name, share.in_window, tally.in_window
                );
                self.add_violation("numbers kept for speed equal the evidence", found);
            }
        }
    }

    /// No head of a line has room, unless somebody is about to look.
    fn check_wait_queues(&mut self, tallies: &[LimitTally]) {
        for (limit, tally) in self.snapshot.limits.iter().zip(tallies) {
            self.check_wait_queue(limit, tally);
        }
        for (place, task) in self.snapshot.tasks.iter().enumerate() {
            let Some(Position::Waiting(row)) = task.positions.first() else { continue };
            let why = match self.limit_index(row.limit) {
                Some(limit) if self.limits_by_task[place].contains(&Some(limit)) => continue,
                Some(_) => "which does not apply to it",
                None => "which is not there: what it limited is unlimited until it is set again",
            };
            let found = format!("task {} waits for {}, {why}", task.id, self.limit_name(row.limit));
            self.add_violation("a line belongs to a limit", found);
        }
    }

    fn check_wait_queue(&mut self, limit: &Limit, tally: &LimitTally) {
        if limit.needs_recheck(self.snapshot.now) {
            return;
        }
        if let Some((head, weight)) = tally.first_waiter
            && limit.has_free_slots(weight)
            && (head.in_job_window || self.may_enter_window(limit))
        {
            let of = limit.capacity.map_or_else(|| "any number".into(), |n| n.to_string());
            let found = format!(
                "task {} waits for {} ({} of {of} slots held)",
                head.task, limit.name, limit.held
            );
            self.add_violation("nobody waits beside a free slot", found);
        }
        if let Some(task) = tally.ready_holder.filter(|_| limit.is_over_capacity()) {
            let found =
                format!("task {task} is ready, and {} are held of {}", limit.held, limit.name);
            self.add_violation("where too many slots are held, nobody is about to begin", found);
        }
        let most = limit.ready_tasks_max(self.snapshot.now);
        if let Some(most) = most.filter(|most| tally.ready_holders > *most) {
            let found = format!("{} are ready of {}, not {most}", tally.ready_holders, limit.name);
            self.add_violation("where a job has a delay, one is about to begin, in time", found);
        }
        self.check_skipped_waiters(limit, tally);
    }

    /// Whether one more task may pass the line of a job.
    fn may_enter_window(&self, limit: &Limit) -> bool {
        let slots = &self.snapshot.slots;
        let first = slots.partition_point(|slot| slot.limit < limit.id);
        let held = slots[first..].iter().take_while(|slot| slot.limit == limit.id);
        let lowest_free = held.zip(0..).take_while(|(slot, number)| slot.number == *number).count();
        limit.may_enter_window(self.job_window_size, self.snapshot.now, lowest_free as u32)
    }

    /// Who is passed over has a reason to be, and who keeps slots for itself can get the rest.
    fn check_skipped_waiters(&mut self, limit: &Limit, tally: &LimitTally) {
        if let Some((head, _)) = tally.first_waiter
            && head.wait_reason == WaitReason::Reserving
            && limit.is_paused()
        {
            let found = format!("task {} keeps its slots while {} is", head.task, limit.name);
            self.add_violation("nobody reserves at a paused limit", found);
        }
        let rule = "nobody is passed over without a reason";
        if let Some(task) = tally.waiting_to_reserve.filter(|_| limit.reserving_task.is_none()) {
            self.add_violation(
                rule,
                format!("task {task} may reserve at {}: nobody does", limit.name),
            );
        }
        let fits =
            |row: &WaiterRow| limit.capacity.is_none_or(|capacity| row.rank <= capacity.into());
        if let Some(row) = tally.lightest_too_heavy.filter(fits) {
            let found = format!("task {} is not too heavy for {}", row.task, limit.name);
            self.add_violation(rule, found);
        }
    }

    /// A seat is held by somebody who reserves.
    fn check_reserving_tasks(&mut self) {
        for limit in &self.snapshot.limits {
            let Some(reserver) = limit.reserving_task else { continue };
            let task = self.task_index(reserver).map(|place| &self.snapshot.tasks[place]);
            let reserves = task.and_then(|task| task.positions.first()).is_some_and(
                |at| matches!(at, Position::Waiting(row) if row.wait_reason == WaitReason::Reserving),
            );
            if !reserves {
                let found = format!("task {reserver} has the seat of {}", limit.name);
                self.add_violation("a seat is held by a task that reserves", found);
            }
        }
    }

    /// Who keeps slots while it collects the rest does not wait for its job's window: those in
    /// the window may wait for what it keeps, and nobody would ever move.
    fn check_reserving_tasks_can_proceed(&mut self) {
        for (place, task) in self.snapshot.tasks.iter().enumerate() {
            let Some(Position::Waiting(row)) = task.positions.first() else { continue };
            if row.wait_reason != WaitReason::Reserving || row.in_job_window {
                continue;
            }
            let Some(job) = self.limits_by_task[place][1].map(|job| &self.snapshot.limits[job])
            else {
                continue;
            };
            let keeps = self.limits_by_task[place].iter().flatten().any(|limit| {
                let limit = &self.snapshot.limits[*limit];
                limit.scope().slot_lifetime() == SlotLifetime::Attempt
                    && self.held_slot_count(task.id, limit.id) > 0
            });
            if keeps && !job.needs_recheck(self.snapshot.now) && !self.may_enter_window(job) {
                let found = format!("task {} waits for the window of {}", task.id, job.name);
                self.add_violation("nobody keeps slots while it waits for a window", found);
            }
        }
    }

    /// Steps run one after another: a workflow that is under way has a limit, held by one of them.
    fn check_workflows(&mut self) {
        let rule = "the steps of a workflow run one after another";
        for name in self.missing_workflow_limits() {
            self.add_violation(rule, format!("a step is admitted, and there is no limit {name}"));
        }
        for limit in
            self.snapshot.limits.iter().filter(|limit| limit.scope() == LimitScope::Workflow)
        {
            if limit.held > 1 && limit.held != u32::MAX {
                let found = format!("{} of {} are held at once", limit.held, limit.name);
                self.add_violation(rule, found);
            }
        }
    }

    /// Limits of workflows that a step got past and that are not there.
    fn missing_workflow_limits(&self) -> BTreeSet<String> {
        let is_past = |task: &SnapshotTask| {
            let first = task.positions.first();
            matches!(first, Some(Position::Running(_) | Position::Ready(_)))
        };
        let tasks = self.snapshot.tasks.iter().zip(&self.limits_by_task);
        let lacking = tasks.filter(|(task, applying)| applying[2].is_none() && is_past(task));
        let names = lacking.filter_map(|(task, _)| task.workflow.as_deref());
        names.map(|name| LimitScope::Workflow.limit_name(name)).collect()
    }

    fn limit_name(&self, limit: LimitId) -> String {
        let place = self.limit_index(limit);
        place.map_or_else(
            || format!("limit {limit}"),
            |place| self.snapshot.limits[place].name.to_string(),
        )
    }
}

impl LimitTally {
    fn add_waiter(&mut self, row: WaiterRow, weight: u32) {
        self.waiting += 1;
        self.skipped += u32::from(!row.wait_reason.may_be_first());
        if row.wait_reason.may_be_first() && self.first_waiter.is_none_or(|(head, _)| row < head) {
            self.first_waiter = Some((row, weight));
        }
        match row.wait_reason {
            WaitReason::WaitingToReserve => self.waiting_to_reserve = Some(row.task),
            WaitReason::TooHeavy => {
                self.lightest_too_heavy =
                    Some(self.lightest_too_heavy.map_or(row, |lightest| lightest.min(row)));
            }
            _ => {}
        }
    }
}

/// How many slots of a limit that applies to it a task takes.
fn required_slots(limit: &Limit, task: &SnapshotTask) -> u32 {
    if limit.scope() == LimitScope::Group { task.weight } else { 1 }
}

fn count_held_slots(snapshot: &Snapshot) -> Vec<(TaskId, LimitId, u32)> {
    let mut slots: Vec<(TaskId, LimitId)> =
        snapshot.slots.iter().map(|slot| (slot.task, slot.limit)).collect();
    slots.sort_unstable();
    let mut held: Vec<(TaskId, LimitId, u32)> = Vec::with_capacity(slots.len());
    for (task, limit) in slots {
        match held.last_mut() {
            Some((t, l, units)) if (*t, *l) == (task, limit) => *units += 1,
            _ => held.push((task, limit, 1)),
        }
    }
    held
}
