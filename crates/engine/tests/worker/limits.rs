//! How many run at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tidegate_core::{State, TaskId};
use tidegate_engine::{Context, Failure, KindOptions, Options, Task};
use tokio::sync::watch;

use crate::rig::{Rig, pause, soon};

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

pub(crate) async fn submit(rig: &Rig, kind: &str, tasks: usize) {
    rig.client.submit_many((0..tasks).map(|_| Task::new(kind, &()))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn permits_bound_what_is_in_flight() {
    let rig = Rig::new();
    let gauge = Gauge::new(5);
    submit(&rig, "work", 500).await;
    let options = Options { concurrency: 5, ..Options::default() };
    let worker = rig.start(rig.worker_with(options).handle("work", counted(&gauge)));
    rig.completed(500).await;
    assert_eq!(gauge.most(), 5, "reached and never exceeded");
    rig.end(worker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn max_concurrent_holds_across_workers() {
    let rig = Rig::new();
    let gauge = Gauge::new(3);
    let kind = || KindOptions::new("work").max_concurrent(3);
    let first = rig.start(rig.worker().handle(kind(), counted(&gauge)));
    let second = rig.start(rig.worker().handle(kind(), counted(&gauge)));
    submit(&rig, "work", 500).await;
    rig.completed(500).await;
    assert_eq!(gauge.most(), 3, "reached and never exceeded");
    let summaries = [rig.end(first).await, rig.end(second).await];
    assert_eq!(summaries.iter().map(|summary| summary.completed).sum::<u64>(), 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_kind_can_have_a_cap_on_this_worker() {
    let rig = Rig::new();
    let (capped, free) = (Gauge::new(2), Gauge::new(3));
    submit(&rig, "capped", 200).await;
    submit(&rig, "free", 200).await;
    let kind = KindOptions::new("capped").max_running(2);
    let builder = rig.worker().handle(kind, counted(&capped)).handle("free", counted(&free));
    let worker = rig.start(builder);
    rig.completed(400).await;
    assert_eq!(capped.most(), 2, "reached and never exceeded");
    rig.end(worker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_submit_brings_its_limit_along() {
    let rig = Rig::new();
    let gauge = Gauge::new(2);
    let worker = rig.start(rig.worker().handle("work", counted(&gauge)));
    let task = || Task::new("work", &()).concurrency_group("narrow").concurrency_limit(2);
    rig.client.submit_many((0..200).map(|_| task())).await.unwrap();
    rig.completed(200).await;
    assert_eq!(gauge.most(), 2, "reached and never exceeded");
    rig.end(worker).await;
}

#[tokio::test]
async fn a_worker_claims_only_what_it_serves() {
    let rig = Rig::new();
    let gauge = Gauge::new(1);
    let worker = rig.start(rig.worker().handle("work", counted(&gauge)));
    let other_kind = rig.submit(Task::new("other", &())).await;
    let other_queue = rig.submit(Task::new("work", &()).queue("elsewhere")).await;
    submit(&rig, "work", 10).await;
    rig.completed(10).await;
    for task in [other_kind, other_queue] {
        assert_eq!(rig.state(task).await, tidegate_core::State::Pending);
    }
    rig.end(worker).await;
}

/// The exits of two limits go out in two calls: neither waits for the other's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_is_given_back_while_another_limits_answer_is_on_its_way() {
    let rig = Rig::new();
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
    let options = Options { lease: Duration::from_secs(600), ..Options::default() };
    let one = |kind: &str| KindOptions::new(kind).max_concurrent(1);
    let worker = rig.worker_with(options).handle(one("at once"), at_once).handle(one("wait"), wait);
    let worker = rig.start(worker);
    let waits = rig.submit(Task::new("wait", &())).await;
    rig.entered(waits).await;
    rig.store.late_finish_replies.store(1, Ordering::SeqCst);
    let first = rig.submit(Task::new("at once", &())).await;
    soon("the first", until_completed(&rig, first)).await;
    go.send_replace(true);
    soon("the second", until_completed(&rig, waits)).await;
    worker.abort();
}

async fn until_completed(rig: &Rig, task: TaskId) {
    while rig.state(task).await != State::Completed {
        pause().await;
    }
}
