//! The races of slots that are handed on without the lock of their limit, each over all boundaries.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::{
    Attempt, Completion, Finish, Heartbeat, NewTask, Outcome, Progress, ReleaseSlot, Store,
    StoreReader, TaskId, TaskState, WorkerId,
};
use tidegate_store::postgres::{Options, StatementHook};
use tidegate_testkit::wait;

use super::admission::{after, ensure, held, nothing_else, race, state};
use super::harness::{
    AfterRace, Handle, LEASE_MS, Race, RaceHarness, START, VerbFuture, claim_request,
    completion_of, task,
};

/// Ends an attempt and asks for so many others in the same step.
pub(super) fn going_on(handle: &Handle, attempt: &Attempt, tasks_max: u32) -> VerbFuture {
    all_going_on(handle, std::slice::from_ref(attempt), tasks_max)
}

pub(super) fn all_going_on(handle: &Handle, attempts: &[Attempt], tasks_max: u32) -> VerbFuture {
    let (store, exits) = (handle.store.clone(), attempts.iter().map(completion_of).collect());
    Box::pin(async move {
        let finish = Finish { completions: exits, claim: Some(claim_request("worker", tasks_max)) };
        store.finish(finish).await.map(drop)
    })
}

/// A limit of so many, all of them running, each under a lease of its own, and three in line. The
/// handles take turns: whoever claimed an attempt can hand its slot on. Gives what runs, and who waits.
pub(super) async fn full(x: &Handle, y: &Handle, capacity: u32) -> (Vec<Attempt>, Vec<TaskId>) {
    x.set_limit("group:a", Some(capacity)).await;
    y.claim(0).await;
    let tasks = x.submit(vec![task("a"); capacity as usize + 3]).await;
    let mut running = Vec::new();
    for number in 0..capacity {
        let handle = if number % 2 == 0 { x } else { y };
        running.extend(handle.claim(1).await);
    }
    assert_eq!(running.len(), capacity as usize);
    (running, tasks[capacity as usize..].to_vec())
}

/// As many run as the limit lets, and the rest waits.
fn is_full(running: u32, waiting: u32) -> AfterRace {
    after(move |lab| async move {
        let held = held(&lab, "group:a").await;
        let counts = lab.free_store.store.task_counts().await.expect("counts");
        let now = counts.get(&TaskState::Processing).copied().unwrap_or_default();
        ensure(held == (running, waiting) && now == u64::from(running), || {
            format!("{held:?} held and waiting, {now} run")
        })
    })
}

/// Two hand slots of one limit on at once, to two different tasks.
async fn two_relays(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 2).await;
    Race { a: going_on(&x, &running[0], 1), b: going_on(&y, &running[1], 1), after: is_full(2, 1) }
}

race!(hand_offs_racing_under_one_limit_serve_different_waiters, two_relays);

/// The same where both ask for more than they give.
async fn two_that_want_more(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 2).await;
    x.submit(vec![task("b"); 2]).await;
    Race {
        a: going_on(&x, &running[0], 2),
        b: going_on(&y, &running[1], 2),
        after: after(|lab| async move {
            let held = held(&lab, "group:a").await;
            ensure(held == (2, 1), || format!("{held:?} held and waiting"))
        }),
    }
}

race!(hand_offs_racing_with_extra_claims_keep_limit_full, two_that_want_more);

/// Tasks of another kind that come before all who wait; the worker is known to serve it.
async fn come_before(handle: &Handle, tasks: usize) -> Vec<TaskId> {
    let before = handle.submit(vec![NewTask { priority: 5, ..task("b") }; tasks]).await;
    handle.claim(0).await;
    before
}

/// Something that no limit applies to, and runs.
async fn beside(handle: &Handle) -> Attempt {
    handle.submit(vec![task("free")]).await;
    handle.claim(1).await.remove(0)
}

/// The same where others come before those in line: these are ready with their slots.
async fn two_behind_others(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (of_x, of_y) = (beside(&x).await, beside(&y).await);
    let (running, _) = full(&x, &y, 2).await;
    let first = come_before(&x, 2).await;
    Race {
        a: all_going_on(&x, &[running[0].clone(), of_x], 1),
        b: all_going_on(&y, &[running[1].clone(), of_y], 1),
        after: after(move |lab| async move {
            let held = held(&lab, "group:a").await;
            ensure(held == (2, 1), || format!("{held:?} held and waiting"))?;
            for task in first {
                let state = state(&lab, task).await;
                ensure(state == TaskState::Processing, || format!("the first is {state:?}"))?;
            }
            Ok(())
        }),
    }
}

race!(hand_offs_racing_behind_higher_priority_keep_limit_full, two_behind_others);

/// More end than wait: who finds nobody in line gives its slot back, unless the one who has taken the
/// last is undone.
async fn one_waits(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, waiting) = full(&x, &y, 2).await;
    x.store.cancel(waiting[1..].to_vec()).await.expect("cancel");
    Race { a: going_on(&x, &running[0], 1), b: going_on(&y, &running[1], 1), after: is_full(1, 0) }
}

race!(hand_offs_racing_over_one_waiter_free_the_other_slot, one_waits);

/// A limit is lowered as a slot is handed on: the commit that comes second sees the other.
async fn lowered(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 2).await;
    Race {
        a: going_on(&x, &running[0], 1),
        b: y.set_limit_verb("group:a", Some(1)),
        after: after(|lab| async move {
            let (held, _) = held(&lab, "group:a").await;
            ensure(held <= 2, || format!("{held} held"))
        }),
    }
}

race!(hand_off_racing_with_lowered_limit_stays_within_capacity, lowered);

/// A limit is raised as a slot is handed on: all who wait get one.
async fn raised(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 2).await;
    Race {
        a: going_on(&x, &running[0], 1),
        b: y.set_limit_verb("group:a", Some(4)),
        after: after(|lab| async move {
            let held = held(&lab, "group:a").await;
            ensure(held == (4, 0), || format!("{held:?} held and waiting"))
        }),
    }
}

race!(hand_off_racing_with_raised_limit_admits_all_waiters, raised);

/// The next in line is cancelled as it gets its slot: it ends, or it runs and is told.
async fn cancelled(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, waiting) = full(&x, &y, 1).await;
    let next = waiting[0];
    let store = y.store.clone();
    Race {
        a: going_on(&x, &running[0], 1),
        b: Box::pin(async move { store.cancel(vec![next]).await.map(drop) }),
        after: after(move |lab| async move {
            let (held, _) = held(&lab, "group:a").await;
            let now = state(&lab, next).await;
            let is_told = matches!(now, TaskState::Cancelled | TaskState::Processing);
            ensure(held == 1 && is_told, || format!("{held} held, it is {now}"))
        }),
    }
}

race!(hand_off_racing_with_cancel_of_next_waiter_keeps_limit_full, cancelled);

/// Tasks come to the line as a slot is handed on: one with a higher priority, and one that takes two.
async fn parked(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 2).await;
    let urgent = NewTask { priority: 5, ..task("a") };
    let heavy = NewTask { weight: 2, ..task("a") };
    y.submit(vec![urgent, heavy]).await;
    let store = y.store.clone();
    Race {
        a: going_on(&x, &running[0], 1),
        b: Box::pin(async move { store.admit().await.map(drop) }),
        after: after(|lab| async move {
            let held = held(&lab, "group:a").await;
            ensure(held == (2, 4), || format!("{held:?} held and waiting"))
        }),
    }
}

race!(hand_off_racing_with_parking_keeps_wait_queue_complete, parked);

/// An operator takes a slot away as it is handed on.
async fn released(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 2).await;
    let (store, release) = (y.store.clone(), ReleaseSlot { limit: "group:a".into(), slot: 0 });
    Race {
        a: going_on(&x, &running[0], 1),
        b: Box::pin(async move { store.release_slot(release).await.map(drop) }),
        after: after(|lab| async move {
            let (held, _) = held(&lab, "group:a").await;
            ensure(held == 2, || format!("{held} held"))
        }),
    }
}

race!(hand_off_racing_with_slot_release_keeps_limit_full, released);

/// A report of progress unpacks the lease whose slot is handed on.
async fn unpacked(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 1).await;
    let (store, Attempt { task, token, .. }) = (y.store.clone(), running[0].clone());
    let progress = vec![(task, token, Progress { percent: 5, message: "going".into() })];
    let (worker, tokens) = (WorkerId("worker".into()), vec![token]);
    let extend =
        Heartbeat { worker, tokens, lease_ms: LEASE_MS, progress, run_times: vec![], report: None };
    Race {
        a: going_on(&x, &running[0], 1),
        b: Box::pin(async move { store.heartbeat(extend).await.map(drop) }),
        after: is_full(1, 2),
    }
}

race!(hand_off_racing_with_progress_report_keeps_limit_full, unpacked);

/// The reaper takes an attempt away whose lease ran out, as it hands its slot on.
async fn reaped(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 1).await;
    for handle in [&x, &y] {
        handle.clock.store(START + LEASE_MS + 1, Ordering::SeqCst);
    }
    y.claim(0).await;
    let store = y.store.clone();
    Race {
        a: going_on(&x, &running[0], 1),
        b: Box::pin(async move { store.reap().await.map(drop) }),
        after: after(|lab| async move {
            let (held, _) = held(&lab, "group:a").await;
            ensure(held == 1, || format!("{held} held"))
        }),
    }
}

race!(hand_off_racing_with_reap_keeps_limit_full, reaped);

/// A store is mended as slots change hands.
async fn mended(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 2).await;
    let store = y.store.clone();
    Race {
        a: going_on(&x, &running[0], 1),
        b: Box::pin(async move {
            let repairs = store.repair().await?;
            assert!(repairs.is_empty(), "{repairs:?}");
            Ok(())
        }),
        after: nothing_else(),
    }
}

race!(hand_off_racing_with_repair_needs_no_repair, mended);

/// What was claimed and holds a slot is packed as somebody looks for a free one.
async fn packed(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(2)).await;
    x.claim(0).await;
    x.submit(vec![task("a"); 2]).await;
    x.store.admit().await.expect("admit");
    y.submit(vec![task("a"); 2]).await;
    let (claiming, admitting) = (x.store.clone(), y.store.clone());
    Race {
        a: Box::pin(async move { claiming.claim(claim_request("worker", 1)).await.map(drop) }),
        b: Box::pin(async move { admitting.admit().await.map(drop) }),
        after: after(|lab| async move {
            let held = held(&lab, "group:a").await;
            ensure(held == (2, 2), || format!("{held:?} held and waiting"))
        }),
    }
}

race!(claim_racing_with_admission_finds_every_held_slot, packed);

/// A lab, and the statements that its stores send.
async fn overheard() -> (Arc<RaceHarness>, Arc<Mutex<Vec<&'static str>>>) {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let noted = sent.clone();
    let step: StatementHook = Arc::new(move |sql| {
        noted.lock().expect("lock").push(sql);
        Box::pin(async {})
    });
    (RaceHarness::new(Options { statement_hook: Some(step), ..Options::default() }).await, sent)
}

/// A slot is handed on by a handful of statements that are sent together, and no row is written for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_off_sends_four_statements_and_writes_no_slot_row() {
    let (lab, sent) = overheard().await;
    let handle = &lab.free_store;
    let (running, waiting) = full(handle, handle, 2).await;
    for (number, attempt) in running.iter().enumerate() {
        sent.lock().expect("lock").clear();
        let finish = Finish {
            completions: vec![completion_of(attempt)],
            claim: Some(claim_request("worker", 1)),
        };
        let finished = handle.store.finish(finish).await.expect("finish");
        let next = &finished.claimed[0];
        assert_eq!((next.task, &next.slots), (waiting[number], &attempt.slots));
        let sent = sent.lock().expect("lock");
        assert_eq!(sent.len(), 4, "{sent:#?}");
        assert_eq!(sent[3], "COMMIT");
    }
    for table in ["running", "slots"] {
        let rows = format!("SELECT count(*) FROM tidegate.{table}");
        let rows: i64 = lab.monitor.query_one(&rows, &[]).await.expect("count").get(0);
        assert_eq!(rows, 0, "rows of {table}");
    }
    lab.check().await.expect("every rule holds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_off_to_lower_ranked_waiter_makes_it_ready_with_slot() {
    let (lab, sent) = overheard().await;
    let handle = &lab.free_store;
    let beside = beside(handle).await;
    let (running, waiting) = full(handle, handle, 2).await;
    let first = come_before(handle, 1).await;
    sent.lock().expect("lock").clear();
    let exits = vec![completion_of(&running[0]), completion_of(&beside)];
    let finish = Finish { completions: exits, claim: Some(claim_request("worker", 1)) };
    let finished = handle.store.finish(finish).await.expect("finish");
    assert_eq!(finished.claimed[0].task, first[0]);
    let alone = |sql: &&&str| sql.contains("Nobody hands slots of these limits on");
    assert_eq!(sent.lock().expect("lock").iter().find(alone), None, "the limit is not locked");
    let next = handle.claim(1).await;
    assert_eq!((next[0].task, &next[0].slots), (waiting[0], &running[0].slots));
    lab.check().await.expect("every rule holds");
}

/// Claims until something is found. A worker that was told that there is nothing asks again when it is
/// due, and not seconds later.
async fn found_soon(handle: &Handle) -> Vec<Attempt> {
    let mut claimed = Vec::new();
    let asking = wait::until_async("a task is found", async || {
        claimed = handle.claim(1).await;
        !claimed.is_empty()
    });
    tokio::time::timeout(Duration::from_secs(3), asking).await.expect("it is found soon");
    claimed
}

/// Whoever ends a task finds only those in line whom another is about to take; and that comes to nothing.
async fn free_after_all(is_beside: bool) {
    let (lab, sent) = overheard().await;
    let handle = &lab.free_store;
    let beside = if is_beside { Some(beside(handle).await) } else { None };
    let (running, waiting) = full(handle, handle, 2).await;
    let listening = handle.store.clone();
    let listening = tokio::spawn(async move {
        loop {
            listening.wait_for_notification().await;
        }
    });
    // Until it hears of everything, and need not ask.
    while !sent.lock().expect("lock").is_empty() {
        sent.lock().expect("lock").clear();
        assert!(handle.claim(1).await.is_empty());
    }
    let other = "BEGIN; SELECT FROM tidegate.waiters FOR UPDATE";
    lab.monitor.batch_execute(other).await.expect("lock the line");
    let exits: Vec<_> = running[..1].iter().chain(&beside).cloned().collect();
    all_going_on(handle, &exits, 1).await.expect("finish");
    assert_eq!(held(&lab, "group:a").await, (1, 3), "its slot is given back");
    lab.monitor.batch_execute("ROLLBACK").await.expect("undo");
    assert!(handle.claim(1).await.is_empty(), "nobody looks at once");
    handle.clock.fetch_add(100, Ordering::SeqCst);
    let next = found_soon(handle).await;
    assert_eq!(next.iter().map(|next| next.task).collect::<Vec<_>>(), waiting[..1]);
    lab.check().await.expect("every rule holds");
    listening.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_of_rolled_back_hand_off_is_found() {
    free_after_all(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_of_rolled_back_hand_off_is_found_with_other_completions() {
    free_after_all(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn races_find_injected_bug_of_unshared_hand_off() {
    let options = Options {
        injected_bug: Some(tidegate_store::postgres::InjectedBug::HandOffUnlocked),
        ..Options::default()
    };
    let found = Box::pin(RaceHarness::new(options).await.run_race(cancelled)).await;
    println!("{found:?}");
    assert!(found.is_err(), "nobody finds it");
}

/// Fails an attempt for good, and asks for another in the same step.
fn failing_and_going_on(handle: &Handle, attempt: &Attempt) -> VerbFuture {
    let store = handle.store.clone();
    let outcome = Outcome::Failed { error: "no".into(), retryable: false, retry_in_ms: None };
    let exits = vec![Completion { task: attempt.task, token: attempt.token, outcome }];
    Box::pin(async move {
        let finish = Finish { completions: exits, claim: Some(claim_request("worker", 1)) };
        store.finish(finish).await.map(|finished| assert_eq!(finished.lost_attempts, []))
    })
}

/// One slot is handed on after a failure, another one after a completion.
async fn failure_beside_relay(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 2).await;
    Race {
        a: failing_and_going_on(&x, &running[0]),
        b: going_on(&y, &running[1], 1),
        after: is_full(2, 1),
    }
}

race!(hand_offs_racing_after_failure_and_completion_keep_limit_full, failure_beside_relay);

/// The limit is lowered while the slot of a failed attempt is handed on.
async fn failure_beside_lowering(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 2).await;
    Race {
        a: failing_and_going_on(&x, &running[0]),
        b: y.set_limit_verb("group:a", Some(1)),
        after: after(|lab| async move {
            let (held, waiting) = held(&lab, "group:a").await;
            ensure(held <= 2 && held + waiting == 4, || format!("{held} held, {waiting} wait"))
        }),
    }
}

race!(hand_off_after_failure_racing_with_lowered_limit_is_exact, failure_beside_lowering);

/// A worker asks for fewer tasks than it completes: the other slots are for any worker.
async fn fewer_than_end(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let (running, _) = full(&x, &y, 4).await;
    let (store, ended) = (y.store.clone(), [running[0].clone(), running[2].clone()]);
    Race {
        a: all_going_on(&x, &ended, 1),
        b: Box::pin(async move { store.claim(claim_request("worker", 1)).await.map(drop) }),
        after: after(|lab| async move {
            let held = held(&lab, "group:a").await;
            ensure(held == (4, 1), || format!("{held:?} held and waiting"))
        }),
    }
}

race!(finish_with_smaller_claim_racing_with_claim_keeps_limit_full, fewer_than_end);
