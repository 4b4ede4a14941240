//! However an attempt ends, its job has the slot back: the next of the job starts without any repair.

use tidegate_core::bounds::DAY_MS;
use tidegate_core::{Attempt, Kind, Outcome, Registration, Release, TaskId};

use super::fixture::{Fixture, LEASE_MS, done, fatal, job, retry_in, task};

/// A way for an attempt to end.
#[derive(Debug, Clone, Copy)]
enum Way {
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

const WAYS: [Way; 14] = [
    Way::Success,
    Way::Error,
    Way::LastAttempt,
    Way::Retry,
    Way::RetryAtOnce,
    Way::Delay,
    Way::GivenBack,
    Way::Cancel,
    Way::CancelIgnored,
    Way::Crash,
    Way::LastDeath,
    Way::SlotTaken,
    Way::JobCancelled,
    Way::JobPruned,
];

/// What ended is gone at once: a job has nothing left but what waits or runs.
async fn kind(fx: &Fixture) {
    let kind = Kind {
        max_deaths: 1,
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
    assert_eq!(fx.reap().await.expired, 1);
}

/// The attempt ends; `rest` are the other tasks of its job.
async fn end(fx: &Fixture, way: Way, attempt: &Attempt, rest: &[TaskId]) {
    let retry = |ms| async move { fx.exit(attempt, retry_in(ms)).await };
    match way {
        Way::Success => fx.exit(attempt, done()).await,
        Way::Error => fx.exit(attempt, fatal("no")).await,
        Way::LastAttempt | Way::Retry => retry(1000).await,
        Way::RetryAtOnce => retry(0).await,
        Way::Delay => fx.exit(attempt, Outcome::Snoozed { for_ms: 1000 }).await,
        Way::GivenBack => fx.exit(attempt, Outcome::Released).await,
        Way::Cancel => {
            fx.cancel(attempt.task).await;
            fx.exit(attempt, Outcome::Cancelled).await;
        }
        Way::CancelIgnored => {
            fx.cancel(attempt.task).await;
            fx.exit(attempt, done()).await;
        }
        Way::Crash | Way::LastDeath => crash(fx).await,
        Way::SlotTaken => {
            let slot = attempt.slots.first().expect("the slot of the job");
            let release = Release { limit: slot.name.to_string(), slot: slot.number };
            fx.store.release(release).await.expect("release");
            fx.settle().await;
        }
        Way::JobCancelled | Way::JobPruned => {
            let all: Vec<TaskId> = rest.iter().copied().chain([attempt.task]).collect();
            fx.store.cancel(all).await.expect("cancel");
            if matches!(way, Way::JobPruned) {
                fx.advance(LEASE_MS - 1);
                while fx.store.prune().await.expect("prune").more {}
            }
            fx.exit(attempt, Outcome::Cancelled).await;
        }
    }
}

/// One task of a job runs and one waits for its slot.
async fn gives_its_slot_back(fx: &Fixture, way: Way) {
    let name = format!("{way:?}");
    let limit = format!("job:{name}");
    fx.job(job(&name, Some(1))).await;
    // A kind that survives no death, and whose tasks are gone as they end.
    let is_brief = matches!(way, Way::LastDeath | Way::JobPruned);
    let kind = if is_brief { "b" } else { "a" };
    let attempts = matches!(way, Way::LastAttempt).then_some(1);
    let first = submit(fx, &name, kind, attempts).await;
    let second = submit(fx, &name, kind, attempts).await;
    let running = fx.claim(9).await;
    assert_eq!(running.len(), 1, "{way:?}: a quota of one");
    assert_eq!(running[0].task, first, "{way:?}");
    end(fx, way, &running[0], &[second]).await;
    if matches!(way, Way::JobCancelled | Way::JobPruned) {
        assert_eq!(fx.claim(9).await, [], "{way:?}: nothing is left");
        while fx.store.prune().await.expect("prune").more {}
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
    fx.work_off().await;
    assert_eq!(fx.find_limit(&limit).await.map_or(0, |limit| limit.held), 0, "{way:?}");
}

pub async fn every_way_out_gives_the_slot_back(fx: &Fixture) {
    kind(fx).await;
    for way in WAYS {
        gives_its_slot_back(fx, way).await;
    }
    fx.check_at_rest().await;
}
