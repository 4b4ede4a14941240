//! Back-pressure: how much of its room a worker uses, and what it says of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::{Inspect, WorkerReport};
use tidegate_engine::{
    Asked, Context, Controller, Failure, Marks, Observer, Options, Pressure, Reason, time,
};
use tokio::sync::watch;

use crate::limits::{Gauge, counted, submit};
use crate::rig::{Rig, Seen, soon};

fn options(concurrency: u32, marks: Marks) -> Options {
    let poll_interval = Duration::from_millis(20);
    Options { concurrency, marks, poll_interval, ..Options::default() }
}

async fn reported(rig: &Rig) -> WorkerReport {
    let mut beats = rig.store.beats.subscribe();
    soon("a heartbeat", beats.wait_for(|beats| *beats > 0)).await.expect("the store lives");
    let workers = rig.store.memory.workers().await.expect("workers");
    workers[0].report.clone().expect("a report")
}

/// Works off 100 tasks, of which `most` are in flight at once and never more.
async fn work_off(rig: &Rig, options: Options, most: u32) -> Pressure {
    let gauge = Gauge::new(most);
    let worker = rig.worker_with(options).handle("work", counted(&gauge));
    let worker = worker.build().expect("a good worker");
    let pressure = worker.pressure();
    let worker = tokio::spawn(worker.run(rig.shutdown.clone()));
    reported(rig).await;
    // The latency is known when some claims were answered.
    let mut claims = rig.store.claims.subscribe();
    soon("claims", claims.wait_for(|claims| *claims >= 5)).await.expect("the store lives");
    submit(rig, "work", 100).await;
    rig.completed(100).await;
    assert_eq!(gauge.most(), most);
    rig.end(worker).await;
    pressure
}

#[tokio::test]
async fn an_idle_worker_says_how_much_room_it_has() {
    let rig = Rig::new();
    let worker = rig.start(rig.worker().concurrency(7).handle("work", counted(&Gauge::new(1))));
    let report = reported(&rig).await;
    assert_eq!((report.available, report.maximum), (7, 7));
    assert_eq!((report.accepting, &*report.reason), (true, "room"));
    assert_eq!(report.memory.is_some(), cfg!(target_os = "linux"));
    rig.end(worker).await;
}

/// Its permits are in the hands of a claim that is not answered, and nothing runs.
#[tokio::test]
async fn a_worker_that_asks_for_tasks_has_room() {
    let rig = Rig::new();
    rig.store.hold_claims.send_replace(true);
    let worker = rig.worker().concurrency(2).handle("work", counted(&Gauge::new(1)));
    let worker = worker.build().expect("a good worker");
    let pressure = worker.pressure();
    let worker = tokio::spawn(worker.run(rig.shutdown.clone()));
    let mut claims = rig.store.claims.subscribe();
    soon("a claim", claims.wait_for(|claims| *claims > 0)).await.expect("the store lives");
    let report = pressure.report();
    assert_eq!(pressure.controller().permits_taken(), 2);
    assert_eq!((report.available, report.accepting, &*report.reason), (2, true, "room"));
    rig.store.hold_claims.send_replace(false);
    rig.end(worker).await;
    assert_eq!(pressure.controller().permits_taken(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn latency_above_its_mark_leaves_permits_unused() {
    let rig = Rig::new();
    // Every call takes longer than this.
    let marks = Marks { latency_high: Duration::from_nanos(10), ..Marks::default() };
    let pressure = work_off(&rig, options(10, marks), 7).await;
    assert_eq!(pressure.reason(), Reason::Stopping);
    assert!(pressure.controller().store_latency() > marks.latency_high);
    assert!(pressure.controller().start_latency() > marks.latency_high);
    assert_eq!(pressure.controller().permits_taken(), 0);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_above_its_mark_halves_what_is_in_flight() {
    let rig = Rig::new();
    // Every machine uses more than this.
    let marks = Marks { memory_high_percent: 0, ..Marks::default() };
    let pressure = work_off(&rig, options(10, marks), 5).await;
    assert!(pressure.report().memory.is_some());
}

/// Latency leaves it two of its four permits, and four tasks wait for each other: it stands still with
/// two for a while, and never for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_worker_that_is_held_back_takes_on_one_more_now_and_then() {
    let rig = Rig::new();
    let marks = Marks { latency_high: Duration::from_nanos(10), ..Marks::default() };
    let gauge = Gauge::new(4);
    let worker = rig.worker_with(options(4, marks)).handle("work", counted(&gauge));
    let worker = rig.start(worker);
    let mut claims = rig.store.claims.subscribe();
    soon("claims", claims.wait_for(|claims| *claims >= 5)).await.expect("the store lives");
    submit(&rig, "work", 4).await;
    rig.completed(4).await;
    assert_eq!(gauge.most(), 4);
    rig.end(worker).await;
}

/// One worker is done with each task at once. The other is done with none before all that the first can
/// get are done: what it had taken for later would wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_worker_does_not_hoard() {
    const TASKS: usize = 400;
    const SLOW: usize = 4;
    let rig = Rig::new();
    let done = Arc::new(watch::Sender::new(0));
    let (waits, counts) = (done.clone(), done.clone());
    let slow = rig.worker().concurrency(SLOW as u32).handle("work", move |_: Context, ()| {
        let mut done = waits.subscribe();
        async move {
            done.wait_for(|done| *done >= TASKS - SLOW).await.expect("the test lives");
            Ok::<_, Failure>(())
        }
    });
    let slow = rig.start(slow);
    let fast = rig.worker().concurrency(SLOW as u32).handle("work", move |_: Context, ()| {
        counts.send_modify(|done| *done += 1);
        async { Ok::<_, Failure>(()) }
    });
    let fast = rig.start(fast);
    submit(&rig, "work", TASKS).await;
    rig.completed(TASKS).await;
    assert!(*done.borrow() >= TASKS - SLOW, "the slow one has no more than it runs");
    rig.end(slow).await;
    rig.end(fast).await;
}

/// How many tasks each call found that found some.
#[derive(Debug, Default)]
struct Batches(Mutex<Vec<u32>>);

impl Observer for Batches {
    fn asked(&self, asked: &Asked) {
        if asked.found > 0 {
            self.0.lock().expect("no panic").push(asked.found);
        }
    }
}

/// With three of 40 permits free there are no more batches: three tasks that come at once are taken on one
/// by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn few_free_permits_stop_batches() {
    let rig = Rig::new();
    let (gauge, batches) = (Gauge::new(40), Arc::new(Batches::default()));
    let options = Options { lease: Duration::from_secs(1), ..options(40, Marks::default()) };
    let worker = rig.worker_with(options).observer(batches.clone());
    let worker = rig.start(worker.handle("work", counted(&gauge)));
    // By the answer to the second it knows that it is alone, and takes no steps.
    let mut beats = rig.store.beats.subscribe();
    soon("three heartbeats", beats.wait_for(|beats| *beats >= 3)).await.expect("the store lives");
    submit(&rig, "work", 37).await;
    for _ in 0..37 {
        assert!(matches!(rig.next().await, Seen::Enter(_)));
    }
    submit(&rig, "work", 3).await;
    rig.completed(40).await;
    assert_eq!(*batches.0.lock().expect("no panic"), [37, 1, 1, 1]);
    rig.end(worker).await;
}

/// A tenth of 30 permits is kept from batches, and not from tasks: 30 wait for each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_last_permits_are_used() {
    let rig = Rig::new();
    work_off(&rig, options(30, Marks::default()), 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_of_one_process_share_their_permits() {
    let rig = Rig::new();
    let controller = Arc::new(Controller::new(5, 1, Marks::default()).expect("a controller"));
    let gauge = Gauge::new(5);
    let workers = [1, 2].map(|_| {
        let worker = rig.worker().concurrency(4).controller(controller.clone());
        rig.start(worker.handle("work", counted(&gauge)))
    });
    submit(&rig, "work", 300).await;
    rig.completed(300).await;
    assert_eq!(gauge.most(), 5, "more than either has, and never more than both may");
    for worker in workers {
        rig.end(worker).await;
    }
    assert_eq!(controller.permits_taken(), 0);
}

/// Tasks of one worker have all permits for longer than it takes until a worker that is held back takes on
/// one more: the others wait, and leave the one thread that there is to them.
#[tokio::test]
async fn workers_whose_permits_others_have_wait() {
    let rig = Rig::new();
    let controller = Arc::new(Controller::new(2, 1, Marks::default()).expect("a controller"));
    let workers = [1, 2, 3].map(|_| {
        let worker = rig.worker().concurrency(2).controller(controller.clone());
        rig.start(worker.handle("work", |_: Context, ()| async {
            time::sleep(Duration::from_millis(1200)).await;
            Ok::<_, Failure>(())
        }))
    });
    submit(&rig, "work", 4).await;
    rig.completed(4).await;
    for worker in workers {
        rig.end(worker).await;
    }
    assert_eq!(controller.permits_taken(), 0);
}
