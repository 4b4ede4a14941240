//! How many run at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tidegate_core::{TaskId, TaskState};
use tidegate_engine::{Context, Failure, KindConfig, Task, WorkerConfig};
use tokio::sync::watch;

use crate::harness::{Harness, sleep_between_checks, within_timeout};

/// Counts the handlers inside. Nobody leaves before `expected` have been inside at once, so
/// that a limit is reached, and a limit that is never reached fails the test.
pub(crate) struct Gauge {
    expected: u32,
    inside: AtomicU32,
    most: watch::Sender<u32>,
}

impl Gauge {
    pub(crate) fn new(expected: u32) -> Arc<Self> {
        Arc::new(Self { expected, inside: AtomicU32::new(0), most: watch::Sender::new(0) })
    }

    pub(crate) fn most(&self) -> u32 {
        *self.most.borrow()
    }

    async fn visit(&self) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.send_modify(|most| *most = inside.max(*most));
        let mut most = self.most.subscribe();
        let _ = most.wait_for(|most| *most >= self.expected).await;
        // Stays a little, so that one too many would be seen.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn counted(
    gauge: &Arc<Gauge>,
) -> impl Fn(Context, ()) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync + 'static {
    let gauge = gauge.clone();
    move |_, ()| {
        let gauge = gauge.clone();
        Box::pin(async move {
            gauge.visit().await;
            Ok(())
        })
    }
}

pub(crate) async fn submit(rig: &Harness, kind: &str, tasks: usize) {
    rig.client.submit_many((0..tasks).map(|_| Task::new(kind, &()))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn worker_concurrency_bounds_tasks_in_flight() {
    let rig = Harness::new();
    let gauge = Gauge::new(5);
    submit(&rig, "work", 500).await;
    let options = WorkerConfig { concurrency: 5, ..WorkerConfig::default() };
    let worker = rig.start_worker(rig.worker_builder_with(options).handle("work", counted(&gauge)));
    rig.wait_until_completed(500).await;
    assert_eq!(gauge.most(), 5, "reached and never exceeded");
    rig.drain_worker(worker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn max_concurrent_is_exact_across_workers() {
    let rig = Harness::new();
    let gauge = Gauge::new(3);
    let kind = || KindConfig::new("work").max_concurrent(3);
    let first = rig.start_worker(rig.worker_builder().handle(kind(), counted(&gauge)));
    let second = rig.start_worker(rig.worker_builder().handle(kind(), counted(&gauge)));
    submit(&rig, "work", 500).await;
    rig.wait_until_completed(500).await;
    assert_eq!(gauge.most(), 3, "reached and never exceeded");
    let summaries = [rig.drain_worker(first).await, rig.drain_worker(second).await];
    assert_eq!(summaries.iter().map(|summary| summary.completed).sum::<u64>(), 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn kind_concurrency_bounds_kind_on_one_worker() {
    let rig = Harness::new();
    let (capped, free) = (Gauge::new(2), Gauge::new(3));
    submit(&rig, "capped", 200).await;
    submit(&rig, "free", 200).await;
    let kind = KindConfig::new("capped").kind_concurrency(2);
    let builder =
        rig.worker_builder().handle(kind, counted(&capped)).handle("free", counted(&free));
    let worker = rig.start_worker(builder);
    rig.wait_until_completed(400).await;
    assert_eq!(capped.most(), 2, "reached and never exceeded");
    rig.drain_worker(worker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn submitted_limit_bounds_running_tasks() {
    let rig = Harness::new();
    let gauge = Gauge::new(2);
    let worker = rig.start_worker(rig.worker_builder().handle("work", counted(&gauge)));
    let task = || Task::new("work", &()).concurrency_group("narrow").concurrency_limit(2);
    rig.client.submit_many((0..200).map(|_| task())).await.unwrap();
    rig.wait_until_completed(200).await;
    assert_eq!(gauge.most(), 2, "reached and never exceeded");
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn worker_claims_only_served_kinds_and_queues() {
    let rig = Harness::new();
    let gauge = Gauge::new(1);
    let worker = rig.start_worker(rig.worker_builder().handle("work", counted(&gauge)));
    let other_kind = rig.submit(Task::new("other", &())).await;
    let other_queue = rig.submit(Task::new("work", &()).queue("elsewhere")).await;
    submit(&rig, "work", 10).await;
    rig.wait_until_completed(10).await;
    for task in [other_kind, other_queue] {
        assert_eq!(rig.task_state(task).await, tidegate_core::TaskState::Pending);
    }
    rig.drain_worker(worker).await;
}

/// The exits of two limits go out in two calls: neither waits for the other's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_completion_of_one_limit_does_not_delay_another_limit() {
    let rig = Harness::new();
    let go = watch::Sender::new(false);
    let wait = {
        let go = go.clone();
        move |_: Context, (): ()| {
            let mut go = go.subscribe();
            async move {
                let _ = go.wait_for(|go| *go).await;
                Ok::<_, Failure>(())
            }
        }
    };
    let at_once = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    // No heartbeat comes while the test waits, so the late answer stays on its way.
    let options = WorkerConfig { lease: Duration::from_secs(600), ..WorkerConfig::default() };
    let one = |kind: &str| KindConfig::new(kind).max_concurrent(1);
    let worker =
        rig.worker_builder_with(options).handle(one("at once"), at_once).handle(one("wait"), wait);
    let worker = rig.start_worker(worker);
    let waits = rig.submit(Task::new("wait", &())).await;
    rig.wait_until_started(waits).await;
    rig.store.finish_replies_to_delay.store(1, Ordering::SeqCst);
    let first = rig.submit(Task::new("at once", &())).await;
    within_timeout("the first", until_completed(&rig, first)).await;
    go.send_replace(true);
    within_timeout("the second", until_completed(&rig, waits)).await;
    worker.abort();
}

async fn until_completed(rig: &Harness, task: TaskId) {
    while rig.task_state(task).await != TaskState::Completed {
        sleep_between_checks().await;
    }
}
