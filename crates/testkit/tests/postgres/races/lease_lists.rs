//! The races around leases that list what runs under them, each over all boundaries.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::tables::Position;
use tidegate_core::{
    Attempt, Completion, Finish, Heartbeat, Outcome, Progress, Store, StoreReader, TaskId,
    TaskState, WorkerId,
};
use tidegate_store::postgres::Options;

use super::admission::{after, ensure, held, no_lease, race, state};
use super::harness::{
    Handle, LEASE_MS, Race, RaceHarness, START, VerbFuture, claim_request, completion_of, task,
};

fn failing(handle: &Handle, attempt: &Attempt) -> VerbFuture {
    let store = handle.store.clone();
    let outcome = Outcome::Failed { error: "no".into(), retryable: false, retry_in_ms: None };
    let exits = vec![Completion { task: attempt.task, token: attempt.token, outcome }];
    Box::pin(async move {
        let finished = store.finish(Finish { completions: exits, claim: None }).await?;
        assert_eq!(finished.lost_attempts, []);
        Ok(())
    })
}

fn finishing_and_claiming(handle: &Handle, attempt: &Attempt) -> VerbFuture {
    let (store, exits) = (handle.store.clone(), vec![completion_of(attempt)]);
    Box::pin(async move {
        let finish = Finish { completions: exits, claim: Some(claim_request("worker", 10)) };
        store.finish(finish).await.map(|finished| assert_eq!(finished.lost_attempts, []))
    })
}

fn reaping(handle: &Handle) -> VerbFuture {
    let store = handle.store.clone();
    Box::pin(async move { store.reap().await.map(drop) })
}

/// Claims tasks of these kinds under one lease.
async fn together(handle: &Handle, kinds: [&str; 2]) -> Vec<Attempt> {
    handle.submit(kinds.map(task).to_vec()).await;
    let running = handle.claim(10).await;
    assert_eq!(running.len(), 2);
    assert_eq!(running[0].token, running[1].token);
    running
}

/// One attempt of a lease ends well while another makes it be unpacked.
async fn well_and_badly(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = together(&x, ["a", "a"]).await;
    Race { a: x.finish_verb(&running[0]), b: failing(&y, &running[1]), after: no_lease() }
}

race!(completion_racing_with_failure_in_one_lease_removes_lease, well_and_badly);

/// A lease lists one and has a row for the other; both end.
async fn listed_and_not(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(5)).await;
    let running = together(&x, ["a", "b"]).await;
    assert_eq!(running[0].slots.len() + running[1].slots.len(), 1);
    Race { a: x.finish_verb(&running[0]), b: y.finish_verb(&running[1]), after: no_lease() }
}

race!(completions_with_and_without_slots_remove_shared_lease, listed_and_not);

/// What ends well has ended well, whoever cancels it meanwhile.
async fn ended_and_cancelled(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = x.submit_and_claim(task("a")).await;
    let (store, asked) = (y.store.clone(), running.task);
    Race {
        a: finishing_and_claiming(&x, &running),
        b: Box::pin(async move { store.cancel(vec![asked]).await.map(drop) }),
        after: after(move |lab| async move {
            let now = state(&lab, asked).await;
            ensure(now == TaskState::Completed, || format!("it is {now}"))
        }),
    }
}

race!(cancel_racing_with_completion_keeps_task_completed, ended_and_cancelled);

/// A limit adopts what runs; what ends meanwhile holds nothing.
async fn adopted_and_ended(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.submit(vec![task("c"); 3]).await;
    let running = x.claim(3).await;
    assert_eq!(running.len(), 3);
    Race {
        a: finishing_and_claiming(&x, &running[0]),
        b: y.set_limit_verb("group:c", Some(1)),
        after: after(|lab| async move {
            let held = held(&lab, "group:c").await;
            ensure(held == (2, 0), || format!("{held:?} held and waiting"))
        }),
    }
}

race!(limit_set_during_completion_holds_only_running_tasks, adopted_and_ended);

/// A limit adopts what the reaper takes away.
async fn adopted_and_reaped(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    x.submit(vec![task("a"), task("c"), task("c")]).await;
    assert_eq!(x.claim(10).await.len(), 3);
    for handle in [&x, &y] {
        handle.clock.store(START + LEASE_MS + 1, Ordering::SeqCst);
    }
    Race { a: reaping(&x), b: y.set_limit_verb("group:c", Some(5)), after: no_lease() }
}

race!(limit_set_during_reap_leaves_no_lease, adopted_and_reaped);

/// A report of progress unpacks the lease whose last attempt ends.
async fn reported_and_ended(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = x.submit_and_claim(task("a")).await;
    let (store, Attempt { task, token, .. }) = (y.store.clone(), running.clone());
    let progress = vec![(task, token, Progress { percent: 5, message: "going".into() })];
    let (worker, tokens) = (WorkerId("worker".into()), vec![token]);
    let extend =
        Heartbeat { worker, tokens, lease_ms: LEASE_MS, progress, run_times: vec![], report: None };
    Race {
        a: x.finish_verb(&running),
        b: Box::pin(async move { store.heartbeat(extend).await.map(drop) }),
        after: no_lease(),
    }
}

race!(progress_report_racing_with_completion_leaves_no_lease, reported_and_ended);

/// Both say that they ended it; one of them is told that it did not.
async fn ended_twice(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = x.submit_and_claim(task("a")).await;
    let lost = Arc::new(std::sync::Mutex::new(0));
    let finish = |handle: &Handle| -> VerbFuture {
        let (store, exits, lost) =
            (handle.store.clone(), vec![completion_of(&running)], lost.clone());
        Box::pin(async move {
            let finished = store.finish(Finish { completions: exits, claim: None }).await?;
            *lost.lock().expect("lock") += finished.lost_attempts.len();
            Ok(())
        })
    };
    let (a, b) = (finish(&x), finish(&y));
    let after = after(move |lab| async move {
        let lost = *lost.lock().expect("lock");
        ensure(lost == 1, || format!("{lost} of two were refused"))?;
        let counts = lab.free_store.store.task_counts().await.expect("counts");
        let done = counts.get(&TaskState::Completed).copied().unwrap_or_default();
        ensure(done == 1, || format!("{counts:?}"))
    });
    Race { a, b, after }
}

race!(completions_racing_over_one_attempt_are_accepted_once, ended_twice);

fn cancelling(handle: &Handle, asked: TaskId) -> VerbFuture {
    let store = handle.store.clone();
    Box::pin(async move { store.cancel(vec![asked]).await.map(drop) })
}

fn reporting(handle: &Handle, attempt: &Attempt) -> VerbFuture {
    let store = handle.store.clone();
    let Attempt { task, token, .. } = *attempt;
    let progress = vec![(task, token, Progress { percent: 5, message: "going".into() })];
    let (worker, tokens) = (WorkerId("worker".into()), vec![token]);
    let extend =
        Heartbeat { worker, tokens, lease_ms: LEASE_MS, progress, run_times: vec![], report: None };
    Box::pin(async move { store.heartbeat(extend).await.map(drop) })
}

/// A cancel gives one attempt a row of its own while another attempt of the lease completes.
async fn cancel_beside_completion(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = together(&x, ["a", "a"]).await;
    let [completed, asked] = [running[0].task, running[1].task];
    Race {
        a: finishing_and_claiming(&x, &running[0]),
        b: cancelling(&y, asked),
        after: after(move |lab| async move {
            let now = (state(&lab, completed).await, state(&lab, asked).await);
            ensure(now == (TaskState::Completed, TaskState::Processing), || {
                format!("they are {now:?}")
            })?;
            let leases = lab.free_store.store.snapshot().await.expect("snapshot").leases;
            ensure(leases.len() == 1, || format!("{leases:?}"))
        }),
    }
}

race!(cancel_racing_with_completion_of_another_attempt_keeps_lease, cancel_beside_completion);

/// A report gives one attempt a row of its own while another attempt of the lease fails.
async fn report_beside_failure(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = together(&x, ["a", "a"]).await;
    let [failed, reported] = [running[0].task, running[1].task];
    Race {
        a: failing(&x, &running[0]),
        b: reporting(&y, &running[1]),
        after: after(move |lab| async move {
            let now = (state(&lab, failed).await, state(&lab, reported).await);
            ensure(now == (TaskState::Failed, TaskState::Processing), || {
                format!("they are {now:?}")
            })
        }),
    }
}

race!(progress_report_racing_with_failure_of_another_attempt_keeps_both, report_beside_failure);

/// The reaper takes a lease while a report gives one of its attempts a row of its own. The clock of the
/// reaper is ahead, so either the lease was renewed before it looked, or both attempts are lost.
async fn reap_beside_report(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = together(&x, ["a", "a"]).await;
    x.clock.store(START + LEASE_MS + 1, Ordering::SeqCst);
    y.clock.store(START + 10, Ordering::SeqCst);
    Race {
        a: reaping(&x),
        b: reporting(&y, &running[1]),
        after: after(|lab| async move {
            let snapshot = lab.free_store.store.snapshot().await.expect("snapshot");
            let is_running = |position: &Position| matches!(position, Position::Running(_));
            let tasks = snapshot.tasks.iter();
            let running = tasks.filter(|task| task.positions.iter().any(is_running)).count();
            ensure(running == 2 * snapshot.leases.len(), || format!("{running} run: {snapshot:?}"))
        }),
    }
}

race!(reap_racing_with_progress_report_loses_all_attempts_or_none, reap_beside_report);

/// A cancel gives an attempt a row of its own while it fails for good: it has failed in any case.
async fn cancel_of_failing(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = together(&x, ["a", "a"]).await;
    let asked = running[0].task;
    Race {
        a: failing(&x, &running[0]),
        b: cancelling(&y, asked),
        after: after(move |lab| async move {
            let now = state(&lab, asked).await;
            ensure(now == TaskState::Failed, || format!("it is {now}"))
        }),
    }
}

race!(cancel_racing_with_failure_keeps_task_failed, cancel_of_failing);
