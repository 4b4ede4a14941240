//! What travels between a process and the store, and the store's side of it.

use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::{
    AdmitReply, Attempt, CancelOutcome, Claim, Finish, FinishReply, Heartbeat, HeartbeatReply,
    PruneReply, ReapReply, RegisterReply, Registration, Result, SetJob, SetLimit, SetPaused,
    Submission, SubmittedTask, TaskId, rules,
};
use tidegate_store::memory::WorkingState;

/// The verbs that write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the seam")]
pub enum Verb {
    Register,
    Submit,
    Admit,
    Claim,
    Heartbeat,
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
        Self::Heartbeat,
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
    Heartbeat(Heartbeat),
    Finish(Finish),
    Cancel(Vec<TaskId>),
    Reap,
    Prune,
    SetLimit(SetLimit),
    SetJob(SetJob),
    Pause(SetPaused),
}

/// What the store answered.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    Register(Result<RegisterReply>),
    Submit(Result<Vec<SubmittedTask>>),
    Admit(Result<AdmitReply>),
    Claim(Result<Vec<Attempt>>),
    Heartbeat(Result<HeartbeatReply>),
    Finish(Result<FinishReply>),
    Cancel(Result<Vec<CancelOutcome>>),
    Reap(Result<ReapReply>),
    Prune(Result<PruneReply>),
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
            Self::Heartbeat(_) => Verb::Heartbeat,
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
    pub(super) fn execute(&self, state: &mut WorkingState) -> Reply {
        match self {
            Self::Register(registration) => Reply::Register(rules::register(state, registration)),
            Self::Submit(submission) => Reply::Submit(
                rules::check_submission(submission, PAYLOAD_BYTES_MAX)
                    .and_then(|()| rules::submit(state, submission)),
            ),
            Self::Admit => Reply::Admit(rules::admit(state)),
            Self::Claim(claim) => Reply::Claim(rules::claim(state, claim)),
            Self::Heartbeat(extend) => Reply::Heartbeat(rules::heartbeat(state, extend)),
            Self::Finish(finish) => Reply::Finish(rules::finish(state, finish.clone())),
            Self::Cancel(tasks) => Reply::Cancel(rules::cancel(state, tasks)),
            Self::Reap => Reply::Reap(rules::reap(state)),
            Self::Prune => Reply::Prune(rules::prune(state)),
            Self::SetLimit(set) => Reply::SetLimit(rules::set_limit(state, set)),
            Self::SetJob(set) => Reply::SetJob(rules::set_job(state, set)),
            Self::Pause(pause) => Reply::Pause(rules::set_paused(state, pause)),
        }
    }
}
