//! The rows inside one transaction. Each place a task can stand in has a file of its own below.

mod limits;
mod line;
mod places;
mod ready;
mod registrations;
mod running;
mod tasks;
mod workers;

use std::sync::Arc;

use rusqlite::{Row, params};
use tidegate_core::tables::{
    Class, Counters, Final, Lane, Lease, LineRow, Pace, Position, ReadyRow, Said, Stopped, Tables,
    Tags,
};
use tidegate_core::{
    Attempt, Kind, LaneId, Ledger, Limit, LimitId, Millis, NewTask, Progress, Result, Share,
    Source, TaskId, Token, WorkerId, WorkerReport,
};

use super::cache::{Cache, Meta};
use super::schema::Schema;
use super::statements::{Query, Statements};

pub(super) use limits::read_limit;
pub(super) use line::read_line;
pub(super) use ready::read_ready;
pub(super) use running::slot_held;
pub(super) use workers::{lanes, paused, read_kind};

/// One transaction, or one command inside a transaction of several.
pub(super) struct Transaction<'t, 'c> {
    pub(super) now: Millis,
    pub(super) statements: &'t mut Statements<'c>,
    pub(super) cache: &'t mut Cache,
    /// The task that was just inserted, with the key its ready row would have.
    pub(super) inserted: Option<(TaskId, i64, i64)>,
    /// Attempts that are stopped and whose rows are yet to be removed: those of a whole lease go
    /// with one statement.
    pub(super) stopped: Vec<(Token, TaskId)>,
    /// Tasks that are yet to be removed: neighbours go with one statement.
    pub(super) removed: Vec<TaskId>,
    /// Whether something may have become claimable.
    pub(super) wakes: bool,
    /// What the file's schema was found to be.
    pub(super) schema: Schema,
}

impl<'t, 'c> Transaction<'t, 'c> {
    pub(super) fn new(
        statements: &'t mut Statements<'c>,
        cache: &'t mut Cache,
        now: Millis,
    ) -> Self {
        Self {
            now,
            statements,
            cache,
            inserted: None,
            stopped: Vec::new(),
            removed: Vec::new(),
            wakes: false,
            schema: Schema::Missing,
        }
    }

    /// Writes what was only remembered.
    pub(super) fn flush(&mut self) -> Result<()> {
        running::flush(self)?;
        tasks::flush(self)?;
        limits::flush(self)?;
        if self.wakes {
            let (meta, changed) = self.meta()?;
            meta.news += 1;
            *changed = true;
        }
        if let Some((meta, changed @ true)) = &mut self.cache.meta {
            let Meta { last_task, last_limit, counters, news } = *meta;
            let Counters { token, place, virtual_time, limits_version } = counters;
            let row =
                params![last_task, last_limit, token, place, virtual_time, limits_version, news];
            self.statements.execute(Query::UpdateCounters, row)?;
            *changed = false;
        }
        Ok(())
    }

    /// The last id that was given to a task.
    pub(super) fn last_task(&mut self) -> Result<TaskId> {
        Ok(TaskId(self.meta()?.0.last_task))
    }

    fn meta(&mut self) -> Result<&mut (Meta, bool)> {
        match &mut self.cache.meta {
            Some(meta) => Ok(meta),
            empty => {
                let read = |row: &rusqlite::Row<'_>| {
                    let (last_task, last_limit) = (row.get(0)?, row.get(1)?);
                    let counters = Counters {
                        token: row.get(2)?,
                        place: row.get(3)?,
                        virtual_time: row.get(4)?,
                        limits_version: row.get(5)?,
                    };
                    Ok(Meta { last_task, last_limit, counters, news: row.get(6)? })
                };
                let meta = self.statements.first(Query::Counters, [], read)?;
                let meta = meta.ok_or_else(|| super::error::unknown("row of numbers", "none"))?;
                Ok(empty.insert((meta, false)))
            }
        }
    }
}

impl Tables for Transaction<'_, '_> {
    fn now(&self) -> Millis {
        self.now
    }

    fn leave_more(&mut self) {
        self.wakes = true;
    }

    fn counters(&mut self) -> Result<Counters> {
        Ok(self.meta()?.0.counters)
    }

    fn set_counters(&mut self, counters: Counters) -> Result<()> {
        let (meta, changed) = self.meta()?;
        *changed |= meta.counters != counters;
        meta.counters = counters;
        Ok(())
    }

    fn kind(&mut self, name: &str) -> Result<Option<Arc<Kind>>> {
        workers::kind(self, name)
    }

    fn put_kind(&mut self, kind: &Kind, by_worker: bool) -> Result<()> {
        workers::put_kind(self, kind, by_worker)
    }

    fn forget_kinds(&mut self, before: Millis) -> Result<Vec<Arc<str>>> {
        registrations::forget_kinds(self, before)
    }

    fn lane(&mut self, queue: &str, kind: &str) -> Result<LaneId> {
        workers::lane(self, queue, kind)
    }

    fn lanes(&mut self, queues: &[Arc<str>], kinds: &[Arc<str>]) -> Result<Vec<Lane>> {
        Ok(workers::lanes(self)?.of(queues, kinds))
    }

    fn see_worker(
        &mut self,
        worker: &WorkerId,
        alive_until: Millis,
        lanes: Option<&[Lane]>,
    ) -> Result<()> {
        workers::see(self, worker, alive_until, lanes)
    }

    fn put_heartbeat(
        &mut self,
        worker: &WorkerId,
        lease_ms: Millis,
        report: Option<&WorkerReport>,
    ) -> Result<u32> {
        workers::put_heartbeat(self, worker, lease_ms, report)
    }

    fn is_served(&mut self, lane: LaneId) -> Result<bool> {
        workers::is_served(self, lane)
    }

    fn is_paused(&mut self, queue: &str) -> Result<bool> {
        Ok(workers::paused(self)?.contains_key(queue))
    }

    fn set_paused(&mut self, queue: &str, paused: bool) -> Result<()> {
        workers::set_paused(self, queue, paused)
    }

    fn forget_worker(&mut self, worker: &WorkerId) -> Result<()> {
        workers::forget_one(self, worker)
    }

    fn forget_workers(&mut self, before: Millis) -> Result<()> {
        workers::forget(self, before)
    }

    fn put_registrations(&mut self, worker: &WorkerId, said: &Said<'_>) -> Result<()> {
        registrations::put(self, worker, said)
    }

    fn registrations(&mut self, group: &str) -> Result<Vec<(WorkerId, Option<u32>)>> {
        registrations::live(self, group)
    }

    fn registered_groups(&mut self) -> Result<Vec<Arc<str>>> {
        registrations::groups(self)
    }

    fn limit(&mut self, id: LimitId) -> Result<Option<Limit>> {
        limits::limit(self, id)
    }

    fn limit_named(&mut self, name: &str) -> Result<Option<LimitId>> {
        limits::named(self, name)
    }

    fn make_limit(
        &mut self,
        name: &str,
        capacity: Option<u32>,
        source: Source,
        since: i64,
        share: Option<Share>,
    ) -> Result<LimitId> {
        limits::make(self, name, capacity, source, since, share)
    }

    fn put_limit(&mut self, limit: &Limit) -> Result<()> {
        limits::put(self, limit)
    }

    fn next_dirty(&mut self, after: LimitId) -> Result<Option<LimitId>> {
        limits::next_dirty(self, after)
    }

    fn idle_limits(&mut self, limits_max: u32) -> Result<Vec<LimitId>> {
        limits::idle(self, limits_max)
    }

    fn drop_limit(&mut self, id: LimitId) -> Result<()> {
        limits::drop_limit(self, id)
    }

    fn take_slots(&mut self, task: TaskId, limit: LimitId, weight: u32) -> Result<()> {
        limits::take_slots(self, task, limit, weight)
    }

    fn lowest_free_slot(&mut self, limit: LimitId) -> Result<u32> {
        limits::lowest_free(self, limit)
    }

    fn free_slots(&mut self, task: TaskId, limit: LimitId) -> Result<u32> {
        limits::free_slots(self, task, limit)
    }

    fn ready_holders(&mut self, limit: LimitId, rows_max: u32) -> Result<(Vec<ReadyRow>, bool)> {
        ready::of_limit(self, limit, rows_max)
    }

    fn holder(&mut self, limit: LimitId, number: u32) -> Result<Option<TaskId>> {
        limits::holder(self, limit, number)
    }

    fn free_slot(&mut self, limit: LimitId, number: u32) -> Result<()> {
        limits::free_slot(self, limit, number)
    }

    fn slots_of(&mut self, task: TaskId) -> Result<Vec<(LimitId, u32)>> {
        limits::slots_of(self, task)
    }

    fn unique(&mut self, key: &str) -> Result<Option<TaskId>> {
        tasks::unique(self, key)
    }

    fn insert_task(&mut self, task: &NewTask, lane: LaneId) -> Result<TaskId> {
        tasks::insert(self, task, lane)
    }

    fn tags(&mut self, task: TaskId) -> Result<Option<Tags>> {
        tasks::tags(self, task)
    }

    fn put_ledger(&mut self, task: TaskId, ledger: Ledger, error: Option<&str>) -> Result<()> {
        tasks::put_ledger(self, task, ledger, error)
    }

    fn put_arrival(&mut self, task: TaskId, arrival: Millis) -> Result<()> {
        tasks::put_arrival(self, task, arrival)
    }

    fn set_last_task(&mut self, last: TaskId) -> Result<()> {
        let (meta, changed) = self.meta()?;
        meta.last_task = last.0;
        *changed = true;
        Ok(())
    }

    fn end_task(&mut self, task: TaskId, end: &Final) -> Result<()> {
        tasks::end(self, task, end)
    }

    fn revive_task(&mut self, task: TaskId) -> Result<bool> {
        tasks::revive(self, task)
    }

    /// The unique index is the note.
    fn put_key(&mut self, _: &str, _: Option<TaskId>) -> Result<()> {
        Ok(())
    }

    fn remove_ended(&mut self, tasks_max: u32) -> Result<u32> {
        tasks::remove_ended(self, tasks_max)
    }

    fn position(&mut self, task: TaskId) -> Result<Option<Position>> {
        places::position(self, task)
    }

    fn put_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()> {
        places::put_scheduled(self, task, run_at)
    }

    fn take_scheduled(&mut self, task: TaskId, _run_at: Millis) -> Result<()> {
        self.statements.execute(Query::DeleteScheduled, [task.0]).map(drop)
    }

    fn take_due(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        places::take_due(self, tasks_max)
    }

    fn put_arrived(&mut self, task: TaskId) -> Result<()> {
        self.wakes = true;
        self.cache.nothing_arrived = false;
        self.statements.execute(Query::PutInbox, [task.0]).map(drop)
    }

    fn take_arrived_one(&mut self, task: TaskId) -> Result<()> {
        self.statements.execute(Query::DeleteInbox, [task.0]).map(drop)
    }

    fn take_arrived(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        places::take_arrived(self, tasks_max)
    }

    fn arrived_jobs(&mut self, jobs_max: u32) -> Result<Vec<Arc<str>>> {
        self.statements.rows(Query::JobsInInbox, [jobs_max], |row| row.get(0))
    }

    fn arrived_of(&mut self, job: &str, tasks_max: u32) -> Result<Vec<TaskId>> {
        let task = |row: &Row<'_>| Ok(TaskId(row.get(0)?));
        self.statements.rows(Query::InboxOfJob, params![job, tasks_max], task)
    }

    fn put_ready(&mut self, row: ReadyRow) -> Result<()> {
        ready::put(self, row)
    }

    fn take_ready(&mut self, row: ReadyRow) -> Result<()> {
        ready::take(self, row)
    }

    fn ready_page(
        &mut self,
        lane: LaneId,
        after: Option<ReadyRow>,
        rows_max: u32,
    ) -> Result<Vec<ReadyRow>> {
        ready::page(self, lane, after, rows_max)
    }

    fn ready_unserved(&mut self, before: Millis, rows_max: u32) -> Result<Vec<ReadyRow>> {
        ready::unserved(self, before, rows_max)
    }

    fn put_line(&mut self, row: LineRow) -> Result<()> {
        line::put(self, row)
    }

    fn take_line(&mut self, row: LineRow) -> Result<()> {
        line::take(self, row)
    }

    fn line_first(&mut self, limit: LimitId, from: Class, to: Class) -> Result<Option<LineRow>> {
        let span = [limit.0, from as i64, to as i64];
        self.statements.first(Query::FirstWaiter, span, read_line)
    }

    fn first_ahead(&mut self, job_limit: LimitId) -> Result<Option<Position>> {
        places::first_ahead(self, job_limit)
    }

    fn line_no_worker(&mut self, lanes: &[Lane], rows_max: u32) -> Result<Vec<LineRow>> {
        line::no_worker(self, lanes, rows_max)
    }

    fn start(&mut self, rows: &[ReadyRow], lease: &Lease) -> Result<Vec<Attempt>> {
        running::start(self, rows, lease)
    }

    fn stop(&mut self, task: TaskId, token: Token) -> Result<Option<Stopped>> {
        running::stop(self, task, token)
    }

    fn request_cancel(&mut self, task: TaskId, token: Token) -> Result<()> {
        running::request_cancel(self, task, token)
    }

    fn put_progress(&mut self, task: TaskId, token: Token, progress: &Progress) -> Result<()> {
        running::flush(self)?;
        let row = params![token.0, task.0, progress.percent, progress.message];
        self.statements.execute(Query::PutProgress, row).map(drop)
    }

    fn cancel_requests(&mut self, tokens: &[Token]) -> Result<Vec<(TaskId, Token)>> {
        running::cancel_requests(self, tokens)
    }

    fn fence(&mut self, task: TaskId, token: Token) -> Result<()> {
        self.statements.execute(Query::PutFencedAttempt, [token.0, task.0]).map(drop)
    }

    fn forget_fenced(&mut self) -> Result<()> {
        self.statements.execute(Query::DeleteStaleFencedAttempts, []).map(drop)
    }

    fn running_under(&mut self, token: Token) -> Result<Vec<TaskId>> {
        running::flush(self)?;
        self.statements.rows(Query::RunningOfLease, [token.0], |row| Ok(TaskId(row.get(0)?)))
    }

    fn running_in_group(&mut self, group: &str) -> Result<Vec<(TaskId, Token)>> {
        running::flush(self)?;
        self.statements.rows(Query::RunningInGroup, [group], |row| {
            Ok((TaskId(row.get(0)?), Token(row.get(1)?)))
        })
    }

    fn set_gated(&mut self, task: TaskId, token: Token) -> Result<()> {
        running::set_gated(self, task, token)
    }

    fn pace(&mut self, group: &str) -> Result<Option<Pace>> {
        let read = |row: &rusqlite::Row<'_>| Ok(Pace { tasks: row.get(0)?, total_ms: row.get(1)? });
        self.statements.first(Query::RunTimesOfGroup, [group], read)
    }

    fn put_pace(&mut self, group: &str, pace: Pace) -> Result<()> {
        let row = params![group, pace.tasks, pace.total_ms, self.now];
        self.statements.execute(Query::PutRunTimes, row).map(drop)
    }

    fn forget_paces(&mut self, before: Millis) -> Result<()> {
        self.statements.execute(Query::DeleteOldRunTimes, [before]).map(drop)
    }

    fn renew_lease(&mut self, token: Token, worker: &WorkerId, expires_at: Millis) -> Result<bool> {
        let row = params![token.0, worker.0, expires_at, self.now];
        Ok(self.statements.execute(Query::RenewLease, row)? == 1)
    }

    fn expired_leases(&mut self, at: Millis, worker: &WorkerId, max: u32) -> Result<Vec<Token>> {
        let key = params![at, worker.0, max];
        self.statements.rows(Query::ExpiredLeasesOfWorker, key, |row| Ok(Token(row.get(0)?)))
    }

    fn abandoned_leases(&mut self, at: Millis, max: u32) -> Result<Vec<Token>> {
        let key = params![at, max];
        self.statements.rows(Query::AbandonedLeases, key, |row| Ok(Token(row.get(0)?)))
    }

    fn end_leases(&mut self, tokens: &[Token]) -> Result<()> {
        running::end_leases(self, tokens)
    }

    fn drop_lease(&mut self, token: Token) -> Result<()> {
        self.cache.leases.remove(&token);
        self.statements.execute(Query::DeleteLease, [token.0]).map(drop)
    }
}
