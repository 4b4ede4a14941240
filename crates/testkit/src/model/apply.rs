//! One step on one store, and what it answered in words that do not depend on how the store
//! numbers things.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::{
    Attempt, Claim, DayWindow, ErrorKind, Exit, Extend, Extended, Finish, JobSpec, Kind, Millis,
    NewTask, OnFailure, Outcome, Pausable, Pause, Progress, Ran, Registration, Release,
    ReleaseOutcome, Result, SetJob, SetLimit, Store, Submission, TaskId, Token, WorkerId,
    WorkerReport,
};

use super::op::{ClaimSpec, ExitSpec, JobOp, KindSpec, Op, TaskSpec};

const KINDS: [&str; 3] = ["a", "b", "c"];
const QUEUES: [&str; 2] = ["default", "second"];
const LIMITS: [&str; 6] = ["group:a", "group:b", "group:shared", "job:j0", "job:j1", "workflow:w0"];

/// What was seen of a store so far, in order; a later step picks from it.
#[derive(Debug, Default)]
pub struct Known {
    /// Tasks that were stored.
    pub tasks: Vec<TaskId>,
    /// Attempts that were handed out, also those that ended.
    pub attempts: Vec<(TaskId, Token)>,
    /// Their tokens, each once.
    pub tokens: Vec<Token>,
    /// Tasks whose completion was accepted, as often as it was.
    pub completed: Vec<TaskId>,
}

impl Known {
    fn note(&mut self, attempts: &[Attempt]) {
        for attempt in attempts {
            self.attempts.push((attempt.task, attempt.token));
            if !self.tokens.contains(&attempt.token) {
                self.tokens.push(attempt.token);
            }
        }
    }

    /// A task by its place in the order of creation.
    pub fn task(&self, id: TaskId) -> String {
        let place = self.tasks.iter().position(|task| *task == id);
        place.map_or_else(|| format!("task {id}?"), |place| format!("task #{place}"))
    }

    /// A token by its place in the order of claims.
    pub fn token(&self, token: Token) -> String {
        let place = self.tokens.iter().position(|known| *known == token);
        place.map_or_else(|| format!("token {token}?"), |place| format!("token #{place}"))
    }
}

/// A store under steps.
#[derive(Debug, Clone)]
pub struct Side {
    /// The store.
    pub store: Arc<dyn Store>,
    /// What was seen of it.
    pub known: Arc<Mutex<Known>>,
}

impl Side {
    /// A store of which nothing was seen.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, known: Arc::default() }
    }

    /// What was seen so far.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a step. Bad input is an answer; any other error is a fault.
    pub async fn apply(&self, op: &Op, now: Millis) -> Result<String> {
        match op {
            Op::Register(spec) => answer(self.store.register(registration(spec)).await),
            Op::Beat { worker, leaves } => {
                let lease_ms = if *leaves { 0 } else { 30_000 };
                let report = reports(*worker);
                let worker = fleet(*worker);
                let (tokens, progress, ran) = Default::default();
                let beat = Extend { worker, tokens, lease_ms, progress, ran, report };
                answer(self.store.extend(beat).await)
            }
            Op::Job(op) => {
                let job = job(op);
                answer(
                    self.store
                        .submit(Submission {
                            jobs: vec![job],
                            tasks: vec![],
                            ..Submission::default()
                        })
                        .await,
                )
            }
            Op::Submit(specs) => self.submit(specs, None, now).await,
            Op::SubmitBy { attempt, tasks } => {
                let attempt = self.late_attempt(*attempt);
                self.submit(tasks, attempt, now).await
            }
            Op::SetLimit { limit, capacity, source } => {
                let name = LIMITS[*limit as usize].to_owned();
                let set = SetLimit { name, capacity: *capacity, source: *source };
                answer(self.store.set_limit(set).await)
            }
            Op::Claim(spec) => match self.store.claim(claim(spec)).await {
                Ok(attempts) => Ok(self.describe(&attempts)),
                Err(error) => answer::<()>(Err(error)),
            },
            Op::Finish { exits, claim } => self.finish(exits, claim.as_ref()).await,
            Op::Extend { worker, leases, reports } => self.extend(*worker, leases, reports).await,
            Op::Cancel(picks) => answer(self.store.cancel(self.pick(picks)).await),
            Op::Retry(picks) => answer(self.store.retry(self.pick(picks)).await),
            Op::Release { limit, slot } => self.release(LIMITS[*limit as usize], *slot).await,
            Op::SetJob(op) => {
                let JobSpec { name, concurrency, min_concurrency, weight, priority, delay_ms } =
                    job(op);
                let set = SetJob {
                    job: name,
                    concurrency: Some(concurrency),
                    min_concurrency: Some(min_concurrency),
                    weight: Some(weight),
                    priority: Some(priority),
                    delay_ms: Some(delay_ms),
                };
                answer(self.store.set_job(set).await)
            }
            Op::Pause { what, paused } => {
                let what = match what {
                    0 | 1 => Pausable::Queue(QUEUES[*what as usize].to_owned()),
                    2 | 3 => Pausable::Job(format!("j{}", what - 2)),
                    _ => Pausable::Workflow(format!("w{}", what - 4)),
                };
                answer(self.store.pause(Pause { what, paused: *paused }).await)
            }
            Op::Repair => answer(self.store.repair().await),
            // How many passed the gate depends on who looked first; the state tells.
            Op::Admit => self.store.admit().await.map(|_| String::new()),
            Op::Reap => answer(self.store.reap().await),
            Op::Prune => answer(self.store.prune().await),
            Op::Advance(_) => Ok(String::new()),
        }
    }

    fn pick(&self, picks: &[usize]) -> Vec<TaskId> {
        let known = self.known();
        picks.iter().filter_map(|pick| nth(&known.tasks, *pick)).collect()
    }

    async fn release(&self, limit: &str, slot: u32) -> Result<String> {
        use ReleaseOutcome::{ForLife, NotRunning, Released};
        let outcome = self.store.release(Release { limit: limit.to_owned(), slot }).await?;
        let known = self.known();
        Ok(match outcome {
            Released(task) => format!("released {}", known.task(task)),
            NotRunning(task) => format!("not running {}", known.task(task)),
            ForLife(task) => format!("for life {}", known.task(task)),
            other => format!("{other:?}"),
        })
    }

    /// One of the latest attempts, which are the ones that run.
    fn late_attempt(&self, pick: usize) -> Option<(TaskId, Token)> {
        let known = self.known();
        let from_last = known.attempts.len().checked_sub(1 + pick % 8);
        nth(&known.attempts, from_last.unwrap_or(pick))
    }

    async fn submit(
        &self,
        specs: &[TaskSpec],
        on_behalf_of: Option<(TaskId, Token)>,
        now: Millis,
    ) -> Result<String> {
        let tasks = specs.iter().map(|spec| new_task(spec, now)).collect();
        let submission = Submission { tasks, on_behalf_of, ..Submission::default() };
        let stored = match self.store.submit(submission).await {
            Ok(stored) => stored,
            Err(error) => return answer::<()>(Err(error)),
        };
        let mut known = self.known();
        known.tasks.extend(stored.iter().filter(|one| one.is_new).map(|one| one.task));
        let words = stored.iter().map(|one| (known.task(one.task), one.is_new));
        Ok(format!("{:?}", words.collect::<Vec<_>>()))
    }

    async fn finish(
        &self,
        picks: &[(usize, ExitSpec)],
        wanted: Option<&ClaimSpec>,
    ) -> Result<String> {
        let attempts = picks.iter().filter_map(|(pick, spec)| {
            let (task, token) = self.late_attempt(*pick)?;
            Some(Exit { task, token, outcome: outcome(*spec) })
        });
        let exits: Vec<Exit> = attempts.collect();
        let finish = Finish { exits: exits.clone(), claim: wanted.map(claim) };
        let finished = match self.store.finish(finish).await {
            Ok(finished) => finished,
            Err(error) => return answer::<()>(Err(error)),
        };
        let mut lost = finished.lost.clone();
        let accepted = exits.iter().rev().filter(|exit| {
            let this = lost.iter().position(|l| l.task == exit.task && l.token == exit.token);
            // Of two exits of one attempt the first counts, so the last is struck off.
            this.map(|at| lost.remove(at)).is_none()
        });
        let completed: Vec<TaskId> = accepted
            .filter(|exit| matches!(exit.outcome, Outcome::Completed(_)))
            .map(|exit| exit.task)
            .collect();
        self.known().completed.extend(completed);
        let lost = {
            let known = self.known();
            let words = finished.lost.iter();
            words.map(|l| (known.task(l.task), known.token(l.token))).collect::<Vec<_>>()
        };
        Ok(format!("lost {lost:?} claimed {}", self.describe(&finished.claimed)))
    }

    async fn extend(
        &self,
        worker: u8,
        leases: &[usize],
        reports: &[(usize, u8)],
    ) -> Result<String> {
        let report = |(pick, percent): &(usize, u8)| {
            let (task, token) = self.late_attempt(*pick)?;
            Some((task, token, Progress { percent: *percent, message: "on its way".into() }))
        };
        let progress = reports.iter().filter_map(report).collect();
        let extend = {
            let known = self.known();
            let tokens: Vec<Token> =
                leases.iter().filter_map(|pick| nth(&known.tokens, *pick)).collect();
            let last = known.attempts.last().copied();
            Extend {
                worker: WorkerId(format!("worker {worker}").into()),
                tokens,
                lease_ms: 30_000,
                progress,
                ran: last.iter().map(|_| ran(worker)).collect(),
                report: None,
            }
        };
        match self.store.extend(extend).await {
            Ok(extended) => {
                let known = self.known();
                let lost: Vec<_> = extended.lost.iter().map(|token| known.token(*token)).collect();
                let asked = extended.cancelled.iter();
                let asked: Vec<_> =
                    asked.map(|(task, token)| (known.task(*task), known.token(*token))).collect();
                let Extended { peers, released, .. } = extended;
                Ok(format!("lost {lost:?} cancelled {asked:?} peers {peers} released {released}"))
            }
            Err(error) => answer::<()>(Err(error)),
        }
    }

    fn describe(&self, attempts: &[Attempt]) -> String {
        let mut known = self.known();
        known.note(attempts);
        let words = attempts.iter().map(|one| {
            let slots: Vec<_> =
                one.slots.iter().map(|s| format!("{} {}", s.name, s.number)).collect();
            format!(
                "{} {} {} {} {} x{} {}/{} {:?} {:?} {slots:?} from {} to {} until {}",
                known.task(one.task),
                known.token(one.token),
                one.kind,
                one.queue,
                one.group,
                one.weight,
                one.number,
                one.max_attempts,
                one.job,
                one.workflow,
                one.arrived_at,
                one.ready_at,
                one.expires_at
            )
        });
        format!("{:#?}", words.collect::<Vec<_>>())
    }
}

/// How long tasks of some kind ran.
fn ran(worker: u8) -> Ran {
    let group = KINDS[usize::from(worker) % KINDS.len()].into();
    Ran { group, tasks: 1 + u32::from(worker), total_ms: 1000 }
}

fn answer<T: Debug>(result: Result<T>) -> Result<String> {
    match result {
        Ok(answer) => Ok(format!("{answer:?}")),
        Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound) => {
            Ok(format!("{:?}", error.kind()))
        }
        Err(error) => Err(error),
    }
}

fn nth<T: Copy>(known: &[T], pick: usize) -> Option<T> {
    known.get(pick.checked_rem(known.len())?).copied()
}

fn registration(spec: &KindSpec) -> Registration {
    let name = KINDS[spec.kind as usize];
    let kind = Kind {
        queue: QUEUES[usize::from(spec.second_queue)].into(),
        max_attempts: spec.max_attempts,
        window: spec.has_hours.then_some(DayWindow { start_ms: 32_400_000, end_ms: 3_600_000 }),
        remove_on_completed_days: spec.days,
        remove_on_failed_days: spec.days.map(|days| days + 1),
        ..Kind::new(name)
    };
    let limits = spec.limit.map(|capacity| (name.to_owned(), capacity)).into_iter().collect();
    let worker = spec.worker.map(fleet);
    Registration { kinds: vec![kind], limits, worker, lease_ms: 30_000, ..Registration::default() }
}

fn job(op: &JobOp) -> JobSpec {
    let JobOp { job, concurrency, min_concurrency, weight, priority, delay_ms } = *op;
    let name = format!("j{job}");
    JobSpec { name, concurrency, min_concurrency, weight, priority, delay_ms }
}

/// A worker that registers, lives and leaves.
fn fleet(worker: u8) -> WorkerId {
    WorkerId(format!("fleet {worker}").into())
}

/// Some have room, some have none, and some say nothing.
fn reports(worker: u8) -> Option<WorkerReport> {
    let has_room = match worker % 3 {
        0 => return None,
        rest => rest == 1,
    };
    let reason = format!("worker {worker}");
    Some(WorkerReport { available: 3, maximum: 5, memory: None, accepting: has_room, reason })
}

fn new_task(spec: &TaskSpec, now: Millis) -> NewTask {
    NewTask {
        queue: spec.second_queue.then(|| QUEUES[1].to_owned()),
        group: spec.shared_group.then(|| "shared".to_owned()),
        job: spec.job.map(|job| format!("j{job}")),
        workflow: spec.workflow.map(|workflow| format!("w{workflow}")),
        weight: spec.weight,
        priority: spec.priority,
        run_at: spec.due_in.map(|ms| now + ms),
        unique_key: spec.key.map(|key| format!("key {key}")),
        max_attempts: spec.max_attempts,
        on_failure: if spec.goes_on { OnFailure::Continue } else { OnFailure::Halt },
        ..NewTask::new(KINDS[spec.kind as usize], "{}")
    }
}

/// What a worker asks for.
pub fn claim(spec: &ClaimSpec) -> Claim {
    let served = |names: &[&str], bits: u8| {
        let names = names.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
        names.map(|(_, name)| (*name).into()).collect()
    };
    Claim {
        worker: WorkerId(format!("worker {}", spec.worker).into()),
        queues: served(&QUEUES, spec.queues),
        kinds: served(&KINDS, spec.kinds),
        tasks_max: spec.tasks_max,
        lease_ms: spec.lease_ms,
        poll_ms: 1000,
    }
}

fn outcome(spec: ExitSpec) -> Outcome {
    let failed = |retryable, retry_in_ms| Outcome::Failed {
        error: "it failed".into(),
        retryable,
        retry_in_ms,
    };
    match spec {
        ExitSpec::Completed => Outcome::Completed(b"true".to_vec()),
        ExitSpec::Fatal => failed(false, None),
        ExitSpec::Failed => failed(true, None),
        ExitSpec::RetryIn(ms) => failed(true, Some(ms)),
        ExitSpec::Snoozed(for_ms) => Outcome::Snoozed { for_ms },
        ExitSpec::Released => Outcome::Released,
        ExitSpec::Cancelled => Outcome::Cancelled,
    }
}
