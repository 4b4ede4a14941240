//! The races of due tasks that the fast path admits, each over all boundaries.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::{Attempt, Completion, Finish, NewTask, Outcome, Store, TaskId, TaskState};
use tidegate_store::postgres::{InjectedBug, Options};

use super::admission::{after, ensure, held, race, state};
use super::hand_off::{all_going_on, full, going_on};
use super::harness::{
    AfterRace, Handle, Race, RaceHarness, START, VerbFuture, claim_request, task,
};

const DUE_AT: i64 = START + 1000;

/// Submits a task that is due at [`DUE_AT`], and moves the clock of `handle` there. The clock of the other
/// handle stays: its verbs do not know that the task is due.
async fn due(handle: &Handle, kind: &str) -> TaskId {
    let new = NewTask { run_at: Some(DUE_AT), ..task(kind) };
    let id = handle.submit(vec![new]).await[0];
    handle.claim(0).await;
    handle.clock.store(DUE_AT, Ordering::SeqCst);
    id
}

fn admitting(handle: &Handle) -> VerbFuture {
    let store = handle.store.clone();
    Box::pin(async move { store.admit().await.map(drop) })
}

fn claiming(handle: &Handle, tasks_max: u32) -> VerbFuture {
    let store = handle.store.clone();
    Box::pin(async move { store.claim(claim_request("worker", tasks_max)).await.map(drop) })
}

fn has_slots(expected: (u32, u32)) -> AfterRace {
    after(move |lab| async move {
        let held = held(&lab, "group:a").await;
        ensure(held == expected, || format!("{held:?} held and waiting instead of {expected:?}"))
    })
}

/// A due task joins a wait queue from which a slot is handed on.
async fn beside_hand_off(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 2).await;
    due(&x, "a").await;
    Race { a: admitting(&x), b: going_on(&y, &running[1], 1), after: has_slots((2, 3)) }
}

race!(due_task_racing_with_hand_off_joins_wait_queue, beside_hand_off);

/// One task waits, and two slots are given back: the due task gets the second one, whichever verb comes first.
async fn behind_the_last_waiter(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, waiting) = full(&x, &y, 4).await;
    x.store.cancel(waiting[1..].to_vec()).await.expect("cancel");
    due(&x, "a").await;
    let ended: [Attempt; 2] = [running[1].clone(), running[3].clone()];
    Race { a: admitting(&x), b: all_going_on(&y, &ended, 2), after: has_slots((4, 0)) }
}

race!(due_task_racing_with_hand_off_gets_slot_behind_last_waiter, behind_the_last_waiter);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn races_find_injected_bug_of_due_admission_without_lock() {
    let options = Options { injected_bug: Some(InjectedBug::DueUnlocked), ..Options::default() };
    let found = Box::pin(RaceHarness::new(options).await.run_race(behind_the_last_waiter)).await;
    println!("{found:?}");
    assert!(found.is_err(), "no boundary shows it");
}

/// A limit begins to apply to the kind of a due task.
async fn as_a_limit_begins(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.claim(0).await;
    due(&x, "a").await;
    x.submit(vec![task("a")]).await;
    Race {
        a: claiming(&x, 2),
        b: y.set_limit_verb("group:a", Some(1)),
        after: after(|lab| async move {
            lab.held_store.clock.store(DUE_AT, Ordering::SeqCst);
            lab.free_store.clock.store(DUE_AT, Ordering::SeqCst);
            // Tasks that run when the limit begins are adopted by it, beyond its capacity.
            let (before, _) = held(&lab, "group:a").await;
            lab.free_store.claim(2).await;
            let (now, _) = held(&lab, "group:a").await;
            ensure(now <= before.max(1), || format!("{now} held, {before} before"))
        }),
    }
}

race!(limit_set_during_admission_of_due_task_is_exact, as_a_limit_begins);

/// A due task is cancelled as it is admitted, under a full limit and without a limit.
async fn as_it_is_cancelled(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    full(&x, &y, 2).await;
    let (limited, free) = (due(&x, "a").await, due(&x, "free").await);
    let store = y.store.clone();
    Race {
        a: admitting(&x),
        b: Box::pin(async move { store.cancel(vec![limited, free]).await.map(drop) }),
        after: after(move |lab| async move {
            for task in [limited, free] {
                let state = state(&lab, task).await;
                ensure(state == TaskState::Cancelled, || format!("{task} is {state:?}"))?;
            }
            let held = held(&lab, "group:a").await;
            ensure(held == (2, 3), || format!("{held:?} held and waiting"))
        }),
    }
}

race!(cancel_racing_with_admission_of_due_task_cancels_it, as_it_is_cancelled);

/// Two processes find the same due tasks: one admits them, and both claim.
async fn found_by_two(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (first, second) = (due(&x, "free").await, due(&x, "free").await);
    y.claim(0).await;
    y.clock.store(DUE_AT, Ordering::SeqCst);
    Race {
        a: claiming(&x, 1),
        b: claiming(&y, 1),
        after: after(move |lab| async move {
            lab.free_store.claim(2).await;
            for task in [first, second] {
                let state = state(&lab, task).await;
                ensure(state == TaskState::Processing, || format!("{task} is {state:?}"))?;
            }
            Ok(())
        }),
    }
}

race!(claims_racing_over_due_tasks_claim_each_once, found_by_two);

/// A failed attempt is scheduled again as due tasks are admitted: the admission may meet the retry.
async fn beside_a_retry(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 2).await;
    due(&x, "a").await;
    let outcome = Outcome::Failed { error: "no".into(), retryable: true, retry_in_ms: Some(500) };
    let exits = vec![Completion { task: running[1].task, token: running[1].token, outcome }];
    let store = y.store.clone();
    let failing = Box::pin(async move {
        store
            .finish(Finish { completions: exits, claim: Some(claim_request("worker", 1)) })
            .await
            .map(drop)
    });
    Race {
        a: admitting(&x),
        b: failing,
        after: after(|lab| async move {
            lab.held_store.clock.store(DUE_AT, Ordering::SeqCst);
            lab.free_store.clock.store(DUE_AT, Ordering::SeqCst);
            lab.free_store.claim(0).await;
            lab.free_store.store.admit().await.expect("admit");
            let held = held(&lab, "group:a").await;
            ensure(held == (2, 4), || format!("{held:?} held and waiting"))
        }),
    }
}

race!(retry_racing_with_admission_of_due_tasks_is_parked, beside_a_retry);
