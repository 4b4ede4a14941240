//! A store without a network, for scenarios whose subject is order and not faults.

use std::sync::Arc;

use tidegate_core::check::{Violation, check};
use tidegate_core::{
    Attempt, Claim, Exit, Finish, JobSpec, NewTask, Outcome, SetLimit, Source, Submission, TaskId,
    WorkerId, rules,
};
use tidegate_store::memory::State;

/// Some moment at the very beginning of an ageing interval.
const START_MS: i64 = 1_780_000_020_000;

/// Long enough for nothing to run out while hours pass.
const LEASE_MS: i64 = 24 * 60 * 60 * 1000;

/// These states are large, and the simulation checks every commit.
const COMMITS_PER_CHECK: u64 = 16;

#[derive(Debug)]
pub(super) struct Direct {
    pub(super) state: State,
    kinds: Arc<[Arc<str>]>,
    commits: u64,
}

type Checked<T> = Result<T, Violation>;

impl Direct {
    pub(super) fn new(kinds: &[&str]) -> Self {
        let mut state = State::default();
        state.now = START_MS;
        Self { state, kinds: kinds.iter().map(|kind| Arc::from(*kind)).collect(), commits: 0 }
    }

    pub(super) fn set_limit(&mut self, name: &str, capacity: u32) -> Checked<()> {
        let name = name.to_owned();
        let set = SetLimit { name, capacity: Some(capacity), source: Source::Operator };
        let answer = rules::set_limit(&mut self.state, &set);
        self.judged(answer).map(drop)
    }

    pub(super) fn submit(&mut self, jobs: Vec<JobSpec>, tasks: Vec<NewTask>) -> Checked<TaskId> {
        let answer =
            rules::submit(&mut self.state, &Submission { jobs, tasks, ..Submission::default() });
        let submitted = self.judged(answer)?;
        Ok(submitted.last().map_or(TaskId(0), |submitted| submitted.task))
    }

    pub(super) fn claim(&mut self, tasks_max: u32) -> Checked<Vec<Attempt>> {
        let claim = Claim {
            worker: WorkerId("w".into()),
            queues: [Arc::from("default")].into(),
            kinds: self.kinds.clone(),
            tasks_max,
            lease_ms: LEASE_MS,
            poll_ms: 1000,
        };
        let answer = rules::claim(&mut self.state, &claim);
        self.judged(answer)
    }

    pub(super) fn complete(&mut self, attempt: &Attempt) -> Checked<()> {
        let (task, token) = (attempt.task, attempt.token);
        let exits = vec![Exit { task, token, outcome: Outcome::Completed(Vec::new()) }];
        let answer = rules::finish(&mut self.state, Finish { exits, claim: None });
        self.judged(answer).map(drop)
    }

    fn judged<T>(&mut self, answer: tidegate_core::Result<T>) -> Checked<T> {
        self.commits += 1;
        if self.commits.is_multiple_of(COMMITS_PER_CHECK)
            && let Some(violation) = check(&self.state.snapshot()).into_iter().next()
        {
            return Err(violation);
        }
        answer
            .map_err(|error| Violation { rule: "every verb is answered", found: error.to_string() })
    }
}

/// A task that needs nothing but what it is asked to.
pub(super) fn task(kind: &str, job: Option<&str>) -> NewTask {
    let mut task = NewTask::new(kind, *b"0");
    task.job = job.map(str::to_owned);
    task
}
