//! How many run at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_engine::{Context, Failure, KindOptions, Options, Task};

use crate::rig::Rig;

/// Counts the handlers inside.
#[derive(Default)]
struct Gauge {
    inside: AtomicU32,
    most: AtomicU32,
}

impl Gauge {
    fn most(&self) -> u32 {
        self.most.load(Ordering::SeqCst)
    }
}

/// A handler that stays for a few rounds of the scheduler and counts who is inside with it.
fn counted(
    gauge: &Arc<Gauge>,
) -> impl Fn(Context, ()) -> futures_util::future::BoxFuture<'static, Result<(), Failure>>
+ Send
+ Sync
+ 'static {
    let gauge = gauge.clone();
    move |_, ()| {
        let gauge = gauge.clone();
        Box::pin(async move {
            let inside = gauge.inside.fetch_add(1, Ordering::SeqCst) + 1;
            gauge.most.fetch_max(inside, Ordering::SeqCst);
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            gauge.inside.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        })
    }
}

async fn submit(rig: &Rig, kind: &str, tasks: usize) {
    rig.client.submit_many((0..tasks).map(|_| Task::new(kind, &()))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn permits_bound_what_is_in_flight() {
    let rig = Rig::new();
    let gauge = Arc::default();
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
    let gauge = Arc::default();
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
    let (capped, free) = (Arc::default(), Arc::default());
    submit(&rig, "capped", 200).await;
    submit(&rig, "free", 200).await;
    let kind = KindOptions::new("capped").max_running(2);
    let builder = rig.worker().handle(kind, counted(&capped)).handle("free", counted(&free));
    let worker = rig.start(builder);
    rig.completed(400).await;
    assert_eq!(capped.most(), 2, "reached and never exceeded");
    assert!(free.most() > 2, "{}", free.most());
    rig.end(worker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_submit_brings_its_limit_along() {
    let rig = Rig::new();
    let gauge = Arc::default();
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
    let gauge = Arc::default();
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
