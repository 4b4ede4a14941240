//! Statistics of the requests that a process sends to its store: which path served them, why not a faster one,
//! and how long they took. Stores collect them, metrics and spans show them.

use std::time::Duration;

/// Upper bounds of the buckets of [`RequestTimes`], in seconds.
pub const REQUEST_DURATION_BUCKETS_SECS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The code that served a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestPath {
    /// The common case: on PostgreSQL usually one round trip without locks of limits, or an answer from memory.
    Fast,
    /// Completed attempts hand their slots to the next waiters. Hand-offs share the locks of the limits, so they do
    /// not wait for each other.
    HandOff,
    /// The rules over rows that the transaction has locked and loaded. It serves every request, and on the stores
    /// without fast paths all of them.
    General,
}

impl RequestPath {
    /// Every path.
    pub const ALL: [Self; 3] = [Self::Fast, Self::HandOff, Self::General];

    /// Returns the name of the path in metrics and spans.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::HandOff => "hand_off",
            Self::General => "general",
        }
    }
}

/// Why a request took a slower path than its verb has. Every reason is explained in
/// docs/guides/why-is-it-slow.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FallbackReason {
    /// A submitted task has a job, a workflow, a unique key, a start time or a weight, or the submission brings limits
    /// or jobs, comes from a handler, or is very large.
    TaskOptions,
    /// The process has not seen a kind, queue or group of the submission before, or a change of limits made it
    /// forget them.
    UnknownNames,
    /// Admission had to run first: submitted or due tasks, or waiting tasks that might get a slot that was freed,
    /// waited for it.
    AdmissionPending,
    /// Some of the tasks hold slots, so their rows and those of their limits are read. For a finish: some of its
    /// attempts have a job or a workflow or hold several slots, or they hold slots and the finish claims no tasks or
    /// has very many attempts.
    TasksHoldSlots,
    /// Ready tasks are subject to a limit that was set after their admission, and go back to it.
    NewLimit,
    /// The store has no record of the worker, or one that expires within three quarters of its lease, so the record
    /// was written first.
    WorkerNotRecorded,
    /// The worker serves more queues and kinds than the first statement reads.
    ManyQueues,
    /// Some attempts were released, are retried at once, were reported twice or have a very large result, or the
    /// rules need more than a new schedule or a final state.
    AttemptsNotCompleted,
    /// Some attempts got rows of their own after the claim, because they reported progress or were cancelled, or they
    /// were claimed by another process.
    LeaseExpanded,
    /// The hand-off was not possible: the next waiter needs other limits too, no live worker serves it, or a limit of
    /// the attempts has changed.
    HandOffRefused,
}

impl FallbackReason {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::TaskOptions,
        Self::UnknownNames,
        Self::AdmissionPending,
        Self::TasksHoldSlots,
        Self::NewLimit,
        Self::WorkerNotRecorded,
        Self::ManyQueues,
        Self::AttemptsNotCompleted,
        Self::LeaseExpanded,
        Self::HandOffRefused,
    ];

    /// Returns the name of the reason in metrics and spans.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TaskOptions => "task_options",
            Self::UnknownNames => "unknown_names",
            Self::AdmissionPending => "admission_pending",
            Self::TasksHoldSlots => "tasks_hold_slots",
            Self::NewLimit => "new_limit",
            Self::WorkerNotRecorded => "worker_not_recorded",
            Self::ManyQueues => "many_queues",
            Self::AttemptsNotCompleted => "attempts_not_completed",
            Self::LeaseExpanded => "lease_expanded",
            Self::HandOffRefused => "hand_off_refused",
        }
    }
}

/// Requests of a process since it opened the store.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestStats {
    /// Numbers of requests.
    pub counts: Vec<RequestCount>,
    /// Their durations.
    pub times: Vec<RequestTimes>,
}

/// Number of requests of one verb that took one path for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestCount {
    /// The verb.
    pub verb: &'static str,
    /// The path that they took, also if they failed.
    pub path: RequestPath,
    /// Why they took the general path. None on the other paths, for verbs that have only the general path, and for
    /// `submit_in`.
    pub reason: Option<FallbackReason>,
    /// Number of requests.
    pub requests: u64,
}

/// Durations of the requests of one verb on one path.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestTimes {
    /// The verb.
    pub verb: &'static str,
    /// The path that served them.
    pub path: RequestPath,
    /// Requests in each bucket of [`REQUEST_SECONDS`], and above all of them.
    pub buckets: [u64; REQUEST_DURATION_BUCKETS_SECS.len() + 1],
    /// The sum of the durations.
    pub total: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_path_and_reason_names_are_unique() {
        let mut names: Vec<&str> = RequestPath::ALL.iter().map(|path| path.as_str()).collect();
        names.extend(FallbackReason::ALL.iter().map(|reason| reason.as_str()));
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }
}
