//! The races around leases that list what runs under them, each over all boundaries.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::tables::Position;
use tidegate_core::{
    Attempt, Exit, Extend, Finish, Inspect, Outcome, Progress, State, Store, TaskId, WorkerId,
};
use tidegate_store::postgres::Options;

use super::cases::{after, ensure, held, no_lease, race, state};
use super::lab::{Handle, LEASE_MS, Lab, Race, START, Verb, claim, exit, task};

fn failing(handle: &Handle, attempt: &Attempt) -> Verb {
    let store = handle.store.clone();
    let outcome = Outcome::Failed { error: "no".into(), retryable: false, retry_in_ms: None };
    let exits = vec![Exit { task: attempt.task, token: attempt.token, outcome }];
    Box::pin(async move {
        let finished = store.finish(Finish { exits, claim: None }).await?;
        assert_eq!(finished.lost, []);
        Ok(())
    })
}

fn finishing_and_claiming(handle: &Handle, attempt: &Attempt) -> Verb {
    let (store, exits) = (handle.store.clone(), vec![exit(attempt)]);
    Box::pin(async move {
        let finish = Finish { exits, claim: Some(claim("worker", 10)) };
        store.finish(finish).await.map(|finished| assert_eq!(finished.lost, []))
    })
}

fn reaping(handle: &Handle) -> Verb {
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
async fn well_and_badly(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let running = together(&x, ["a", "a"]).await;
    Race { a: x.finish(&running[0]), b: failing(&y, &running[1]), after: no_lease() }
}

race!(one_ends_well_as_another_fails, well_and_badly);

/// A lease lists one and has a row for the other; both end.
async fn listed_and_not(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.set("group:a", Some(5)).await;
    let running = together(&x, ["a", "b"]).await;
    assert_eq!(running[0].slots.len() + running[1].slots.len(), 1);
    Race { a: x.finish(&running[0]), b: y.finish(&running[1]), after: no_lease() }
}

race!(one_with_slots_and_one_without_end, listed_and_not);

/// What ends well has ended well, whoever cancels it meanwhile.
async fn ended_and_cancelled(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let running = x.start(task("a")).await;
    let (store, asked) = (y.store.clone(), running.task);
    Race {
        a: finishing_and_claiming(&x, &running),
        b: Box::pin(async move { store.cancel(vec![asked]).await.map(drop) }),
        after: after(move |lab| async move {
            let now = state(&lab, asked).await;
            ensure(now == State::Completed, || format!("it is {now}"))
        }),
    }
}

race!(a_task_is_cancelled_as_it_ends, ended_and_cancelled);

/// A limit adopts what runs; what ends meanwhile holds nothing.
async fn adopted_and_ended(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.submit(vec![task("c"); 3]).await;
    let running = x.claim(3).await;
    assert_eq!(running.len(), 3);
    Race {
        a: finishing_and_claiming(&x, &running[0]),
        b: y.setting("group:c", Some(1)),
        after: after(|lab| async move {
            let held = held(&lab, "group:c").await;
            ensure(held == (2, 0), || format!("{held:?} held and waiting"))
        }),
    }
}

race!(a_limit_begins_as_what_it_adopts_ends, adopted_and_ended);

/// A limit adopts what the reaper takes away.
async fn adopted_and_reaped(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.set("group:a", Some(1)).await;
    x.submit(vec![task("a"), task("c"), task("c")]).await;
    assert_eq!(x.claim(10).await.len(), 3);
    for handle in [&x, &y] {
        handle.clock.store(START + LEASE_MS + 1, Ordering::SeqCst);
    }
    Race { a: reaping(&x), b: y.setting("group:c", Some(5)), after: no_lease() }
}

race!(a_limit_begins_as_a_lease_runs_out, adopted_and_reaped);

/// A report of progress unpacks the lease whose last attempt ends.
async fn reported_and_ended(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let running = x.start(task("a")).await;
    let (store, Attempt { task, token, .. }) = (y.store.clone(), running.clone());
    let progress = vec![(task, token, Progress { percent: 5, message: "going".into() })];
    let (worker, tokens) = (WorkerId("worker".into()), vec![token]);
    let extend = Extend { worker, tokens, lease_ms: LEASE_MS, progress, ran: vec![], report: None };
    Race {
        a: x.finish(&running),
        b: Box::pin(async move { store.extend(extend).await.map(drop) }),
        after: no_lease(),
    }
}

race!(progress_is_reported_as_an_attempt_ends, reported_and_ended);

/// Both say that they ended it; one of them is told that it did not.
async fn ended_twice(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let running = x.start(task("a")).await;
    let lost = Arc::new(std::sync::Mutex::new(0));
    let finish = |handle: &Handle| -> Verb {
        let (store, exits, lost) = (handle.store.clone(), vec![exit(&running)], lost.clone());
        Box::pin(async move {
            let finished = store.finish(Finish { exits, claim: None }).await?;
            *lost.lock().expect("lock") += finished.lost.len();
            Ok(())
        })
    };
    let (a, b) = (finish(&x), finish(&y));
    let after = after(move |lab| async move {
        let lost = *lost.lock().expect("lock");
        ensure(lost == 1, || format!("{lost} of two were refused"))?;
        let counts = lab.free.store.counts().await.expect("counts");
        let done = counts.get(&State::Completed).copied().unwrap_or_default();
        ensure(done == 1, || format!("{counts:?}"))
    });
    Race { a, b, after }
}

race!(an_attempt_ends_twice, ended_twice);

fn cancelling(handle: &Handle, asked: TaskId) -> Verb {
    let store = handle.store.clone();
    Box::pin(async move { store.cancel(vec![asked]).await.map(drop) })
}

fn reporting(handle: &Handle, attempt: &Attempt) -> Verb {
    let store = handle.store.clone();
    let Attempt { task, token, .. } = *attempt;
    let progress = vec![(task, token, Progress { percent: 5, message: "going".into() })];
    let (worker, tokens) = (WorkerId("worker".into()), vec![token]);
    let extend = Extend { worker, tokens, lease_ms: LEASE_MS, progress, ran: vec![], report: None };
    Box::pin(async move { store.extend(extend).await.map(drop) })
}

/// A cancel gives one attempt a row of its own while another attempt of the lease completes.
async fn cancel_beside_completion(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let running = together(&x, ["a", "a"]).await;
    let [completed, asked] = [running[0].task, running[1].task];
    Race {
        a: finishing_and_claiming(&x, &running[0]),
        b: cancelling(&y, asked),
        after: after(move |lab| async move {
            let now = (state(&lab, completed).await, state(&lab, asked).await);
            ensure(now == (State::Completed, State::Processing), || format!("they are {now:?}"))?;
            let leases = lab.free.store.snapshot().await.expect("snapshot").leases;
            ensure(leases.len() == 1, || format!("{leases:?}"))
        }),
    }
}

race!(cancel_of_one_attempt_and_completion_of_another_keep_the_lease, cancel_beside_completion);

/// A report gives one attempt a row of its own while another attempt of the lease fails.
async fn report_beside_failure(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let running = together(&x, ["a", "a"]).await;
    let [failed, reported] = [running[0].task, running[1].task];
    Race {
        a: failing(&x, &running[0]),
        b: reporting(&y, &running[1]),
        after: after(move |lab| async move {
            let now = (state(&lab, failed).await, state(&lab, reported).await);
            ensure(now == (State::Failed, State::Processing), || format!("they are {now:?}"))
        }),
    }
}

race!(report_of_one_attempt_and_failure_of_another_keep_both, report_beside_failure);

/// The reaper takes a lease while a report gives one of its attempts a row of its own. The clock of the
/// reaper is ahead, so either the lease was renewed before it looked, or both attempts are lost.
async fn reap_beside_report(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let running = together(&x, ["a", "a"]).await;
    x.clock.store(START + LEASE_MS + 1, Ordering::SeqCst);
    y.clock.store(START + 10, Ordering::SeqCst);
    Race {
        a: reaping(&x),
        b: reporting(&y, &running[1]),
        after: after(|lab| async move {
            let snapshot = lab.free.store.snapshot().await.expect("snapshot");
            let is_running = |position: &Position| matches!(position, Position::Running(_));
            let tasks = snapshot.tasks.iter();
            let running = tasks.filter(|task| task.positions.iter().any(is_running)).count();
            ensure(running == 2 * snapshot.leases.len(), || format!("{running} run: {snapshot:?}"))
        }),
    }
}

race!(reap_of_a_lease_and_report_of_one_attempt_leave_all_or_none, reap_beside_report);

/// A cancel gives an attempt a row of its own while it fails for good: it has failed in any case.
async fn cancel_of_failing(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let running = together(&x, ["a", "a"]).await;
    let asked = running[0].task;
    Race {
        a: failing(&x, &running[0]),
        b: cancelling(&y, asked),
        after: after(move |lab| async move {
            let now = state(&lab, asked).await;
            ensure(now == State::Failed, || format!("it is {now}"))
        }),
    }
}

race!(cancel_of_an_attempt_that_fails_leaves_it_failed, cancel_of_failing);
