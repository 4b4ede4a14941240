//! The auditor's own books: what every task, lease and limit must be, worked out from the
//! requests and the answers alone. They share no code with the rules they judge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::{
    CapacitySource, Kind, LimitScope, Millis, NewTask, OnFailure, Outcome, TaskId, Token, WorkerId,
};

/// What is known of an unfinished task.
#[derive(Debug, Clone)]
pub(super) struct TaskEntry {
    pub(super) kind: Arc<str>,
    pub(super) queue: Arc<str>,
    pub(super) workflow: Option<Arc<str>>,
    continues_on_failure: bool,
    pub(super) weight: u32,
    pub(super) key: Option<Arc<str>>,
    max_attempts_override: Option<u32>,
    /// Names of the limits that apply if they exist: its group's, then its job's.
    pub(super) limits: Vec<Arc<str>>,
    pub(super) attempts_used: u32,
    pub(super) crashes: u32,
    pub(super) running: Option<Token>,
    pub(super) cancel: bool,
    pub(super) not_before: Millis,
    pub(super) has_started: bool,
}

impl TaskEntry {
    pub(super) fn new(task: &NewTask, queue: Arc<str>, now: Millis) -> Self {
        let mut limits: Vec<Arc<str>> = vec![LimitScope::Group.limit_name(task.group()).into()];
        limits.extend(task.job.iter().map(|job| Arc::from(LimitScope::Job.limit_name(job))));
        let run_at = task.run_at.unwrap_or(now);
        Self {
            kind: task.kind.as_str().into(),
            queue,
            workflow: task.workflow.as_deref().map(Into::into),
            continues_on_failure: task.on_failure == OnFailure::Continue,
            weight: task.weight,
            key: task.unique_key.as_deref().map(Into::into),
            max_attempts_override: task.max_attempts,
            limits,
            attempts_used: 0,
            crashes: 0,
            running: None,
            cancel: false,
            not_before: run_at.max(now),
            has_started: false,
        }
    }
}

/// Who set a limit to what.
#[derive(Debug, Clone, Default)]
pub(super) struct LimitSettings {
    operator: Option<u32>,
    base: Option<(u32, CapacitySource)>,
    is_job: bool,
}

impl LimitSettings {
    pub(super) fn job(concurrency: Option<u32>) -> Self {
        let base = concurrency.map(|capacity| (capacity, CapacitySource::Submit));
        Self { operator: None, base, is_job: true }
    }

    pub(super) fn capacity(&self) -> Option<u32> {
        self.operator.or(self.base.map(|base| base.0))
    }

    fn source(&self) -> CapacitySource {
        let weakest = if self.is_job { CapacitySource::Submit } else { CapacitySource::Unset };
        let base = self.base.map_or(weakest, |base| base.1);
        if self.operator.is_some() { CapacitySource::Operator } else { base }
    }

    /// Applies a change; whether it took effect. Deployments never overrule operators, and a
    /// registration never overrules the configuration file. An operator takes away what is in
    /// force: their own setting, or else what a deployment said.
    pub(super) fn set(&mut self, capacity: Option<u32>, by: CapacitySource) -> bool {
        let effective = by >= self.source();
        match (by, capacity) {
            (CapacitySource::Operator, None) if self.operator.is_none() => self.base = None,
            (CapacitySource::Operator, capacity) => self.operator = capacity,
            (_, Some(capacity)) if self.base.is_none_or(|base| by >= base.1) => {
                self.base = Some((capacity, by));
            }
            _ => {}
        }
        effective
    }
}

#[derive(Debug, Clone)]
pub(super) struct LeaseEntry {
    pub(super) worker: WorkerId,
    pub(super) expires_at: Millis,
}

/// The last heartbeat of a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeartbeatEntry {
    pub(super) at: Millis,
    pub(super) lease_ms: Millis,
}

/// The books.
#[derive(Debug, Default)]
pub(super) struct ShadowModel {
    pub(super) kinds: BTreeMap<Arc<str>, Kind>,
    /// Unfinished tasks. Ids ascend, so one that is not here and not above `last_task` ended.
    pub(super) tasks: BTreeMap<TaskId, TaskEntry>,
    pub(super) last_task: TaskId,
    pub(super) last_token: Token,
    pub(super) leases: BTreeMap<Token, LeaseEntry>,
    /// The last heartbeat of each worker that has not deregistered.
    pub(super) heartbeats: BTreeMap<WorkerId, HeartbeatEntry>,
    pub(super) limits: BTreeMap<Arc<str>, LimitSettings>,
    /// The step of each workflow that started and has not ended for good.
    pub(super) steps: BTreeMap<Arc<str>, TaskId>,
    /// Workflows whose step failed for good, until somebody lets them go on.
    pub(super) halted: BTreeSet<Arc<str>>,
    /// Tasks that ended, by how.
    pub(super) finished: u64,
    pub(super) quarantined: u64,
    /// Attempts that heartbeats released, because their worker did not know the lease.
    pub(super) released: u64,
}

impl ShadowModel {
    pub(super) fn max_attempts(&self, entry: &TaskEntry) -> u32 {
        let of_kind = || self.kinds.get(&entry.kind).map_or(5, |kind| kind.max_attempts);
        entry.max_attempts_override.unwrap_or_else(of_kind)
    }

    pub(super) fn capacity(&self, limit: &str) -> Option<u32> {
        self.limits.get(limit).and_then(LimitSettings::capacity)
    }

    pub(super) fn with_key(&self, key: &str) -> Option<TaskId> {
        let has_key = |entry: &TaskEntry| entry.key.as_deref() == Some(key);
        self.tasks.iter().find(|(_, entry)| has_key(entry)).map(|(id, _)| *id)
    }

    pub(super) fn running_under(&self, token: Token) -> Vec<TaskId> {
        let runs = |entry: &&TaskEntry| entry.running == Some(token);
        self.tasks.iter().filter(|(_, e)| runs(e)).map(|(id, _)| *id).collect()
    }

    /// Finished for good.
    pub(super) fn finish_task(&mut self, task: TaskId) {
        if let Some(entry) = self.tasks.remove(&task)
            && let Some(workflow) = &entry.workflow
            && self.steps.get(workflow) == Some(&task)
        {
            self.steps.remove(workflow);
        }
        self.finished += 1;
    }

    /// Finished for good, and badly: its workflow goes no further.
    fn fail_task(&mut self, task: TaskId) {
        let entry = self.tasks.get(&task).filter(|entry| !entry.continues_on_failure);
        self.halted.extend(entry.and_then(|entry| entry.workflow.clone()));
        self.finish_task(task);
    }

    /// An accepted exit. A lease goes with its last attempt.
    pub(super) fn complete_attempt(&mut self, task: TaskId, outcome: &Outcome, now: Millis) {
        let Some(entry) = self.tasks.get(&task) else { return };
        let max_attempts = self.max_attempts(entry);
        let Some(entry) = self.tasks.get_mut(&task) else { return };
        let token = entry.running.take();
        let cancel = entry.cancel;
        let mut has_failed = false;
        let is_final = match outcome {
            Outcome::Completed(_) | Outcome::Cancelled => true,
            Outcome::Failed { retryable, retry_in_ms, .. } => {
                entry.attempts_used += 1;
                entry.not_before = now + retry_in_ms.unwrap_or(0);
                has_failed = !retryable || entry.attempts_used >= max_attempts;
                has_failed || cancel
            }
            Outcome::Snoozed { delay_ms: for_ms } => {
                entry.not_before = now + for_ms;
                cancel
            }
            Outcome::Released => cancel,
        };
        if has_failed {
            self.fail_task(task);
        } else if is_final {
            self.finish_task(task);
        }
        if let Some(token) = token.filter(|token| self.running_under(*token).is_empty()) {
            self.leases.remove(&token);
        }
    }

    /// Whether the reaper takes a lease: it has expired, and its worker has sent no heartbeat for a lease
    /// length or has kept the expired lease for that long.
    pub(super) fn is_reaped(&self, lease: &LeaseEntry, now: Millis) -> bool {
        let is_left = self.heartbeats.get(&lease.worker).is_some_and(|last| {
            now - last.at < last.lease_ms && now - lease.expires_at < last.lease_ms
        });
        lease.expires_at <= now && !is_left
    }

    /// A lease that ran out under an attempt.
    pub(super) fn crash_attempt(&mut self, task: TaskId) {
        let Some(entry) = self.tasks.get(&task) else { return };
        let max_attempts = self.max_attempts(entry);
        let max_deaths = self.kinds.get(&entry.kind).map_or(3, |kind| kind.max_crashes);
        let Some(entry) = self.tasks.get_mut(&task) else { return };
        entry.running = None;
        entry.attempts_used += 1;
        entry.crashes += 1;
        let is_poison = entry.crashes >= max_deaths;
        if entry.cancel {
            self.quarantined += u64::from(is_poison);
            self.finish_task(task);
        } else if is_poison || entry.attempts_used >= max_attempts {
            self.quarantined += u64::from(is_poison);
            self.fail_task(task);
        }
    }
}
