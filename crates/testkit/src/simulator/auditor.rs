//! Judges every answer of the store against the books, and keeps them.

use std::sync::Arc;

use tidegate_core::check::Violation;
use tidegate_core::{
    Attempt, CancelOutcome, Claim, ErrorKind, Extend, Extended, Finish, Finished, Millis, Outcome,
    Pausable, Pause, Reaped, Registered, Registration, Result as Answered, Scope, SetJob, SetLimit,
    Source, Submission, Submitted, TaskId, Token,
};

use super::books::{Books, Entry, HeartbeatEntry, LeaseEntry, Settings};
use super::message::{Answer, Request};

/// The outcome of one check.
pub(super) type Verdict = Result<(), Violation>;

/// Returns a violation of `rule` unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $rule:expr, $($found:tt)+) => {
        if !$holds {
            return Err(tidegate_core::check::Violation { rule: $rule, found: format!($($found)+) });
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
pub(super) struct Auditor {
    pub(super) books: Books,
}

impl Auditor {
    /// Writes one commit into the books.
    pub(super) fn observe(&mut self, now: Millis, request: &Request, answer: &Answer) -> Verdict {
        match (request, answer) {
            (Request::Register(asked), Answer::Register(told)) => self.register(asked, told),
            (Request::Submit(asked), Answer::Submit(told)) => self.submit(asked, told, now),
            (Request::Claim(asked), Answer::Claim(told)) => self.claim(asked, answered(told)?, now),
            (Request::Extend(asked), Answer::Extend(told)) => {
                self.extend(asked, answered(told)?, now)
            }
            (Request::Finish(asked), Answer::Finish(told)) => {
                self.finish(asked, answered(told)?, now)
            }
            (Request::Cancel(asked), Answer::Cancel(told)) => self.cancel(asked, answered(told)?),
            (Request::Reap, Answer::Reap(told)) => self.reap(answered(told)?, now),
            (Request::SetLimit(asked), Answer::SetLimit(told)) => self.set_limit(asked, told),
            (Request::SetJob(asked), Answer::SetJob(told)) => self.set_job(asked, told),
            (Request::Pause(asked), Answer::Pause(told)) => self.pause(asked, told),
            (Request::Admit, Answer::Admit(told)) => answered(told).map(drop),
            (Request::Prune, Answer::Prune(told)) => answered(told).map(drop),
            _ => Err(Violation { rule: ANSWERED, found: format!("{request:?}: {answer:?}") }),
        }
    }

    fn register(&mut self, asked: &Registration, told: &Answered<Registered>) -> Verdict {
        let told = answered(told)?;
        for kind in &asked.kinds {
            self.books.kinds.insert(kind.name.clone(), kind.clone());
        }
        let source = asked.source.unwrap_or(Source::Registration);
        let mut overruled = Vec::new();
        for (group, capacity) in &asked.limits {
            let settings = self.settings(&Scope::Group.name(group));
            if !settings.set(Some(*capacity), source) && settings.capacity() != Some(*capacity) {
                overruled.push(group);
            }
        }
        let told: Vec<&String> = told.overruled.iter().map(|(group, _, _)| group).collect();
        ensure!(told == overruled, SOURCES, "overruled {told:?}, expected {overruled:?}");
        Ok(())
    }

    fn settings(&mut self, name: &str) -> &mut Settings {
        if !self.books.limits.contains_key(name) {
            self.books.limits.insert(name.into(), Settings::default());
        }
        self.books.limits.get_mut(name).expect("just made")
    }

    fn set_limit(&mut self, asked: &SetLimit, told: &Answered<Option<i64>>) -> Verdict {
        let is_job = asked.name.starts_with("job:");
        if is_job && !self.books.limits.contains_key(asked.name.as_str()) {
            let refused = told.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid);
            ensure!(
                refused || asked.capacity.is_none(),
                SOURCES,
                "{} was set before the job was there: {told:?}",
                asked.name
            );
            return Ok(());
        }
        let told = answered(told)?;
        let took_effect = self.settings(&asked.name).set(asked.capacity, asked.source);
        ensure!(told.is_some() == took_effect, SOURCES, "{asked:?} was answered {told:?}");
        Ok(())
    }

    fn set_job(&mut self, asked: &SetJob, told: &Answered<()>) -> Verdict {
        let name = Scope::Job.name(&asked.job);
        let is_known = self.books.limits.contains_key(name.as_str());
        ensure!(told.is_ok() == is_known, ANSWERED, "{asked:?}: {told:?}");
        if let Some(capacity) = asked.concurrency.filter(|_| is_known) {
            self.settings(&name).set(capacity, Source::Operator);
        }
        Ok(())
    }

    fn pause(&mut self, asked: &Pause, told: &Answered<bool>) -> Verdict {
        match &asked.what {
            Pausable::Job(job) => {
                let is_known = self.books.limits.contains_key(Scope::Job.name(job).as_str());
                ensure!(told.is_ok() == is_known, ANSWERED, "{asked:?}: {told:?}");
            }
            Pausable::Workflow(workflow) if !asked.paused => {
                let is_halted = self.books.halted.remove(workflow.as_str());
                let told = answered(told)?;
                ensure!(*told || !is_halted, HALTED, "{workflow} was not: {told}");
            }
            _ => drop(answered(told)?),
        }
        Ok(())
    }

    fn submit(
        &mut self,
        asked: &Submission,
        told: &Answered<Vec<Submitted>>,
        now: Millis,
    ) -> Verdict {
        let too_heavy = asked.tasks.iter().any(|task| {
            let capacity = self.books.capacity(&Scope::Group.name(task.group()));
            capacity.is_some_and(|capacity| capacity > 0 && task.weight > capacity)
        });
        if too_heavy {
            let refused = told.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid);
            ensure!(refused, "what can never run is refused", "{asked:?}: {told:?}");
            return Ok(());
        }
        let told = answered(told)?;
        for job in &asked.jobs {
            self.make_job(&job.name, job.concurrency);
        }
        ensure!(told.len() == asked.tasks.len(), ANSWERED, "{} of a submit", told.len());
        for (task, told) in asked.tasks.iter().zip(told) {
            let same = task.unique_key.as_deref().and_then(|key| self.books.with_key(key));
            if let Some(same) = same {
                ensure!(
                    *told == Submitted { task: same, is_new: false },
                    UNIQUE,
                    "task {same} carries the key of {told:?}"
                );
                continue;
            }
            ensure!(told.is_new && told.task > self.books.last_task, UNIQUE, "{told:?} is new");
            self.books.last_task = told.task;
            if let Some(job) = &task.job {
                self.make_job(job, None);
            }
            let of_kind = self.books.kinds.get(task.kind.as_str()).map(|kind| kind.queue.clone());
            let queue = task.queue.as_deref().map(Arc::from).or(of_kind);
            let entry = Entry::new(task, queue.unwrap_or_else(|| "default".into()), now);
            self.books.tasks.insert(told.task, entry);
        }
        Ok(())
    }

    fn make_job(&mut self, name: &str, concurrency: Option<u32>) {
        let name = Scope::Job.name(name);
        if !self.books.limits.contains_key(name.as_str()) {
            self.books.limits.insert(name.into(), Settings::job(concurrency));
        }
    }

    fn claim(&mut self, asked: &Claim, told: &[Attempt], now: Millis) -> Verdict {
        ensure!(told.len() <= asked.tasks_max as usize, ANSWERED, "{} claimed", told.len());
        let Some(token) = told.first().map(|attempt| attempt.token) else {
            return Ok(());
        };
        ensure!(token > self.books.last_token, TOKENS, "{token} after {}", self.books.last_token);
        self.books.last_token = token;
        let expires_at = now + asked.lease_ms;
        let lease = LeaseEntry { worker: asked.worker.clone(), expires_at };
        self.books.leases.insert(token, lease);
        for attempt in told {
            ensure!(attempt.token == token, TOKENS, "two tokens in one claim");
            ensure!(attempt.expires_at == expires_at, LEASES, "{attempt:?}");
            self.start(asked, attempt, now)?;
        }
        Ok(())
    }

    fn start(&mut self, asked: &Claim, attempt: &Attempt, now: Millis) -> Verdict {
        let task = attempt.task;
        self.in_order(attempt)?;
        let Some(entry) = self.books.tasks.get(&task) else {
            return fault("what ended does not start again", format!("task {task} was claimed"));
        };
        let (spent, most) = (entry.spent, self.books.max_attempts(entry));
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
        let is_halted = entry.workflow.as_ref().is_some_and(|of| self.books.halted.contains(of));
        ensure!(!is_halted, HALTED, "task {task} starts all the same");
        let serves = asked.kinds.contains(&entry.kind) && asked.queues.contains(&entry.queue);
        ensure!(serves, "a worker gets what it serves", "{attempt:?}");
        let window = self.books.kinds.get(&entry.kind).and_then(|kind| kind.window);
        ensure!(
            window.is_none_or(|window| window.is_open(now)),
            "a kind is claimed inside its time of day",
            "task {task} at {now}"
        );
        let entry = self.books.tasks.get_mut(&task).expect("looked at above");
        entry.running = Some(attempt.token);
        entry.has_started = true;
        if let Some(workflow) = &entry.workflow {
            self.books.steps.insert(workflow.clone(), task);
        }
        Ok(())
    }

    fn in_order(&self, attempt: &Attempt) -> Verdict {
        let Some(workflow) = &attempt.workflow else { return Ok(()) };
        let task = attempt.task;
        if let Some(step) = self.books.steps.get(workflow) {
            ensure!(*step == task, ORDER, "task {task} of {workflow} while {step} is unfinished");
        }
        let Some(entry) = self.books.tasks.get(&task) else { return Ok(()) };
        if entry.has_started {
            return Ok(());
        }
        let before = self
            .books
            .tasks
            .range(..task)
            .find(|(_, other)| other.workflow.as_ref() == Some(workflow) && !other.has_started);
        ensure!(before.is_none(), ORDER, "task {task} of {workflow} before {before:?}");
        Ok(())
    }

    fn extend(&mut self, asked: &Extend, told: &Extended, now: Millis) -> Verdict {
        if asked.leaves() {
            self.books.heartbeats.remove(&asked.worker);
        } else {
            let heartbeat = HeartbeatEntry { at: now, lease_ms: asked.lease_ms };
            self.books.heartbeats.insert(asked.worker.clone(), heartbeat);
        }
        let mut lost: Vec<Token> = Vec::new();
        let mut cancelled: Vec<(TaskId, Token)> = Vec::new();
        for token in &asked.tokens {
            let lease = self.books.leases.get_mut(token);
            match lease.filter(|l| l.worker == asked.worker && l.expires_at > now) {
                Some(lease) => lease.expires_at = now + asked.lease_ms,
                None => lost.push(*token),
            }
            let asked_to_stop = self.books.running_under(*token);
            let asked_to_stop = asked_to_stop.into_iter().filter(|t| self.books.tasks[t].cancel);
            cancelled.extend(asked_to_stop.map(|task| (task, *token)));
        }
        ensure!(told.lost == lost, LEASES, "told {:?} are lost, expected {lost:?}", told.lost);
        ensure!(
            told.cancelled == cancelled,
            CANCELS,
            "told {:?}, expected {cancelled:?}",
            told.cancelled
        );
        self.release_unlisted(asked, told, now)
    }

    /// Expired leases of the worker that its heartbeat does not list: the attempts are released, and
    /// neither spent nor counted as deaths.
    fn release_unlisted(&mut self, asked: &Extend, told: &Extended, now: Millis) -> Verdict {
        let leases = self.books.leases.iter().filter(|(token, lease)| {
            lease.worker == asked.worker && lease.expires_at <= now && !asked.tokens.contains(token)
        });
        let mut released = 0;
        for token in leases.map(|(token, _)| *token).collect::<Vec<_>>() {
            for task in self.books.running_under(token) {
                self.books.exit(task, &Outcome::Released, now);
                released += 1;
            }
            self.books.leases.remove(&token);
        }
        self.books.released += u64::from(released);
        ensure!(
            told.released == released,
            UNLISTED,
            "released {}, expected {released}",
            told.released
        );
        Ok(())
    }

    fn finish(&mut self, asked: &Finish, told: &Finished, now: Millis) -> Verdict {
        let mut lost = told.lost.iter();
        for exit in &asked.exits {
            let runs = self.books.tasks.get(&exit.task).and_then(|entry| entry.running);
            if runs == Some(exit.token) {
                self.books.exit(exit.task, &exit.outcome, now);
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

    fn cancel(&mut self, asked: &[TaskId], told: &[CancelOutcome]) -> Verdict {
        ensure!(asked.len() == told.len(), ANSWERED, "{} of a cancel", told.len());
        for (task, told) in asked.iter().zip(told) {
            let right = match self.books.tasks.get_mut(task) {
                None => matches!(told, CancelOutcome::Finished | CancelOutcome::NotFound),
                Some(entry) if entry.running.is_some() => {
                    entry.cancel = true;
                    *told == CancelOutcome::Requested
                }
                Some(_) => {
                    self.books.end(*task);
                    *told == CancelOutcome::Cancelled
                }
            };
            ensure!(right, CANCELS, "cancelling task {task} was answered {told:?}");
        }
        Ok(())
    }

    fn reap(&mut self, told: &Reaped, now: Millis) -> Verdict {
        let expired = self.books.leases.iter().filter(|(_, l)| self.books.is_reaped(l, now));
        let mut expired: Vec<(Millis, Token)> =
            expired.map(|(token, lease)| (lease.expires_at, *token)).collect();
        expired.sort_unstable();
        let mut deaths = 0;
        for (_, token) in expired.into_iter().take(REAP_LEASES_MAX) {
            for task in self.books.running_under(token) {
                self.books.death(task);
                deaths += 1;
            }
            self.books.leases.remove(&token);
        }
        ensure!(told.expired == deaths, LEASES, "reaped {}, expected {deaths}", told.expired);
        Ok(())
    }
}

fn answered<T>(told: &Answered<T>) -> Result<&T, Violation> {
    told.as_ref().map_err(|error| Violation { rule: ANSWERED, found: error.to_string() })
}

fn fault(rule: &'static str, found: String) -> Verdict {
    Err(Violation { rule, found })
}
