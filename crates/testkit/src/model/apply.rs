//! One step on one store, and what it answered in words that do not depend on how the store
//! numbers things.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::{
    Attempt, Claim, Completion, DayWindow, ErrorKind, Finish, Heartbeat, HeartbeatReply, JobSpec,
    Kind, Millis, NewTask, OnFailure, Outcome, PauseTarget, Progress, Registration, ReleaseOutcome,
    ReleaseSlot, Result, RunTimeSample, SetJob, SetLimit, SetPaused, Store, Submission, TaskId,
    Token, WorkerId, WorkerReport,
};

use super::op::{ClaimSpec, JobOp, KindSpec, Op, OutcomeSpec, TaskSpec};

const KINDS: [&str; 3] = ["a", "b", "c"];
const QUEUES: [&str; 2] = ["default", "second"];
const LIMITS: [&str; 6] = ["group:a", "group:b", "group:shared", "job:j0", "job:j1", "workflow:w0"];

/// What was seen of a store so far, in order; a later step picks from it.
#[derive(Debug, Default)]
pub struct SeenIds {
    /// Tasks that were stored.
    pub tasks: Vec<TaskId>,
    /// Attempts that were handed out, also those that ended.
    pub attempts: Vec<(TaskId, Token)>,
    /// Their tokens, each once.
    pub tokens: Vec<Token>,
    /// Tasks whose completion was accepted, as often as it was.
    pub completed: Vec<TaskId>,
}

impl SeenIds {
    fn record_attempts(&mut self, attempts: &[Attempt]) {
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
pub struct StoreUnderTest {
    /// The store.
    pub store: Arc<dyn Store>,
    /// What was seen of it.
    pub known: Arc<Mutex<SeenIds>>,
}

impl StoreUnderTest {
    /// A store of which nothing was seen.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, known: Arc::default() }
    }

    /// What was seen so far.
    pub fn known(&self) -> MutexGuard<'_, SeenIds> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a step. Bad input is an answer; any other error is a fault.
    pub async fn apply(&self, op: &Op, now: Millis) -> Result<String> {
        match op {
            Op::Register(spec) => to_answer(self.store.register(registration(spec)).await),
            Op::FleetHeartbeat { worker, leaves } => {
                let lease_ms = if *leaves { 0 } else { 30_000 };
                let report = fleet_report(*worker);
                let worker = fleet_worker_id(*worker);
                let (tokens, progress, ran) = Default::default();
                let beat = Heartbeat { worker, tokens, lease_ms, progress, run_times: ran, report };
                to_answer(self.store.heartbeat(beat).await)
            }
            Op::Job(op) => {
                let job = to_job(op);
                to_answer(
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
            Op::SubmitOnBehalfOf { attempt, tasks } => {
                let attempt = self.recent_attempt(*attempt);
                self.submit(tasks, attempt, now).await
            }
            Op::SetLimit { limit, capacity, source } => {
                let name = LIMITS[*limit as usize].to_owned();
                let set = SetLimit { name, capacity: *capacity, source: *source };
                to_answer(self.store.set_limit(set).await)
            }
            Op::Claim(spec) => match self.store.claim(to_claim(spec)).await {
                Ok(attempts) => Ok(self.describe_attempts(&attempts)),
                Err(error) => to_answer::<()>(Err(error)),
            },
            Op::Finish { exits, claim } => self.finish(exits, claim.as_ref()).await,
            Op::Heartbeat { worker, leases, reports } => {
                self.heartbeat(*worker, leases, reports).await
            }
            Op::Cancel(picks) => to_answer(self.store.cancel(self.pick_tasks(picks)).await),
            Op::Retry(picks) => to_answer(self.store.retry(self.pick_tasks(picks)).await),
            Op::Release { limit, slot } => self.release(LIMITS[*limit as usize], *slot).await,
            Op::SetJob(op) => {
                let JobSpec { name, concurrency, min_concurrency, weight, priority, delay_ms } =
                    to_job(op);
                let set = SetJob {
                    job: name,
                    concurrency: Some(concurrency),
                    min_concurrency: Some(min_concurrency),
                    weight: Some(weight),
                    priority: Some(priority),
                    delay_ms: Some(delay_ms),
                };
                to_answer(self.store.set_job(set).await)
            }
            Op::Pause { what, paused } => {
                let what = match what {
                    0 | 1 => PauseTarget::Queue(QUEUES[*what as usize].to_owned()),
                    2 | 3 => PauseTarget::Job(format!("j{}", what - 2)),
                    _ => PauseTarget::Workflow(format!("w{}", what - 4)),
                };
                to_answer(self.store.set_paused(SetPaused { target: what, paused: *paused }).await)
            }
            Op::Repair => to_answer(self.store.repair().await),
            // How many passed the gate depends on who looked first; the state tells.
            Op::Admit => self.store.admit().await.map(|_| String::new()),
            Op::Reap => to_answer(self.store.reap().await),
            Op::Prune => to_answer(self.store.prune().await),
            Op::Advance(_) => Ok(String::new()),
        }
    }

    fn pick_tasks(&self, picks: &[usize]) -> Vec<TaskId> {
        let known = self.known();
        picks.iter().filter_map(|pick| nth(&known.tasks, *pick)).collect()
    }

    async fn release(&self, limit: &str, slot: u32) -> Result<String> {
        use ReleaseOutcome::{HeldByTask, NotRunning, Released};
        let outcome =
            self.store.release_slot(ReleaseSlot { limit: limit.to_owned(), slot }).await?;
        let known = self.known();
        Ok(match outcome {
            Released(task) => format!("released {}", known.task(task)),
            NotRunning(task) => format!("not running {}", known.task(task)),
            HeldByTask(task) => format!("for life {}", known.task(task)),
            other => format!("{other:?}"),
        })
    }

    /// One of the latest attempts, which are the ones that run.
    fn recent_attempt(&self, pick: usize) -> Option<(TaskId, Token)> {
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
        let submission =
            Submission { tasks, submitting_attempt: on_behalf_of, ..Submission::default() };
        let stored = match self.store.submit(submission).await {
            Ok(stored) => stored,
            Err(error) => return to_answer::<()>(Err(error)),
        };
        let mut known = self.known();
        known.tasks.extend(stored.iter().filter(|one| one.is_new).map(|one| one.task));
        let words = stored.iter().map(|one| (known.task(one.task), one.is_new));
        Ok(format!("{:?}", words.collect::<Vec<_>>()))
    }

    async fn finish(
        &self,
        picks: &[(usize, OutcomeSpec)],
        wanted: Option<&ClaimSpec>,
    ) -> Result<String> {
        let attempts = picks.iter().filter_map(|(pick, spec)| {
            let (task, token) = self.recent_attempt(*pick)?;
            Some(Completion { task, token, outcome: to_outcome(*spec) })
        });
        let exits: Vec<Completion> = attempts.collect();
        let finish = Finish { completions: exits.clone(), claim: wanted.map(to_claim) };
        let finished = match self.store.finish(finish).await {
            Ok(finished) => finished,
            Err(error) => return to_answer::<()>(Err(error)),
        };
        let mut lost = finished.lost_attempts.clone();
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
            let words = finished.lost_attempts.iter();
            words.map(|l| (known.task(l.task), known.token(l.token))).collect::<Vec<_>>()
        };
        Ok(format!("lost {lost:?} claimed {}", self.describe_attempts(&finished.claimed)))
    }

    async fn heartbeat(
        &self,
        worker: u8,
        leases: &[usize],
        reports: &[(usize, u8)],
    ) -> Result<String> {
        let report = |(pick, percent): &(usize, u8)| {
            let (task, token) = self.recent_attempt(*pick)?;
            Some((task, token, Progress { percent: *percent, message: "on its way".into() }))
        };
        let progress = reports.iter().filter_map(report).collect();
        let extend = {
            let known = self.known();
            let tokens: Vec<Token> =
                leases.iter().filter_map(|pick| nth(&known.tokens, *pick)).collect();
            let last = known.attempts.last().copied();
            Heartbeat {
                worker: WorkerId(format!("worker {worker}").into()),
                tokens,
                lease_ms: 30_000,
                progress,
                run_times: last.iter().map(|_| run_time_sample(worker)).collect(),
                report: None,
            }
        };
        match self.store.heartbeat(extend).await {
            Ok(extended) => {
                let known = self.known();
                let lost: Vec<_> =
                    extended.lost_leases.iter().map(|token| known.token(*token)).collect();
                let asked = extended.attempts_to_stop.iter();
                let asked: Vec<_> =
                    asked.map(|(task, token)| (known.task(*task), known.token(*token))).collect();
                let HeartbeatReply {
                    peers_with_capacity: peers, released_attempts: released, ..
                } = extended;
                Ok(format!("lost {lost:?} cancelled {asked:?} peers {peers} released {released}"))
            }
            Err(error) => to_answer::<()>(Err(error)),
        }
    }

    fn describe_attempts(&self, attempts: &[Attempt]) -> String {
        let mut known = self.known();
        known.record_attempts(attempts);
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
                one.due_at,
                one.ready_at,
                one.expires_at
            )
        });
        format!("{:#?}", words.collect::<Vec<_>>())
    }
}

/// How long tasks of some kind ran.
fn run_time_sample(worker: u8) -> RunTimeSample {
    let group = KINDS[usize::from(worker) % KINDS.len()].into();
    RunTimeSample { group, tasks: 1 + u32::from(worker), total_ms: 1000 }
}

fn to_answer<T: Debug>(result: Result<T>) -> Result<String> {
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
        day_window: spec.has_hours.then_some(DayWindow { start_ms: 32_400_000, end_ms: 3_600_000 }),
        remove_on_completed_days: spec.days,
        remove_on_failed_days: spec.days.map(|days| days + 1),
        ..Kind::new(name)
    };
    let limits = spec.limit.map(|capacity| (name.to_owned(), capacity)).into_iter().collect();
    let worker = spec.worker.map(fleet_worker_id);
    Registration { kinds: vec![kind], limits, worker, lease_ms: 30_000, ..Registration::default() }
}

fn to_job(op: &JobOp) -> JobSpec {
    let JobOp { job, concurrency, min_concurrency, weight, priority, delay_ms } = *op;
    let name = format!("j{job}");
    JobSpec { name, concurrency, min_concurrency, weight, priority, delay_ms }
}

/// A worker that registers, lives and leaves.
fn fleet_worker_id(worker: u8) -> WorkerId {
    WorkerId(format!("fleet {worker}").into())
}

/// Some have room, some have none, and some say nothing.
fn fleet_report(worker: u8) -> Option<WorkerReport> {
    let has_room = match worker % 3 {
        0 => return None,
        rest => rest == 1,
    };
    let reason = format!("worker {worker}");
    Some(WorkerReport { free: 3, concurrency: 5, memory: None, accepting: has_room, reason })
}

fn new_task(spec: &TaskSpec, now: Millis) -> NewTask {
    NewTask {
        queue: spec.second_queue.then(|| QUEUES[1].to_owned()),
        effective_group: spec.shared_group.then(|| "shared".to_owned()),
        job: spec.job.map(|job| format!("j{job}")),
        workflow: spec.workflow.map(|workflow| format!("w{workflow}")),
        weight: spec.weight,
        priority: spec.priority,
        run_at: spec.due_in.map(|ms| now + ms),
        unique_key: spec.key.map(|key| format!("key {key}")),
        max_attempts: spec.max_attempts,
        on_failure: if spec.continues_on_failure { OnFailure::Continue } else { OnFailure::Halt },
        ..NewTask::new(KINDS[spec.kind as usize], "{}")
    }
}

/// What a worker asks for.
pub fn to_claim(spec: &ClaimSpec) -> Claim {
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
        poll_interval_ms: 1000,
    }
}

fn to_outcome(spec: OutcomeSpec) -> Outcome {
    let failed = |retryable, retry_in_ms| Outcome::Failed {
        error: "it failed".into(),
        retryable,
        retry_in_ms,
    };
    match spec {
        OutcomeSpec::Completed => Outcome::Completed(b"true".to_vec()),
        OutcomeSpec::Fatal => failed(false, None),
        OutcomeSpec::Failed => failed(true, None),
        OutcomeSpec::RetryIn(ms) => failed(true, Some(ms)),
        OutcomeSpec::Snoozed(for_ms) => Outcome::Snoozed { delay_ms: for_ms },
        OutcomeSpec::Released => Outcome::Released,
        OutcomeSpec::Cancelled => Outcome::Cancelled,
    }
}
