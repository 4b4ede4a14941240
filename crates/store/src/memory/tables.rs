//! The rows of the maps, as the rules see them.

use std::ops::Bound;
use std::sync::Arc;

use tidegate_core::bounds::{ADMISSION_BATCH_MAX, JOB_WINDOW_SIZE};
use tidegate_core::tables::{
    Counters, FinishedTask, GroupCapacities, Lane, Lease, Position, ReadyRow, RemovedAttempt,
    RunTimeStats, Tables, TaskInfo, WaitReason, WaiterRow,
};
use tidegate_core::{
    Attempt, AttemptCounts, CapacitySource, FairShare, Kind, LaneId, Limit, LimitId, Millis,
    NewTask, Progress, Result, TaskId, Token, WorkerId, WorkerReport,
};

use super::working_state::{RunningAttempt, WorkingState};
use super::{leases, registrations, workers};

const TASK_ID_MIN: TaskId = TaskId(i64::MIN);

impl Tables for WorkingState {
    fn now(&self) -> Millis {
        self.now
    }

    fn admission_budget(&self) -> u32 {
        self.gate_budget.unwrap_or(ADMISSION_BATCH_MAX)
    }

    fn job_window_size(&self) -> u32 {
        self.job_window.unwrap_or(JOB_WINDOW_SIZE)
    }

    fn notify_workers_on_commit(&mut self) {
        self.has_new_work = true;
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
        registrations::record_kind_registration(self, kind, by_worker);
        self.kinds.insert(kind.name.clone(), Arc::new(kind.clone()));
        Ok(())
    }

    fn delete_unused_kinds(&mut self, before: Millis) -> Result<Vec<Arc<str>>> {
        Ok(registrations::remove_unused_kinds(self, before))
    }

    fn get_or_create_lane(&mut self, queue: &str, kind: &str) -> Result<LaneId> {
        let next = LaneId(self.lanes.len() as i64 + 1);
        Ok(*self.lanes.get_or_insert_with((queue.into(), kind.into()), || next))
    }

    fn existing_lanes(&mut self, queues: &[Arc<str>], kinds: &[Arc<str>]) -> Result<Vec<Lane>> {
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

    fn record_live_worker(
        &mut self,
        worker: &WorkerId,
        alive_until: Millis,
        lanes: Option<&[Lane]>,
    ) -> Result<()> {
        workers::record_worker(self, worker, alive_until, lanes.unwrap_or_default());
        Ok(())
    }

    fn record_heartbeat(
        &mut self,
        worker: &WorkerId,
        lease_ms: Millis,
        report: Option<&WorkerReport>,
    ) -> Result<u32> {
        Ok(workers::record_heartbeat(self, worker, lease_ms, report))
    }

    fn is_lane_served(&mut self, lane: LaneId) -> Result<bool> {
        Ok(workers::is_lane_served(self, lane))
    }

    fn is_queue_paused(&mut self, queue: &str) -> Result<bool> {
        Ok(self.paused_queues.contains_key(queue))
    }

    fn set_queue_paused(&mut self, queue: &str, paused: bool) -> Result<()> {
        if paused {
            self.paused_queues.insert(queue.into(), self.now);
        } else {
            self.paused_queues.remove(queue);
        }
        Ok(())
    }

    fn delete_worker(&mut self, worker: &WorkerId) -> Result<()> {
        self.workers.remove(worker);
        registrations::remove_orphan_registrations(self);
        Ok(())
    }

    fn delete_dead_workers(&mut self, before: Millis) -> Result<()> {
        self.workers.retain(|_, worker| worker.alive_until >= before);
        registrations::remove_orphan_registrations(self);
        Ok(())
    }

    fn put_registrations(
        &mut self,
        worker: &WorkerId,
        capacities: &GroupCapacities<'_>,
    ) -> Result<()> {
        registrations::replace_registrations(self, worker, capacities);
        Ok(())
    }

    fn registrations(&mut self, group: &str) -> Result<Vec<(WorkerId, Option<u32>)>> {
        Ok(registrations::live_registrations(self, group))
    }

    fn registered_groups(&mut self) -> Result<Vec<Arc<str>>> {
        Ok(registrations::live_registered_groups(self))
    }

    fn locked_limit(&mut self, id: LimitId) -> Result<Option<Limit>> {
        Ok(self.limits.get(&id).cloned())
    }

    fn limit_id(&mut self, name: &str) -> Result<Option<LimitId>> {
        Ok(self.limit_ids_by_name.get(name).copied())
    }

    fn insert_limit(
        &mut self,
        name: &str,
        capacity: Option<u32>,
        source: CapacitySource,
        applies_from_version: i64,
        share: Option<FairShare>,
    ) -> Result<LimitId> {
        self.last_limit_id += 1;
        let id = LimitId(self.last_limit_id);
        let limit = Limit::new(id, name, capacity, source, applies_from_version, share);
        self.limit_ids_by_name.insert(limit.name.clone(), id);
        self.limits.insert(id, limit);
        Ok(id)
    }

    fn put_limit(&mut self, limit: &Limit) -> Result<()> {
        self.has_new_work |= limit.needs_recheck(self.now);
        self.limits.insert(limit.id, limit.clone());
        Ok(())
    }

    fn next_limit_to_recheck(&mut self, after: LimitId) -> Result<Option<LimitId>> {
        let rest = self.limits.range((Bound::Excluded(after), Bound::Unbounded));
        Ok(rest
            .map(|(_, limit)| limit)
            .find(|limit| limit.needs_recheck(self.now))
            .map(|limit| limit.id))
    }

    fn unused_limits(&mut self, limits_max: u32) -> Result<Vec<LimitId>> {
        let idle = |l: &&Limit| {
            l.source == CapacitySource::Unset
                && l.held == 0
                && l.waiting == 0
                && l.paused_by.is_none()
        };
        let ids = self.limits.values().filter(idle).map(|limit| limit.id);
        Ok(ids.take(limits_max as usize).collect())
    }

    fn delete_limit(&mut self, id: LimitId) -> Result<()> {
        if let Some(limit) = self.limits.remove(&id) {
            self.limit_ids_by_name.remove(&limit.name);
        }
        self.slot_holders.remove(&id);
        Ok(())
    }

    fn acquire_slots(&mut self, task: TaskId, limit: LimitId, weight: u32) -> Result<()> {
        self.assign_lowest_slots(task, limit, weight);
        Ok(())
    }

    fn lowest_free_slot(&mut self, limit: LimitId) -> Result<u32> {
        Ok(self.find_lowest_free_slot(limit))
    }

    fn free_slots(&mut self, task: TaskId, limit: LimitId) -> Result<u32> {
        Ok(self.clear_slots_of_task(task, limit))
    }

    fn ready_slot_holders(
        &mut self,
        limit: LimitId,
        rows_max: u32,
    ) -> Result<(Vec<ReadyRow>, bool)> {
        Ok(self.find_ready_slot_holders(limit, rows_max as usize))
    }

    fn slot_holder(&mut self, limit: LimitId, number: u32) -> Result<Option<TaskId>> {
        Ok(self.find_slot_holder(limit, number))
    }

    fn free_slot(&mut self, limit: LimitId, number: u32) -> Result<()> {
        self.clear_slot(limit, number);
        Ok(())
    }

    fn held_slot_counts(&mut self, task: TaskId) -> Result<Vec<(LimitId, u32)>> {
        Ok(self.count_slots_by_limit(task))
    }

    fn unique_key_owner(&mut self, key: &str) -> Result<Option<TaskId>> {
        Ok(self.unique_keys.get(key).copied())
    }

    fn insert_task(&mut self, new: &NewTask, lane: LaneId) -> Result<TaskId> {
        Ok(self.add_task_row(new, lane))
    }

    fn task_info(&mut self, task: TaskId) -> Result<Option<TaskInfo>> {
        let task = self.tasks.get(&task).filter(|task| task.finished_at.is_none());
        Ok(task.map(|task| task.info.clone()))
    }

    fn put_attempt_counts(
        &mut self,
        task: TaskId,
        counts: AttemptCounts,
        error: Option<&str>,
    ) -> Result<()> {
        if let Some(task) = self.tasks.get_mut(&task) {
            task.info.attempts_used = counts.attempts_used;
            task.info.crashes = counts.crashes;
            task.error = error.map(str::to_owned).or(task.error.take());
        }
        Ok(())
    }

    fn set_due_at(&mut self, task: TaskId, due_at: Millis) -> Result<()> {
        if let Some(task) = self.tasks.get_mut(&task) {
            task.info.due_at = due_at;
        }
        Ok(())
    }

    fn set_last_task_id(&mut self, last: TaskId) -> Result<()> {
        self.last_task_id = last.0;
        Ok(())
    }

    fn finish_task(&mut self, id: TaskId, finished: &FinishedTask) -> Result<()> {
        let Some(task) = self.tasks.get_mut(&id) else {
            return Ok(());
        };
        if let Some(key) = &task.submitted.unique_key {
            self.unique_keys.remove(key.as_str());
        }
        if finished.remove_at.is_some_and(|at| at <= self.now) {
            self.tasks.remove(&id);
            return Ok(());
        }
        task.position = Some(Position::Finished(finished.state));
        task.finished_at = Some(self.now);
        task.result = finished.result.clone();
        task.error = finished.error.clone().or(task.error.take());
        if let Some(at) = finished.remove_at {
            self.task_removals.insert((at, id));
        }
        Ok(())
    }

    fn restart_finished_task(&mut self, id: TaskId) -> Result<bool> {
        let Some(task) = self.tasks.get_mut(&id) else {
            return Ok(false);
        };
        if let Some(key) = &task.submitted.unique_key {
            if self.unique_keys.contains_key(key.as_str()) {
                return Ok(false);
            }
            self.unique_keys.insert(key.as_str().into(), id);
        }
        task.info.attempts_used = 0;
        task.info.crashes = 0;
        task.info.due_at = self.now;
        task.position = None;
        task.finished_at = None;
        task.error = None;
        self.task_removals.retain(|(_, removed)| *removed != id);
        Ok(true)
    }

    fn set_unique_key_owner(&mut self, key: &str, task: Option<TaskId>) -> Result<()> {
        match task {
            Some(task) => drop(self.unique_keys.insert(key.into(), task)),
            None => drop(self.unique_keys.remove(key)),
        }
        Ok(())
    }

    fn delete_expired_tasks(&mut self, tasks_max: u32) -> Result<u32> {
        let due =
            self.task_removals.range(..=(self.now, TaskId(i64::MAX))).take(tasks_max as usize);
        let due: Vec<_> = due.copied().collect();
        for (at, task) in &due {
            self.task_removals.remove(&(*at, *task));
            self.tasks.remove(task);
        }
        Ok(due.len() as u32)
    }

    fn position(&mut self, task: TaskId) -> Result<Option<Position>> {
        Ok(self.tasks.get(&task).and_then(|task| task.position))
    }

    fn put_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()> {
        self.scheduled.insert((run_at, task));
        self.set_position(task, Some(Position::Scheduled(run_at)));
        Ok(())
    }

    fn remove_scheduled(&mut self, task: TaskId, run_at: Millis) -> Result<()> {
        self.scheduled.remove(&(run_at, task));
        self.set_position(task, None);
        Ok(())
    }

    fn take_due(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        let due = self.scheduled.range(..=(self.now, TaskId(i64::MAX))).take(tasks_max as usize);
        let due: Vec<_> = due.copied().collect();
        for (run_at, task) in &due {
            self.remove_scheduled(*task, *run_at)?;
        }
        Ok(due.into_iter().map(|(_, task)| task).collect())
    }

    fn put_inbox(&mut self, task: TaskId) -> Result<()> {
        self.has_new_work = true;
        self.inbox.insert(task);
        if let Some(job) = self.fair_share_job(task).cloned() {
            self.inbox_of_jobs.insert((job, task));
        }
        self.set_position(task, Some(Position::Inbox));
        Ok(())
    }

    fn remove_inbox(&mut self, task: TaskId) -> Result<()> {
        self.inbox.remove(&task);
        if let Some(job) = self.fair_share_job(task).cloned() {
            self.inbox_of_jobs.remove(&(job, task));
        }
        self.set_position(task, None);
        Ok(())
    }

    fn take_inbox(&mut self, tasks_max: u32) -> Result<Vec<TaskId>> {
        let tasks: Vec<_> = self.inbox.iter().take(tasks_max as usize).copied().collect();
        for task in &tasks {
            self.remove_inbox(*task)?;
        }
        Ok(tasks)
    }

    fn inbox_jobs(&mut self, jobs_max: u32) -> Result<Vec<Arc<str>>> {
        let mut jobs: Vec<Arc<str>> = Vec::new();
        while jobs.len() < jobs_max as usize {
            let last = jobs.last().map(|job| (job.clone(), TaskId(i64::MAX)));
            let after = last.map_or(Bound::Unbounded, Bound::Excluded);
            match self.inbox_of_jobs.range((after, Bound::Unbounded)).next() {
                Some((job, _)) => jobs.push(job.clone()),
                None => break,
            }
        }
        Ok(jobs)
    }

    fn inbox_tasks_of_job(&mut self, job: &str, tasks_max: u32) -> Result<Vec<TaskId>> {
        let of_job = self.inbox_of_jobs.range((Arc::from(job), TaskId(0))..);
        let of_job = of_job.take_while(|(name, _)| &**name == job);
        Ok(of_job.take(tasks_max as usize).map(|(_, task)| *task).collect())
    }

    fn put_ready(&mut self, row: ReadyRow) -> Result<()> {
        self.has_new_work = true;
        self.ready.insert(row);
        self.set_position(row.task, Some(Position::Ready(row)));
        Ok(())
    }

    fn remove_ready(&mut self, row: ReadyRow) -> Result<()> {
        self.ready.remove(&row);
        self.set_position(row.task, None);
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
            task: TASK_ID_MIN,
            limits_version: i64::MIN,
            holds_slots: false,
            ready_at: i64::MIN,
        };
        // Behind every row of the same key: one that was made ready anew is not met twice.
        let behind = |row| ReadyRow {
            limits_version: i64::MAX,
            holds_slots: true,
            ready_at: i64::MAX,
            ..row
        };
        let from = after.map(behind).map_or(Bound::Included(edge), Bound::Excluded);
        let to = Bound::Excluded(ReadyRow { lane: LaneId(lane.0 + 1), ..edge });
        Ok(self.ready.range((from, to)).take(rows_max as usize).copied().collect())
    }

    fn unserved_ready_tasks(&mut self, before: Millis, rows_max: u32) -> Result<Vec<ReadyRow>> {
        let mut rows: Vec<ReadyRow> = Vec::new();
        let stale = |row: &&ReadyRow| row.holds_slots && row.ready_at < before;
        let gated: Vec<ReadyRow> = self.ready.iter().filter(stale).copied().collect();
        for row in gated {
            if rows.len() < rows_max as usize && !self.is_lane_served(row.lane)? {
                rows.push(row);
            }
        }
        Ok(rows)
    }

    fn put_waiter(&mut self, row: WaiterRow) -> Result<()> {
        self.waiters.insert(row);
        self.set_position(row.task, Some(Position::Waiting(row)));
        Ok(())
    }

    fn remove_waiter(&mut self, row: WaiterRow) -> Result<()> {
        self.waiters.remove(&row);
        self.set_position(row.task, None);
        Ok(())
    }

    fn first_waiter(
        &mut self,
        limit: LimitId,
        from: WaitReason,
        to: WaitReason,
    ) -> Result<Option<WaiterRow>> {
        let edge = WaiterRow {
            limit,
            wait_reason: from,
            rank: i64::MIN,
            tag: i64::MIN,
            admission_seq: i64::MIN,
            task: TASK_ID_MIN,
            lane: LaneId(i64::MIN),
            queue_switches: 0,
            in_job_window: false,
            due_at: i64::MIN,
        };
        let first = self.waiters.range(edge..).next().copied();
        Ok(first.filter(|row| row.limit == limit && row.wait_reason <= to))
    }

    fn first_unguaranteed_in_window(&mut self, job_limit: LimitId) -> Result<Option<Position>> {
        Ok(self.find_first_in_window(job_limit))
    }

    fn waiters_without_worker(&mut self, lanes: &[Lane], rows_max: u32) -> Result<Vec<WaiterRow>> {
        let served = |row: &&WaiterRow| {
            row.wait_reason == WaitReason::NoWorker && lanes.iter().any(|lane| lane.id == row.lane)
        };
        Ok(self.waiters.iter().filter(served).take(rows_max as usize).copied().collect())
    }

    fn start_attempts(&mut self, rows: &[ReadyRow], lease: &Lease) -> Result<Vec<Attempt>> {
        self.lease_expiries.insert((lease.expires_at, lease.token));
        self.leases.insert(lease.token, lease.clone());
        let mut attempts = Vec::with_capacity(rows.len());
        for row in rows {
            self.ready.remove(row);
            self.set_position(row.task, Some(Position::Running(lease.token)));
            let running = RunningAttempt {
                holds_slots: row.holds_slots,
                started_at: self.now,
                ..RunningAttempt::default()
            };
            self.running.insert((lease.token, row.task), running);
            attempts.extend(self.build_attempt(*row, lease));
        }
        Ok(attempts)
    }

    fn remove_running(&mut self, task: TaskId, token: Token) -> Result<Option<RemovedAttempt>> {
        let Some(running) = self.running.remove(&(token, task)) else {
            return Ok(None);
        };
        self.set_position(task, None);
        Ok(Some(RemovedAttempt {
            cancel_requested: running.cancel_requested,
            holds_slots: running.holds_slots,
        }))
    }

    fn request_cancel(&mut self, task: TaskId, token: Token) -> Result<()> {
        if let Some(running) = self.running.get_mut(&(token, task)) {
            running.cancel_requested = true;
        }
        Ok(())
    }

    fn put_progress(&mut self, task: TaskId, token: Token, progress: &Progress) -> Result<()> {
        if let Some(running) = self.running.get_mut(&(token, task)) {
            running.progress = Some(progress.clone());
        }
        Ok(())
    }

    fn attempts_to_stop(&mut self, tokens: &[Token]) -> Result<Vec<(TaskId, Token)>> {
        let mut requests = Vec::new();
        for token in tokens {
            let of_lease = self.running.range((*token, TASK_ID_MIN)..=(*token, TaskId(i64::MAX)));
            let asked = of_lease.filter(|(_, running)| running.cancel_requested);
            requests.extend(asked.map(|((token, task), _)| (*task, *token)));
            let fenced =
                self.fenced_attempts.range((*token, TASK_ID_MIN)..=(*token, TaskId(i64::MAX)));
            requests.extend(fenced.map(|(token, task)| (*task, *token)));
        }
        Ok(requests)
    }

    fn insert_fenced_attempt(&mut self, task: TaskId, token: Token) -> Result<()> {
        self.fenced_attempts.insert((token, task));
        Ok(())
    }

    fn delete_obsolete_fenced_attempts(&mut self) -> Result<()> {
        let leases = &self.leases;
        self.fenced_attempts.retain(|(token, _)| leases.contains_key(token));
        Ok(())
    }

    fn running_tasks_of_lease(&mut self, token: Token) -> Result<Vec<TaskId>> {
        let of_lease = self.running.range((token, TASK_ID_MIN)..=(token, TaskId(i64::MAX)));
        Ok(of_lease.map(|((_, task), _)| *task).collect())
    }

    fn running_tasks_of_group(&mut self, group: &str) -> Result<Vec<(TaskId, Token)>> {
        let in_group = |task: &TaskId| {
            let tags = self.tasks.get(task).map(|task| &task.info);
            tags.is_some_and(|tags| &**tags.group.as_ref().unwrap_or(&tags.kind) == group)
        };
        let running = self.running.keys().filter(|(_, task)| in_group(task));
        let mut running: Vec<_> = running.map(|(token, task)| (*task, *token)).collect();
        running.sort_unstable();
        Ok(running)
    }

    fn set_holds_slots(&mut self, task: TaskId, token: Token) -> Result<()> {
        if let Some(running) = self.running.get_mut(&(token, task)) {
            running.holds_slots = true;
        }
        Ok(())
    }

    fn run_time_stats(&mut self, group: &str) -> Result<Option<RunTimeStats>> {
        Ok(self.run_times.get(group).map(|(pace, _)| *pace))
    }

    fn put_run_time_stats(&mut self, group: &str, stats: RunTimeStats) -> Result<()> {
        self.run_times.insert(group.into(), (stats, self.now));
        Ok(())
    }

    fn delete_run_time_stats(&mut self, before: Millis) -> Result<()> {
        self.run_times.retain(|_, (_, heard_at)| *heard_at >= before);
        Ok(())
    }

    fn renew_lease(&mut self, token: Token, worker: &WorkerId, expires_at: Millis) -> Result<bool> {
        Ok(leases::renew_unexpired_lease(self, token, worker, expires_at))
    }

    fn expired_leases_of_worker(
        &mut self,
        at: Millis,
        worker: &WorkerId,
        max: u32,
    ) -> Result<Vec<Token>> {
        Ok(leases::expired_leases_of_worker(self, at, worker, max))
    }

    fn abandoned_leases(&mut self, at: Millis, max: u32) -> Result<Vec<Token>> {
        Ok(leases::abandoned_leases(self, at, max))
    }

    fn delete_empty_leases(&mut self, tokens: &[Token]) -> Result<()> {
        for token in tokens {
            let mut running =
                self.running.range((*token, TASK_ID_MIN)..=(*token, TaskId(i64::MAX)));
            if running.next().is_none() {
                self.delete_lease(*token)?;
            }
        }
        Ok(())
    }

    fn delete_lease(&mut self, token: Token) -> Result<()> {
        if let Some(lease) = self.leases.remove(&token) {
            self.lease_expiries.remove(&(lease.expires_at, token));
        }
        Ok(())
    }
}
