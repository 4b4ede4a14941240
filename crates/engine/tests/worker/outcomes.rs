//! Ways for an attempt to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use insta::assert_snapshot;
use tidegate_core::bounds::BATCH_MAX;
use tidegate_core::{Inspect, State};
use tidegate_engine::{Context, Ended, Failure, KindOptions, Options, Task};
use tokio::sync::watch;

use crate::rig::{Rig, Seen};

const AT_ONCE: Duration = Duration::ZERO;

#[tokio::test]
async fn a_failure_is_tried_again_until_it_works() {
    let rig = Rig::new();
    let third_time = |context: Context, (): ()| async move {
        match context.attempt() {
            3 => Ok(context.is_last_attempt()),
            n => Err(Failure::retry_in(format!("no {n}"), AT_ONCE)),
        }
    };
    let worker = rig.start(rig.worker().handle("flaky", third_time));
    let task = rig.submit(Task::new("flaky", &()).max_attempts(3)).await;
    let view = rig.ended(task).await;
    assert_eq!((view.state, view.spent), (State::Completed, 2));
    assert_eq!(view.result.as_deref(), Some(&b"true"[..]));
    assert_eq!(rig.end(worker).await.retried, 2);
}

#[tokio::test]
async fn a_failure_is_final_when_attempts_are_spent_or_it_is_fatal() {
    let rig = Rig::new();
    let fail = |_: Context, fatal: bool| async move {
        let failure =
            if fatal { Failure::fatal("never") } else { Failure::retry_in("no", AT_ONCE) };
        Err::<(), _>(failure)
    };
    let worker = rig.start(rig.worker().handle("fail", fail));
    let spent = rig.submit(Task::new("fail", &false).max_attempts(2)).await;
    let view = rig.ended(spent).await;
    assert_eq!((view.state, view.spent, view.error.as_deref()), (State::Failed, 2, Some("no")));
    let fatal = rig.submit(Task::new("fail", &true)).await;
    let view = rig.ended(fatal).await;
    assert_eq!((view.state, view.spent, view.error.as_deref()), (State::Failed, 1, Some("never")));
    rig.end(worker).await;
}

#[tokio::test]
async fn snooze_and_release_cost_no_attempt() {
    let rig = Rig::new();
    let calls = Arc::new(AtomicU32::new(0));
    let called = calls.clone();
    let later = move |_: Context, (): ()| {
        let call = called.fetch_add(1, Ordering::SeqCst);
        async move {
            match call {
                0..3 => Err(Failure::snooze(AT_ONCE)),
                3..6 => Err(Failure::release()),
                _ => Ok(()),
            }
        }
    };
    let worker = rig.start(rig.worker().handle("later", later));
    let task = rig.submit(Task::new("later", &()).max_attempts(1)).await;
    let view = rig.ended(task).await;
    assert_eq!((view.state, view.spent), (State::Completed, 0));
    let summary = rig.end(worker).await;
    assert_eq!((summary.snoozed, summary.released, summary.completed), (3, 3, 1));
}

#[tokio::test]
async fn a_panic_harms_nobody_else_and_frees_its_slot() {
    let rig = Rig::new();
    let work = |_: Context, panics: bool| async move {
        assert!(!panics, "as told");
        Ok::<_, Failure>(())
    };
    let worker = rig.start(rig.worker().handle(KindOptions::new("one").max_concurrent(1), work));
    let bad = rig.submit(Task::new("one", &true).max_attempts(1)).await;
    let good = rig.submit(Task::new("one", &false)).await;
    let view = rig.ended(bad).await;
    assert_eq!(view.state, State::Failed);
    assert_snapshot!(view.error.unwrap_or_default(), @"the handler panicked: as told");
    rig.exited(good, Ended::Completed).await;
    rig.end(worker).await;
}

struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("in drop");
    }
}

#[tokio::test]
async fn a_panic_while_a_handler_is_dropped_frees_its_slot_too() {
    let rig = Rig::new();
    let work = |_: Context, (): ()| async {
        let _guard = PanicOnDrop;
        std::future::pending::<Result<(), Failure>>().await
    };
    let worker = rig.start(rig.worker().handle("drop", work));
    let task = Task::new("drop", &()).max_attempts(1).timeout(Duration::from_millis(10));
    let task = rig.submit(task).await;
    assert_eq!(rig.ended(task).await.state, State::Failed);
    rig.end(worker).await;
}

#[tokio::test]
async fn an_attempt_has_its_time() {
    let rig = Rig::new();
    let never = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    let kind = KindOptions::new("never").timeout(Duration::from_millis(30)).max_attempts(1);
    let worker = rig.start(rig.worker().handle(kind, never));
    let task = rig.submit(Task::new("never", &())).await;
    let view = rig.ended(task).await;
    assert_eq!(view.state, State::Failed);
    let error = view.error.unwrap_or_default();
    assert!(error.contains("30ms"), "{error}");
    assert_snapshot!(error, @"timed out after 30ms");
    rig.end(worker).await;
}

#[tokio::test]
async fn a_delayed_task_waits_for_the_stores_clock() {
    use std::sync::atomic::AtomicI64;
    let now = Arc::new(AtomicI64::new(1_000_000));
    let clock = now.clone();
    let rig =
        Rig::on(tidegate_store::memory::Memory::with_clock(move || clock.load(Ordering::SeqCst)));
    let noop = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    let worker = rig.start(rig.worker().handle("noop", noop));
    let later = rig.submit(Task::new("noop", &()).delay(Duration::from_secs(3600))).await;
    let first = rig.submit(Task::new("noop", &())).await;
    rig.exited(first, Ended::Completed).await;
    assert_eq!(rig.state(later).await, State::Scheduled);
    now.fetch_add(3_600_000, Ordering::SeqCst);
    rig.exited(later, Ended::Completed).await;
    rig.end(worker).await;
}

/// All handlers wait for one signal, so that all their ends are there when the worker looks.
#[tokio::test]
async fn more_end_at_once_than_one_call_takes() {
    const TASKS: usize = BATCH_MAX + 2000;
    let rig = Rig::new();
    let (go, gone) = watch::channel(false);
    let wait = move |_: Context, (): ()| {
        let mut gone = gone.clone();
        async move {
            gone.wait_for(|gone| *gone).await?;
            Ok::<_, Failure>(())
        }
    };
    for _ in 0..2 {
        let tasks = (0..TASKS / 2).map(|_| Task::new("wait", &()));
        rig.client.submit_many(tasks).await.unwrap();
    }
    let claim_batch = TASKS as u32 / 2;
    let options = Options { concurrency: TASKS as u32, claim_batch, ..Options::default() };
    let worker = rig.start(rig.worker_with(options).handle("wait", wait));
    let mut entered = 0;
    while entered < TASKS {
        entered += usize::from(matches!(rig.next().await, Seen::Enter(_)));
    }
    go.send_replace(true);
    let summary = rig.end(worker).await;
    assert_eq!(summary.completed, TASKS as u64);
    let counts = rig.store.memory.counts().await.unwrap();
    assert_eq!(counts.get(&State::Completed), Some(&(TASKS as u64)));
}
