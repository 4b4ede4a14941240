//! The invariants, as far as one committed state can show them. `doctor` runs them on a live
//! store, the testkit after every step; so they are worked out in one pass over each table.
//! What is broken is mended by a plan, see [`repair`].

pub mod repair;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::bounds::JOB_WINDOW;
use crate::inspect::{Snapshot, TaskRow};
use crate::tables::{Class, Counters, LineRow, Position};
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
    check_within(snapshot, JOB_WINDOW)
}

/// Checks one committed state of a store whose jobs have a window of this size.
pub fn check_within(snapshot: &Snapshot, job_window: u32) -> Vec<Violation> {
    let mut check = Check::new(snapshot, job_window);
    check.one_position_each();
    check.unique_keys();
    check.numbers();
    check.leases();
    check.slots();
    let tallies = check.tallies();
    check.counts(&tallies);
    check.lines(&tallies);
    check.reservers();
    check.keepers();
    check.workflows();
    check.store();
    check.found
}

/// Checks a state at rest: nothing may be left over.
pub fn check_at_rest(snapshot: &Snapshot) -> Vec<Violation> {
    check_at_rest_but(snapshot, |_| false)
}

/// As [`check_at_rest`], where unfinished tasks of some kinds may be left.
pub fn check_at_rest_but(snapshot: &Snapshot, may_stay: impl Fn(&str) -> bool) -> Vec<Violation> {
    let unfinished = snapshot.tasks.iter().filter(|task| !may_stay(&task.kind)).count();
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
    left("tasks are unfinished", unfinished);
    left("leases are held", snapshot.leases.len());
    left("limits have a line", snapshot.limits.iter().filter(|limit| limit.waiting > 0).count());
    found
}

struct Check<'a> {
    snapshot: &'a Snapshot,
    job_window: u32,
    /// The limits' places in the snapshot, by scope and by what they limit.
    names: Vec<(Scope, &'a str, usize)>,
    /// For every task the places of the limits that apply to it.
    applying: Vec<Applying>,
    /// How many slots each task holds of each limit, ascending.
    held: Vec<(TaskId, LimitId, u32)>,
    found: Vec<Violation>,
}

/// The places of a task's limits in the snapshot: group, job, workflow.
type Applying = [Option<usize>; 3];

/// What the evidence says of a limit.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    held: u32,
    waiting: u32,
    aside: u32,
    ahead: u32,
    head: Option<(LineRow, u32)>,
    /// Somebody holds a slot and has not begun, and how many do.
    ready: Option<TaskId>,
    ready_number: u32,
    /// Somebody waits to reserve.
    seat: Option<TaskId>,
    /// The lightest of those that are too heavy.
    too_heavy: Option<LineRow>,
}

impl<'a> Check<'a> {
    fn new(snapshot: &'a Snapshot, job_window: u32) -> Self {
        let name = |(place, limit): (usize, &'a Limit)| {
            let (_, of) = limit.name.split_once(':')?;
            Some((limit.scope(), of, place))
        };
        let mut names: Vec<_> = snapshot.limits.iter().enumerate().filter_map(name).collect();
        names.sort_unstable();
        let (applying, held, found) = (vec![], vec![], vec![]);
        let mut check = Self { snapshot, job_window, names, applying, held, found };
        check.applying = snapshot.tasks.iter().map(|task| check.applying_to(task)).collect();
        check.held = held_by_task(snapshot);
        check
    }

    /// What the store keeps for its own use.
    fn store(&mut self) {
        let violation = |fault: &String| Violation {
            rule: "what is kept for speed is right",
            found: fault.clone(),
        };
        self.found.extend(self.snapshot.faults.iter().map(violation));
    }

    fn applying_to(&self, task: &TaskRow) -> Applying {
        let group = task.group.as_ref().unwrap_or(&task.kind);
        [
            self.named(Scope::Group, group),
            task.job.as_ref().and_then(|job| self.named(Scope::Job, job)),
            task.workflow.as_ref().and_then(|workflow| self.named(Scope::Workflow, workflow)),
        ]
    }

    fn named(&self, scope: Scope, of: &str) -> Option<usize> {
        let at = self.names.binary_search_by(|(s, o, _)| (*s, *o).cmp(&(scope, of))).ok()?;
        Some(self.names[at].2)
    }

    fn limit_place(&self, id: LimitId) -> Option<usize> {
        self.snapshot.limits.binary_search_by_key(&id, |limit| limit.id).ok()
    }

    fn task_place(&self, id: TaskId) -> Option<usize> {
        self.snapshot.tasks.binary_search_by_key(&id, |task| task.id).ok()
    }

    fn units(&self, task: TaskId, limit: LimitId) -> u32 {
        let at = self.held.binary_search_by(|(t, l, _)| (*t, *l).cmp(&(task, limit)));
        at.map_or(0, |at| self.held[at].2)
    }

    fn fault(&mut self, rule: &'static str, found: String) {
        self.found.push(Violation { rule, found });
    }

    fn one_position_each(&mut self) {
        for task in &self.snapshot.tasks {
            let places: Vec<&str> = task.positions.iter().map(Position::place).collect();
            if task.is_orphan() {
                let (id, places) = (task.id, places[1..].join(" and "));
                let found = format!("task {id} stands {places}, and has ended or is not there");
                self.fault("what stands somewhere is an unfinished task", found);
            } else if places.len() != 1 {
                let places =
                    if places.is_empty() { "nowhere".into() } else { places.join(" and ") };
                self.fault(
                    "a task is in exactly one state",
                    format!("task {} stands {places}", task.id),
                );
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
        let rule = "a unique key is noted for the task that carries it";
        for (key, task) in self.stale_keys() {
            self.fault(rule, format!("{key:?} is noted for task {task}, which does not carry it"));
        }
        for (key, task) in self.loose_keys() {
            self.fault(rule, format!("{key:?} is carried by task {task} and not noted"));
        }
    }

    fn carries(&self, task: TaskId, key: &str) -> bool {
        let task = self.task_place(task).map(|place| &self.snapshot.tasks[place]);
        task.is_some_and(|task| task.unique_key.as_deref() == Some(key))
    }

    /// Keys that are noted for a task that has ended, or never had them.
    fn stale_keys(&self) -> Vec<(Arc<str>, TaskId)> {
        let keys = self.snapshot.keys.iter();
        keys.filter(|(key, task)| !self.carries(*task, key)).cloned().collect()
    }

    /// Keys of unfinished tasks that are not noted.
    fn loose_keys(&self) -> Vec<(Arc<str>, TaskId)> {
        let noted: BTreeSet<&(Arc<str>, TaskId)> = self.snapshot.keys.iter().collect();
        let carried = self.snapshot.tasks.iter();
        let carried = carried.filter_map(|task| Some((task.unique_key.clone()?, task.id)));
        carried.filter(|key| !noted.contains(key)).collect()
    }

    /// No token and no place in line can be given a second time.
    fn numbers(&mut self) {
        let (counters, used) = (self.snapshot.counters, self.numbers_used());
        let rule = "numbers are given once";
        if counters.token < used.token {
            let found = format!(
                "token {} is in use, and the last one given is {}",
                used.token, counters.token
            );
            self.fault(rule, found);
        }
        let Snapshot { last_task, highest_task, .. } = *self.snapshot;
        if last_task < highest_task {
            let found =
                format!("task {highest_task} is there, and the last id given is {last_task}");
            self.fault(rule, found);
        }
        if counters.place < used.place {
            let found = format!(
                "place {} is taken, and the last one given is {}",
                used.place, counters.place
            );
            self.fault(rule, found);
        }
    }

    /// The counters as the rows show them, where these are further.
    fn numbers_used(&self) -> Counters {
        let mut used = self.snapshot.counters;
        for lease in &self.snapshot.leases {
            used.token = used.token.max(lease.token.0);
        }
        for position in self.snapshot.tasks.iter().flat_map(|task| &task.positions) {
            match position {
                Position::Running(token) => used.token = used.token.max(token.0),
                Position::Line(row) => used.place = used.place.max(row.place),
                _ => {}
            }
        }
        used
    }

    /// A lease lasts exactly as long as something runs under it.
    fn leases(&mut self) {
        let leases = &self.snapshot.leases;
        let mut in_use = vec![false; leases.len()];
        for task in &self.snapshot.tasks {
            let Some(token) = task.positions.iter().find_map(Position::token) else { continue };
            match leases.binary_search_by_key(&token, |lease| lease.token) {
                Ok(place) => in_use[place] = true,
                Err(_) => {
                    let found = format!("task {} runs under token {token}, which is gone", task.id);
                    self.fault("what runs has a lease", found);
                }
            }
        }
        for (lease, _) in leases.iter().zip(in_use).filter(|(_, in_use)| !in_use) {
            let found = format!("nothing runs under token {} of {}", lease.token, lease.worker);
            self.fault("a lease ends with its last attempt", found);
        }
    }

    fn slots(&mut self) {
        for pair in self.snapshot.slots.windows(2) {
            if (pair[0].limit, pair[0].number) == (pair[1].limit, pair[1].number) {
                let found = format!("slot {} of {}", pair[0].number, self.name(pair[0].limit));
                self.fault("a slot has one holder", found);
            }
        }
        for (task, limit, units) in self.held.clone() {
            self.slot_has_reason(task, limit, units);
        }
        for place in 0..self.snapshot.tasks.len() {
            self.holds_what_it_needs(place);
        }
    }

    /// Attempt slots belong to tasks that are ready, running or reserving; lifetime slots to
    /// any unfinished task.
    fn slot_has_reason(&mut self, id: TaskId, limit_id: LimitId, units: u32) {
        let rule = "a slot is held by a task that may hold it";
        let places = (self.task_place(id), self.limit_place(limit_id));
        let (Some(task_place), Some(limit_place)) = places else {
            let name = self.name(limit_id);
            let found = match places.1 {
                Some(_) => format!("{units} of {name} by task {id}, which is not there"),
                None => format!("{units} of {name}, which is not there, by task {id}"),
            };
            return self.fault(rule, found);
        };
        if !self.applying[task_place].contains(&Some(limit_place)) {
            let name = self.name(limit_id);
            return self.fault(rule, format!("{units} of {name} by task {id}, which needs none"));
        }
        let task = &self.snapshot.tasks[task_place];
        let holds = match task.positions.first() {
            Some(Position::Ready(row)) => row.gated,
            Some(Position::Running(_)) => task.gated,
            Some(Position::Line(row)) => row.class == Class::Reserving,
            _ => false,
        };
        if !holds && self.snapshot.limits[limit_place].scope().hold() == Hold::Attempt {
            let name = self.name(limit_id);
            let found = format!("{units} of {name} by task {id}, which is not admitted");
            self.fault(rule, found);
        }
    }

    /// A task the gate let through holds what its limits ask for. A limit that began later
    /// adopts what runs and sends back what is ready.
    fn holds_what_it_needs(&mut self, place: usize) {
        let task = &self.snapshot.tasks[place];
        let stamp = match task.positions.first() {
            Some(Position::Ready(row)) => row.stamp,
            Some(Position::Running(_)) => i64::MAX,
            _ => return,
        };
        for limit in self.applying[place].into_iter().flatten() {
            let limit = &self.snapshot.limits[limit];
            let (weight, units) = (weight_at(limit, task), self.units(task.id, limit.id));
            if limit.since <= stamp && units != weight {
                let found =
                    format!("task {} needs {weight} of {} and holds {units}", task.id, limit.name);
                self.fault("what is admitted holds its slots", found);
            }
        }
    }

    /// What tasks and slots say of every limit.
    fn tallies(&self) -> Vec<Tally> {
        let mut tallies = vec![Tally::default(); self.snapshot.limits.len()];
        for slot in &self.snapshot.slots {
            if let Some(place) = self.limit_place(slot.limit) {
                tallies[place].held += 1;
            }
        }
        for (task, applying) in self.snapshot.tasks.iter().zip(&self.applying) {
            let ahead = match task.positions.first() {
                Some(Position::Ready(row)) => {
                    self.note_ready(task.id, applying, &mut tallies);
                    row.gated
                }
                Some(Position::Line(row)) => {
                    if let Some(place) = self.limit_place(row.limit) {
                        let weight = weight_at(&self.snapshot.limits[place], task);
                        tallies[place].wait(*row, weight);
                    }
                    row.passed
                }
                _ => false,
            };
            if let Some(job) = applying[1] {
                tallies[job].ahead += u32::from(ahead);
            }
        }
        tallies
    }

    fn note_ready(&self, task: TaskId, applying: &Applying, tallies: &mut [Tally]) {
        for place in applying.iter().flatten() {
            if self.units(task, self.snapshot.limits[*place].id) > 0 {
                tallies[*place].ready = Some(task);
                tallies[*place].ready_number += 1;
            }
        }
    }

    fn counts(&mut self, tallies: &[Tally]) {
        for (limit, tally) in self.snapshot.limits.iter().zip(tallies) {
            let evidence = (tally.held, tally.waiting, tally.aside);
            let counted = (limit.held, limit.waiting, limit.aside);
            if evidence != counted {
                let found = format!(
                    "{} counts {counted:?} held, waiting and set aside; there are {evidence:?}",
                    limit.name
                );
                self.fault("numbers kept for speed equal the evidence", found);
            }
            if let Some(share) = limit.share
                && share.ahead != tally.ahead
            {
                let found = format!(
                    "{} counts {} ahead; there are {}",
                    limit.name, share.ahead, tally.ahead
                );
                self.fault("numbers kept for speed equal the evidence", found);
            }
        }
    }

    /// No head of a line has room, unless somebody is about to look.
    fn lines(&mut self, tallies: &[Tally]) {
        for (limit, tally) in self.snapshot.limits.iter().zip(tallies) {
            self.line(limit, tally);
        }
        for (place, task) in self.snapshot.tasks.iter().enumerate() {
            let Some(Position::Line(row)) = task.positions.first() else { continue };
            let why = match self.limit_place(row.limit) {
                Some(limit) if self.applying[place].contains(&Some(limit)) => continue,
                Some(_) => "which does not apply to it",
                None => "which is not there: what it limited is unlimited until it is set again",
            };
            let found = format!("task {} waits for {}, {why}", task.id, self.name(row.limit));
            self.fault("a line belongs to a limit", found);
        }
    }

    fn line(&mut self, limit: &Limit, tally: &Tally) {
        if limit.is_due(self.snapshot.now) {
            return;
        }
        if let Some((head, weight)) = tally.head
            && limit.fits(weight)
            && (head.passed || self.may_pass(limit))
        {
            let of = limit.capacity.map_or_else(|| "any number".into(), |n| n.to_string());
            let found = format!(
                "task {} waits for {} ({} of {of} slots held)",
                head.task, limit.name, limit.held
            );
            self.fault("nobody waits beside a free slot", found);
        }
        if let Some(task) = tally.ready.filter(|_| limit.is_over()) {
            let found =
                format!("task {task} is ready, and {} are held of {}", limit.held, limit.name);
            self.fault("where too many slots are held, nobody is about to begin", found);
        }
        let most = limit.ready_max(self.snapshot.now);
        if let Some(most) = most.filter(|most| tally.ready_number > *most) {
            let found = format!("{} are ready of {}, not {most}", tally.ready_number, limit.name);
            self.fault("where a job has a delay, one is about to begin, in time", found);
        }
        self.set_aside(limit, tally);
    }

    /// Whether one more task may pass the line of a job.
    fn may_pass(&self, limit: &Limit) -> bool {
        let slots = &self.snapshot.slots;
        let first = slots.partition_point(|slot| slot.limit < limit.id);
        let held = slots[first..].iter().take_while(|slot| slot.limit == limit.id);
        let lowest_free = held.zip(0..).take_while(|(slot, number)| slot.number == *number).count();
        limit.may_pass(self.job_window, self.snapshot.now, lowest_free as u32)
    }

    /// Who is passed over has a reason to be, and who keeps slots for itself can get the rest.
    fn set_aside(&mut self, limit: &Limit, tally: &Tally) {
        if let Some((head, _)) = tally.head
            && head.class == Class::Reserving
            && limit.is_paused()
        {
            let found = format!("task {} keeps its slots while {} is", head.task, limit.name);
            self.fault("nobody reserves at a paused limit", found);
        }
        let rule = "nobody is passed over without a reason";
        if let Some(task) = tally.seat.filter(|_| limit.reserver.is_none()) {
            self.fault(rule, format!("task {task} may reserve at {}: nobody does", limit.name));
        }
        let fits =
            |row: &LineRow| limit.capacity.is_none_or(|capacity| row.rank <= capacity.into());
        if let Some(row) = tally.too_heavy.filter(fits) {
            let found = format!("task {} is not too heavy for {}", row.task, limit.name);
            self.fault(rule, found);
        }
    }

    /// A seat is held by somebody who reserves.
    fn reservers(&mut self) {
        for limit in &self.snapshot.limits {
            let Some(reserver) = limit.reserver else { continue };
            let task = self.task_place(reserver).map(|place| &self.snapshot.tasks[place]);
            let reserves = task.and_then(|task| task.positions.first()).is_some_and(
                |at| matches!(at, Position::Line(row) if row.class == Class::Reserving),
            );
            if !reserves {
                let found = format!("task {reserver} has the seat of {}", limit.name);
                self.fault("a seat is held by a task that reserves", found);
            }
        }
    }

    /// Who keeps slots while it collects the rest does not wait for its job's window: those in
    /// the window may wait for what it keeps, and nobody would ever move.
    fn keepers(&mut self) {
        for (place, task) in self.snapshot.tasks.iter().enumerate() {
            let Some(Position::Line(row)) = task.positions.first() else { continue };
            if row.class != Class::Reserving || row.passed {
                continue;
            }
            let Some(job) = self.applying[place][1].map(|job| &self.snapshot.limits[job]) else {
                continue;
            };
            let keeps = self.applying[place].iter().flatten().any(|limit| {
                let limit = &self.snapshot.limits[*limit];
                limit.scope().hold() == Hold::Attempt && self.units(task.id, limit.id) > 0
            });
            if keeps && !job.is_due(self.snapshot.now) && !self.may_pass(job) {
                let found = format!("task {} waits for the window of {}", task.id, job.name);
                self.fault("nobody keeps slots while it waits for a window", found);
            }
        }
    }

    /// Steps run one after another: a workflow that is under way has a limit, held by one of them.
    fn workflows(&mut self) {
        let rule = "the steps of a workflow run one after another";
        for name in self.missing_workflows() {
            self.fault(rule, format!("a step is admitted, and there is no limit {name}"));
        }
        for limit in self.snapshot.limits.iter().filter(|limit| limit.scope() == Scope::Workflow) {
            if limit.held > 1 && limit.held != u32::MAX {
                let found = format!("{} of {} are held at once", limit.held, limit.name);
                self.fault(rule, found);
            }
        }
    }

    /// Limits of workflows that a step got past and that are not there.
    fn missing_workflows(&self) -> BTreeSet<String> {
        let is_past = |task: &TaskRow| {
            let first = task.positions.first();
            matches!(first, Some(Position::Running(_) | Position::Ready(_)))
        };
        let tasks = self.snapshot.tasks.iter().zip(&self.applying);
        let lacking = tasks.filter(|(task, applying)| applying[2].is_none() && is_past(task));
        let names = lacking.filter_map(|(task, _)| task.workflow.as_deref());
        names.map(|name| Scope::Workflow.name(name)).collect()
    }

    fn name(&self, limit: LimitId) -> String {
        let place = self.limit_place(limit);
        place.map_or_else(
            || format!("limit {limit}"),
            |place| self.snapshot.limits[place].name.to_string(),
        )
    }
}

impl Tally {
    fn wait(&mut self, row: LineRow, weight: u32) {
        self.waiting += 1;
        self.aside += u32::from(!row.class.is_in_turn());
        if row.class.is_in_turn() && self.head.is_none_or(|(head, _)| row < head) {
            self.head = Some((row, weight));
        }
        match row.class {
            Class::Seat => self.seat = Some(row.task),
            Class::TooHeavy => {
                self.too_heavy = Some(self.too_heavy.map_or(row, |lightest| lightest.min(row)));
            }
            _ => {}
        }
    }
}

/// How many slots of a limit that applies to it a task takes.
fn weight_at(limit: &Limit, task: &TaskRow) -> u32 {
    if limit.scope() == Scope::Group { task.weight } else { 1 }
}

fn held_by_task(snapshot: &Snapshot) -> Vec<(TaskId, LimitId, u32)> {
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
