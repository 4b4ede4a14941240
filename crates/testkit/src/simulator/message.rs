//! What travels between a process and the store, and the store's side of it.

use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::{
    Admitted, Attempt, CancelOutcome, Claim, Extend, Extended, Finish, Finished, Pause, Pruned,
    Reaped, Registered, Registration, Result, SetJob, SetLimit, Submission, Submitted, TaskId,
    rules,
};
use tidegate_store::memory::State;

/// The verbs that write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the seam")]
pub enum Verb {
    Register,
    Submit,
    Admit,
    Claim,
    Extend,
    Finish,
    Cancel,
    Reap,
    Prune,
    SetLimit,
    SetJob,
    Pause,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Self; 12] = [
        Self::Register,
        Self::Submit,
        Self::Admit,
        Self::Claim,
        Self::Extend,
        Self::Finish,
        Self::Cancel,
        Self::Reap,
        Self::Prune,
        Self::SetLimit,
        Self::SetJob,
        Self::Pause,
    ];
}

/// A call of a verb.
#[derive(Debug, Clone)]
pub(super) enum Request {
    Register(Registration),
    Submit(Submission),
    Admit,
    Claim(Claim),
    Extend(Extend),
    Finish(Finish),
    Cancel(Vec<TaskId>),
    Reap,
    Prune,
    SetLimit(SetLimit),
    SetJob(SetJob),
    Pause(Pause),
}

/// What the store answered.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Register(Result<Registered>),
    Submit(Result<Vec<Submitted>>),
    Admit(Result<Admitted>),
    Claim(Result<Vec<Attempt>>),
    Extend(Result<Extended>),
    Finish(Result<Finished>),
    Cancel(Result<Vec<CancelOutcome>>),
    Reap(Result<Reaped>),
    Prune(Result<Pruned>),
    SetLimit(Result<Option<i64>>),
    SetJob(Result<()>),
    Pause(Result<bool>),
}

impl Request {
    pub(super) fn verb(&self) -> Verb {
        match self {
            Self::Register(_) => Verb::Register,
            Self::Submit(_) => Verb::Submit,
            Self::Admit => Verb::Admit,
            Self::Claim(_) => Verb::Claim,
            Self::Extend(_) => Verb::Extend,
            Self::Finish(_) => Verb::Finish,
            Self::Cancel(_) => Verb::Cancel,
            Self::Reap => Verb::Reap,
            Self::Prune => Verb::Prune,
            Self::SetLimit(_) => Verb::SetLimit,
            Self::SetJob(_) => Verb::SetJob,
            Self::Pause(_) => Verb::Pause,
        }
    }

    /// Runs the verb, as the reference store does.
    pub(super) fn execute(&self, state: &mut State) -> Answer {
        match self {
            Self::Register(registration) => Answer::Register(rules::register(state, registration)),
            Self::Submit(submission) => Answer::Submit(
                rules::check_submission(submission, PAYLOAD_BYTES_MAX)
                    .and_then(|()| rules::submit(state, submission)),
            ),
            Self::Admit => Answer::Admit(rules::admit(state)),
            Self::Claim(claim) => Answer::Claim(rules::claim(state, claim)),
            Self::Extend(extend) => Answer::Extend(rules::extend(state, extend)),
            Self::Finish(finish) => Answer::Finish(rules::finish(state, finish.clone())),
            Self::Cancel(tasks) => Answer::Cancel(rules::cancel(state, tasks)),
            Self::Reap => Answer::Reap(rules::reap(state)),
            Self::Prune => Answer::Prune(rules::prune(state)),
            Self::SetLimit(set) => Answer::SetLimit(rules::set_limit(state, set)),
            Self::SetJob(set) => Answer::SetJob(rules::set_job(state, set)),
            Self::Pause(pause) => Answer::Pause(rules::pause(state, pause)),
        }
    }
}
