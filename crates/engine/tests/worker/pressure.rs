//! Back-pressure: how much of its room a worker uses, and what it says of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::{StoreReader, WorkerReport};
use tidegate_engine::{
    BackpressureReason, BackpressureThresholds, ClaimStats, Context, Failure, Observer,
    WorkerConfig, WorkerPool, WorkerStatus, time,
};
use tokio::sync::watch;

use crate::harness::{AttemptEvent, Harness, within_timeout};
use crate::limits::{Gauge, counted, submit};

fn options(concurrency: u32, marks: BackpressureThresholds) -> WorkerConfig {
    let poll_interval = Duration::from_millis(20);
    WorkerConfig { concurrency, backpressure: marks, poll_interval, ..WorkerConfig::default() }
}

async fn reported(rig: &Harness) -> WorkerReport {
    let mut beats = rig.store.heartbeat_count.subscribe();
    within_timeout("a heartbeat", beats.wait_for(|beats| *beats > 0))
        .await
        .expect("the store lives");
    let workers = rig.store.memory.workers().await.expect("workers");
    workers[0].report.clone().expect("a report")
}

/// Works off 100 tasks, of which `most` are in flight at once and never more.
async fn work_off(rig: &Harness, options: WorkerConfig, most: u32) -> WorkerStatus {
    let gauge = Gauge::new(most);
    let worker = rig.worker_builder_with(options).handle("work", counted(&gauge));
    let worker = worker.build().expect("a good worker");
    let pressure = worker.status();
    let worker = tokio::spawn(worker.run(rig.shutdown.clone()));
    reported(rig).await;
    // The latency is known when some claims were answered.
    let mut claims = rig.store.claim_count.subscribe();
    within_timeout("claims", claims.wait_for(|claims| *claims >= 5))
        .await
        .expect("the store lives");
    submit(rig, "work", 100).await;
    rig.wait_until_completed(100).await;
    assert_eq!(gauge.most(), most);
    rig.drain_worker(worker).await;
    pressure
}

#[tokio::test]
async fn idle_worker_reports_its_free_concurrency() {
    let rig = Harness::new();
    let worker = rig
        .start_worker(rig.worker_builder().concurrency(7).handle("work", counted(&Gauge::new(1))));
    let report = reported(&rig).await;
    assert_eq!((report.free, report.concurrency), (7, 7));
    assert_eq!((report.accepting, &*report.reason), (true, "room"));
    assert_eq!(report.memory.is_some(), cfg!(target_os = "linux"));
    rig.drain_worker(worker).await;
}

/// Its permits are in the hands of a claim that is not answered, and nothing runs.
#[tokio::test]
async fn worker_with_pending_claim_reports_free_concurrency() {
    let rig = Harness::new();
    rig.store.holds_claim_replies.send_replace(true);
    let worker = rig.worker_builder().concurrency(2).handle("work", counted(&Gauge::new(1)));
    let worker = worker.build().expect("a good worker");
    let pressure = worker.status();
    let worker = tokio::spawn(worker.run(rig.shutdown.clone()));
    let mut claims = rig.store.claim_count.subscribe();
    within_timeout("a claim", claims.wait_for(|claims| *claims > 0))
        .await
        .expect("the store lives");
    let report = pressure.worker_report();
    assert_eq!(pressure.worker_pool().capacity_in_use(), 2);
    assert_eq!((report.free, report.accepting, &*report.reason), (2, true, "room"));
    rig.store.holds_claim_replies.send_replace(false);
    rig.drain_worker(worker).await;
    assert_eq!(pressure.worker_pool().capacity_in_use(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn latency_above_threshold_reduces_claimed_concurrency() {
    let rig = Harness::new();
    // Every call takes longer than this.
    let marks = BackpressureThresholds {
        latency_high: Duration::from_nanos(10),
        ..BackpressureThresholds::default()
    };
    let pressure = work_off(&rig, options(10, marks), 7).await;
    assert_eq!(pressure.reason(), BackpressureReason::Stopping);
    assert!(pressure.worker_pool().store_latency() > marks.latency_high);
    assert!(pressure.worker_pool().start_latency() > marks.latency_high);
    assert_eq!(pressure.worker_pool().capacity_in_use(), 0);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_above_threshold_halves_tasks_in_flight() {
    let rig = Harness::new();
    // Every machine uses more than this.
    let marks =
        BackpressureThresholds { memory_high_percent: 0, ..BackpressureThresholds::default() };
    let pressure = work_off(&rig, options(10, marks), 5).await;
    assert!(pressure.worker_report().memory.is_some());
}

/// Latency leaves it two of its four permits, and four tasks wait for each other: it stands still with
/// two for a while, and never for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn worker_under_backpressure_still_claims_one_task_at_intervals() {
    let rig = Harness::new();
    let marks = BackpressureThresholds {
        latency_high: Duration::from_nanos(10),
        ..BackpressureThresholds::default()
    };
    let gauge = Gauge::new(4);
    let worker = rig.worker_builder_with(options(4, marks)).handle("work", counted(&gauge));
    let worker = rig.start_worker(worker);
    let mut claims = rig.store.claim_count.subscribe();
    within_timeout("claims", claims.wait_for(|claims| *claims >= 5))
        .await
        .expect("the store lives");
    submit(&rig, "work", 4).await;
    rig.wait_until_completed(4).await;
    assert_eq!(gauge.most(), 4);
    rig.drain_worker(worker).await;
}

/// One worker is done with each task at once. The other is done with none before all that the first can
/// get are done: what it had taken for later would wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slow_worker_does_not_claim_ahead() {
    const TASKS: usize = 400;
    const SLOW: usize = 4;
    let rig = Harness::new();
    let done = Arc::new(watch::Sender::new(0));
    let (waits, counts) = (done.clone(), done.clone());
    let slow =
        rig.worker_builder().concurrency(SLOW as u32).handle("work", move |_: Context, ()| {
            let mut done = waits.subscribe();
            async move {
                done.wait_for(|done| *done >= TASKS - SLOW).await.expect("the test lives");
                Ok::<_, Failure>(())
            }
        });
    let slow = rig.start_worker(slow);
    let fast =
        rig.worker_builder().concurrency(SLOW as u32).handle("work", move |_: Context, ()| {
            counts.send_modify(|done| *done += 1);
            async { Ok::<_, Failure>(()) }
        });
    let fast = rig.start_worker(fast);
    submit(&rig, "work", TASKS).await;
    rig.wait_until_completed(TASKS).await;
    assert!(*done.borrow() >= TASKS - SLOW, "the slow one has no more than it runs");
    rig.drain_worker(slow).await;
    rig.drain_worker(fast).await;
}

/// How many tasks each call found that found some.
#[derive(Debug, Default)]
struct Batches(Mutex<Vec<u32>>);

impl Observer for Batches {
    fn on_claim(&self, asked: &ClaimStats) {
        if asked.tasks_claimed > 0 {
            self.0.lock().expect("no panic").push(asked.tasks_claimed);
        }
    }
}

/// With three of 40 permits free there are no more batches: three tasks that come at once are taken on one
/// by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn low_free_concurrency_stops_batch_claims() {
    let rig = Harness::new();
    let (gauge, batches) = (Gauge::new(40), Arc::new(Batches::default()));
    let options = WorkerConfig {
        lease: Duration::from_secs(1),
        ..options(40, BackpressureThresholds::default())
    };
    let worker = rig.worker_builder_with(options).observer(batches.clone());
    let worker = rig.start_worker(worker.handle("work", counted(&gauge)));
    // By the answer to the second it knows that it is alone, and takes no steps.
    let mut beats = rig.store.heartbeat_count.subscribe();
    within_timeout("three heartbeats", beats.wait_for(|beats| *beats >= 3))
        .await
        .expect("the store lives");
    submit(&rig, "work", 37).await;
    for _ in 0..37 {
        assert!(matches!(rig.next_event().await, AttemptEvent::Started(_)));
    }
    submit(&rig, "work", 3).await;
    rig.wait_until_completed(40).await;
    assert_eq!(*batches.0.lock().expect("no panic"), [37, 1, 1, 1]);
    rig.drain_worker(worker).await;
}

/// A tenth of 30 permits is kept from batches, and not from tasks: 30 wait for each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn full_concurrency_is_used() {
    let rig = Harness::new();
    work_off(&rig, options(30, BackpressureThresholds::default()), 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_of_one_pool_share_concurrency() {
    let rig = Harness::new();
    let controller =
        Arc::new(WorkerPool::new(5, 1, BackpressureThresholds::default()).expect("a controller"));
    let gauge = Gauge::new(5);
    let workers = [1, 2].map(|_| {
        let worker = rig.worker_builder().concurrency(4).worker_pool(controller.clone());
        rig.start_worker(worker.handle("work", counted(&gauge)))
    });
    submit(&rig, "work", 300).await;
    rig.wait_until_completed(300).await;
    assert_eq!(gauge.most(), 5, "more than either has, and never more than both may");
    for worker in workers {
        rig.drain_worker(worker).await;
    }
    assert_eq!(controller.capacity_in_use(), 0);
}

/// Tasks of one worker have all permits for longer than it takes until a worker that is held back takes on
/// one more: the others wait, and leave the one thread that there is to them.
#[tokio::test]
async fn worker_waits_while_pool_concurrency_is_in_use() {
    let rig = Harness::new();
    let controller =
        Arc::new(WorkerPool::new(2, 1, BackpressureThresholds::default()).expect("a controller"));
    let workers = [1, 2, 3].map(|_| {
        let worker = rig.worker_builder().concurrency(2).worker_pool(controller.clone());
        rig.start_worker(worker.handle("work", |_: Context, ()| async {
            time::sleep(Duration::from_millis(1200)).await;
            Ok::<_, Failure>(())
        }))
    });
    submit(&rig, "work", 4).await;
    rig.wait_until_completed(4).await;
    for worker in workers {
        rig.drain_worker(worker).await;
    }
    assert_eq!(controller.capacity_in_use(), 0);
}
