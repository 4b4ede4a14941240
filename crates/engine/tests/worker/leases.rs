//! Leases: kept while handlers block, and given up in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use insta::assert_snapshot;
use tidegate_core::bounds::RELEASED_LEASES_MAX;
use tidegate_core::{Claim, ErrorKind, Progress, Store, StoreReader, TaskState};
use tidegate_engine::{
    AttemptOutcome, Context, Failure, Maintenance, Task, WorkerConfig, maintenance, time,
};
use tidegate_store::memory::Memory;
use tokio::sync::{Notify, watch};

use crate::harness::{AttemptEvent, Harness, sleep_between_checks, within_timeout};

fn lease(ms: u64) -> WorkerConfig {
    WorkerConfig {
        lease: Duration::from_millis(ms),
        poll_interval: Duration::from_millis(20),
        run_maintenance: false,
        ..WorkerConfig::default()
    }
}

#[tokio::test]
async fn lost_lease_stops_its_handler() {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let rig = Harness::with_memory(Memory::with_clock(move || clock.load(Ordering::SeqCst)));
    let attempts = Arc::new(AtomicU32::new(0));
    let begun = attempts.clone();
    let work = move |context: Context, (): ()| {
        let first = begun.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                context.cancelled().await;
            }
            Ok::<_, Failure>(context.attempt_number())
        }
    };
    let worker = rig.start_worker(rig.worker_builder_with(lease(200)).handle("work", work));
    let task = rig.submit(Task::new("work", &())).await;
    rig.wait_until_started(task).await;
    // Somebody else takes this worker for dead.
    now.fetch_add(201, Ordering::SeqCst);
    assert_eq!(rig.store.reap().await.unwrap().expired_attempts, 1);
    // The two attempts end in either order: the second does not wait for the first.
    rig.wait_until_final(task).await;
    rig.wait_until_final(task).await;
    assert_eq!(rig.task_view(task).await.result.as_deref(), Some(&b"2"[..]));
    let summary = rig.drain_worker(worker).await;
    assert_eq!((summary.lost, summary.completed), (1, 1), "the first result was not taken");
}

/// Somebody else takes this worker for dead, and the task runs again. What the first attempt finds it does
/// not add any more: the second one adds it too.
#[tokio::test]
async fn handler_with_lost_lease_cannot_submit() {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let rig = Harness::with_memory(Memory::with_clock(move || clock.load(Ordering::SeqCst)));
    let go = Arc::new(Notify::new());
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let late = go.clone();
    let crawl = move |context: Context, (): ()| {
        let (late, tell) = (late.clone(), tell.clone());
        async move {
            if context.attempt_number() == 1 {
                late.notified().await;
            }
            let links =
                [Task::new("link", &()).unique_key(format!("{}", context.attempt_number()))];
            let added = context.submit_many(links).await;
            tell.send((context.attempt_number(), added)).expect("the test listens");
            Ok::<_, Failure>(())
        }
    };
    // No heartbeat comes in time to stop the first.
    let worker = rig.start_worker(rig.worker_builder_with(lease(60_000)).handle("crawl", crawl));
    let task = rig.submit(Task::new("crawl", &())).await;
    rig.wait_until_started(task).await;
    now.fetch_add(60_001, Ordering::SeqCst);
    assert_eq!(rig.store.reap().await.unwrap().expired_attempts, 1);
    let (attempt, added) = within_timeout("the second attempt", told.recv()).await.unwrap();
    assert_eq!((attempt, added.expect("it runs").len()), (2, 1));
    go.notify_one();
    let (attempt, added) = within_timeout("the first attempt", told.recv()).await.unwrap();
    let error = added.expect_err("it does not run");
    assert_eq!((attempt, error.kind()), (1, ErrorKind::NotFound), "{error}");
    assert_snapshot!(
        error,
        @"nothing was stored: the attempt at task 1 with token 1 has lost its lease and the task runs elsewhere, or it has ended; stop the handler"
    );
    rig.wait_until_acknowledged(task, AttemptOutcome::Lost).await;
    let counts = rig.store.memory.task_counts().await.unwrap();
    assert_eq!(counts.get(&TaskState::Pending), Some(&1), "one link: {counts:?}");
    rig.drain_worker(worker).await;
}

/// A handler blocks the only thread of the runtime for several leases, beside others that have begun and
/// wait for it, while another thread reaps what expires.
#[test]
fn handlers_blocking_every_thread_keep_their_leases() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let rig = Harness::new();
    let memory = rig.store.memory.clone();
    let blocks = Arc::new(watch::Sender::new(false));
    let begins = blocks.clone();
    let block = move |_: Context, (): ()| {
        begins.send_replace(true);
        let (_sender, never) = channel::<()>();
        let waited = never.recv_timeout(Duration::from_millis(1500));
        assert_eq!(waited, Err(RecvTimeoutError::Timeout));
        async { Ok::<_, Failure>(()) }
    };
    let wait = move |_: Context, (): ()| {
        let mut blocks = blocks.subscribe();
        async move {
            blocks.wait_for(|blocks| *blocks).await.expect("the test lives");
            Ok::<_, Failure>(())
        }
    };
    let (stop, stopped) = channel::<()>();
    let reaper = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut expired = 0;
        while stopped.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
            expired += runtime.block_on(memory.reap()).unwrap().expired_attempts;
        }
        expired
    });
    let work = async {
        let worker =
            rig.worker_builder_with(lease(400)).handle("block", block).handle("wait", wait);
        let worker = rig.start_worker(worker);
        let mut tasks = Vec::new();
        for _ in 0..3 {
            tasks.push(rig.submit(Task::new("wait", &())).await);
            rig.wait_until_started(tasks[tasks.len() - 1]).await;
        }
        tasks.push(rig.submit(Task::new("block", &())).await);
        rig.wait_until_completed(4).await;
        for task in tasks {
            let view = rig.task_view(task).await;
            assert_eq!(
                (view.state, view.attempts_used, view.crashes),
                (TaskState::Completed, 0, 0)
            );
        }
        rig.drain_worker(worker).await;
    };
    runtime.block_on(async { tokio::join!(work) });
    drop(stop);
    assert_eq!(reaper.join().unwrap(), 0, "no lease ran out");
}

#[tokio::test]
async fn failed_heartbeats_stop_handlers_before_lease_expires() {
    let rig = Harness::new();
    let work = |context: Context, (): ()| async move {
        let deadline = context.lease_deadline();
        if context.attempt_number() == 1 && !context.is_cancelled() {
            context.cancelled().await;
            assert!(time::now() < deadline, "told too late");
        }
        Err::<(), _>(Failure::cancelled())
    };
    rig.store.fails_heartbeats.store(true, Ordering::SeqCst);
    let worker = rig.start_worker(rig.worker_builder_with(lease(500)).handle("work", work));
    let task = rig.submit(Task::new("work", &())).await;
    // The store is there for a finish: the attempt is given back, and the task not ended.
    rig.wait_until_acknowledged(task, AttemptOutcome::Released).await;
    assert_eq!(rig.task_view(task).await.attempts_used, 0);
    rig.shutdown.stop();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn handler_with_expired_lease_is_dropped() {
    let rig = Harness::new();
    let deaf = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    rig.store.fails_heartbeats.store(true, Ordering::SeqCst);
    let worker = rig.start_worker(rig.worker_builder_with(lease(300)).handle("deaf", deaf));
    let task = rig.submit(Task::new("deaf", &())).await;
    rig.wait_until_started(task).await;
    assert_eq!(rig.next_event().await, AttemptEvent::HandlerDone(task));
    rig.wait_until_acknowledged(task, AttemptOutcome::Released).await;
    rig.shutdown.stop();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn maintenance_reaps_leases_of_crashed_worker() {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let rig = Harness::with_memory(Memory::with_clock(move || clock.load(Ordering::SeqCst)));
    let never = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    let worker = rig.start_worker(rig.worker_builder_with(lease(1000)).handle("never", never));
    let task = rig.submit(Task::new("never", &())).await;
    rig.wait_until_started(task).await;
    worker.abort();
    assert_eq!(
        rig.next_event().await,
        AttemptEvent::HandlerDone(task),
        "no handler outlives its worker"
    );
    now.fetch_add(1001, Ordering::SeqCst);
    let keeper = Maintenance::new(rig.store.clone(), maintenance::MaintenanceConfig::default());
    let kept = keeper.run_once().await.unwrap();
    assert_eq!(kept.reaped.expired_attempts, 1);
    let view = rig.task_view(task).await;
    assert_eq!((view.state, view.crashes), (TaskState::Pending, 1));
}

/// The store has taken the end of a lease's last attempt, and the lease went with it. Before
/// the worker hears so, its heartbeat asks for that lease and is told that it is gone.
async fn meets_a_heartbeat(lost_replies: u32) {
    let rig = Harness::new();
    let done = Arc::new(Notify::new());
    let told = done.clone();
    let stays = move |context: Context, (): ()| {
        let told = told.clone();
        async move {
            tokio::select! {
                () = context.cancelled() => Err(Failure::cancelled()),
                () = told.notified() => Ok(()),
            }
        }
    };
    let goes = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    let worker = rig.worker_builder_with(lease(300)).handle("stays", stays).handle("goes", goes);
    let worker = rig.start_worker(worker);
    let stays = rig.submit(Task::new("stays", &())).await;
    rig.wait_until_started(stays).await;
    rig.store.finish_replies_to_lose.store(lost_replies, Ordering::SeqCst);
    rig.store.finish_replies_to_delay.store(1, Ordering::SeqCst);
    let goes = rig.submit(Task::new("goes", &())).await;
    rig.wait_until_started(goes).await;
    if lost_replies == 0 {
        rig.wait_until_acknowledged(goes, AttemptOutcome::Completed).await;
    } else {
        // It is told again and found to be known: nobody can say how that attempt ended.
        let next = rig.submit(Task::new("goes", &())).await;
        rig.wait_until_acknowledged(next, AttemptOutcome::Completed).await;
    }
    let mut beats = rig.store.heartbeat_count.subscribe();
    let asked = beats.wait_for(|_| rig.store.lost_lease_count.load(Ordering::SeqCst) > 0);
    within_timeout("the heartbeat to ask in between", asked).await.expect("the store lives");
    assert_eq!(rig.task_state(goes).await, TaskState::Completed);
    done.notify_one();
    rig.wait_until_acknowledged(stays, AttemptOutcome::Completed).await;
    assert_eq!(rig.drain_worker(worker).await.lost, 0);
    assert_eq!(rig.store.memory.snapshot().await.unwrap().leases, []);
}

#[tokio::test]
async fn heartbeat_during_completion_of_lease_stops_no_handler() {
    meets_a_heartbeat(0).await;
}

#[tokio::test]
async fn heartbeat_during_completion_with_lost_reply_stops_no_handler() {
    meets_a_heartbeat(1).await;
}

/// Runs an innocent handler over several leases beside one that reports `message`; gives what is
/// known of the reporter's progress in the end.
async fn beside_a_report(rig: &Harness, message: &'static str) -> Option<Progress> {
    let report = move |context: Context, (): ()| async move {
        context.progress(10, message);
        context.cancelled().await;
        Err::<(), _>(Failure::cancelled())
    };
    let innocent = |_: Context, (): ()| async move {
        time::sleep(Duration::from_millis(1500)).await;
        Ok::<_, Failure>(())
    };
    let builder =
        rig.worker_builder_with(lease(500)).handle("report", report).handle("work", innocent);
    let worker = rig.start_worker(builder);
    let reporter = rig.submit(Task::new("report", &())).await;
    rig.wait_until_started(reporter).await;
    let task = rig.submit(Task::new("work", &())).await;
    rig.wait_until_acknowledged(task, AttemptOutcome::Completed).await;
    let progress = rig.task_view(reporter).await.progress;
    rig.shutdown.stop();
    worker.await.unwrap().unwrap();
    progress
}

#[tokio::test]
async fn nul_byte_in_progress_is_replaced() {
    let progress = beside_a_report(&Harness::new(), "a\0b").await.expect("the report came");
    assert_eq!((progress.percent, &*progress.message), (10, "a\u{fffd}b"));
}

#[tokio::test]
async fn rejected_progress_does_not_lose_leases() {
    let rig = Harness::new();
    rig.store.rejects_progress.store(true, Ordering::SeqCst);
    assert_eq!(beside_a_report(&rig, "fine").await, None);
}

/// A heartbeat may take a third of the lease, however short the interval is.
#[tokio::test]
async fn heartbeat_slower_than_its_interval_renews_leases() {
    let rig = Harness::new();
    rig.store.heartbeat_delay_ms.store(200, Ordering::SeqCst);
    let options = WorkerConfig {
        lease: Duration::from_secs(6),
        heartbeat_interval: Some(Duration::from_millis(20)),
        ..WorkerConfig::default()
    };
    let noop = |_: Context, (): ()| std::future::ready(Ok::<(), Failure>(()));
    let worker = rig.start_worker(rig.worker_builder_with(options).handle("noop", noop));
    let mut beats = rig.store.heartbeat_count.subscribe();
    within_timeout("heartbeats", beats.wait_for(|beats| *beats >= 3))
        .await
        .expect("the store lives");
    rig.drain_worker(worker).await;
}

/// The store releases a bounded number of leases per heartbeat. The reaper leaves the others to the worker for one
/// lease length only, so the worker does not wait for its next regular heartbeat.
#[tokio::test]
async fn worker_with_many_unlisted_leases_repeats_heartbeat_at_once() {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let rig = Harness::with_memory(Memory::with_clock(move || clock.load(Ordering::SeqCst)));
    let noop = |_: Context, (): ()| std::future::ready(Ok::<(), Failure>(()));
    // The next regular heartbeat comes after a thousand seconds.
    let worker = rig
        .worker_builder_with(lease(3_000_000))
        .handle("noop", noop)
        .build()
        .expect("a good worker");
    for number in 0..RELEASED_LEASES_MAX + 30 {
        rig.submit(Task::new("other", &number)).await;
        let claim = Claim {
            worker: worker.id().clone(),
            queues: [Arc::from("default")].into(),
            kinds: [Arc::from("other")].into(),
            tasks_max: 1,
            lease_ms: 1000,
            poll_interval_ms: 0,
        };
        assert_eq!(rig.store.memory.claim(claim).await.expect("a claim").len(), 1);
    }
    now.store(1000, Ordering::SeqCst);
    let worker = tokio::spawn(worker.run(rig.shutdown.clone()));
    let released = async {
        while !rig.store.memory.snapshot().await.expect("a snapshot").leases.is_empty() {
            sleep_between_checks().await;
        }
    };
    within_timeout("all leases to be released", released).await;
    rig.drain_worker(worker).await;
}
