//! Ways for an attempt to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use insta::assert_snapshot;
use tidegate_core::bounds::BATCH_MAX;
use tidegate_core::{StoreReader, TaskState};
use tidegate_engine::{AttemptOutcome, Context, Failure, KindConfig, Task, WorkerConfig};
use tokio::sync::watch;

use crate::harness::{AttemptEvent, Harness};

const AT_ONCE: Duration = Duration::ZERO;

#[tokio::test]
async fn failed_attempt_is_retried_until_it_succeeds() {
    let rig = Harness::new();
    let third_time = |context: Context, (): ()| async move {
        match context.attempt_number() {
            3 => Ok(context.is_last_attempt()),
            n => Err(Failure::retry_in(format!("no {n}"), AT_ONCE)),
        }
    };
    let worker = rig.start_worker(rig.worker_builder().handle("flaky", third_time));
    let task = rig.submit(Task::new("flaky", &()).max_attempts(3)).await;
    let view = rig.wait_until_final(task).await;
    assert_eq!((view.state, view.attempts_used), (TaskState::Completed, 2));
    assert_eq!(view.result.as_deref(), Some(&b"true"[..]));
    assert_eq!(rig.drain_worker(worker).await.retried, 2);
}

#[tokio::test]
async fn failure_is_final_after_last_attempt_or_if_fatal() {
    let rig = Harness::new();
    let fail = |_: Context, fatal: bool| async move {
        let failure =
            if fatal { Failure::fatal("never") } else { Failure::retry_in("no", AT_ONCE) };
        Err::<(), _>(failure)
    };
    let worker = rig.start_worker(rig.worker_builder().handle("fail", fail));
    let spent = rig.submit(Task::new("fail", &false).max_attempts(2)).await;
    let view = rig.wait_until_final(spent).await;
    assert_eq!(
        (view.state, view.attempts_used, view.error.as_deref()),
        (TaskState::Failed, 2, Some("no"))
    );
    let fatal = rig.submit(Task::new("fail", &true)).await;
    let view = rig.wait_until_final(fatal).await;
    assert_eq!(
        (view.state, view.attempts_used, view.error.as_deref()),
        (TaskState::Failed, 1, Some("never"))
    );
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn snooze_and_release_use_no_attempt() {
    let rig = Harness::new();
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
    let worker = rig.start_worker(rig.worker_builder().handle("later", later));
    let task = rig.submit(Task::new("later", &()).max_attempts(1)).await;
    let view = rig.wait_until_final(task).await;
    assert_eq!((view.state, view.attempts_used), (TaskState::Completed, 0));
    let summary = rig.drain_worker(worker).await;
    assert_eq!((summary.snoozed, summary.released, summary.completed), (3, 3, 1));
}

#[tokio::test]
async fn panic_fails_task_and_frees_its_slot() {
    let rig = Harness::new();
    let work = |_: Context, panics: bool| async move {
        assert!(!panics, "as told");
        Ok::<_, Failure>(())
    };
    let worker = rig
        .start_worker(rig.worker_builder().handle(KindConfig::new("one").max_concurrent(1), work));
    let bad = rig.submit(Task::new("one", &true).max_attempts(1)).await;
    let good = rig.submit(Task::new("one", &false)).await;
    let view = rig.wait_until_final(bad).await;
    assert_eq!(view.state, TaskState::Failed);
    assert_snapshot!(view.error.unwrap_or_default(), @"the handler panicked: as told");
    rig.wait_until_acknowledged(good, AttemptOutcome::Completed).await;
    rig.drain_worker(worker).await;
}

struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("in drop");
    }
}

#[tokio::test]
async fn panic_while_handler_is_dropped_frees_its_slot() {
    let rig = Harness::new();
    let work = |_: Context, (): ()| async {
        let _guard = PanicOnDrop;
        std::future::pending::<Result<(), Failure>>().await
    };
    let worker = rig.start_worker(rig.worker_builder().handle("drop", work));
    let task = Task::new("drop", &()).max_attempts(1).timeout(Duration::from_millis(10));
    let task = rig.submit(task).await;
    assert_eq!(rig.wait_until_final(task).await.state, TaskState::Failed);
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn attempt_times_out() {
    let rig = Harness::new();
    let never = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    let kind = KindConfig::new("never").timeout(Duration::from_millis(30)).max_attempts(1);
    let worker = rig.start_worker(rig.worker_builder().handle(kind, never));
    let task = rig.submit(Task::new("never", &())).await;
    let view = rig.wait_until_final(task).await;
    assert_eq!(view.state, TaskState::Failed);
    let error = view.error.unwrap_or_default();
    assert!(error.contains("30ms"), "{error}");
    assert_snapshot!(error, @"timed out after 30ms");
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn delayed_task_waits_for_clock_of_the_store() {
    use std::sync::atomic::AtomicI64;
    let now = Arc::new(AtomicI64::new(1_000_000));
    let clock = now.clone();
    let rig = Harness::with_memory(tidegate_store::memory::Memory::with_clock(move || {
        clock.load(Ordering::SeqCst)
    }));
    let noop = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    let worker = rig.start_worker(rig.worker_builder().handle("noop", noop));
    let later = rig.submit(Task::new("noop", &()).delay(Duration::from_secs(3600))).await;
    let first = rig.submit(Task::new("noop", &())).await;
    rig.wait_until_acknowledged(first, AttemptOutcome::Completed).await;
    assert_eq!(rig.task_state(later).await, TaskState::Scheduled);
    now.fetch_add(3_600_000, Ordering::SeqCst);
    rig.wait_until_acknowledged(later, AttemptOutcome::Completed).await;
    rig.drain_worker(worker).await;
}

/// All handlers wait for one signal, so that all their ends are there when the worker looks.
#[tokio::test]
async fn completions_beyond_one_batch_are_all_reported() {
    const TASKS: usize = BATCH_MAX + 2000;
    let rig = Harness::new();
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
    let options = WorkerConfig {
        concurrency: TASKS as u32,
        claim_batch_size: claim_batch,
        ..WorkerConfig::default()
    };
    let worker = rig.start_worker(rig.worker_builder_with(options).handle("wait", wait));
    let mut entered = 0;
    while entered < TASKS {
        entered += usize::from(matches!(rig.next_event().await, AttemptEvent::Started(_)));
    }
    go.send_replace(true);
    let summary = rig.drain_worker(worker).await;
    assert_eq!(summary.completed, TASKS as u64);
    let counts = rig.store.memory.task_counts().await.unwrap();
    assert_eq!(counts.get(&TaskState::Completed), Some(&(TASKS as u64)));
}
