//! The rows of the maps, as the rules see them.

use std::ops::Bound;
use std::sync::Arc;

use tidegate_core::bounds::{GATE_STEP, JOB_WINDOW};
use tidegate_core::tables::{
    Class, Counters, Final, Lane, Lease, LineRow, Pace, Position, ReadyRow, Said, Stopped, Tables,
    Tags,
};
use tidegate_core::{
    Attempt, Kind, LaneId, Ledger, Limit, LimitId, Millis, NewTask, Progress, Result, Share,
    Source, TaskId, Token, WorkerId, WorkerReport,
};

use super::state::{Running, State};
use super::{leases, registrations, workers};

const FIRST: TaskId = TaskId(i64::MIN);

impl Tables for State {
    fn now(&self) -> Millis {
        self.now
    }

    fn gate_budget(&self) -> u32 {
        self.gate_budget.unwrap_or(GATE_STEP)
    }

    fn job_window(&self) -> u32 {
        self.job_window.unwrap_or(JOB_WINDOW)
    }

    fn leave_more(&mut self) {
        self.wakes = true;
    }

    fn counters(&mut self) -> Result<Counters> {
        Ok(self.counters)
    }

    fn set_counters(&mut self, counters: Counters) -> Result<()> {
        self.counters = counters;
        Ok(())
    }

    fn kind(&mut self, name: &str) -> Result<Option<Arc<Kind>>> {
        Ok(self.kinds.get(name).cloned())
    }

    fn put_kind(&mut self, kind: &Kind, by_worker: bool) -> Result<()> {
        registrations::see_kind(self, kind, by_worker);
        self.kinds.insert(kind.name.clone(), Arc::new(kind.clone()));
        Ok(())
    }

    fn forget_kinds(&mut self, before: Millis) -> Result<Vec<Arc<str>>> {
        Ok(registrations::forget_kinds(self, before))
    }

    fn lane(&mut self, queue: &str, kind: &str) -> Result<LaneId> {
        let next = LaneId(self.lanes.len() as i64 + 1);
        Ok(*self.lanes.get_or_insert_with((queue.into(), kind.into()), || next))
    }

    fn lanes(&mut self, queues: &[Arc<str>], kinds: &[Arc<str>]) -> Result<Vec<Lane>> {
        let mut lanes = Vec::new();
        for queue in queues {
            for kind in kinds {
                if let Some(id) = self.lanes.get(&(queue.clone(), kind.clone())) {
                    lanes.push(Lane { id: *id, queue: queue.clone(), kind: kind.clone() });
                }
            }
        }
        lanes.sort_by_key(|lane| lane.id);
        lanes.dedup_by_key(|lane| lane.id);
        Ok(lanes)
    }

    fn see_worker(
        &mut self,
        worker: &WorkerId,
        alive_until: Millis,
        lanes: Option<&[Lane]>,
    ) -> Result<()> {
        workers::see(self, worker, alive_until, lanes.unwrap_or_default());
        Ok(())
    }

    fn put_heartbeat(
        &mut self,
        worker: &WorkerId,
        lease_ms: Millis,
        report: Option<&WorkerReport>,
    ) -> Result<u32> {
        Ok(workers::put_heartbeat(self, worker, lease_ms, report))
    }

    fn is_served(&mut self, lane: LaneId) -> Result<bool> {
        Ok(workers::is_served(self, lane))
    }

    fn is_paused(&mut self, queue: &str) -> Result<bool> {
        Ok(self.paused.contains_key(queue))
    }

    fn set_paused(&mut self, queue: &str, paused: bool) -> Result<()> {
        if paused {
            self.paused.insert(queue.into(), self.now);
        } else {
            self.paused.remove(queue);
        }
        Ok(())
    }

    fn forget_worker(&mut self, worker: &WorkerId) -> Result<()> {
        self.workers.remove(worker);
        registrations::retain_known(self);
        Ok(())
    }

    fn forget_workers(&mut self, before: Millis) -> Result<()> {
        self.workers.retain(|_, worker| worker.alive_until >= before);
        registrations::retain_known(self);
        Ok(())
    }

    fn put_registrations(&mut self, worker: &WorkerId, said: &Said<'_>) -> Result<()> {
        registrations::put(self, worker, said);
        Ok(())
    }

    fn registrations(&mut self, group: &str) -> Result<Vec<(WorkerId, Option<u32>)>> {
        Ok(registrations::live(self, group))
    }

    fn registered_groups(&mut self) -> Result<Vec<Arc<str>>> {
        Ok(registrations::groups(self))
    }

    fn limit(&mut self, id: LimitId) -> Result<Option<Limit>> {
        Ok(self.limits.get(&id).cloned())
    }

    fn limit_named(&mut self, name: &str) -> Result<Option<LimitId>> {
        Ok(self.limit_names.get(name).copied())
    }

    fn make_limit(
        &mut self,
        name: &str,
        capacity: Option<u32>,
        source: Source,
        since: i64,
        share: Option<Share>,
    ) -> Result<LimitId> {
        self.last_limit += 1;
        let id = LimitId(self.last_limit);
        let limit = Limit::new(id, name, capacity, source, since, share);
        self.limit_names.insert(limit.name.clone(), id);
        self.limits.insert(id, limit);
        Ok(id)
    }

    fn put_limit(&mut self, limit: &Limit) -> Result<()> {
        self.wakes |= limit.is_due(self.now);
        self.limits.insert(limit.id, limit.clone());
        Ok(())
    }

    fn next_dirty(&mut self, after: LimitId) -> Result<Option<LimitId>> {
        let rest = self.limits.range((Bound::Excluded(after), Bound::Unbounded));
        Ok(rest.map(|(_, limit)| limit).find(|limit| limit.is_due(self.now)).map(|limit| limit.id))
    }

    fn idle_limits(&mut self, limits_max: u32) -> Result<Vec<LimitId>> {
        let idle = |l: &&Limit| {
            l.source == Source::Unset && l.held == 0 && l.waiting == 0 && l.halt.is_none()
        };
        let ids = self.limits.values().filter(idle).map(|limit| limit.id);
        Ok(ids.take(limits_max as usize).collect())
    }

    fn drop_limit(&mut self, id: LimitId) -> Result<()> {
        if let Some(limit) = self.limits.remove(&id) {
            self.limit_names.remove(&limit.name);
        }
        self.slots.remove(&id);
        Ok(())
    }

    fn take_slots(&mut self, task: TaskId, limit: LimitId, weight: u32) -> Result<()> {
        self.take_lowest(task, limit, weight);
        Ok(())
    }

    fn lowest_free_slot(&mut self, limit: LimitId) -> Result<u32> {
        Ok(self.lowest_free(limit))
    }

    fn free_slots(&mut self, task: TaskId, limit: LimitId) -> Result<u32> {
        Ok(self.free_all(task, limit))
    }

    fn ready_holders(&mut self, limit: LimitId, rows_max: u32) -> Result<(Vec<ReadyRow>, bool)> {
        Ok(self.ready_of(limit, rows_max as usize))
    }

    fn holder(&mut self, limit: LimitId, number: u32) -> Result<Option<TaskId>> {
        Ok(self.holder_of(limit, number))
    }

    fn free_slot(&mut self, limit: LimitId, number: u32) -> Result<()> {
        self.free_one(limit, number);
        Ok(())
    }

    fn slots_of(&mut self, task: TaskId) -> Result<Vec<(LimitId, u32)>> {
        Ok(self.slots_by_limit(task))
    }

    fn unique(&mut self, key: &str) -> Result<Option<TaskId>> {
        Ok(self.unique.get(key).copied())
    }

    fn insert_task(&mut self, new: &NewTask, lane: LaneId) -> Result<TaskId> {
        Ok(self.insert(new, lane))
    }

    fn tags(&mut self, task: TaskId) -> Result<Option<Tags>> {
        let task = self.tasks.get(&task).filter(|task| task.finished_at.is_none());
        Ok(task.map(|task| task.tags.clone()))
    }

    fn put_ledger(&mut self, task: TaskId, ledger: Ledger, error: Option<&str>) -> Result<()> {
        if let Some(task) = self.tasks.get_mut(&task) {
            task.tags.spent = ledger.spent;
            task.tags.deaths = ledger.deaths;
            task.error = error.map(str::to_owned).or(task.error.take());
        }
        Ok(())
    }

    fn put_arrival(&mut self, task: TaskId, arrival: Millis) -> Result<()> {
        if let Some(task) = self.tasks.get_mut(&task) {
            task.tags.arrival = arrival;
        }
        Ok(())
    }

    fn set_last_task(&mut self, last: TaskId) -> Result<()> {
        self.last_task = last.0;
        Ok(())
    }

    fn end_task(&mut self, id: TaskId, end: &Final) -> Result<()> {
        let Some(task) = self.tasks.get_mut(&id) else {
            return Ok(());
        };
        if let Some(key) = &task.new.unique_key {
            self.unique.remove(key.as_str());
        }
        if end.remove_at.is_some_and(|at| at <= self.now) {
            self.tasks.remove(&id);
            return Ok(());
        }
        task.position = Some(Position::Final(end.state));
        task.finished_at = Some(self.now);
        task.result = end.result.clone();
        task.error = end.error.clone().or(task.error.take());
        if let Some(at) = end.remove_at {
            self.removals.insert((at, id));
        }
        Ok(())
    }

    fn revive_task(&mut self, id: TaskId) -> Result<bool> {
        let Some(task) = self.tasks.get_mut(&id) else {
            return Ok(false);
        };
        if let Some(key) = &task.new.unique_key {
            if self.unique.contains_key(key.as_str()) {
                return Ok(false);
            }
            self.unique.insert(key.as_str().into(), id);
        }
        task.tags.spent = 0;
        task.tags.deaths = 0;
        task.tags.arrival = self.now;
        task.position = None;
        task.finished_at = None;
        task.error = None;
        self.removals.retain(|(_, removed)| *removed != id);
        Ok(true)
    }

    fn put_key(&mut self, key: &str, task: Option<TaskId>) -> Result<()> {
        match task {
            Some(task) => drop(self.unique.insert(key.into(), task)),
            None => drop(self.unique.remove(key)),
        }
        Ok(())
    }

    fn remove_ended(&mut self, tasks_max: u32) -> Result<u32> {
        let due = self.removals.range(..=(self.now, TaskId(i64::MAX))).take(tasks_max as usize);
        let due: Vec<_> = due.copied().collect();
        for (at, task) in &due {
            self.removals.remove(&(*at, *task));
            self.tasks.remove(task);
        }
        Ok(due.len() as u32)
    }

    fn position(&mut self, task: TaskId) -> Result<Option<Position>> {
        Ok(self.tasks.get(&task).and_then(|task| task.position))
    }

    fn put_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()> {
        self.scheduled.insert((run_at, task));
        self.stand(task, Some(Position::Scheduled(run_at)));
        Ok(())
    }

    fn take_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()> {
        self.scheduled.remove(&(run_at, task));
        self.stand(task, None);
        Ok(())
    }

    fn take_due(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        let due = self.scheduled.range(..=(self.now, TaskId(i64::MAX))).take(tasks_max as usize);
        let due: Vec<_> = due.copied().collect();
        for (run_at, task) in &due {
            self.take_scheduled(*task, *run_at)?;
        }
        Ok(due.into_iter().map(|(_, task)| task).collect())
    }

    fn put_arrived(&mut self, task: TaskId) -> Result<()> {
        self.wakes = true;
        self.arrived.insert(task);
        if let Some(job) = self.job_at_gate(task).cloned() {
            self.arrived_of_jobs.insert((job, task));
        }
        self.stand(task, Some(Position::Arrived));
        Ok(())
    }

    fn take_arrived_one(&mut self, task: TaskId) -> Result<()> {
        self.arrived.remove(&task);
        if let Some(job) = self.job_at_gate(task).cloned() {
            self.arrived_of_jobs.remove(&(job, task));
        }
        self.stand(task, None);
        Ok(())
    }

    fn take_arrived(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        let tasks: Vec<_> = self.arrived.iter().take(tasks_max as usize).copied().collect();
        for task in &tasks {
            self.take_arrived_one(*task)?;
        }
        Ok(tasks)
    }

    fn arrived_jobs(&mut self, jobs_max: u32) -> Result<Vec<Arc<str>>> {
        let mut jobs: Vec<Arc<str>> = Vec::new();
        while jobs.len() < jobs_max as usize {
            let last = jobs.last().map(|job| (job.clone(), TaskId(i64::MAX)));
            let after = last.map_or(Bound::Unbounded, Bound::Excluded);
            match self.arrived_of_jobs.range((after, Bound::Unbounded)).next() {
                Some((job, _)) => jobs.push(job.clone()),
                None => break,
            }
        }
        Ok(jobs)
    }

    fn arrived_of(&mut self, job: &str, tasks_max: u32) -> Result<Vec<TaskId>> {
        let of_job = self.arrived_of_jobs.range((Arc::from(job), TaskId(0))..);
        let of_job = of_job.take_while(|(name, _)| &**name == job);
        Ok(of_job.take(tasks_max as usize).map(|(_, task)| *task).collect())
    }

    fn put_ready(&mut self, row: ReadyRow) -> Result<()> {
        self.wakes = true;
        self.ready.insert(row);
        self.stand(row.task, Some(Position::Ready(row)));
        Ok(())
    }

    fn take_ready(&mut self, row: ReadyRow) -> Result<()> {
        self.ready.remove(&row);
        self.stand(row.task, None);
        Ok(())
    }

    fn ready_page(
        &mut self,
        lane: LaneId,
        after: Option<ReadyRow>,
        rows_max: u32,
    ) -> Result<Vec<ReadyRow>> {
        let edge = ReadyRow {
            lane,
            rank: i64::MIN,
            tag: i64::MIN,
            task: FIRST,
            stamp: i64::MIN,
            gated: false,
            since: i64::MIN,
        };
        // Behind every row of the same key: one that was made ready anew is not met twice.
        let behind = |row| ReadyRow { stamp: i64::MAX, gated: true, since: i64::MAX, ..row };
        let from = after.map(behind).map_or(Bound::Included(edge), Bound::Excluded);
        let to = Bound::Excluded(ReadyRow { lane: LaneId(lane.0 + 1), ..edge });
        Ok(self.ready.range((from, to)).take(rows_max as usize).copied().collect())
    }

    fn ready_unserved(&mut self, before: Millis, rows_max: u32) -> Result<Vec<ReadyRow>> {
        let mut rows: Vec<ReadyRow> = Vec::new();
        let stale = |row: &&ReadyRow| row.gated && row.since < before;
        let gated: Vec<ReadyRow> = self.ready.iter().filter(stale).copied().collect();
        for row in gated {
            if rows.len() < rows_max as usize && !self.is_served(row.lane)? {
                rows.push(row);
            }
        }
        Ok(rows)
    }

    fn put_line(&mut self, row: LineRow) -> Result<()> {
        self.line.insert(row);
        self.stand(row.task, Some(Position::Line(row)));
        Ok(())
    }

    fn take_line(&mut self, row: LineRow) -> Result<()> {
        self.line.remove(&row);
        self.stand(row.task, None);
        Ok(())
    }

    fn line_first(&mut self, limit: LimitId, from: Class, to: Class) -> Result<Option<LineRow>> {
        let edge = LineRow {
            limit,
            class: from,
            rank: i64::MIN,
            tag: i64::MIN,
            place: i64::MIN,
            task: FIRST,
            lane: LaneId(i64::MIN),
            moves: 0,
            passed: false,
            since: i64::MIN,
        };
        let first = self.line.range(edge..).next().copied();
        Ok(first.filter(|row| row.limit == limit && row.class <= to))
    }

    fn first_ahead(&mut self, job_limit: LimitId) -> Result<Option<Position>> {
        Ok(self.ahead_of(job_limit))
    }

    fn line_no_worker(&mut self, lanes: &[Lane], rows_max: u32) -> Result<Vec<LineRow>> {
        let served = |row: &&LineRow| {
            row.class == Class::NoWorker && lanes.iter().any(|lane| lane.id == row.lane)
        };
        Ok(self.line.iter().filter(served).take(rows_max as usize).copied().collect())
    }

    fn start(&mut self, rows: &[ReadyRow], lease: &Lease) -> Result<Vec<Attempt>> {
        self.expiries.insert((lease.expires_at, lease.token));
        self.leases.insert(lease.token, lease.clone());
        let mut attempts = Vec::with_capacity(rows.len());
        for row in rows {
            self.ready.remove(row);
            self.stand(row.task, Some(Position::Running(lease.token)));
            let running = Running { gated: row.gated, started_at: self.now, ..Running::default() };
            self.running.insert((lease.token, row.task), running);
            attempts.extend(self.attempt(*row, lease));
        }
        Ok(attempts)
    }

    fn stop(&mut self, task: TaskId, token: Token) -> Result<Option<Stopped>> {
        let Some(running) = self.running.remove(&(token, task)) else {
            return Ok(None);
        };
        self.stand(task, None);
        Ok(Some(Stopped { cancel_requested: running.cancel, gated: running.gated }))
    }

    fn request_cancel(&mut self, task: TaskId, token: Token) -> Result<()> {
        if let Some(running) = self.running.get_mut(&(token, task)) {
            running.cancel = true;
        }
        Ok(())
    }

    fn put_progress(&mut self, task: TaskId, token: Token, progress: &Progress) -> Result<()> {
        if let Some(running) = self.running.get_mut(&(token, task)) {
            running.progress = Some(progress.clone());
        }
        Ok(())
    }

    fn cancel_requests(&mut self, tokens: &[Token]) -> Result<Vec<(TaskId, Token)>> {
        let mut requests = Vec::new();
        for token in tokens {
            let of_lease = self.running.range((*token, FIRST)..=(*token, TaskId(i64::MAX)));
            let asked = of_lease.filter(|(_, running)| running.cancel);
            requests.extend(asked.map(|((token, task), _)| (*task, *token)));
            let fenced = self.fenced.range((*token, FIRST)..=(*token, TaskId(i64::MAX)));
            requests.extend(fenced.map(|(token, task)| (*task, *token)));
        }
        Ok(requests)
    }

    fn fence(&mut self, task: TaskId, token: Token) -> Result<()> {
        self.fenced.insert((token, task));
        Ok(())
    }

    fn forget_fenced(&mut self) -> Result<()> {
        let leases = &self.leases;
        self.fenced.retain(|(token, _)| leases.contains_key(token));
        Ok(())
    }

    fn running_under(&mut self, token: Token) -> Result<Vec<TaskId>> {
        let of_lease = self.running.range((token, FIRST)..=(token, TaskId(i64::MAX)));
        Ok(of_lease.map(|((_, task), _)| *task).collect())
    }

    fn running_in_group(&mut self, group: &str) -> Result<Vec<(TaskId, Token)>> {
        let in_group = |task: &TaskId| {
            let tags = self.tasks.get(task).map(|task| &task.tags);
            tags.is_some_and(|tags| &**tags.group.as_ref().unwrap_or(&tags.kind) == group)
        };
        let running = self.running.keys().filter(|(_, task)| in_group(task));
        let mut running: Vec<_> = running.map(|(token, task)| (*task, *token)).collect();
        running.sort_unstable();
        Ok(running)
    }

    fn set_gated(&mut self, task: TaskId, token: Token) -> Result<()> {
        if let Some(running) = self.running.get_mut(&(token, task)) {
            running.gated = true;
        }
        Ok(())
    }

    fn pace(&mut self, group: &str) -> Result<Option<Pace>> {
        Ok(self.paces.get(group).map(|(pace, _)| *pace))
    }

    fn put_pace(&mut self, group: &str, pace: Pace) -> Result<()> {
        self.paces.insert(group.into(), (pace, self.now));
        Ok(())
    }

    fn forget_paces(&mut self, before: Millis) -> Result<()> {
        self.paces.retain(|_, (_, heard_at)| *heard_at >= before);
        Ok(())
    }

    fn renew_lease(&mut self, token: Token, worker: &WorkerId, expires_at: Millis) -> Result<bool> {
        Ok(leases::renew(self, token, worker, expires_at))
    }

    fn expired_leases(&mut self, at: Millis, worker: &WorkerId, max: u32) -> Result<Vec<Token>> {
        Ok(leases::expired_of(self, at, worker, max))
    }

    fn abandoned_leases(&mut self, at: Millis, max: u32) -> Result<Vec<Token>> {
        Ok(leases::abandoned(self, at, max))
    }

    fn end_leases(&mut self, tokens: &[Token]) -> Result<()> {
        for token in tokens {
            let mut running = self.running.range((*token, FIRST)..=(*token, TaskId(i64::MAX)));
            if running.next().is_none() {
                self.drop_lease(*token)?;
            }
        }
        Ok(())
    }

    fn drop_lease(&mut self, token: Token) -> Result<()> {
        if let Some(lease) = self.leases.remove(&token) {
            self.expiries.remove(&(lease.expires_at, token));
        }
        Ok(())
    }
}
