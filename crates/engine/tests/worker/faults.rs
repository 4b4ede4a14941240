//! A store that fails now and then.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::check::check_at_rest;
use tidegate_core::{Inspect, State};
use tidegate_engine::{Context, Ended, Failure, KindOptions, Options, Task, time};

use crate::rig::{Rig, Seen, pause, soon};

async fn noop(_: Context, (): ()) -> Result<(), Failure> {
    Ok(())
}

#[tokio::test]
async fn a_lost_answer_is_not_a_lost_lease() {
    let rig = Rig::new();
    rig.store.lose_finish_replies.store(1, Ordering::SeqCst);
    let worker = rig.start(rig.worker().handle("noop", noop));
    let first = rig.submit(Task::new("noop", &())).await;
    rig.entered(first).await;
    let second = rig.submit(Task::new("noop", &())).await;
    rig.exited(second, Ended::Completed).await;
    assert_eq!(rig.state(first).await, State::Completed);
    let summary = rig.end(worker).await;
    assert_eq!(summary.lost, 0);
}

#[tokio::test]
async fn an_exit_is_told_until_it_is_heard() {
    let rig = Rig::new();
    rig.store.lose_finishes.store(5, Ordering::SeqCst);
    let kind = KindOptions::new("noop").max_concurrent(1);
    let worker = rig.start(rig.worker().handle(kind, noop));
    let task = rig.submit(Task::new("noop", &())).await;
    rig.exited(task, Ended::Completed).await;
    let view = rig.view(task).await;
    assert_eq!((view.state, view.spent, view.deaths), (State::Completed, 0, 0));
    assert_eq!(rig.end(worker).await.completed, 1);
}

#[tokio::test]
async fn claims_that_fail_are_tried_again() {
    let rig = Rig::new();
    rig.store.lose_claims.store(3, Ordering::SeqCst);
    let task = rig.submit(Task::new("noop", &())).await;
    let worker = rig.start(rig.worker().handle("noop", noop));
    rig.exited(task, Ended::Completed).await;
    rig.end(worker).await;
}

#[tokio::test]
async fn the_poll_finds_what_no_hint_told() {
    let rig = Rig::new();
    rig.store.no_hints.store(true, Ordering::SeqCst);
    let worker = rig.start(rig.worker().handle("noop", noop));
    for _ in 0..3 {
        let task = rig.submit(Task::new("noop", &())).await;
        rig.exited(task, Ended::Completed).await;
    }
    rig.end(worker).await;
}

#[tokio::test]
async fn hooks_come_in_order() {
    let rig = Rig::new();
    let worker = rig.start(rig.worker().handle("noop", noop));
    let task = rig.submit(Task::new("noop", &())).await;
    assert_eq!(rig.next().await, Seen::Enter(task));
    assert_eq!(rig.next().await, Seen::Leave(task));
    assert_eq!(rig.next().await, Seen::Exit(task, Ended::Completed));
    rig.end(worker).await;
}

#[tokio::test]
async fn hints_that_mean_nothing_do_not_keep_an_idle_worker_busy() {
    let rig = Rig::new();
    rig.store.idle_hints.store(true, Ordering::SeqCst);
    let poll_interval = Duration::from_millis(400);
    let options = Options { poll_interval, keeper: false, ..Options::default() };
    let worker = rig.start(rig.worker_with(options).handle("noop", noop));
    let mut claims = rig.store.claims.subscribe();
    let started = time::now();
    soon("the claims", claims.wait_for(|claims| *claims >= 9)).await.unwrap();
    // 1 + 2 + 4 + 8 + 16 + 32 ms, and then an eighth of the poll interval each.
    assert!(time::now() - started >= Duration::from_millis(150), "the pauses grow");
    let task = rig.submit(Task::new("noop", &())).await;
    rig.exited(task, Ended::Completed).await;
    rig.end(worker).await;
}

#[tokio::test]
async fn an_attempt_whose_lease_is_over_when_it_comes_is_not_begun() {
    let rig = Rig::new();
    rig.store.slow_claim_ms.store(300, Ordering::SeqCst);
    let lease = Duration::from_millis(200);
    let options = Options { lease, keeper: false, ..Options::default() };
    let worker = rig.start(rig.worker_with(options).handle("noop", noop));
    let task = rig.submit(Task::new("noop", &())).await;
    rig.exited(task, Ended::Completed).await;
    let summary = rig.end(worker).await;
    // The worker gives the attempt back, or its heartbeat has released the lease before that.
    assert_eq!((summary.released + summary.lost, summary.completed), (1, 1));
    let view = rig.view(task).await;
    assert_eq!((view.spent, view.deaths), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_of_faults_loses_nothing() {
    let rig = Rig::new();
    let kind = || KindOptions::new("noop").max_concurrent(3);
    let options = || Options {
        lease: Duration::from_millis(600),
        poll_interval: Duration::from_millis(20),
        concurrency: 4,
        ..Options::default()
    };
    rig.store.lose_finish_replies.store(12, Ordering::SeqCst);
    rig.store.lose_finishes.store(12, Ordering::SeqCst);
    rig.store.lose_claims.store(12, Ordering::SeqCst);
    let workers = [(); 3].map(|()| rig.start(rig.worker_with(options()).handle(kind(), noop)));
    rig.client.submit_many((0..300).map(|_| Task::new("noop", &()))).await.unwrap();
    soon("every task to complete", async {
        while rig.store.memory.counts().await.unwrap().get(&State::Completed) != Some(&300) {
            pause().await;
        }
    })
    .await;
    let mut lost = 0;
    for worker in workers {
        lost += rig.end(worker).await.lost;
    }
    assert_eq!(lost, 0);
    let snapshot = rig.store.memory.snapshot().await.unwrap();
    assert_eq!(check_at_rest(&snapshot), []);
}
