//! Leases: kept while handlers block, and given up in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use insta::assert_snapshot;
use tidegate_core::bounds::RELEASED_LEASES_MAX;
use tidegate_core::{Claim, ErrorKind, Inspect, Progress, State, Store};
use tidegate_engine::{Context, Ended, Failure, Keeper, Options, Task, keeper, time};
use tidegate_store::memory::Memory;
use tokio::sync::{Notify, watch};

use crate::rig::{Rig, Seen, pause, soon};

fn lease(ms: u64) -> Options {
    Options {
        lease: Duration::from_millis(ms),
        poll_interval: Duration::from_millis(20),
        keeper: false,
        ..Options::default()
    }
}

#[tokio::test]
async fn a_lost_lease_stops_the_handler() {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let rig = Rig::on(Memory::with_clock(move || clock.load(Ordering::SeqCst)));
    let attempts = Arc::new(AtomicU32::new(0));
    let begun = attempts.clone();
    let work = move |context: Context, (): ()| {
        let first = begun.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                context.cancelled().await;
            }
            Ok::<_, Failure>(context.attempt())
        }
    };
    let worker = rig.start(rig.worker_with(lease(200)).handle("work", work));
    let task = rig.submit(Task::new("work", &())).await;
    rig.entered(task).await;
    // Somebody else takes this worker for dead.
    now.fetch_add(201, Ordering::SeqCst);
    assert_eq!(rig.store.reap().await.unwrap().expired, 1);
    // The two attempts end in either order: the second does not wait for the first.
    rig.ended(task).await;
    rig.ended(task).await;
    assert_eq!(rig.view(task).await.result.as_deref(), Some(&b"2"[..]));
    let summary = rig.end(worker).await;
    assert_eq!((summary.lost, summary.completed), (1, 1), "the first result was not taken");
}

/// Somebody else takes this worker for dead, and the task runs again. What the first attempt finds it does
/// not add any more: the second one adds it too.
#[tokio::test]
async fn a_handler_that_lost_its_lease_adds_nothing() {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let rig = Rig::on(Memory::with_clock(move || clock.load(Ordering::SeqCst)));
    let go = Arc::new(Notify::new());
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let late = go.clone();
    let crawl = move |context: Context, (): ()| {
        let (late, tell) = (late.clone(), tell.clone());
        async move {
            if context.attempt() == 1 {
                late.notified().await;
            }
            let links = [Task::new("link", &()).unique_key(format!("{}", context.attempt()))];
            let added = context.submit_many(links).await;
            tell.send((context.attempt(), added)).expect("the test listens");
            Ok::<_, Failure>(())
        }
    };
    // No heartbeat comes in time to stop the first.
    let worker = rig.start(rig.worker_with(lease(60_000)).handle("crawl", crawl));
    let task = rig.submit(Task::new("crawl", &())).await;
    rig.entered(task).await;
    now.fetch_add(60_001, Ordering::SeqCst);
    assert_eq!(rig.store.reap().await.unwrap().expired, 1);
    let (attempt, added) = soon("the second attempt", told.recv()).await.unwrap();
    assert_eq!((attempt, added.expect("it runs").len()), (2, 1));
    go.notify_one();
    let (attempt, added) = soon("the first attempt", told.recv()).await.unwrap();
    let error = added.expect_err("it does not run");
    assert_eq!((attempt, error.kind()), (1, ErrorKind::NotFound), "{error}");
    assert_snapshot!(
        error,
        @"nothing was stored: the attempt at task 1 with token 1 has lost its lease and the task runs elsewhere, or it has ended; stop the handler"
    );
    rig.exited(task, Ended::Lost).await;
    let counts = rig.store.memory.counts().await.unwrap();
    assert_eq!(counts.get(&State::Pending), Some(&1), "one link: {counts:?}");
    rig.end(worker).await;
}

/// A handler blocks the only thread of the runtime for several leases, beside others that have begun and
/// wait for it, while another thread reaps what expires.
#[test]
fn handlers_that_block_every_thread_keep_their_leases() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let rig = Rig::new();
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
            expired += runtime.block_on(memory.reap()).unwrap().expired;
        }
        expired
    });
    let work = async {
        let worker = rig.worker_with(lease(400)).handle("block", block).handle("wait", wait);
        let worker = rig.start(worker);
        let mut tasks = Vec::new();
        for _ in 0..3 {
            tasks.push(rig.submit(Task::new("wait", &())).await);
            rig.entered(tasks[tasks.len() - 1]).await;
        }
        tasks.push(rig.submit(Task::new("block", &())).await);
        rig.completed(4).await;
        for task in tasks {
            let view = rig.view(task).await;
            assert_eq!((view.state, view.spent, view.deaths), (State::Completed, 0, 0));
        }
        rig.end(worker).await;
    };
    runtime.block_on(async { tokio::join!(work) });
    drop(stop);
    assert_eq!(reaper.join().unwrap(), 0, "no lease ran out");
}

#[tokio::test]
async fn a_worker_that_cannot_renew_stops_its_handlers_before_the_lease_ends() {
    let rig = Rig::new();
    let work = |context: Context, (): ()| async move {
        let deadline = context.lease_deadline();
        if context.attempt() == 1 && !context.is_cancelled() {
            context.cancelled().await;
            assert!(time::now() < deadline, "told too late");
        }
        Err::<(), _>(Failure::cancelled())
    };
    rig.store.no_heartbeats.store(true, Ordering::SeqCst);
    let worker = rig.start(rig.worker_with(lease(500)).handle("work", work));
    let task = rig.submit(Task::new("work", &())).await;
    // The store is there for a finish: the attempt is given back, and the task not ended.
    rig.exited(task, Ended::Released).await;
    assert_eq!(rig.view(task).await.spent, 0);
    rig.shutdown.stop();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_handler_without_a_lease_is_dropped() {
    let rig = Rig::new();
    let deaf = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    rig.store.no_heartbeats.store(true, Ordering::SeqCst);
    let worker = rig.start(rig.worker_with(lease(300)).handle("deaf", deaf));
    let task = rig.submit(Task::new("deaf", &())).await;
    rig.entered(task).await;
    assert_eq!(rig.next().await, Seen::Leave(task));
    rig.exited(task, Ended::Released).await;
    rig.shutdown.stop();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_keeper_takes_back_what_a_dead_worker_left() {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let rig = Rig::on(Memory::with_clock(move || clock.load(Ordering::SeqCst)));
    let never = |_: Context, (): ()| std::future::pending::<Result<(), Failure>>();
    let worker = rig.start(rig.worker_with(lease(1000)).handle("never", never));
    let task = rig.submit(Task::new("never", &())).await;
    rig.entered(task).await;
    worker.abort();
    assert_eq!(rig.next().await, Seen::Leave(task), "no handler outlives its worker");
    now.fetch_add(1001, Ordering::SeqCst);
    let keeper = Keeper::new(rig.store.clone(), keeper::Options::default());
    let kept = keeper.run_once().await.unwrap();
    assert_eq!(kept.reaped.expired, 1);
    let view = rig.view(task).await;
    assert_eq!((view.state, view.deaths), (State::Pending, 1));
}

/// The store has taken the end of a lease's last attempt, and the lease went with it. Before
/// the worker hears so, its heartbeat asks for that lease and is told that it is gone.
async fn meets_a_heartbeat(lost_replies: u32) {
    let rig = Rig::new();
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
    let worker = rig.worker_with(lease(300)).handle("stays", stays).handle("goes", goes);
    let worker = rig.start(worker);
    let stays = rig.submit(Task::new("stays", &())).await;
    rig.entered(stays).await;
    rig.store.lose_finish_replies.store(lost_replies, Ordering::SeqCst);
    rig.store.late_finish_replies.store(1, Ordering::SeqCst);
    let goes = rig.submit(Task::new("goes", &())).await;
    rig.entered(goes).await;
    if lost_replies == 0 {
        rig.exited(goes, Ended::Completed).await;
    } else {
        // It is told again and found to be known: nobody can say how that attempt ended.
        let next = rig.submit(Task::new("goes", &())).await;
        rig.exited(next, Ended::Completed).await;
    }
    let mut beats = rig.store.beats.subscribe();
    let asked = beats.wait_for(|_| rig.store.lost_leases.load(Ordering::SeqCst) > 0);
    soon("the heartbeat to ask in between", asked).await.expect("the store lives");
    assert_eq!(rig.state(goes).await, State::Completed);
    done.notify_one();
    rig.exited(stays, Ended::Completed).await;
    assert_eq!(rig.end(worker).await.lost, 0);
    assert_eq!(rig.store.memory.snapshot().await.unwrap().leases, []);
}

#[tokio::test]
async fn a_heartbeat_that_meets_the_end_of_a_lease_stops_nobody() {
    meets_a_heartbeat(0).await;
}

#[tokio::test]
async fn a_heartbeat_that_meets_the_end_of_a_lease_and_a_lost_answer_stops_nobody() {
    meets_a_heartbeat(1).await;
}

/// Runs an innocent handler over several leases beside one that reports `message`; gives what is
/// known of the reporter's progress in the end.
async fn beside_a_report(rig: &Rig, message: &'static str) -> Option<Progress> {
    let report = move |context: Context, (): ()| async move {
        context.progress(10, message);
        context.cancelled().await;
        Err::<(), _>(Failure::cancelled())
    };
    let innocent = |_: Context, (): ()| async move {
        time::sleep(Duration::from_millis(1500)).await;
        Ok::<_, Failure>(())
    };
    let builder = rig.worker_with(lease(500)).handle("report", report).handle("work", innocent);
    let worker = rig.start(builder);
    let reporter = rig.submit(Task::new("report", &())).await;
    rig.entered(reporter).await;
    let task = rig.submit(Task::new("work", &())).await;
    rig.exited(task, Ended::Completed).await;
    let progress = rig.view(reporter).await.progress;
    rig.shutdown.stop();
    worker.await.unwrap().unwrap();
    progress
}

#[tokio::test]
async fn a_zero_byte_in_a_report_is_replaced() {
    let progress = beside_a_report(&Rig::new(), "a\0b").await.expect("the report came");
    assert_eq!((progress.percent, &*progress.message), (10, "a\u{fffd}b"));
}

#[tokio::test]
async fn a_report_that_is_refused_costs_nobody_the_lease() {
    let rig = Rig::new();
    rig.store.no_progress.store(true, Ordering::SeqCst);
    assert_eq!(beside_a_report(&rig, "fine").await, None);
}

/// A heartbeat may take a third of the lease, however short the interval is.
#[tokio::test]
async fn heartbeat_that_takes_longer_than_its_interval_renews_the_leases() {
    let rig = Rig::new();
    rig.store.slow_heartbeats_ms.store(200, Ordering::SeqCst);
    let options = Options {
        lease: Duration::from_secs(6),
        heartbeat_interval: Some(Duration::from_millis(20)),
        ..Options::default()
    };
    let noop = |_: Context, (): ()| std::future::ready(Ok::<(), Failure>(()));
    let worker = rig.start(rig.worker_with(options).handle("noop", noop));
    let mut beats = rig.store.beats.subscribe();
    soon("heartbeats", beats.wait_for(|beats| *beats >= 3)).await.expect("the store lives");
    rig.end(worker).await;
}

/// The store releases a bounded number of leases per heartbeat. The reaper leaves the others to the worker for one
/// lease length only, so the worker does not wait for its next regular heartbeat.
#[tokio::test]
async fn worker_with_many_unlisted_leases_repeats_its_heartbeat_at_once() {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let rig = Rig::on(Memory::with_clock(move || clock.load(Ordering::SeqCst)));
    let noop = |_: Context, (): ()| std::future::ready(Ok::<(), Failure>(()));
    // The next regular heartbeat comes after a thousand seconds.
    let worker =
        rig.worker_with(lease(3_000_000)).handle("noop", noop).build().expect("a good worker");
    for number in 0..RELEASED_LEASES_MAX + 30 {
        rig.submit(Task::new("other", &number)).await;
        let claim = Claim {
            worker: worker.id().clone(),
            queues: [Arc::from("default")].into(),
            kinds: [Arc::from("other")].into(),
            tasks_max: 1,
            lease_ms: 1000,
            poll_ms: 0,
        };
        assert_eq!(rig.store.memory.claim(claim).await.expect("a claim").len(), 1);
    }
    now.store(1000, Ordering::SeqCst);
    let worker = tokio::spawn(worker.run(rig.shutdown.clone()));
    let released = async {
        while !rig.store.memory.snapshot().await.expect("a snapshot").leases.is_empty() {
            pause().await;
        }
    };
    soon("all leases to be released", released).await;
    rig.end(worker).await;
}
