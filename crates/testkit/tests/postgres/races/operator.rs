//! The races of an operator's verbs with the others, each over all boundaries.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::{
    Completion, Finish, NewTask, Outcome, ReleaseSlot, Store, StoreReader, TaskId, TaskState,
};
use tidegate_store::postgres::Options;

use super::admission::{after, ensure, held, nothing_else, race, state};
use super::harness::{Handle, LEASE_MS, Race, RaceHarness, START, VerbFuture, completion_of, task};

/// Takes slot 0 of `group:a` away, from whoever holds it.
fn releasing(handle: &Handle) -> VerbFuture {
    let store = handle.store.clone();
    let release = ReleaseSlot { limit: "group:a".into(), slot: 0 };
    Box::pin(async move { store.release_slot(release).await.map(drop) })
}

fn retrying(handle: &Handle, task: TaskId) -> VerbFuture {
    let store = handle.store.clone();
    Box::pin(async move { store.retry(vec![task]).await.map(drop) })
}

fn keyed() -> NewTask {
    NewTask { unique_key: Some("k".into()), ..task("a") }
}

async fn fail(handle: &Handle, new: NewTask) -> TaskId {
    let attempt = handle.submit_and_claim(new).await;
    let outcome = Outcome::Failed { error: "no".into(), retryable: false, retry_in_ms: None };
    let exits = vec![Completion { task: attempt.task, token: attempt.token, outcome }];
    handle.store.finish(Finish { completions: exits, claim: None }).await.expect("finish");
    attempt.task
}

/// An attempt ends as its slot is taken away: one of the two counts, and the slot goes to one.
async fn release_and_finish(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    let running = x.submit_and_claim(task("a")).await;
    x.submit(vec![task("a"); 2]).await;
    x.claim(0).await;
    let (store, exits) = (y.store.clone(), vec![completion_of(&running)]);
    Race {
        a: releasing(&x),
        b: Box::pin(async move {
            store.finish(Finish { completions: exits, claim: None }).await.map(drop)
        }),
        after: after(move |lab| async move {
            let (held, _) = held(&lab, "group:a").await;
            let state = state(&lab, running.task).await;
            let is_over = state != TaskState::Processing;
            ensure(held == 1 && is_over, || format!("{held} held, it is {state}"))
        }),
    }
}

race!(release_racing_with_completion_hands_off_slot_once, release_and_finish);

/// Two operators take the same slot away.
async fn two_releases(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    x.submit_and_claim(task("a")).await;
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

race!(releases_racing_over_one_slot_keep_limit_full, two_releases);

/// A slot is taken away as the reaper finds its lease run out.
async fn release_and_reap(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    x.submit_and_claim(task("a")).await;
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

race!(release_racing_with_reap_keeps_invariants, release_and_reap);

/// A task comes back as another one with its key is submitted: one of them has the key.
async fn retry_and_submit(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let failed = fail(&x, keyed()).await;
    let store = y.store.clone();
    let submission = tidegate_core::Submission { tasks: vec![keyed()], ..Default::default() };
    Race {
        a: retrying(&x, failed),
        b: Box::pin(async move { store.submit(submission).await.map(drop) }),
        after: after(|lab| async move {
            let tasks = lab.free_store.store.snapshot().await.expect("snapshot").tasks;
            ensure(tasks.len() == 1, || format!("{} carry the key", tasks.len()))
        }),
    }
}

race!(retry_racing_with_submit_of_its_key_keeps_one_task, retry_and_submit);

/// Two operators bring the same task back.
async fn two_retries(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let failed = fail(&x, keyed()).await;
    Race { a: retrying(&x, failed), b: retrying(&y, failed), after: nothing_else() }
}

race!(retries_racing_over_one_task_keep_invariants, two_retries);

/// A task is hastened as the gate finds it due.
async fn hasten_and_admit(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
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

race!(retry_racing_with_admission_of_due_task_keeps_invariants, hasten_and_admit);

/// A repair locks every table while an attempt ends and its slot is handed on.
async fn repair_and_finish(lab: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    let running = x.submit_and_claim(task("a")).await;
    x.submit(vec![task("a"); 2]).await;
    x.claim(0).await;
    let harm = "UPDATE tidegate.limits SET waiting = waiting + 5";
    lab.monitor.execute(harm, &[]).await.expect("plant a fault");
    let store = x.store.clone();
    Race {
        a: Box::pin(async move { store.repair().await.map(drop) }),
        b: y.finish_verb(&running),
        after: after(|lab| async move {
            // Where the attempt ended first, the repair found what that had left.
            lab.free_store.store.repair().await.expect("repair");
            let held = held(&lab, "group:a").await;
            ensure(held.0 == 1, || format!("{held:?} held and waiting"))
        }),
    }
}

race!(repair_racing_with_finish_corrects_counts, repair_and_finish);
