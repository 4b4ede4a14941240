//! The auditor's own books: what every task, lease and limit must be, worked out from the
//! requests and the answers alone. They share no code with the rules they judge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::{
    Kind, Millis, NewTask, OnFailure, Outcome, Scope, Source, TaskId, Token, WorkerId,
};

/// What is known of an unfinished task.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) kind: Arc<str>,
    pub(super) queue: Arc<str>,
    pub(super) workflow: Option<Arc<str>>,
    goes_on: bool,
    pub(super) weight: u32,
    pub(super) key: Option<Arc<str>>,
    max_attempts: Option<u32>,
    /// Names of the limits that apply if they exist: its group's, then its job's.
    pub(super) limits: Vec<Arc<str>>,
    pub(super) spent: u32,
    pub(super) deaths: u32,
    pub(super) running: Option<Token>,
    pub(super) cancel: bool,
    pub(super) not_before: Millis,
    pub(super) has_started: bool,
}

impl Entry {
    pub(super) fn new(task: &NewTask, queue: Arc<str>, now: Millis) -> Self {
        let mut limits: Vec<Arc<str>> = vec![Scope::Group.name(task.group()).into()];
        limits.extend(task.job.iter().map(|job| Arc::from(Scope::Job.name(job))));
        let run_at = task.run_at.unwrap_or(now);
        Self {
            kind: task.kind.as_str().into(),
            queue,
            workflow: task.workflow.as_deref().map(Into::into),
            goes_on: task.on_failure == OnFailure::Continue,
            weight: task.weight,
            key: task.unique_key.as_deref().map(Into::into),
            max_attempts: task.max_attempts,
            limits,
            spent: 0,
            deaths: 0,
            running: None,
            cancel: false,
            not_before: run_at.max(now),
            has_started: false,
        }
    }
}

/// Who set a limit to what.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    operator: Option<u32>,
    base: Option<(u32, Source)>,
    is_job: bool,
}

impl Settings {
    pub(super) fn job(concurrency: Option<u32>) -> Self {
        let base = concurrency.map(|capacity| (capacity, Source::Submit));
        Self { operator: None, base, is_job: true }
    }

    pub(super) fn capacity(&self) -> Option<u32> {
        self.operator.or(self.base.map(|base| base.0))
    }

    fn source(&self) -> Source {
        let weakest = if self.is_job { Source::Submit } else { Source::Unset };
        let base = self.base.map_or(weakest, |base| base.1);
        if self.operator.is_some() { Source::Operator } else { base }
    }

    /// Applies a change; whether it took effect. Deployments never overrule operators, and a
    /// registration never overrules the configuration file. An operator takes away what is in
    /// force: their own setting, or else what a deployment said.
    pub(super) fn set(&mut self, capacity: Option<u32>, by: Source) -> bool {
        let effective = by >= self.source();
        match (by, capacity) {
            (Source::Operator, None) if self.operator.is_none() => self.base = None,
            (Source::Operator, capacity) => self.operator = capacity,
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
pub(super) struct Books {
    pub(super) kinds: BTreeMap<Arc<str>, Kind>,
    /// Unfinished tasks. Ids ascend, so one that is not here and not above `last_task` ended.
    pub(super) tasks: BTreeMap<TaskId, Entry>,
    pub(super) last_task: TaskId,
    pub(super) last_token: Token,
    pub(super) leases: BTreeMap<Token, LeaseEntry>,
    /// The last heartbeat of each worker that has not deregistered.
    pub(super) heartbeats: BTreeMap<WorkerId, HeartbeatEntry>,
    pub(super) limits: BTreeMap<Arc<str>, Settings>,
    /// The step of each workflow that started and has not ended for good.
    pub(super) steps: BTreeMap<Arc<str>, TaskId>,
    /// Workflows whose step failed for good, until somebody lets them go on.
    pub(super) halted: BTreeSet<Arc<str>>,
    /// Tasks that ended, by how.
    pub(super) ended: u64,
    pub(super) quarantined: u64,
    /// Attempts that heartbeats released, because their worker did not know the lease.
    pub(super) released: u64,
}

impl Books {
    pub(super) fn max_attempts(&self, entry: &Entry) -> u32 {
        let of_kind = || self.kinds.get(&entry.kind).map_or(5, |kind| kind.max_attempts);
        entry.max_attempts.unwrap_or_else(of_kind)
    }

    pub(super) fn capacity(&self, limit: &str) -> Option<u32> {
        self.limits.get(limit).and_then(Settings::capacity)
    }

    pub(super) fn with_key(&self, key: &str) -> Option<TaskId> {
        let has_key = |entry: &Entry| entry.key.as_deref() == Some(key);
        self.tasks.iter().find(|(_, entry)| has_key(entry)).map(|(id, _)| *id)
    }

    pub(super) fn running_under(&self, token: Token) -> Vec<TaskId> {
        let runs = |entry: &&Entry| entry.running == Some(token);
        self.tasks.iter().filter(|(_, e)| runs(e)).map(|(id, _)| *id).collect()
    }

    /// Finished for good.
    pub(super) fn end(&mut self, task: TaskId) {
        if let Some(entry) = self.tasks.remove(&task)
            && let Some(workflow) = &entry.workflow
            && self.steps.get(workflow) == Some(&task)
        {
            self.steps.remove(workflow);
        }
        self.ended += 1;
    }

    /// Finished for good, and badly: its workflow goes no further.
    fn fail(&mut self, task: TaskId) {
        let entry = self.tasks.get(&task).filter(|entry| !entry.goes_on);
        self.halted.extend(entry.and_then(|entry| entry.workflow.clone()));
        self.end(task);
    }

    /// An accepted exit. A lease goes with its last attempt.
    pub(super) fn exit(&mut self, task: TaskId, outcome: &Outcome, now: Millis) {
        let Some(entry) = self.tasks.get(&task) else { return };
        let max_attempts = self.max_attempts(entry);
        let Some(entry) = self.tasks.get_mut(&task) else { return };
        let token = entry.running.take();
        let cancel = entry.cancel;
        let mut has_failed = false;
        let is_final = match outcome {
            Outcome::Completed(_) | Outcome::Cancelled => true,
            Outcome::Failed { retryable, retry_in_ms, .. } => {
                entry.spent += 1;
                entry.not_before = now + retry_in_ms.unwrap_or(0);
                has_failed = !retryable || entry.spent >= max_attempts;
                has_failed || cancel
            }
            Outcome::Snoozed { for_ms } => {
                entry.not_before = now + for_ms;
                cancel
            }
            Outcome::Released => cancel,
        };
        if has_failed {
            self.fail(task);
        } else if is_final {
            self.end(task);
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
    pub(super) fn death(&mut self, task: TaskId) {
        let Some(entry) = self.tasks.get(&task) else { return };
        let max_attempts = self.max_attempts(entry);
        let max_deaths = self.kinds.get(&entry.kind).map_or(3, |kind| kind.max_deaths);
        let Some(entry) = self.tasks.get_mut(&task) else { return };
        entry.running = None;
        entry.spent += 1;
        entry.deaths += 1;
        let is_poison = entry.deaths >= max_deaths;
        if entry.cancel {
            self.quarantined += u64::from(is_poison);
            self.end(task);
        } else if is_poison || entry.spent >= max_attempts {
            self.quarantined += u64::from(is_poison);
            self.fail(task);
        }
    }
}
