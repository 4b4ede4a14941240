//! However an attempt ends, its job has the slot back: the next of the job starts without any repair.

use tidegate_core::bounds::DAY_MS;
use tidegate_core::{Attempt, Kind, Outcome, Registration, ReleaseSlot, TaskId};

use super::fixture::{Fixture, LEASE_MS, completed_outcome, fatal_failure, job, retry_in, task};

/// A way for an attempt to end.
#[derive(Debug, Clone, Copy)]
enum EndedBy {
    Success,
    Error,
    LastAttempt,
    Retry,
    RetryAtOnce,
    Delay,
    GivenBack,
    Cancel,
    CancelIgnored,
    Crash,
    LastDeath,
    SlotTaken,
    JobCancelled,
    JobPruned,
}

const ENDED_BY_ALL: [EndedBy; 14] = [
    EndedBy::Success,
    EndedBy::Error,
    EndedBy::LastAttempt,
    EndedBy::Retry,
    EndedBy::RetryAtOnce,
    EndedBy::Delay,
    EndedBy::GivenBack,
    EndedBy::Cancel,
    EndedBy::CancelIgnored,
    EndedBy::Crash,
    EndedBy::LastDeath,
    EndedBy::SlotTaken,
    EndedBy::JobCancelled,
    EndedBy::JobPruned,
];

/// What ended is gone at once: a job has nothing left but what waits or runs.
async fn kind(fx: &Fixture) {
    let kind = Kind {
        max_crashes: 1,
        remove_on_completed_days: Some(0),
        remove_on_failed_days: Some(0),
        ..Kind::new("b")
    };
    let registration = Registration { kinds: vec![kind, Kind::new("a")], ..Default::default() };
    fx.store.register(registration).await.expect("register");
}

async fn submit(fx: &Fixture, job: &str, kind: &str, max_attempts: Option<u32>) -> TaskId {
    let job = Some(job.to_owned());
    fx.submit(tidegate_core::NewTask { job, max_attempts, ..task(kind) }).await
}

/// The keeper finds leases that ran out.
async fn crash(fx: &Fixture) {
    fx.advance(LEASE_MS);
    fx.claim(0).await;
    assert_eq!(fx.reap().await.expired_attempts, 1);
}

/// The attempt ends; `rest` are the other tasks of its job.
async fn end_attempt(fx: &Fixture, way: EndedBy, attempt: &Attempt, rest: &[TaskId]) {
    let retry = |ms| async move { fx.finish_attempt(attempt, retry_in(ms)).await };
    match way {
        EndedBy::Success => fx.finish_attempt(attempt, completed_outcome()).await,
        EndedBy::Error => fx.finish_attempt(attempt, fatal_failure("no")).await,
        EndedBy::LastAttempt | EndedBy::Retry => retry(1000).await,
        EndedBy::RetryAtOnce => retry(0).await,
        EndedBy::Delay => fx.finish_attempt(attempt, Outcome::Snoozed { delay_ms: 1000 }).await,
        EndedBy::GivenBack => fx.finish_attempt(attempt, Outcome::Released).await,
        EndedBy::Cancel => {
            fx.cancel(attempt.task).await;
            fx.finish_attempt(attempt, Outcome::Cancelled).await;
        }
        EndedBy::CancelIgnored => {
            fx.cancel(attempt.task).await;
            fx.finish_attempt(attempt, completed_outcome()).await;
        }
        EndedBy::Crash | EndedBy::LastDeath => crash(fx).await,
        EndedBy::SlotTaken => {
            let slot = attempt.slots.first().expect("the slot of the job");
            let release = ReleaseSlot { limit: slot.name.to_string(), slot: slot.number };
            fx.store.release_slot(release).await.expect("release");
            fx.settle().await;
        }
        EndedBy::JobCancelled | EndedBy::JobPruned => {
            let all: Vec<TaskId> = rest.iter().copied().chain([attempt.task]).collect();
            fx.store.cancel(all).await.expect("cancel");
            if matches!(way, EndedBy::JobPruned) {
                fx.advance(LEASE_MS - 1);
                while fx.store.prune().await.expect("prune").has_more {}
            }
            fx.finish_attempt(attempt, Outcome::Cancelled).await;
        }
    }
}

/// One task of a job runs and one waits for its slot.
async fn assert_slot_returned(fx: &Fixture, way: EndedBy) {
    let name = format!("{way:?}");
    let limit = format!("job:{name}");
    fx.job(job(&name, Some(1))).await;
    // A kind that survives no death, and whose tasks are gone as they end.
    let is_brief = matches!(way, EndedBy::LastDeath | EndedBy::JobPruned);
    let kind = if is_brief { "b" } else { "a" };
    let attempts = matches!(way, EndedBy::LastAttempt).then_some(1);
    let first = submit(fx, &name, kind, attempts).await;
    let second = submit(fx, &name, kind, attempts).await;
    let running = fx.claim(9).await;
    assert_eq!(running.len(), 1, "{way:?}: a quota of one");
    assert_eq!(running[0].task, first, "{way:?}");
    end_attempt(fx, way, &running[0], &[second]).await;
    if matches!(way, EndedBy::JobCancelled | EndedBy::JobPruned) {
        assert_eq!(fx.claim(9).await, [], "{way:?}: nothing is left");
        while fx.store.prune().await.expect("prune").has_more {}
        fx.job(job(&name, Some(1))).await;
        submit(fx, &name, kind, None).await;
    }
    let next = fx.claim(9).await;
    assert_eq!(next.len(), 1, "{way:?}: the slot is given on, and only once");
    let holders = fx.holders(&limit).await;
    assert_eq!(holders.len(), 1, "{way:?}: {holders:?}");
    assert_eq!(holders[0].task, next[0].task, "{way:?}");
    fx.complete(&next).await;
    fx.advance(DAY_MS);
    fx.run_all().await;
    assert_eq!(fx.find_limit(&limit).await.map_or(0, |limit| limit.held), 0, "{way:?}");
}

pub async fn job_slot_is_freed_by_every_outcome(fx: &Fixture) {
    kind(fx).await;
    for way in ENDED_BY_ALL {
        assert_slot_returned(fx, way).await;
    }
    fx.check_at_rest().await;
}
