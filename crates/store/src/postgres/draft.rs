//! The part of the store that one transaction has locked and loaded, as tables in memory.
//!
//! The rules run over it as they run over the reference. What they changed is written by
//! [`flush`](super::flush). Only limits whose lock this transaction holds are in it; of every
//! other limit the draft knows the name at most, and the gate leaves it alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::bounds::JOB_WINDOW;
use tidegate_core::tables::{
    Class, Counters, Final, Lane, Lease, LineRow, Pace, Position, ReadyRow, Said, Stopped, Tables,
    Tags,
};
use tidegate_core::{
    Attempt, Error, ErrorKind, Kind, LaneId, Ledger, Limit, LimitId, Millis, NewTask, Progress,
    Result, Scope, Share, Source, TaskId, Token, WorkerId, WorkerReport,
};

use super::groups::{Group, Groups};
pub(super) use super::left::Left;
use super::rows::{Known, Passed};
use crate::memory::state::{Running, Task};
use crate::memory::{State, workers};

/// Numbers from here on are stand-ins: ids, tokens and places that the server gives when the
/// draft is written. They are greater than every real one, as the real ones will be.
pub(super) const STAND_IN: i64 = 1 << 60;

/// Holds what is held by a task that is not in the draft.
const SOMEBODY: TaskId = TaskId(0);

/// See the module.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) state: State,
    pub(super) before: State,
    /// Tasks the gate may look at.
    pub(super) budget: u32,
    /// Leases to end if nothing runs under them any more.
    pub(super) ending_leases: Vec<Token>,
    /// What happened at limits since they were last locked.
    passes: Vec<(LimitId, Passed)>,
    /// The groups of the slots, as they were found.
    pub(super) groups: BTreeMap<LimitId, Groups>,
    /// Limits whose ready holders were locked and loaded, and whether these are all.
    pub(super) recalled: BTreeMap<LimitId, bool>,
    /// Lines of which only the first rows were loaded, and the last of these.
    cut: BTreeMap<(LimitId, Part), LineRow>,
}

/// The part of a line that is loaded as one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    InTurn,
    Seat,
    TooHeavy,
    NoWorker,
}

impl Part {
    fn of(class: Class) -> Self {
        match class {
            Class::Reserving | Class::Waiting => Self::InTurn,
            Class::Seat => Self::Seat,
            Class::TooHeavy => Self::TooHeavy,
            Class::NoWorker => Self::NoWorker,
        }
    }
}

/// Whether a job's line stands still because of its window, or would.
pub(super) fn fills_window(limit: &Limit) -> bool {
    limit.waiting > 0 && limit.is_window_full(JOB_WINDOW)
}

impl Draft {
    pub(super) fn new(now: Millis, virtual_time: i64, limits_version: i64, budget: u32) -> Self {
        let counters = Counters { token: STAND_IN, place: STAND_IN, virtual_time, limits_version };
        let state =
            State { now, counters, last_task: STAND_IN, last_limit: STAND_IN, ..State::default() };
        Self {
            before: State::default(),
            state,
            budget,
            ending_leases: Vec::new(),
            passes: Vec::new(),
            groups: BTreeMap::new(),
            recalled: BTreeMap::new(),
            cut: BTreeMap::new(),
        }
    }

    /// Ends the loading: what differs from now on is written.
    pub(super) fn seal(&mut self) {
        self.before = self.state.clone();
        for (id, passed) in std::mem::take(&mut self.passes) {
            if let Some(limit) = self.state.limits.get_mut(&id) {
                if let Some(share) = &mut limit.share {
                    let at = passed.started_at.unwrap_or_default();
                    (0..passed.tasks).for_each(|_| share.start(at));
                }
                let slots = self.state.slots.get_or_insert_with(id, Vec::new);
                for number in passed.freed {
                    let holder = slots.get_mut(number as usize).and_then(Option::take);
                    limit.held = limit.held.saturating_sub(u32::from(holder.is_some()));
                }
                limit.waiting = limit.waiting.saturating_sub(passed.taken);
                if passed.tasks > 0 || passed.urgent {
                    limit.disturb();
                }
            }
        }
    }

    pub(super) fn add_passed(&mut self, limit: LimitId, passed: Passed) {
        self.passes.push((limit, passed));
    }

    /// Whether slots may change hands without the lock of the limit: nobody is set aside who might
    /// come back, and no number is held that the capacity has not.
    pub(super) fn is_calm(&self, limit: &Limit) -> bool {
        let slots = self.state.slots.get(&limit.id);
        let last = slots.and_then(|slots| slots.iter().rposition(Option::is_some));
        let fits = |capacity: u32| {
            limit.held <= capacity && last.is_none_or(|last| last < capacity as usize)
        };
        limit.scope() == Scope::Group
            && limit.capacity.is_some_and(fits)
            && limit.reserver.is_none()
            && limit.aside == 0
            && !limit.dirty
    }

    /// Whether a task needs one slot of its group's limit and nothing else.
    pub(super) fn is_plain(&self, task: TaskId) -> bool {
        self.state.tasks.get(&task).is_some_and(|task| {
            let tags = &task.tags;
            tags.job.is_none() && tags.workflow.is_none() && tags.weight == 1
        })
    }

    pub(super) fn add_limit(&mut self, limit: Limit) {
        self.state.limit_names.insert(limit.name.clone(), limit.id);
        self.state.limits.insert(limit.id, limit);
    }

    /// Makes a limit's name known without its lock.
    fn add_name(&mut self, name: String, id: LimitId) {
        self.state.limit_names.get_or_insert_with(name.into(), || id);
    }

    /// A task, and the names of the limits that apply to it.
    pub(super) fn add_known(&mut self, known: Known) {
        for (name, id) in known.needs {
            self.add_name(name, id);
        }
        self.add_task(known.task);
    }

    pub(super) fn add_task(&mut self, task: Task) {
        self.state.tasks.get_or_insert_with(task.tags.task, || task);
    }

    pub(super) fn add_kind(&mut self, kind: Kind) {
        self.state.kinds.insert(kind.name.clone(), Arc::new(kind));
    }

    /// What a live worker says of a group.
    pub(super) fn add_registration(&mut self, group: &str, worker: WorkerId, brings: Option<u32>) {
        workers::see(&mut self.state, &worker, Millis::MAX, &[]);
        self.state.registrations.get_or_insert_with(group.into(), Vec::new).push((worker, brings));
    }

    pub(super) fn add_served(&mut self, lanes: Vec<LaneId>) {
        let unnamed = |id: LaneId| Lane { id, queue: "".into(), kind: "".into() };
        let lanes: Vec<Lane> = lanes.into_iter().map(unnamed).collect();
        let everybody = WorkerId("every worker".into());
        workers::see(&mut self.state, &everybody, Millis::MAX, &lanes);
    }

    /// Slots of a limit that are taken. Who holds them is known of tasks in the draft alone, which
    /// come before.
    pub(super) fn add_group(&mut self, limit: LimitId, number: u32, group: Group) {
        let slots = self.state.slots.get_or_insert_with(limit, Vec::new);
        for slot in group.taken.iter().map(|slot| *slot as usize) {
            if slots.len() <= slot {
                slots.resize(slot + 1, None);
            }
            slots[slot].get_or_insert(SOMEBODY);
        }
        if let Some(limit) = self.state.limits.get_mut(&limit) {
            limit.held += group.taken.len() as u32;
        }
        self.groups.entry(limit).or_default().insert(number, group);
    }

    /// A slot that a task in the draft holds.
    pub(super) fn add_held(&mut self, task: TaskId, limit: LimitId, number: u32) {
        let slots = self.state.slots.get_or_insert_with(limit, Vec::new);
        if slots.len() <= number as usize {
            slots.resize(number as usize + 1, None);
        }
        slots[number as usize] = Some(task);
        self.state.held.insert((task, limit, number));
    }

    /// The first rows of a line. `page` rows of one part mean that there may be more.
    pub(super) fn add_page(&mut self, rows: &[LineRow], page: usize) {
        let mut parts: BTreeMap<(LimitId, Part), BTreeSet<LineRow>> = BTreeMap::new();
        for row in rows {
            parts.entry((row.limit, Part::of(row.class))).or_default().insert(*row);
            self.state.line.insert(*row);
        }
        parts.retain(|_, rows| rows.len() >= page);
        let last = parts.into_iter().filter_map(|(part, rows)| Some((part, *rows.last()?)));
        self.cut.extend(last);
    }

    pub(super) fn stand(&mut self, task: TaskId, position: Position) {
        match position {
            Position::Scheduled(run_at) => drop(self.state.scheduled.insert((run_at, task))),
            Position::Arrived => drop(self.state.arrived.insert(task)),
            Position::Ready(row) => drop(self.state.ready.insert(row)),
            Position::Line(row) => drop(self.state.line.insert(row)),
            Position::Running(_) | Position::Final(_) => {}
        }
        if let Some(task) = self.state.tasks.get_mut(&task) {
            task.position = Some(position);
        }
    }

    pub(super) fn run(&mut self, task: TaskId, token: Token, running: Running) {
        self.state.running.insert((token, task), running);
        self.stand(task, Position::Running(token));
    }

    pub(super) fn add_lease(&mut self, lease: Lease) {
        self.state.expiries.insert((lease.expires_at, lease.token));
        self.state.leases.insert(lease.token, lease);
    }

    /// What became ready.
    pub(super) fn new_ready(&self) -> impl Iterator<Item = &ReadyRow> {
        self.state.ready.difference(&self.before.ready)
    }
}

impl Tables for Draft {
    fn now(&self) -> Millis {
        self.state.now
    }

    fn gate_budget(&self) -> u32 {
        self.budget
    }

    fn line_first(&mut self, limit: LimitId, from: Class, to: Class) -> Result<Option<LineRow>> {
        let first = self.state.line_first(limit, from, to)?;
        if let Some(last) = self.cut.get(&(limit, Part::of(from)))
            && first.is_none_or(|row| row > *last)
        {
            // The page is a row longer than the budget, so this is a fault of the store.
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!("the loaded part of the line of limit {limit} came to its end"),
            ));
        }
        Ok(first)
    }

    fn counters(&mut self) -> Result<Counters> {
        self.state.counters()
    }

    fn set_counters(&mut self, counters: Counters) -> Result<()> {
        self.state.set_counters(counters)
    }

    fn kind(&mut self, name: &str) -> Result<Option<Arc<Kind>>> {
        self.state.kind(name)
    }

    fn put_kind(&mut self, kind: &Kind, by_worker: bool) -> Result<()> {
        self.state.put_kind(kind, by_worker)
    }

    /// Kinds are forgotten by a statement of their own.
    fn forget_kinds(&mut self, _: Millis) -> Result<Vec<Arc<str>>> {
        Ok(Vec::new())
    }

    fn lane(&mut self, queue: &str, kind: &str) -> Result<LaneId> {
        self.state.lane(queue, kind)
    }

    fn lanes(&mut self, queues: &[Arc<str>], kinds: &[Arc<str>]) -> Result<Vec<Lane>> {
        self.state.lanes(queues, kinds)
    }

    /// Workers and their reports are noted by a statement of their own, before the transaction.
    fn see_worker(&mut self, _: &WorkerId, _: Millis, _: Option<&[Lane]>) -> Result<()> {
        Ok(())
    }

    fn put_heartbeat(&mut self, _: &WorkerId, _: Millis, _: Option<&WorkerReport>) -> Result<u32> {
        Ok(0)
    }

    fn is_served(&mut self, lane: LaneId) -> Result<bool> {
        self.state.is_served(lane)
    }

    fn is_paused(&mut self, queue: &str) -> Result<bool> {
        self.state.is_paused(queue)
    }

    fn set_paused(&mut self, queue: &str, paused: bool) -> Result<()> {
        self.state.set_paused(queue, paused)
    }

    fn forget_worker(&mut self, worker: &WorkerId) -> Result<()> {
        self.state.forget_worker(worker)
    }

    /// Dead workers are forgotten by a statement of their own.
    fn forget_workers(&mut self, _: Millis) -> Result<()> {
        Ok(())
    }

    /// What a worker says is written by a statement of its own; here it lives.
    fn put_registrations(&mut self, worker: &WorkerId, said: &Said<'_>) -> Result<()> {
        self.state.see_worker(worker, Millis::MAX, None)?;
        self.state.put_registrations(worker, said)
    }

    fn registrations(&mut self, group: &str) -> Result<Vec<(WorkerId, Option<u32>)>> {
        self.state.registrations(group)
    }

    fn registered_groups(&mut self) -> Result<Vec<Arc<str>>> {
        self.state.registered_groups()
    }

    fn limit(&mut self, id: LimitId) -> Result<Option<Limit>> {
        self.state.limit(id)
    }

    fn limit_named(&mut self, name: &str) -> Result<Option<LimitId>> {
        self.state.limit_named(name)
    }

    fn make_limit(
        &mut self,
        name: &str,
        capacity: Option<u32>,
        source: Source,
        since: i64,
        share: Option<Share>,
    ) -> Result<LimitId> {
        self.state.make_limit(name, capacity, source, since, share)
    }

    fn put_limit(&mut self, limit: &Limit) -> Result<()> {
        self.state.put_limit(limit)
    }

    fn next_dirty(&mut self, after: LimitId) -> Result<Option<LimitId>> {
        self.state.next_dirty(after)
    }

    fn idle_limits(&mut self, limits_max: u32) -> Result<Vec<LimitId>> {
        self.state.idle_limits(limits_max)
    }

    fn drop_limit(&mut self, id: LimitId) -> Result<()> {
        self.state.drop_limit(id)
    }

    fn take_slots(&mut self, task: TaskId, limit: LimitId, weight: u32) -> Result<()> {
        self.state.take_slots(task, limit, weight)
    }

    fn lowest_free_slot(&mut self, limit: LimitId) -> Result<u32> {
        self.state.lowest_free_slot(limit)
    }

    fn free_slots(&mut self, task: TaskId, limit: LimitId) -> Result<u32> {
        self.state.free_slots(task, limit)
    }

    fn ready_holders(&mut self, limit: LimitId, rows_max: u32) -> Result<(Vec<ReadyRow>, bool)> {
        let is_elsewhere = self.has_holders_elsewhere(limit);
        if is_elsewhere && !self.recalled.contains_key(&limit) {
            // Who goes back first is known where all are.
            return Ok((Vec::new(), false));
        }
        let (rows, is_all) = self.state.ready_holders(limit, rows_max)?;
        Ok((rows, is_all && !is_elsewhere))
    }

    fn holder(&mut self, limit: LimitId, number: u32) -> Result<Option<TaskId>> {
        self.state.holder(limit, number)
    }

    fn free_slot(&mut self, limit: LimitId, number: u32) -> Result<()> {
        self.state.free_slot(limit, number)
    }

    fn slots_of(&mut self, task: TaskId) -> Result<Vec<(LimitId, u32)>> {
        self.state.slots_of(task)
    }

    fn unique(&mut self, key: &str) -> Result<Option<TaskId>> {
        self.state.unique(key)
    }

    fn insert_task(&mut self, task: &NewTask, lane: LaneId) -> Result<TaskId> {
        self.state.insert_task(task, lane)
    }

    fn tags(&mut self, task: TaskId) -> Result<Option<Tags>> {
        self.state.tags(task)
    }

    fn put_ledger(&mut self, task: TaskId, ledger: Ledger, error: Option<&str>) -> Result<()> {
        self.state.put_ledger(task, ledger, error)
    }

    fn put_arrival(&mut self, task: TaskId, arrival: Millis) -> Result<()> {
        self.state.put_arrival(task, arrival)
    }

    fn set_last_task(&mut self, last: TaskId) -> Result<()> {
        self.state.set_last_task(last)
    }

    fn end_task(&mut self, task: TaskId, end: &Final) -> Result<()> {
        self.state.end_task(task, end)
    }

    fn revive_task(&mut self, task: TaskId) -> Result<bool> {
        self.state.revive_task(task)
    }

    fn put_key(&mut self, key: &str, task: Option<TaskId>) -> Result<()> {
        self.state.put_key(key, task)
    }

    fn remove_ended(&mut self, tasks_max: u32) -> Result<u32> {
        self.state.remove_ended(tasks_max)
    }

    fn position(&mut self, task: TaskId) -> Result<Option<Position>> {
        self.state.position(task)
    }

    fn put_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()> {
        self.state.put_scheduled(task, run_at)
    }

    fn take_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()> {
        self.state.take_scheduled(task, run_at)
    }

    fn take_due(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        self.state.take_due(tasks_max)
    }

    fn put_arrived(&mut self, task: TaskId) -> Result<()> {
        self.state.put_arrived(task)
    }

    fn take_arrived_one(&mut self, task: TaskId) -> Result<()> {
        self.state.take_arrived_one(task)
    }

    fn take_arrived(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        self.state.take_arrived(tasks_max)
    }

    fn arrived_jobs(&mut self, jobs_max: u32) -> Result<Vec<Arc<str>>> {
        self.state.arrived_jobs(jobs_max)
    }

    fn arrived_of(&mut self, job: &str, tasks_max: u32) -> Result<Vec<TaskId>> {
        self.state.arrived_of(job, tasks_max)
    }

    fn put_ready(&mut self, row: ReadyRow) -> Result<()> {
        self.state.put_ready(row)
    }

    fn take_ready(&mut self, row: ReadyRow) -> Result<()> {
        self.state.take_ready(row)
    }

    fn ready_page(
        &mut self,
        lane: LaneId,
        after: Option<ReadyRow>,
        rows_max: u32,
    ) -> Result<Vec<ReadyRow>> {
        self.state.ready_page(lane, after, rows_max)
    }

    fn ready_unserved(&mut self, before: Millis, rows_max: u32) -> Result<Vec<ReadyRow>> {
        self.state.ready_unserved(before, rows_max)
    }

    fn put_line(&mut self, row: LineRow) -> Result<()> {
        self.state.put_line(row)
    }

    fn take_line(&mut self, row: LineRow) -> Result<()> {
        self.state.take_line(row)
    }

    fn first_ahead(&mut self, job_limit: LimitId) -> Result<Option<Position>> {
        self.state.first_ahead(job_limit)
    }

    fn line_no_worker(&mut self, lanes: &[Lane], rows_max: u32) -> Result<Vec<LineRow>> {
        self.state.line_no_worker(lanes, rows_max)
    }

    fn start(&mut self, rows: &[ReadyRow], lease: &Lease) -> Result<Vec<Attempt>> {
        self.state.start(rows, lease)
    }

    fn stop(&mut self, task: TaskId, token: Token) -> Result<Option<Stopped>> {
        self.state.stop(task, token)
    }

    fn request_cancel(&mut self, task: TaskId, token: Token) -> Result<()> {
        self.state.request_cancel(task, token)
    }

    fn put_progress(&mut self, task: TaskId, token: Token, progress: &Progress) -> Result<()> {
        self.state.put_progress(task, token, progress)
    }

    fn cancel_requests(&mut self, tokens: &[Token]) -> Result<Vec<(TaskId, Token)>> {
        self.state.cancel_requests(tokens)
    }

    fn fence(&mut self, task: TaskId, token: Token) -> Result<()> {
        self.state.fence(task, token)
    }

    fn forget_fenced(&mut self) -> Result<()> {
        self.state.forget_fenced()
    }

    fn running_under(&mut self, token: Token) -> Result<Vec<TaskId>> {
        self.state.running_under(token)
    }

    fn running_in_group(&mut self, group: &str) -> Result<Vec<(TaskId, Token)>> {
        self.state.running_in_group(group)
    }

    fn set_gated(&mut self, task: TaskId, token: Token) -> Result<()> {
        self.state.set_gated(task, token)
    }

    fn pace(&mut self, group: &str) -> Result<Option<Pace>> {
        self.state.pace(group)
    }

    fn put_pace(&mut self, group: &str, pace: Pace) -> Result<()> {
        self.state.put_pace(group, pace)
    }

    fn forget_paces(&mut self, before: Millis) -> Result<()> {
        self.state.forget_paces(before)
    }

    fn renew_lease(&mut self, token: Token, worker: &WorkerId, expires_at: Millis) -> Result<bool> {
        self.state.renew_lease(token, worker, expires_at)
    }

    fn expired_leases(&mut self, at: Millis, worker: &WorkerId, max: u32) -> Result<Vec<Token>> {
        self.state.expired_leases(at, worker, max)
    }

    fn abandoned_leases(&mut self, at: Millis, max: u32) -> Result<Vec<Token>> {
        self.state.abandoned_leases(at, max)
    }

    /// What else runs under them was not loaded, so the server looks when the draft is written.
    fn end_leases(&mut self, tokens: &[Token]) -> Result<()> {
        self.ending_leases.extend(tokens);
        Ok(())
    }

    fn drop_lease(&mut self, token: Token) -> Result<()> {
        self.state.drop_lease(token)
    }
}
