//! The rows inside one transaction. Each place a task can stand in has a file of its own below.

mod limits;
mod positions;
mod ready;
mod registrations;
mod running;
mod tasks;
mod waiters;
mod workers;

use std::sync::Arc;

use rusqlite::{Row, params};
use tidegate_core::tables::{
    Counters, FinishedTask, GroupCapacities, Lane, Lease, Position, ReadyRow, RemovedAttempt,
    RunTimeStats, Tables, TaskInfo, WaitReason, WaiterRow,
};
use tidegate_core::{
    Attempt, AttemptCounts, CapacitySource, FairShare, Kind, LaneId, Limit, LimitId, Millis,
    NewTask, Progress, Result, TaskId, Token, WorkerId, WorkerReport,
};

use super::row_cache::{CountersRow, RowCache};
use super::schema::SchemaStatus;
use super::statements::{Query, Statements};

pub(super) use limits::read_limit_row;
pub(super) use ready::read_ready_row;
pub(super) use running::slot_with_limit_name;
pub(super) use waiters::read_waiter_row;
pub(super) use workers::{load_lanes, load_paused_queues, read_kind_row};

/// One transaction, or one command inside a transaction of several.
pub(super) struct Transaction<'t, 'c> {
    pub(super) now: Millis,
    pub(super) statements: &'t mut Statements<'c>,
    pub(super) cache: &'t mut RowCache,
    /// The task that was just inserted, with the key its ready row would have.
    pub(super) last_inserted: Option<(TaskId, i64, i64)>,
    /// Attempts that are stopped and whose rows are yet to be removed: those of a whole lease go
    /// with one statement.
    pub(super) unwritten_stops: Vec<(Token, TaskId)>,
    /// Tasks that are yet to be removed: neighbours go with one statement.
    pub(super) unwritten_removals: Vec<TaskId>,
    /// Whether something may have become claimable.
    pub(super) has_new_work: bool,
    /// What the file's schema was found to be.
    pub(super) schema_status: SchemaStatus,
}

impl<'t, 'c> Transaction<'t, 'c> {
    pub(super) fn new(
        statements: &'t mut Statements<'c>,
        cache: &'t mut RowCache,
        now: Millis,
    ) -> Self {
        Self {
            now,
            statements,
            cache,
            last_inserted: None,
            unwritten_stops: Vec::new(),
            unwritten_removals: Vec::new(),
            has_new_work: false,
            schema_status: SchemaStatus::Missing,
        }
    }

    /// Writes what was only remembered.
    pub(super) fn write_pending_rows(&mut self) -> Result<()> {
        running::delete_stopped_attempts(self)?;
        tasks::delete_removed_tasks(self)?;
        limits::write_changed_limits(self)?;
        if self.has_new_work {
            let (meta, changed) = self.load_counters_row()?;
            meta.notifications += 1;
            *changed = true;
        }
        if let Some((meta, changed @ true)) = &mut self.cache.counters_row {
            let CountersRow {
                last_task_id: last_task,
                last_limit_id: last_limit,
                counters,
                notifications: news,
            } = *meta;
            let Counters {
                last_token: token,
                last_admission_seq: place,
                virtual_time,
                limits_version,
            } = counters;
            let row =
                params![last_task, last_limit, token, place, virtual_time, limits_version, news];
            self.statements.execute(Query::UpdateCounters, row)?;
            *changed = false;
        }
        Ok(())
    }

    /// The last id that was given to a task.
    pub(super) fn last_task_id(&mut self) -> Result<TaskId> {
        Ok(TaskId(self.load_counters_row()?.0.last_task_id))
    }

    fn load_counters_row(&mut self) -> Result<&mut (CountersRow, bool)> {
        match &mut self.cache.counters_row {
            Some(meta) => Ok(meta),
            empty => {
                let read = |row: &rusqlite::Row<'_>| {
                    let (last_task, last_limit) = (row.get(0)?, row.get(1)?);
                    let counters = Counters {
                        last_token: row.get(2)?,
                        last_admission_seq: row.get(3)?,
                        virtual_time: row.get(4)?,
                        limits_version: row.get(5)?,
                    };
                    Ok(CountersRow {
                        last_task_id: last_task,
                        last_limit_id: last_limit,
                        counters,
                        notifications: row.get(6)?,
                    })
                };
                let meta = self.statements.query_first(Query::Counters, [], read)?;
                let meta = meta
                    .ok_or_else(|| super::error::unknown_value_error("row of numbers", "none"))?;
                Ok(empty.insert((meta, false)))
            }
        }
    }
}

impl Tables for Transaction<'_, '_> {
    fn now(&self) -> Millis {
        self.now
    }

    fn notify_workers_on_commit(&mut self) {
        self.has_new_work = true;
    }

    fn counters(&mut self) -> Result<Counters> {
        Ok(self.load_counters_row()?.0.counters)
    }

    fn set_counters(&mut self, counters: Counters) -> Result<()> {
        let (meta, changed) = self.load_counters_row()?;
        *changed |= meta.counters != counters;
        meta.counters = counters;
        Ok(())
    }

    fn kind(&mut self, name: &str) -> Result<Option<Arc<Kind>>> {
        workers::find_kind(self, name)
    }

    fn put_kind(&mut self, kind: &Kind, by_worker: bool) -> Result<()> {
        workers::put_kind(self, kind, by_worker)
    }

    fn delete_unused_kinds(&mut self, before: Millis) -> Result<Vec<Arc<str>>> {
        registrations::delete_unused_kinds(self, before)
    }

    fn get_or_create_lane(&mut self, queue: &str, kind: &str) -> Result<LaneId> {
        workers::find_or_create_lane(self, queue, kind)
    }

    fn existing_lanes(&mut self, queues: &[Arc<str>], kinds: &[Arc<str>]) -> Result<Vec<Lane>> {
        Ok(workers::load_lanes(self)?.find_lanes(queues, kinds))
    }

    fn record_live_worker(
        &mut self,
        worker: &WorkerId,
        alive_until: Millis,
        lanes: Option<&[Lane]>,
    ) -> Result<()> {
        workers::record_worker(self, worker, alive_until, lanes)
    }

    fn record_heartbeat(
        &mut self,
        worker: &WorkerId,
        lease_ms: Millis,
        report: Option<&WorkerReport>,
    ) -> Result<u32> {
        workers::record_heartbeat(self, worker, lease_ms, report)
    }

    fn is_lane_served(&mut self, lane: LaneId) -> Result<bool> {
        workers::is_lane_served(self, lane)
    }

    fn is_queue_paused(&mut self, queue: &str) -> Result<bool> {
        Ok(workers::load_paused_queues(self)?.contains_key(queue))
    }

    fn set_queue_paused(&mut self, queue: &str, paused: bool) -> Result<()> {
        workers::set_queue_paused(self, queue, paused)
    }

    fn delete_worker(&mut self, worker: &WorkerId) -> Result<()> {
        workers::delete_worker(self, worker)
    }

    fn delete_dead_workers(&mut self, before: Millis) -> Result<()> {
        workers::delete_dead_workers(self, before)
    }

    fn put_registrations(
        &mut self,
        worker: &WorkerId,
        capacities: &GroupCapacities<'_>,
    ) -> Result<()> {
        registrations::replace_registrations(self, worker, capacities)
    }

    fn registrations(&mut self, group: &str) -> Result<Vec<(WorkerId, Option<u32>)>> {
        registrations::live_registrations(self, group)
    }

    fn registered_groups(&mut self) -> Result<Vec<Arc<str>>> {
        registrations::live_registered_groups(self)
    }

    fn locked_limit(&mut self, id: LimitId) -> Result<Option<Limit>> {
        limits::find_limit(self, id)
    }

    fn limit_id(&mut self, name: &str) -> Result<Option<LimitId>> {
        limits::find_limit_id(self, name)
    }

    fn insert_limit(
        &mut self,
        name: &str,
        capacity: Option<u32>,
        source: CapacitySource,
        applies_from_version: i64,
        share: Option<FairShare>,
    ) -> Result<LimitId> {
        limits::create_limit(self, name, capacity, source, applies_from_version, share)
    }

    fn put_limit(&mut self, limit: &Limit) -> Result<()> {
        limits::put_limit(self, limit)
    }

    fn next_limit_to_recheck(&mut self, after: LimitId) -> Result<Option<LimitId>> {
        limits::next_limit_to_recheck(self, after)
    }

    fn unused_limits(&mut self, limits_max: u32) -> Result<Vec<LimitId>> {
        limits::idle_limits(self, limits_max)
    }

    fn delete_limit(&mut self, id: LimitId) -> Result<()> {
        limits::delete_limit(self, id)
    }

    fn acquire_slots(&mut self, task: TaskId, limit: LimitId, weight: u32) -> Result<()> {
        limits::take_slots(self, task, limit, weight)
    }

    fn lowest_free_slot(&mut self, limit: LimitId) -> Result<u32> {
        limits::lowest_free_slot(self, limit)
    }

    fn free_slots(&mut self, task: TaskId, limit: LimitId) -> Result<u32> {
        limits::free_slots(self, task, limit)
    }

    fn ready_slot_holders(
        &mut self,
        limit: LimitId,
        rows_max: u32,
    ) -> Result<(Vec<ReadyRow>, bool)> {
        ready::ready_holders_of_limit(self, limit, rows_max)
    }

    fn slot_holder(&mut self, limit: LimitId, number: u32) -> Result<Option<TaskId>> {
        limits::slot_holder(self, limit, number)
    }

    fn free_slot(&mut self, limit: LimitId, number: u32) -> Result<()> {
        limits::free_slot(self, limit, number)
    }

    fn held_slot_counts(&mut self, task: TaskId) -> Result<Vec<(LimitId, u32)>> {
        limits::slot_counts_of_task(self, task)
    }

    fn unique_key_owner(&mut self, key: &str) -> Result<Option<TaskId>> {
        tasks::find_task_by_unique_key(self, key)
    }

    fn insert_task(&mut self, task: &NewTask, lane: LaneId) -> Result<TaskId> {
        tasks::insert_task(self, task, lane)
    }

    fn task_info(&mut self, task: TaskId) -> Result<Option<TaskInfo>> {
        tasks::find_task_info(self, task)
    }

    fn put_attempt_counts(
        &mut self,
        task: TaskId,
        counts: AttemptCounts,
        error: Option<&str>,
    ) -> Result<()> {
        tasks::set_attempt_counts(self, task, counts, error)
    }

    fn set_due_at(&mut self, task: TaskId, due_at: Millis) -> Result<()> {
        tasks::set_due_at(self, task, due_at)
    }

    fn set_last_task_id(&mut self, last: TaskId) -> Result<()> {
        let (meta, changed) = self.load_counters_row()?;
        meta.last_task_id = last.0;
        *changed = true;
        Ok(())
    }

    fn finish_task(&mut self, task: TaskId, finished: &FinishedTask) -> Result<()> {
        tasks::finish_task(self, task, finished)
    }

    fn restart_finished_task(&mut self, task: TaskId) -> Result<bool> {
        tasks::revive_task(self, task)
    }

    /// The unique index is the note.
    fn set_unique_key_owner(&mut self, _: &str, _: Option<TaskId>) -> Result<()> {
        Ok(())
    }

    fn delete_expired_tasks(&mut self, tasks_max: u32) -> Result<u32> {
        tasks::delete_expired_tasks(self, tasks_max)
    }

    fn position(&mut self, task: TaskId) -> Result<Option<Position>> {
        positions::find_position(self, task)
    }

    fn put_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()> {
        positions::put_scheduled(self, task, run_at)
    }

    fn remove_scheduled(&mut self, task: TaskId, _run_at: Millis) -> Result<()> {
        self.statements.execute(Query::DeleteScheduled, [task.0]).map(drop)
    }

    fn take_due(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        positions::take_due_tasks(self, tasks_max)
    }

    fn put_inbox(&mut self, task: TaskId) -> Result<()> {
        self.has_new_work = true;
        self.cache.is_inbox_empty = false;
        self.statements.execute(Query::PutInbox, [task.0]).map(drop)
    }

    fn remove_inbox(&mut self, task: TaskId) -> Result<()> {
        self.statements.execute(Query::DeleteInbox, [task.0]).map(drop)
    }

    fn take_inbox(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        positions::take_inbox(self, tasks_max)
    }

    fn inbox_jobs(&mut self, jobs_max: u32) -> Result<Vec<Arc<str>>> {
        self.statements.query_rows(Query::JobsInInbox, [jobs_max], |row| row.get(0))
    }

    fn inbox_tasks_of_job(&mut self, job: &str, tasks_max: u32) -> Result<Vec<TaskId>> {
        let task = |row: &Row<'_>| Ok(TaskId(row.get(0)?));
        self.statements.query_rows(Query::InboxOfJob, params![job, tasks_max], task)
    }

    fn put_ready(&mut self, row: ReadyRow) -> Result<()> {
        ready::insert_ready(self, row)
    }

    fn remove_ready(&mut self, row: ReadyRow) -> Result<()> {
        ready::delete_ready(self, row)
    }

    fn ready_page(
        &mut self,
        lane: LaneId,
        after: Option<ReadyRow>,
        rows_max: u32,
    ) -> Result<Vec<ReadyRow>> {
        ready::ready_page(self, lane, after, rows_max)
    }

    fn unserved_ready_tasks(&mut self, before: Millis, rows_max: u32) -> Result<Vec<ReadyRow>> {
        ready::ready_in_unserved_lanes(self, before, rows_max)
    }

    fn put_waiter(&mut self, row: WaiterRow) -> Result<()> {
        waiters::insert_waiter(self, row)
    }

    fn remove_waiter(&mut self, row: WaiterRow) -> Result<()> {
        waiters::delete_waiter(self, row)
    }

    fn first_waiter(
        &mut self,
        limit: LimitId,
        from: WaitReason,
        to: WaitReason,
    ) -> Result<Option<WaiterRow>> {
        let span = [limit.0, from as i64, to as i64];
        self.statements.query_first(Query::FirstWaiter, span, read_waiter_row)
    }

    fn first_unguaranteed_in_window(&mut self, job_limit: LimitId) -> Result<Option<Position>> {
        positions::first_in_window(self, job_limit)
    }

    fn waiters_without_worker(&mut self, lanes: &[Lane], rows_max: u32) -> Result<Vec<WaiterRow>> {
        waiters::waiters_without_worker(self, lanes, rows_max)
    }

    fn start_attempts(&mut self, rows: &[ReadyRow], lease: &Lease) -> Result<Vec<Attempt>> {
        running::start_attempts(self, rows, lease)
    }

    fn remove_running(&mut self, task: TaskId, token: Token) -> Result<Option<RemovedAttempt>> {
        running::stop_attempt(self, task, token)
    }

    fn request_cancel(&mut self, task: TaskId, token: Token) -> Result<()> {
        running::request_cancel(self, task, token)
    }

    fn put_progress(&mut self, task: TaskId, token: Token, progress: &Progress) -> Result<()> {
        running::delete_stopped_attempts(self)?;
        let row = params![token.0, task.0, progress.percent, progress.message];
        self.statements.execute(Query::PutProgress, row).map(drop)
    }

    fn attempts_to_stop(&mut self, tokens: &[Token]) -> Result<Vec<(TaskId, Token)>> {
        running::read_cancel_requests(self, tokens)
    }

    fn insert_fenced_attempt(&mut self, task: TaskId, token: Token) -> Result<()> {
        self.statements.execute(Query::PutFencedAttempt, [token.0, task.0]).map(drop)
    }

    fn delete_obsolete_fenced_attempts(&mut self) -> Result<()> {
        self.statements.execute(Query::DeleteStaleFencedAttempts, []).map(drop)
    }

    fn running_tasks_of_lease(&mut self, token: Token) -> Result<Vec<TaskId>> {
        running::delete_stopped_attempts(self)?;
        self.statements.query_rows(Query::RunningOfLease, [token.0], |row| Ok(TaskId(row.get(0)?)))
    }

    fn running_tasks_of_group(&mut self, group: &str) -> Result<Vec<(TaskId, Token)>> {
        running::delete_stopped_attempts(self)?;
        self.statements.query_rows(Query::RunningInGroup, [group], |row| {
            Ok((TaskId(row.get(0)?), Token(row.get(1)?)))
        })
    }

    fn set_holds_slots(&mut self, task: TaskId, token: Token) -> Result<()> {
        running::set_holds_slots(self, task, token)
    }

    fn run_time_stats(&mut self, group: &str) -> Result<Option<RunTimeStats>> {
        let read = |row: &rusqlite::Row<'_>| {
            Ok(RunTimeStats { tasks: row.get(0)?, total_ms: row.get(1)? })
        };
        self.statements.query_first(Query::RunTimesOfGroup, [group], read)
    }

    fn put_run_time_stats(&mut self, group: &str, stats: RunTimeStats) -> Result<()> {
        let row = params![group, stats.tasks, stats.total_ms, self.now];
        self.statements.execute(Query::PutRunTimes, row).map(drop)
    }

    fn delete_run_time_stats(&mut self, before: Millis) -> Result<()> {
        self.statements.execute(Query::DeleteOldRunTimes, [before]).map(drop)
    }

    fn renew_lease(&mut self, token: Token, worker: &WorkerId, expires_at: Millis) -> Result<bool> {
        let row = params![token.0, worker.0, expires_at, self.now];
        Ok(self.statements.execute(Query::RenewLease, row)? == 1)
    }

    fn expired_leases_of_worker(
        &mut self,
        at: Millis,
        worker: &WorkerId,
        max: u32,
    ) -> Result<Vec<Token>> {
        let key = params![at, worker.0, max];
        self.statements.query_rows(Query::ExpiredLeasesOfWorker, key, |row| Ok(Token(row.get(0)?)))
    }

    fn abandoned_leases(&mut self, at: Millis, max: u32) -> Result<Vec<Token>> {
        let key = params![at, max];
        self.statements.query_rows(Query::AbandonedLeases, key, |row| Ok(Token(row.get(0)?)))
    }

    fn delete_empty_leases(&mut self, tokens: &[Token]) -> Result<()> {
        running::delete_finished_leases(self, tokens)
    }

    fn delete_lease(&mut self, token: Token) -> Result<()> {
        self.cache.running_by_lease.remove(&token);
        self.statements.execute(Query::DeleteLease, [token.0]).map(drop)
    }
}
