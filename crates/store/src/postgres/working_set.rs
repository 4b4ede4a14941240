//! The part of the store that one transaction has locked and loaded, as tables in memory.
//!
//! The rules run over it as they run over the reference. What they changed is written by
//! [`flush`](super::flush). Only limits whose lock this transaction holds are in it; of every
//! other limit the draft knows the name at most, and the gate leaves it alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::bounds::JOB_WINDOW_SIZE;
use tidegate_core::tables::{
    Counters, FinishedTask, GroupCapacities, Lane, Lease, Position, ReadyRow, RemovedAttempt,
    RunTimeStats, Tables, TaskInfo, WaitReason, WaiterRow,
};
use tidegate_core::{
    Attempt, AttemptCounts, CapacitySource, Error, ErrorKind, FairShare, Kind, LaneId, Limit,
    LimitId, LimitScope, Millis, NewTask, Progress, Result, TaskId, Token, WorkerId, WorkerReport,
};

pub(super) use super::follow_up::FollowUp;
use super::rows::{LimitDelta, TaskWithLimits};
use super::slot_groups::{SlotGroup, SlotGroups};
use crate::memory::working_state::{RunningAttempt, StoredTask};
use crate::memory::{WorkingState, workers};

/// Numbers from here on are stand-ins: ids, tokens and places that the server gives when the
/// draft is written. They are greater than every real one, as the real ones will be.
pub(super) const PLACEHOLDER_ID_MIN: i64 = 1 << 60;

/// Holds what is held by a task that is not in the draft.
const UNLOADED_HOLDER: TaskId = TaskId(0);

/// See the module.
#[derive(Debug)]
pub(super) struct WorkingSet {
    pub(super) state: WorkingState,
    pub(super) before: WorkingState,
    /// Tasks the gate may look at.
    pub(super) admission_budget: u32,
    /// Leases to end if nothing runs under them any more.
    pub(super) ending_leases: Vec<Token>,
    /// What happened at limits since they were last locked.
    limit_deltas: Vec<(LimitId, LimitDelta)>,
    /// The groups of the slots, as they were found.
    pub(super) slot_groups: BTreeMap<LimitId, SlotGroups>,
    /// Limits whose ready holders were locked and loaded, and whether these are all.
    pub(super) ready_holders_loaded: BTreeMap<LimitId, bool>,
    /// Lines of which only the first rows were loaded, and the last of these.
    page_ends: BTreeMap<(LimitId, WaitQueuePart), WaiterRow>,
}

/// The part of a line that is loaded as one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WaitQueuePart {
    InTurn,
    WaitingToReserve,
    TooHeavy,
    NoWorker,
}

impl WaitQueuePart {
    fn from_reason(reason: WaitReason) -> Self {
        match reason {
            WaitReason::Reserving | WaitReason::Queued => Self::InTurn,
            WaitReason::WaitingToReserve => Self::WaitingToReserve,
            WaitReason::TooHeavy => Self::TooHeavy,
            WaitReason::NoWorker => Self::NoWorker,
        }
    }
}

/// Whether a job's line stands still because of its window, or would.
pub(super) fn is_blocked_by_window(limit: &Limit) -> bool {
    limit.waiting > 0 && limit.is_window_full(JOB_WINDOW_SIZE)
}

impl WorkingSet {
    pub(super) fn new(
        now: Millis,
        virtual_time: i64,
        limits_version: i64,
        admission_budget: u32,
    ) -> Self {
        let counters = Counters {
            last_token: PLACEHOLDER_ID_MIN,
            last_admission_seq: PLACEHOLDER_ID_MIN,
            virtual_time,
            limits_version,
        };
        let state = WorkingState {
            now,
            counters,
            last_task_id: PLACEHOLDER_ID_MIN,
            last_limit_id: PLACEHOLDER_ID_MIN,
            ..WorkingState::default()
        };
        Self {
            before: WorkingState::default(),
            state,
            admission_budget,
            ending_leases: Vec::new(),
            limit_deltas: Vec::new(),
            slot_groups: BTreeMap::new(),
            ready_holders_loaded: BTreeMap::new(),
            page_ends: BTreeMap::new(),
        }
    }

    /// Ends the loading: what differs from now on is written.
    pub(super) fn finish_loading(&mut self) {
        self.before = self.state.clone();
        for (id, passed) in std::mem::take(&mut self.limit_deltas) {
            if let Some(limit) = self.state.limits.get_mut(&id) {
                if let Some(share) = &mut limit.fair_share {
                    let at = passed.started_at.unwrap_or_default();
                    (0..passed.claimed_tasks).for_each(|_| share.record_claim(at));
                }
                let slots = self.state.slot_holders.get_or_insert_with(id, Vec::new);
                for number in passed.freed_slots {
                    let holder = slots.get_mut(number as usize).and_then(Option::take);
                    limit.held = limit.held.saturating_sub(u32::from(holder.is_some()));
                }
                limit.waiting = limit.waiting.saturating_sub(passed.dequeued);
                if passed.claimed_tasks > 0 || passed.needs_drain {
                    limit.mark_dirty_if_waiting();
                }
            }
        }
    }

    pub(super) fn add_limit_delta(&mut self, limit: LimitId, delta: LimitDelta) {
        self.limit_deltas.push((limit, delta));
    }

    /// Whether slots may change hands without the lock of the limit: nobody is set aside who might
    /// come back, and no number is held that the capacity has not.
    pub(super) fn allows_hand_off(&self, limit: &Limit) -> bool {
        let slots = self.state.slot_holders.get(&limit.id);
        let last = slots.and_then(|slots| slots.iter().rposition(Option::is_some));
        let fits = |capacity: u32| {
            limit.held <= capacity && last.is_none_or(|last| last < capacity as usize)
        };
        limit.scope() == LimitScope::Group
            && limit.capacity.is_some_and(fits)
            && limit.reserving_task.is_none()
            && limit.skipped == 0
            && !limit.dirty
    }

    /// Whether a task needs one slot of its group's limit and nothing else.
    pub(super) fn needs_single_slot_only(&self, task: TaskId) -> bool {
        self.state.tasks.get(&task).is_some_and(|task| {
            let tags = &task.info;
            tags.job.is_none() && tags.workflow.is_none() && tags.weight == 1
        })
    }

    pub(super) fn add_limit(&mut self, limit: Limit) {
        self.state.limit_ids_by_name.insert(limit.name.clone(), limit.id);
        self.state.limits.insert(limit.id, limit);
    }

    /// Makes a limit's name known without its lock.
    fn add_limit_name(&mut self, name: String, id: LimitId) {
        self.state.limit_ids_by_name.get_or_insert_with(name.into(), || id);
    }

    /// A task, and the names of the limits that apply to it.
    pub(super) fn add_task_with_limits(&mut self, task: TaskWithLimits) {
        for (name, id) in task.required_limits {
            self.add_limit_name(name, id);
        }
        self.add_task(task.task);
    }

    pub(super) fn add_task(&mut self, task: StoredTask) {
        self.state.tasks.get_or_insert_with(task.info.task, || task);
    }

    pub(super) fn add_kind(&mut self, kind: Kind) {
        self.state.kinds.insert(kind.name.clone(), Arc::new(kind));
    }

    /// What a live worker says of a group.
    pub(super) fn add_registration(
        &mut self,
        group: &str,
        worker: WorkerId,
        capacity: Option<u32>,
    ) {
        workers::record_worker(&mut self.state, &worker, Millis::MAX, &[]);
        self.state
            .registrations
            .get_or_insert_with(group.into(), Vec::new)
            .push((worker, capacity));
    }

    pub(super) fn add_served_lanes(&mut self, lanes: Vec<LaneId>) {
        let unnamed = |id: LaneId| Lane { id, queue: "".into(), kind: "".into() };
        let lanes: Vec<Lane> = lanes.into_iter().map(unnamed).collect();
        let everybody = WorkerId("every worker".into());
        workers::record_worker(&mut self.state, &everybody, Millis::MAX, &lanes);
    }

    /// Slots of a limit that are taken. Who holds them is known of tasks in the draft alone, which
    /// come before.
    pub(super) fn add_slot_group(&mut self, limit: LimitId, number: u32, group: SlotGroup) {
        let slots = self.state.slot_holders.get_or_insert_with(limit, Vec::new);
        for slot in group.taken.iter().map(|slot| *slot as usize) {
            if slots.len() <= slot {
                slots.resize(slot + 1, None);
            }
            slots[slot].get_or_insert(UNLOADED_HOLDER);
        }
        if let Some(limit) = self.state.limits.get_mut(&limit) {
            limit.held += group.taken.len() as u32;
        }
        self.slot_groups.entry(limit).or_default().insert(number, group);
    }

    /// A slot that a task in the draft holds.
    pub(super) fn add_held_slot(&mut self, task: TaskId, limit: LimitId, number: u32) {
        let slots = self.state.slot_holders.get_or_insert_with(limit, Vec::new);
        if slots.len() <= number as usize {
            slots.resize(number as usize + 1, None);
        }
        slots[number as usize] = Some(task);
        self.state.held_slots.insert((task, limit, number));
    }

    /// The first rows of a line. `page` rows of one part mean that there may be more.
    pub(super) fn add_wait_queue_page(&mut self, rows: &[WaiterRow], page: usize) {
        let mut parts: BTreeMap<(LimitId, WaitQueuePart), BTreeSet<WaiterRow>> = BTreeMap::new();
        for row in rows {
            parts
                .entry((row.limit, WaitQueuePart::from_reason(row.wait_reason)))
                .or_default()
                .insert(*row);
            self.state.waiters.insert(*row);
        }
        parts.retain(|_, rows| rows.len() >= page);
        let last = parts.into_iter().filter_map(|(part, rows)| Some((part, *rows.last()?)));
        self.page_ends.extend(last);
    }

    pub(super) fn set_position(&mut self, task: TaskId, position: Position) {
        match position {
            Position::Scheduled(run_at) => drop(self.state.scheduled.insert((run_at, task))),
            Position::Inbox => drop(self.state.inbox.insert(task)),
            Position::Ready(row) => drop(self.state.ready.insert(row)),
            Position::Waiting(row) => drop(self.state.waiters.insert(row)),
            Position::Running(_) | Position::Finished(_) => {}
        }
        if let Some(task) = self.state.tasks.get_mut(&task) {
            task.position = Some(position);
        }
    }

    pub(super) fn set_running(&mut self, task: TaskId, token: Token, running: RunningAttempt) {
        self.state.running.insert((token, task), running);
        self.set_position(task, Position::Running(token));
    }

    pub(super) fn add_lease(&mut self, lease: Lease) {
        self.state.lease_expiries.insert((lease.expires_at, lease.token));
        self.state.leases.insert(lease.token, lease);
    }

    /// What became ready.
    pub(super) fn newly_ready_rows(&self) -> impl Iterator<Item = &ReadyRow> {
        self.state.ready.difference(&self.before.ready)
    }
}

impl Tables for WorkingSet {
    fn now(&self) -> Millis {
        self.state.now
    }

    fn admission_budget(&self) -> u32 {
        self.admission_budget
    }

    fn first_waiter(
        &mut self,
        limit: LimitId,
        first_reason: WaitReason,
        last_reason: WaitReason,
    ) -> Result<Option<WaiterRow>> {
        let first = self.state.first_waiter(limit, first_reason, last_reason)?;
        if let Some(last) = self.page_ends.get(&(limit, WaitQueuePart::from_reason(first_reason)))
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
    fn delete_unused_kinds(&mut self, _: Millis) -> Result<Vec<Arc<str>>> {
        Ok(Vec::new())
    }

    fn get_or_create_lane(&mut self, queue: &str, kind: &str) -> Result<LaneId> {
        self.state.get_or_create_lane(queue, kind)
    }

    fn existing_lanes(&mut self, queues: &[Arc<str>], kinds: &[Arc<str>]) -> Result<Vec<Lane>> {
        self.state.existing_lanes(queues, kinds)
    }

    /// Workers and their reports are noted by a statement of their own, before the transaction.
    fn record_live_worker(&mut self, _: &WorkerId, _: Millis, _: Option<&[Lane]>) -> Result<()> {
        Ok(())
    }

    fn record_heartbeat(
        &mut self,
        _: &WorkerId,
        _: Millis,
        _: Option<&WorkerReport>,
    ) -> Result<u32> {
        Ok(0)
    }

    fn is_lane_served(&mut self, lane: LaneId) -> Result<bool> {
        self.state.is_lane_served(lane)
    }

    fn is_queue_paused(&mut self, queue: &str) -> Result<bool> {
        self.state.is_queue_paused(queue)
    }

    fn set_queue_paused(&mut self, queue: &str, paused: bool) -> Result<()> {
        self.state.set_queue_paused(queue, paused)
    }

    fn delete_worker(&mut self, worker: &WorkerId) -> Result<()> {
        self.state.delete_worker(worker)
    }

    /// Dead workers are forgotten by a statement of their own.
    fn delete_dead_workers(&mut self, _: Millis) -> Result<()> {
        Ok(())
    }

    /// What a worker says is written by a statement of its own; here it lives.
    fn put_registrations(&mut self, worker: &WorkerId, groups: &GroupCapacities<'_>) -> Result<()> {
        self.state.record_live_worker(worker, Millis::MAX, None)?;
        self.state.put_registrations(worker, groups)
    }

    fn registrations(&mut self, group: &str) -> Result<Vec<(WorkerId, Option<u32>)>> {
        self.state.registrations(group)
    }

    fn registered_groups(&mut self) -> Result<Vec<Arc<str>>> {
        self.state.registered_groups()
    }

    fn locked_limit(&mut self, id: LimitId) -> Result<Option<Limit>> {
        self.state.locked_limit(id)
    }

    fn limit_id(&mut self, name: &str) -> Result<Option<LimitId>> {
        self.state.limit_id(name)
    }

    fn insert_limit(
        &mut self,
        name: &str,
        capacity: Option<u32>,
        source: CapacitySource,
        since: i64,
        share: Option<FairShare>,
    ) -> Result<LimitId> {
        self.state.insert_limit(name, capacity, source, since, share)
    }

    fn put_limit(&mut self, limit: &Limit) -> Result<()> {
        self.state.put_limit(limit)
    }

    fn next_limit_to_recheck(&mut self, after: LimitId) -> Result<Option<LimitId>> {
        self.state.next_limit_to_recheck(after)
    }

    fn unused_limits(&mut self, limits_max: u32) -> Result<Vec<LimitId>> {
        self.state.unused_limits(limits_max)
    }

    fn delete_limit(&mut self, id: LimitId) -> Result<()> {
        self.state.delete_limit(id)
    }

    fn acquire_slots(&mut self, task: TaskId, limit: LimitId, weight: u32) -> Result<()> {
        self.state.acquire_slots(task, limit, weight)
    }

    fn lowest_free_slot(&mut self, limit: LimitId) -> Result<u32> {
        self.state.lowest_free_slot(limit)
    }

    fn free_slots(&mut self, task: TaskId, limit: LimitId) -> Result<u32> {
        self.state.free_slots(task, limit)
    }

    fn ready_slot_holders(
        &mut self,
        limit: LimitId,
        rows_max: u32,
    ) -> Result<(Vec<ReadyRow>, bool)> {
        let is_elsewhere = self.has_unloaded_ready_holders(limit);
        if is_elsewhere && !self.ready_holders_loaded.contains_key(&limit) {
            // Who goes back first is known where all are.
            return Ok((Vec::new(), false));
        }
        let (rows, is_all) = self.state.ready_slot_holders(limit, rows_max)?;
        Ok((rows, is_all && !is_elsewhere))
    }

    fn slot_holder(&mut self, limit: LimitId, number: u32) -> Result<Option<TaskId>> {
        self.state.slot_holder(limit, number)
    }

    fn free_slot(&mut self, limit: LimitId, number: u32) -> Result<()> {
        self.state.free_slot(limit, number)
    }

    fn held_slot_counts(&mut self, task: TaskId) -> Result<Vec<(LimitId, u32)>> {
        self.state.held_slot_counts(task)
    }

    fn unique_key_owner(&mut self, key: &str) -> Result<Option<TaskId>> {
        self.state.unique_key_owner(key)
    }

    fn insert_task(&mut self, task: &NewTask, lane: LaneId) -> Result<TaskId> {
        self.state.insert_task(task, lane)
    }

    fn task_info(&mut self, task: TaskId) -> Result<Option<TaskInfo>> {
        self.state.task_info(task)
    }

    fn put_attempt_counts(
        &mut self,
        task: TaskId,
        counts: AttemptCounts,
        error: Option<&str>,
    ) -> Result<()> {
        self.state.put_attempt_counts(task, counts, error)
    }

    fn set_due_at(&mut self, task: TaskId, due_at: Millis) -> Result<()> {
        self.state.set_due_at(task, due_at)
    }

    fn set_last_task_id(&mut self, last: TaskId) -> Result<()> {
        self.state.set_last_task_id(last)
    }

    fn finish_task(&mut self, task: TaskId, end: &FinishedTask) -> Result<()> {
        self.state.finish_task(task, end)
    }

    fn restart_finished_task(&mut self, task: TaskId) -> Result<bool> {
        self.state.restart_finished_task(task)
    }

    fn set_unique_key_owner(&mut self, key: &str, task: Option<TaskId>) -> Result<()> {
        self.state.set_unique_key_owner(key, task)
    }

    fn delete_expired_tasks(&mut self, tasks_max: u32) -> Result<u32> {
        self.state.delete_expired_tasks(tasks_max)
    }

    fn position(&mut self, task: TaskId) -> Result<Option<Position>> {
        self.state.position(task)
    }

    fn put_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()> {
        self.state.put_scheduled(task, run_at)
    }

    fn remove_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()> {
        self.state.remove_scheduled(task, run_at)
    }

    fn take_due(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        self.state.take_due(tasks_max)
    }

    fn put_inbox(&mut self, task: TaskId) -> Result<()> {
        self.state.put_inbox(task)
    }

    fn remove_inbox(&mut self, task: TaskId) -> Result<()> {
        self.state.remove_inbox(task)
    }

    fn take_inbox(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        self.state.take_inbox(tasks_max)
    }

    fn inbox_jobs(&mut self, jobs_max: u32) -> Result<Vec<Arc<str>>> {
        self.state.inbox_jobs(jobs_max)
    }

    fn inbox_tasks_of_job(&mut self, job: &str, tasks_max: u32) -> Result<Vec<TaskId>> {
        self.state.inbox_tasks_of_job(job, tasks_max)
    }

    fn put_ready(&mut self, row: ReadyRow) -> Result<()> {
        self.state.put_ready(row)
    }

    fn remove_ready(&mut self, row: ReadyRow) -> Result<()> {
        self.state.remove_ready(row)
    }

    fn ready_page(
        &mut self,
        lane: LaneId,
        after: Option<ReadyRow>,
        rows_max: u32,
    ) -> Result<Vec<ReadyRow>> {
        self.state.ready_page(lane, after, rows_max)
    }

    fn unserved_ready_tasks(&mut self, before: Millis, rows_max: u32) -> Result<Vec<ReadyRow>> {
        self.state.unserved_ready_tasks(before, rows_max)
    }

    fn put_waiter(&mut self, row: WaiterRow) -> Result<()> {
        self.state.put_waiter(row)
    }

    fn remove_waiter(&mut self, row: WaiterRow) -> Result<()> {
        self.state.remove_waiter(row)
    }

    fn first_unguaranteed_in_window(&mut self, job_limit: LimitId) -> Result<Option<Position>> {
        self.state.first_unguaranteed_in_window(job_limit)
    }

    fn waiters_without_worker(&mut self, lanes: &[Lane], rows_max: u32) -> Result<Vec<WaiterRow>> {
        self.state.waiters_without_worker(lanes, rows_max)
    }

    fn start_attempts(&mut self, rows: &[ReadyRow], lease: &Lease) -> Result<Vec<Attempt>> {
        self.state.start_attempts(rows, lease)
    }

    fn remove_running(&mut self, task: TaskId, token: Token) -> Result<Option<RemovedAttempt>> {
        self.state.remove_running(task, token)
    }

    fn request_cancel(&mut self, task: TaskId, token: Token) -> Result<()> {
        self.state.request_cancel(task, token)
    }

    fn put_progress(&mut self, task: TaskId, token: Token, progress: &Progress) -> Result<()> {
        self.state.put_progress(task, token, progress)
    }

    fn attempts_to_stop(&mut self, tokens: &[Token]) -> Result<Vec<(TaskId, Token)>> {
        self.state.attempts_to_stop(tokens)
    }

    fn insert_fenced_attempt(&mut self, task: TaskId, token: Token) -> Result<()> {
        self.state.insert_fenced_attempt(task, token)
    }

    fn delete_obsolete_fenced_attempts(&mut self) -> Result<()> {
        self.state.delete_obsolete_fenced_attempts()
    }

    fn running_tasks_of_lease(&mut self, token: Token) -> Result<Vec<TaskId>> {
        self.state.running_tasks_of_lease(token)
    }

    fn running_tasks_of_group(&mut self, group: &str) -> Result<Vec<(TaskId, Token)>> {
        self.state.running_tasks_of_group(group)
    }

    fn set_holds_slots(&mut self, task: TaskId, token: Token) -> Result<()> {
        self.state.set_holds_slots(task, token)
    }

    fn run_time_stats(&mut self, group: &str) -> Result<Option<RunTimeStats>> {
        self.state.run_time_stats(group)
    }

    fn put_run_time_stats(&mut self, group: &str, stats: RunTimeStats) -> Result<()> {
        self.state.put_run_time_stats(group, stats)
    }

    fn delete_run_time_stats(&mut self, before: Millis) -> Result<()> {
        self.state.delete_run_time_stats(before)
    }

    fn renew_lease(&mut self, token: Token, worker: &WorkerId, expires_at: Millis) -> Result<bool> {
        self.state.renew_lease(token, worker, expires_at)
    }

    fn expired_leases_of_worker(
        &mut self,
        at: Millis,
        worker: &WorkerId,
        max: u32,
    ) -> Result<Vec<Token>> {
        self.state.expired_leases_of_worker(at, worker, max)
    }

    fn abandoned_leases(&mut self, at: Millis, max: u32) -> Result<Vec<Token>> {
        self.state.abandoned_leases(at, max)
    }

    /// What else runs under them was not loaded, so the server looks when the draft is written.
    fn delete_empty_leases(&mut self, tokens: &[Token]) -> Result<()> {
        self.ending_leases.extend(tokens);
        Ok(())
    }

    fn delete_lease(&mut self, token: Token) -> Result<()> {
        self.state.delete_lease(token)
    }
}
