//! The races of an operator's verbs with the others, each over all boundaries.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::{Exit, Finish, Inspect, NewTask, Outcome, Release, State, Store, TaskId};
use tidegate_store::postgres::Options;

use super::cases::{after, ensure, held, nothing_else, race, state};
use super::lab::{Handle, LEASE_MS, Lab, Race, START, Verb, exit, task};

/// Takes slot 0 of `group:a` away, from whoever holds it.
fn releasing(handle: &Handle) -> Verb {
    let store = handle.store.clone();
    let release = Release { limit: "group:a".into(), slot: 0 };
    Box::pin(async move { store.release(release).await.map(drop) })
}

fn retrying(handle: &Handle, task: TaskId) -> Verb {
    let store = handle.store.clone();
    Box::pin(async move { store.retry(vec![task]).await.map(drop) })
}

fn keyed() -> NewTask {
    NewTask { unique_key: Some("k".into()), ..task("a") }
}

async fn fail(handle: &Handle, new: NewTask) -> TaskId {
    let attempt = handle.start(new).await;
    let outcome = Outcome::Failed { error: "no".into(), retryable: false, retry_in_ms: None };
    let exits = vec![Exit { task: attempt.task, token: attempt.token, outcome }];
    handle.store.finish(Finish { exits, claim: None }).await.expect("finish");
    attempt.task
}

/// An attempt ends as its slot is taken away: one of the two counts, and the slot goes to one.
async fn release_and_finish(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.set("group:a", Some(1)).await;
    let running = x.start(task("a")).await;
    x.submit(vec![task("a"); 2]).await;
    x.claim(0).await;
    let (store, exits) = (y.store.clone(), vec![exit(&running)]);
    Race {
        a: releasing(&x),
        b: Box::pin(async move { store.finish(Finish { exits, claim: None }).await.map(drop) }),
        after: after(move |lab| async move {
            let (held, _) = held(&lab, "group:a").await;
            let state = state(&lab, running.task).await;
            let is_over = state != State::Processing;
            ensure(held == 1 && is_over, || format!("{held} held, it is {state}"))
        }),
    }
}

race!(a_slot_is_taken_away_as_its_attempt_ends, release_and_finish);

/// Two operators take the same slot away.
async fn two_releases(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.set("group:a", Some(1)).await;
    x.start(task("a")).await;
    x.submit(vec![task("a")]).await;
    x.claim(0).await;
    Race {
        a: releasing(&x),
        b: releasing(&y),
        after: after(|lab| async move {
            let (held, _) = held(&lab, "group:a").await;
            ensure(held == 1, || format!("{held} held"))
        }),
    }
}

race!(one_slot_is_taken_away_twice, two_releases);

/// A slot is taken away as the reaper finds its lease run out.
async fn release_and_reap(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.set("group:a", Some(1)).await;
    x.start(task("a")).await;
    x.submit(vec![task("a")]).await;
    x.claim(0).await;
    y.clock.store(START + LEASE_MS + 1, Ordering::SeqCst);
    let reaper = y.store.clone();
    Race {
        a: releasing(&x),
        b: Box::pin(async move { reaper.reap().await.map(drop) }),
        after: nothing_else(),
    }
}

race!(a_slot_is_taken_away_as_its_lease_runs_out, release_and_reap);

/// A task comes back as another one with its key is submitted: one of them has the key.
async fn retry_and_submit(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let failed = fail(&x, keyed()).await;
    let store = y.store.clone();
    let submission = tidegate_core::Submission { tasks: vec![keyed()], ..Default::default() };
    Race {
        a: retrying(&x, failed),
        b: Box::pin(async move { store.submit(submission).await.map(drop) }),
        after: after(|lab| async move {
            let tasks = lab.free.store.snapshot().await.expect("snapshot").tasks;
            ensure(tasks.len() == 1, || format!("{} carry the key", tasks.len()))
        }),
    }
}

race!(a_task_comes_back_as_its_key_is_submitted, retry_and_submit);

/// Two operators bring the same task back.
async fn two_retries(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let failed = fail(&x, keyed()).await;
    Race { a: retrying(&x, failed), b: retrying(&y, failed), after: nothing_else() }
}

race!(a_task_is_brought_back_twice, two_retries);

/// A task is hastened as the gate finds it due.
async fn hasten_and_admit(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let late = NewTask { run_at: Some(START + 1), ..task("a") };
    let late = x.submit(vec![late]).await[0];
    y.clock.store(START + 2, Ordering::SeqCst);
    let gate = y.store.clone();
    Race {
        a: retrying(&x, late),
        b: Box::pin(async move { gate.admit().await.map(drop) }),
        after: nothing_else(),
    }
}

race!(a_task_is_hastened_as_it_becomes_due, hasten_and_admit);

/// A repair locks every table while an attempt ends and its slot is handed on.
async fn repair_and_finish(lab: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.set("group:a", Some(1)).await;
    let running = x.start(task("a")).await;
    x.submit(vec![task("a"); 2]).await;
    x.claim(0).await;
    let harm = "UPDATE tidegate.limits SET waiting = waiting + 5";
    lab.monitor.execute(harm, &[]).await.expect("plant a fault");
    let store = x.store.clone();
    Race {
        a: Box::pin(async move { store.repair().await.map(drop) }),
        b: y.finish(&running),
        after: after(|lab| async move {
            // Where the attempt ended first, the repair found what that had left.
            lab.free.store.repair().await.expect("repair");
            let held = held(&lab, "group:a").await;
            ensure(held.0 == 1, || format!("{held:?} held and waiting"))
        }),
    }
}

race!(a_store_is_mended_while_an_attempt_ends, repair_and_finish);
