//! Workers that watch each other: every handler counts itself in and out, so that the most that
//! ever ran at once is seen from outside of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::{
    Attempt, Claim, Completion, Finish, NewTask, Outcome, Submission, TaskId, WorkerId,
};
use tokio::task::JoinHandle;

use super::super::fixture::{Handle, completed_outcome, retry_in};

/// A limit seen from outside.
#[derive(Debug)]
struct ObservedLimit {
    capacity: i64,
    running: AtomicI64,
}

/// What the workers of one race share.
#[derive(Debug, Clone)]
pub struct ConcurrentWorkers {
    kinds: Vec<String>,
    limits: Arc<BTreeMap<String, ObservedLimit>>,
    has_crashes: bool,
    checks_order: bool,
    shared: Arc<SharedState>,
}

#[derive(Debug, Default)]
struct SharedState {
    /// Tasks that are known to exist.
    expected: Mutex<BTreeSet<TaskId>>,
    /// Tasks whose completion was accepted.
    done: Mutex<BTreeSet<TaskId>>,
    completed: AtomicU64,
    /// Workflows that run, and the last step of each that was done.
    workflows: Mutex<BTreeMap<String, (bool, TaskId)>>,
    workers: AtomicU64,
    /// Set when every task has been submitted.
    submitted: std::sync::atomic::AtomicBool,
}

/// Locks what a failed assertion of another worker may have poisoned.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives others a turn, and some real time to pass.
pub async fn pause() {
    let never = std::future::pending::<()>();
    let _ = tokio::time::timeout(Duration::from_millis(2), never).await;
}

impl ConcurrentWorkers {
    /// A race of workers that serve these kinds.
    pub fn new(kinds: &[&str]) -> Self {
        Self {
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            limits: Arc::default(),
            has_crashes: false,
            checks_order: false,
            shared: Arc::default(),
        }
    }

    /// Watches a limit.
    pub fn with_limit(mut self, name: &str, capacity: i64) -> Self {
        let watches = Arc::get_mut(&mut self.limits).expect("the race has not begun");
        watches.insert(name.into(), ObservedLimit { capacity, running: AtomicI64::new(0) });
        self
    }

    /// Watches the order of the steps of workflows.
    pub fn with_workflows(mut self) -> Self {
        self.checks_order = true;
        self
    }

    /// Some workers leave with their tasks and report them late.
    pub fn with_crashes(mut self) -> Self {
        self.has_crashes = true;
        self
    }

    /// These tasks exist, and no others will come.
    pub fn expect_tasks(&self, tasks: &[TaskId]) {
        lock(&self.shared.expected).extend(tasks);
        self.shared.submitted.store(true, Ordering::SeqCst);
    }

    /// Completions that were accepted.
    pub fn completed_count(&self) -> u64 {
        self.shared.completed.load(Ordering::SeqCst)
    }

    /// Submits in the background, `step` tasks at a time, over all handles in turn.
    pub fn submit_over_handles(
        &self,
        handles: &[Handle],
        tasks: Vec<NewTask>,
        step: usize,
    ) -> JoinHandle<usize> {
        let (shared, handles) = (self.shared.clone(), handles.to_vec());
        tokio::spawn(async move {
            let number = tasks.len();
            for (chunk, handle) in tasks.chunks(step).zip(handles.iter().cycle()) {
                let submission =
                    Submission { jobs: vec![], tasks: chunk.to_vec(), ..Submission::default() };
                let stored = handle.store.submit(submission).await.expect("submit");
                lock(&shared.expected).extend(stored.iter().map(|one| one.task));
                tokio::task::yield_now().await;
            }
            shared.submitted.store(true, Ordering::SeqCst);
            number
        })
    }

    /// Works with so many workers per handle until every expected task is done.
    pub async fn work(&self, handles: &[Handle], workers: usize) {
        self.run(handles, workers, |contest| {
            let is_submitted = contest.shared.submitted.load(Ordering::SeqCst);
            let expected = lock(&contest.shared.expected).len();
            is_submitted && lock(&contest.shared.done).len() == expected
        })
        .await;
    }

    /// Works until the store has nothing unfinished.
    pub async fn work_until_rest(&self, handles: &[Handle], workers: usize) {
        loop {
            let before = self.completed_count();
            self.run(handles, workers, |_| true).await;
            let unfinished = handles[0].reader.task_counts().await.expect("counts");
            if unfinished.keys().all(|state| state.is_final()) && before == self.completed_count() {
                return;
            }
        }
    }

    async fn run(&self, handles: &[Handle], workers: usize, is_over: fn(&Self) -> bool) {
        let mut working = Vec::new();
        for handle in handles.iter().flat_map(|handle| vec![handle; workers]) {
            let (contest, handle) = (self.clone(), handle.clone());
            working.push(tokio::spawn(async move { contest.worker(&handle, is_over).await }));
        }
        for worker in working {
            worker.await.expect("a worker");
        }
    }

    async fn worker(&self, handle: &Handle, is_over: fn(&Self) -> bool) {
        let number = self.shared.workers.fetch_add(1, Ordering::SeqCst);
        let claim = Claim {
            worker: WorkerId(format!("worker {number}").into()),
            queues: ["default".into()].into(),
            kinds: self.kinds.iter().map(|kind| kind.as_str().into()).collect(),
            tasks_max: 1 + (number % 3) as u32,
            lease_ms: if self.has_crashes { 100 } else { 600_000 },
            poll_interval_ms: 1000,
        };
        let mut exits: Vec<Completion> = Vec::new();
        loop {
            let finish =
                Finish { completions: std::mem::take(&mut exits), claim: Some(claim.clone()) };
            let reported = finish.completions.clone();
            let finished = handle.store.finish(finish).await.expect("finish");
            self.accept(&reported, &finished.lost_attempts);
            if finished.claimed.is_empty() {
                if is_over(self) {
                    return;
                }
                pause().await;
            }
            for attempt in finished.claimed {
                exits.extend(self.handle(&attempt).await);
            }
        }
    }

    fn accept(&self, reported: &[Completion], lost: &[tidegate_core::LostAttempt]) {
        let is_lost = |exit: &Completion| {
            lost.iter().any(|lost| lost.task == exit.task && lost.token == exit.token)
        };
        if !self.has_crashes {
            assert_eq!(lost, [], "a live lease was lost");
        }
        for exit in reported.iter().filter(|exit| !is_lost(exit)) {
            if matches!(exit.outcome, Outcome::Completed(_)) {
                assert!(lock(&self.shared.done).insert(exit.task), "task {} twice", exit.task);
                self.shared.completed.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Runs one attempt. It is counted out before its end is reported, as a handler returns
    /// before its worker reports.
    async fn handle(&self, attempt: &Attempt) -> Option<Completion> {
        if !self.has_crashes {
            self.enter(attempt);
        }
        for _ in 0..attempt.task.0 % 4 {
            tokio::task::yield_now().await;
        }
        let is_first = attempt.number == 1;
        let outcome = match attempt.task.0 % 9 {
            3 if is_first => retry_in(0),
            5 if is_first && attempt.token.0 % 2 == 0 => Outcome::Released,
            7 if is_first && self.has_crashes => return None,
            8 if is_first && self.has_crashes => {
                let late = std::future::pending::<()>();
                let _ = tokio::time::timeout(Duration::from_millis(150), late).await;
                completed_outcome()
            }
            _ => completed_outcome(),
        };
        if !self.has_crashes {
            self.leave(attempt, matches!(outcome, Outcome::Completed(_)));
        }
        Some(Completion { task: attempt.task, token: attempt.token, outcome })
    }

    fn enter(&self, attempt: &Attempt) {
        for (name, units) in attempt.required_limits() {
            if let Some(watch) = self.limits.get(&name) {
                assert_eq!(attempt.held_slots_of(&name), units, "slots of {name} of {attempt:?}");
                let units = i64::from(units);
                let running = watch.running.fetch_add(units, Ordering::SeqCst) + units;
                assert!(running <= watch.capacity, "{running} of {} in {name}", watch.capacity);
            }
        }
        if let Some(workflow) = attempt.workflow.as_ref().filter(|_| self.checks_order) {
            let mut workflows = lock(&self.shared.workflows);
            let (runs, last) = workflows.entry(workflow.to_string()).or_default();
            assert!(!*runs, "two steps of {workflow} at once");
            assert!(*last < attempt.task, "a step of {workflow} out of order");
            *runs = true;
        }
    }

    fn leave(&self, attempt: &Attempt, is_done: bool) {
        if let Some(workflow) = attempt.workflow.as_ref().filter(|_| self.checks_order) {
            let mut workflows = lock(&self.shared.workflows);
            let (runs, last) = workflows.entry(workflow.to_string()).or_default();
            *runs = false;
            *last = if is_done { attempt.task } else { *last };
        }
        for (name, units) in attempt.required_limits() {
            if let Some(watch) = self.limits.get(&name) {
                watch.running.fetch_sub(units.into(), Ordering::SeqCst);
            }
        }
    }

    /// Every expected task was completed once.
    pub fn assert_all_done(&self, number: usize) {
        assert_eq!(*lock(&self.shared.done), *lock(&self.shared.expected));
        assert_eq!(lock(&self.shared.done).len(), number);
    }
}
