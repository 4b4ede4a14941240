//! Judges every answer of the store against the books, and keeps them.

use std::sync::Arc;

use tidegate_core::invariants::Violation;
use tidegate_core::{
    Attempt, CancelOutcome, CapacitySource, Claim, ErrorKind, Finish, FinishReply, Heartbeat,
    HeartbeatReply, LimitScope, Millis, Outcome, PauseTarget, ReapReply, RegisterReply,
    Registration, Result as Answered, SetJob, SetLimit, SetPaused, Submission, SubmittedTask,
    TaskId, Token,
};

use super::message::{Reply, Request};
use super::shadow_model::{HeartbeatEntry, LeaseEntry, LimitSettings, ShadowModel, TaskEntry};

/// The outcome of one check.
pub(super) type CheckResult = Result<(), Violation>;

/// Returns a violation of `rule` unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $rule:expr, $($details:tt)+) => {
        if !$holds {
            return Err(tidegate_core::invariants::Violation { rule: $rule, details: format!($($details)+) });
        }
    };
}
pub(super) use ensure;

const ANSWERED: &str = "every verb is answered";
const FENCED: &str = "at most one completion is accepted and a stale token changes nothing";
const TOKENS: &str = "tokens ascend";
const ORDER: &str = "a step of a workflow starts after the one before it ended for good";
const ATTEMPTS: &str = "attempts never exceed max_attempts";
const DUE: &str = "nothing starts before it is due";
const HALTED: &str = "a workflow whose step failed goes no further until somebody says so";
const UNIQUE: &str = "a unique key has one unfinished task";
const LEASES: &str = "a lease is renewed until it ran out and reaped only then";
const UNLISTED: &str = "a heartbeat releases expired leases that it does not list";
const CANCELS: &str = "a cancel ends what waits and reaches what runs";
const SOURCES: &str = "a capacity is held by the strongest source";

/// Leases one reap looks at.
const REAP_LEASES_MAX: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Responses {
    pub(super) model: ShadowModel,
}

impl Responses {
    /// Writes one commit into the books.
    pub(super) fn observe(
        &mut self,
        now: Millis,
        request: &Request,
        answer: &Reply,
    ) -> CheckResult {
        match (request, answer) {
            (Request::Register(asked), Reply::Register(told)) => self.register(asked, told),
            (Request::Submit(asked), Reply::Submit(told)) => self.submit(asked, told, now),
            (Request::Claim(asked), Reply::Claim(told)) => {
                self.claim(asked, expect_answer(told)?, now)
            }
            (Request::Heartbeat(asked), Reply::Heartbeat(told)) => {
                self.heartbeat(asked, expect_answer(told)?, now)
            }
            (Request::Finish(asked), Reply::Finish(told)) => {
                self.finish(asked, expect_answer(told)?, now)
            }
            (Request::Cancel(asked), Reply::Cancel(told)) => {
                self.cancel(asked, expect_answer(told)?)
            }
            (Request::Reap, Reply::Reap(told)) => self.reap(expect_answer(told)?, now),
            (Request::SetLimit(asked), Reply::SetLimit(told)) => self.set_limit(asked, told),
            (Request::SetJob(asked), Reply::SetJob(told)) => self.set_job(asked, told),
            (Request::Pause(asked), Reply::Pause(told)) => self.pause(asked, told),
            (Request::Admit, Reply::Admit(told)) => expect_answer(told).map(drop),
            (Request::Prune, Reply::Prune(told)) => expect_answer(told).map(drop),
            _ => Err(Violation { rule: ANSWERED, details: format!("{request:?}: {answer:?}") }),
        }
    }

    fn register(&mut self, asked: &Registration, told: &Answered<RegisterReply>) -> CheckResult {
        let told = expect_answer(told)?;
        for kind in &asked.kinds {
            self.model.kinds.insert(kind.name.clone(), kind.clone());
        }
        let source = asked.source.unwrap_or(CapacitySource::Registration);
        let mut overruled = Vec::new();
        for (group, capacity) in &asked.limits {
            let settings = self.settings(&LimitScope::Group.limit_name(group));
            if !settings.set(Some(*capacity), source) && settings.capacity() != Some(*capacity) {
                overruled.push(group);
            }
        }
        let told: Vec<&String> = told.overridden_limits.iter().map(|(group, _, _)| group).collect();
        ensure!(told == overruled, SOURCES, "overruled {told:?}, expected {overruled:?}");
        Ok(())
    }

    fn settings(&mut self, name: &str) -> &mut LimitSettings {
        if !self.model.limits.contains_key(name) {
            self.model.limits.insert(name.into(), LimitSettings::default());
        }
        self.model.limits.get_mut(name).expect("just made")
    }

    fn set_limit(&mut self, asked: &SetLimit, told: &Answered<Option<i64>>) -> CheckResult {
        let is_job = asked.name.starts_with("job:");
        if is_job && !self.model.limits.contains_key(asked.name.as_str()) {
            let refused = told.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid);
            ensure!(
                refused || asked.capacity.is_none(),
                SOURCES,
                "{} was set before the job was there: {told:?}",
                asked.name
            );
            return Ok(());
        }
        let told = expect_answer(told)?;
        let took_effect = self.settings(&asked.name).set(asked.capacity, asked.source);
        ensure!(told.is_some() == took_effect, SOURCES, "{asked:?} was answered {told:?}");
        Ok(())
    }

    fn set_job(&mut self, asked: &SetJob, told: &Answered<()>) -> CheckResult {
        let name = LimitScope::Job.limit_name(&asked.job);
        let is_known = self.model.limits.contains_key(name.as_str());
        ensure!(told.is_ok() == is_known, ANSWERED, "{asked:?}: {told:?}");
        if let Some(capacity) = asked.concurrency.filter(|_| is_known) {
            self.settings(&name).set(capacity, CapacitySource::Operator);
        }
        Ok(())
    }

    fn pause(&mut self, asked: &SetPaused, told: &Answered<bool>) -> CheckResult {
        match &asked.target {
            PauseTarget::Job(job) => {
                let is_known =
                    self.model.limits.contains_key(LimitScope::Job.limit_name(job).as_str());
                ensure!(told.is_ok() == is_known, ANSWERED, "{asked:?}: {told:?}");
            }
            PauseTarget::Workflow(workflow) if !asked.paused => {
                let is_halted = self.model.halted.remove(workflow.as_str());
                let told = expect_answer(told)?;
                ensure!(*told || !is_halted, HALTED, "{workflow} was not: {told}");
            }
            _ => drop(expect_answer(told)?),
        }
        Ok(())
    }

    fn submit(
        &mut self,
        asked: &Submission,
        told: &Answered<Vec<SubmittedTask>>,
        now: Millis,
    ) -> CheckResult {
        let too_heavy = asked.tasks.iter().any(|task| {
            let capacity = self.model.capacity(&LimitScope::Group.limit_name(task.group()));
            capacity.is_some_and(|capacity| capacity > 0 && task.weight > capacity)
        });
        if too_heavy {
            let refused = told.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid);
            ensure!(refused, "what can never run is refused", "{asked:?}: {told:?}");
            return Ok(());
        }
        let told = expect_answer(told)?;
        for job in &asked.jobs {
            self.make_job(&job.name, job.concurrency);
        }
        ensure!(told.len() == asked.tasks.len(), ANSWERED, "{} of a submit", told.len());
        for (task, told) in asked.tasks.iter().zip(told) {
            let same = task.unique_key.as_deref().and_then(|key| self.model.with_key(key));
            if let Some(same) = same {
                ensure!(
                    *told == SubmittedTask { task: same, is_new: false },
                    UNIQUE,
                    "task {same} carries the key of {told:?}"
                );
                continue;
            }
            ensure!(told.is_new && told.task > self.model.last_task, UNIQUE, "{told:?} is new");
            self.model.last_task = told.task;
            if let Some(job) = &task.job {
                self.make_job(job, None);
            }
            let of_kind = self.model.kinds.get(task.kind.as_str()).map(|kind| kind.queue.clone());
            let queue = task.queue.as_deref().map(Arc::from).or(of_kind);
            let entry = TaskEntry::new(task, queue.unwrap_or_else(|| "default".into()), now);
            self.model.tasks.insert(told.task, entry);
        }
        Ok(())
    }

    fn make_job(&mut self, name: &str, concurrency: Option<u32>) {
        let name = LimitScope::Job.limit_name(name);
        if !self.model.limits.contains_key(name.as_str()) {
            self.model.limits.insert(name.into(), LimitSettings::job(concurrency));
        }
    }

    fn claim(&mut self, asked: &Claim, told: &[Attempt], now: Millis) -> CheckResult {
        ensure!(told.len() <= asked.tasks_max as usize, ANSWERED, "{} claimed", told.len());
        let Some(token) = told.first().map(|attempt| attempt.token) else {
            return Ok(());
        };
        ensure!(token > self.model.last_token, TOKENS, "{token} after {}", self.model.last_token);
        self.model.last_token = token;
        let expires_at = now + asked.lease_ms;
        let lease = LeaseEntry { worker: asked.worker.clone(), expires_at };
        self.model.leases.insert(token, lease);
        for attempt in told {
            ensure!(attempt.token == token, TOKENS, "two tokens in one claim");
            ensure!(attempt.expires_at == expires_at, LEASES, "{attempt:?}");
            self.start(asked, attempt, now)?;
        }
        Ok(())
    }

    fn start(&mut self, asked: &Claim, attempt: &Attempt, now: Millis) -> CheckResult {
        let task = attempt.task;
        self.check_step_order(attempt)?;
        let Some(entry) = self.model.tasks.get(&task) else {
            return violation(
                "what ended does not start again",
                format!("task {task} was claimed"),
            );
        };
        let (spent, most) = (entry.attempts_used, self.model.max_attempts(entry));
        ensure!(entry.running.is_none(), FENCED, "task {task} was claimed while it runs");
        ensure!(
            attempt.number == spent + 1 && attempt.number <= most && attempt.max_attempts == most,
            ATTEMPTS,
            "attempt {} of {} of task {task}, expected {} of {most}",
            attempt.number,
            attempt.max_attempts,
            spent + 1
        );
        ensure!(now >= entry.not_before, DUE, "task {task} at {now}, due at {}", entry.not_before);
        let is_halted = entry.workflow.as_ref().is_some_and(|of| self.model.halted.contains(of));
        ensure!(!is_halted, HALTED, "task {task} starts all the same");
        let serves = asked.kinds.contains(&entry.kind) && asked.queues.contains(&entry.queue);
        ensure!(serves, "a worker gets what it serves", "{attempt:?}");
        let window = self.model.kinds.get(&entry.kind).and_then(|kind| kind.day_window);
        ensure!(
            window.is_none_or(|window| window.is_open(now)),
            "a kind is claimed inside its time of day",
            "task {task} at {now}"
        );
        let entry = self.model.tasks.get_mut(&task).expect("looked at above");
        entry.running = Some(attempt.token);
        entry.has_started = true;
        if let Some(workflow) = &entry.workflow {
            self.model.steps.insert(workflow.clone(), task);
        }
        Ok(())
    }

    fn check_step_order(&self, attempt: &Attempt) -> CheckResult {
        let Some(workflow) = &attempt.workflow else { return Ok(()) };
        let task = attempt.task;
        if let Some(step) = self.model.steps.get(workflow) {
            ensure!(*step == task, ORDER, "task {task} of {workflow} while {step} is unfinished");
        }
        let Some(entry) = self.model.tasks.get(&task) else { return Ok(()) };
        if entry.has_started {
            return Ok(());
        }
        let before = self
            .model
            .tasks
            .range(..task)
            .find(|(_, other)| other.workflow.as_ref() == Some(workflow) && !other.has_started);
        ensure!(before.is_none(), ORDER, "task {task} of {workflow} before {before:?}");
        Ok(())
    }

    fn heartbeat(&mut self, asked: &Heartbeat, told: &HeartbeatReply, now: Millis) -> CheckResult {
        if asked.is_deregistration() {
            self.model.heartbeats.remove(&asked.worker);
        } else {
            let heartbeat = HeartbeatEntry { at: now, lease_ms: asked.lease_ms };
            self.model.heartbeats.insert(asked.worker.clone(), heartbeat);
        }
        let mut lost: Vec<Token> = Vec::new();
        let mut cancelled: Vec<(TaskId, Token)> = Vec::new();
        for token in &asked.tokens {
            let lease = self.model.leases.get_mut(token);
            match lease.filter(|l| l.worker == asked.worker && l.expires_at > now) {
                Some(lease) => lease.expires_at = now + asked.lease_ms,
                None => lost.push(*token),
            }
            let asked_to_stop = self.model.running_under(*token);
            let asked_to_stop = asked_to_stop.into_iter().filter(|t| self.model.tasks[t].cancel);
            cancelled.extend(asked_to_stop.map(|task| (task, *token)));
        }
        ensure!(
            told.lost_leases == lost,
            LEASES,
            "told {:?} are lost, expected {lost:?}",
            told.lost_leases
        );
        ensure!(
            told.attempts_to_stop == cancelled,
            CANCELS,
            "told {:?}, expected {cancelled:?}",
            told.attempts_to_stop
        );
        self.release_unlisted(asked, told, now)
    }

    /// Expired leases of the worker that its heartbeat does not list: the attempts are released, and
    /// neither spent nor counted as deaths.
    fn release_unlisted(
        &mut self,
        asked: &Heartbeat,
        told: &HeartbeatReply,
        now: Millis,
    ) -> CheckResult {
        let leases = self.model.leases.iter().filter(|(token, lease)| {
            lease.worker == asked.worker && lease.expires_at <= now && !asked.tokens.contains(token)
        });
        let mut released = 0;
        for token in leases.map(|(token, _)| *token).collect::<Vec<_>>() {
            for task in self.model.running_under(token) {
                self.model.complete_attempt(task, &Outcome::Released, now);
                released += 1;
            }
            self.model.leases.remove(&token);
        }
        self.model.released += u64::from(released);
        ensure!(
            told.released_attempts == released,
            UNLISTED,
            "released {}, expected {released}",
            told.released_attempts
        );
        Ok(())
    }

    fn finish(&mut self, asked: &Finish, told: &FinishReply, now: Millis) -> CheckResult {
        let mut lost = told.lost_attempts.iter();
        for exit in &asked.completions {
            let runs = self.model.tasks.get(&exit.task).and_then(|entry| entry.running);
            if runs == Some(exit.token) {
                self.model.complete_attempt(exit.task, &exit.outcome, now);
                continue;
            }
            let next = lost.next().map(|lost| (lost.task, lost.token));
            ensure!(
                next == Some((exit.task, exit.token)),
                FENCED,
                "an exit of task {} with token {} was accepted; it runs under {runs:?}",
                exit.task,
                exit.token
            );
        }
        let refused = lost.next();
        ensure!(refused.is_none(), FENCED, "{refused:?} was refused with the right token");
        match &asked.claim {
            Some(claim) => self.claim(claim, &told.claimed, now),
            None => Ok(()),
        }
    }

    fn cancel(&mut self, asked: &[TaskId], told: &[CancelOutcome]) -> CheckResult {
        ensure!(asked.len() == told.len(), ANSWERED, "{} of a cancel", told.len());
        for (task, told) in asked.iter().zip(told) {
            let right = match self.model.tasks.get_mut(task) {
                None => matches!(told, CancelOutcome::Finished | CancelOutcome::NotFound),
                Some(entry) if entry.running.is_some() => {
                    entry.cancel = true;
                    *told == CancelOutcome::Requested
                }
                Some(_) => {
                    self.model.finish_task(*task);
                    *told == CancelOutcome::Cancelled
                }
            };
            ensure!(right, CANCELS, "cancelling task {task} was answered {told:?}");
        }
        Ok(())
    }

    fn reap(&mut self, told: &ReapReply, now: Millis) -> CheckResult {
        let expired = self.model.leases.iter().filter(|(_, l)| self.model.is_reaped(l, now));
        let mut expired: Vec<(Millis, Token)> =
            expired.map(|(token, lease)| (lease.expires_at, *token)).collect();
        expired.sort_unstable();
        let mut deaths = 0;
        for (_, token) in expired.into_iter().take(REAP_LEASES_MAX) {
            for task in self.model.running_under(token) {
                self.model.crash_attempt(task);
                deaths += 1;
            }
            self.model.leases.remove(&token);
        }
        ensure!(
            told.expired_attempts == deaths,
            LEASES,
            "reaped {}, expected {deaths}",
            told.expired_attempts
        );
        Ok(())
    }
}

fn expect_answer<T>(told: &Answered<T>) -> Result<&T, Violation> {
    told.as_ref().map_err(|error| Violation { rule: ANSWERED, details: error.to_string() })
}

fn violation(rule: &'static str, found: String) -> CheckResult {
    Err(Violation { rule, details: found })
}
