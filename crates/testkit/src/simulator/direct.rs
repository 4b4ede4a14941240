//! A store without a network, for scenarios whose subject is order and not faults.

use std::sync::Arc;

use tidegate_core::invariants::{Violation, check};
use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, Finish, JobSpec, NewTask, Outcome, SetLimit,
    Submission, TaskId, WorkerId, rules,
};
use tidegate_store::memory::WorkingState;

/// Some moment at the very beginning of an ageing interval.
const START_MS: i64 = 1_780_000_020_000;

/// Long enough for nothing to run out while hours pass.
const LEASE_MS: i64 = 24 * 60 * 60 * 1000;

/// These states are large, and the simulation checks every commit.
const COMMITS_PER_CHECK: u64 = 16;

#[derive(Debug)]
pub(super) struct DirectStore {
    pub(super) state: WorkingState,
    kinds: Arc<[Arc<str>]>,
    commits: u64,
}

type CheckedResult<T> = Result<T, Violation>;

impl DirectStore {
    pub(super) fn new(kinds: &[&str]) -> Self {
        let mut state = WorkingState::default();
        state.now = START_MS;
        Self { state, kinds: kinds.iter().map(|kind| Arc::from(*kind)).collect(), commits: 0 }
    }

    pub(super) fn set_limit(&mut self, name: &str, capacity: u32) -> CheckedResult<()> {
        let name = name.to_owned();
        let set = SetLimit { name, capacity: Some(capacity), source: CapacitySource::Operator };
        let answer = rules::set_limit(&mut self.state, &set);
        self.checked(answer).map(drop)
    }

    pub(super) fn submit(
        &mut self,
        jobs: Vec<JobSpec>,
        tasks: Vec<NewTask>,
    ) -> CheckedResult<TaskId> {
        let answer =
            rules::submit(&mut self.state, &Submission { jobs, tasks, ..Submission::default() });
        let submitted = self.checked(answer)?;
        Ok(submitted.last().map_or(TaskId(0), |submitted| submitted.task))
    }

    pub(super) fn claim(&mut self, tasks_max: u32) -> CheckedResult<Vec<Attempt>> {
        let claim = Claim {
            worker: WorkerId("w".into()),
            queues: [Arc::from("default")].into(),
            kinds: self.kinds.clone(),
            tasks_max,
            lease_ms: LEASE_MS,
            poll_interval_ms: 1000,
        };
        let answer = rules::claim(&mut self.state, &claim);
        self.checked(answer)
    }

    pub(super) fn complete(&mut self, attempt: &Attempt) -> CheckedResult<()> {
        let (task, token) = (attempt.task, attempt.token);
        let exits = vec![Completion { task, token, outcome: Outcome::Completed(Vec::new()) }];
        let answer = rules::finish(&mut self.state, Finish { completions: exits, claim: None });
        self.checked(answer).map(drop)
    }

    fn checked<T>(&mut self, answer: tidegate_core::Result<T>) -> CheckedResult<T> {
        self.commits += 1;
        if self.commits.is_multiple_of(COMMITS_PER_CHECK)
            && let Some(violation) = check(&self.state.snapshot()).into_iter().next()
        {
            return Err(violation);
        }
        answer.map_err(|error| Violation {
            rule: "every verb is answered",
            details: error.to_string(),
        })
    }
}

/// A task that needs nothing but what it is asked to.
pub(super) fn task(kind: &str, job: Option<&str>) -> NewTask {
    let mut task = NewTask::new(kind, *b"0");
    task.job = job.map(str::to_owned);
    task
}
