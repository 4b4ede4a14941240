//! How many round trips each path takes, by the count of the store itself.

use std::future::Future;
use std::time::Duration;

use tidegate_core::invariants::check;
use tidegate_core::request_stats::FallbackReason;
use tidegate_core::tables::Position;
use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, Finish, Heartbeat, NewTask, Outcome, Progress,
    SetLimit, Store, StoreReader, Submission, TaskId, TaskState, WorkerId,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::wait;

/// A store with one connection: a statement that was prepared once is prepared for the next call.
struct RoundTripHarness {
    store: Postgres,
    database: Database,
}

impl RoundTripHarness {
    async fn new() -> Self {
        Self::with_grace(Options::default().due_grace).await
    }

    async fn with_grace(due_grace: Duration) -> Self {
        let database = Server::shared().database();
        let options = Options { pool_size: 1, due_grace, ..Options::default() };
        let store = Postgres::connect(&database.url(), options).await.expect("connect");
        store.migrate().await.expect("migrate");
        Self { store, database }
    }

    /// A limit of this capacity, which is full, and so many tasks that wait for it.
    async fn full(capacity: u32, waiting: u32) -> (Self, Vec<Attempt>) {
        let rig = Self::new().await;
        let running = rig.fill(capacity, waiting).await;
        (rig, running)
    }

    async fn fill(&self, capacity: u32, waiting: u32) -> Vec<Attempt> {
        let name = "group:a".to_owned();
        let set = SetLimit { name, capacity: Some(capacity), source: CapacitySource::Operator };
        self.store.set_limit(set).await.expect("set a limit");
        self.submit(capacity + waiting).await;
        let running = self.store.claim(claim(capacity)).await.expect("claim");
        assert_eq!(running.len(), capacity as usize);
        running
    }

    async fn submit(&self, tasks: u32) {
        let tasks = vec![NewTask::new("a", "null"); tasks as usize];
        let submission = Submission { tasks, ..Submission::default() };
        self.store.submit(submission).await.expect("submit");
    }

    async fn finish(&self, exits: Vec<Completion>, wanted: u32) -> Vec<Attempt> {
        let finish = Finish { completions: exits, claim: Some(claim(wanted)) };
        let finished = self.store.finish(finish).await.expect("finish");
        assert_eq!(finished.lost_attempts, []);
        finished.claimed
    }

    /// What a call returns, and how many round trips it took.
    async fn counted<T>(&self, call: impl Future<Output = T>) -> (T, u64) {
        let before = self.store.round_trip_stats();
        let value = call.await;
        (value, self.store.round_trip_stats().since(before).round_trips)
    }

    async fn check(&self) {
        let faults = check(&self.store.snapshot().await.expect("snapshot"));
        assert!(faults.is_empty(), "{faults:?}");
    }

    async fn number_of(&self, state: TaskState) -> u64 {
        self.store.task_counts().await.expect("counts").get(&state).copied().unwrap_or_default()
    }
}

fn claim(tasks_max: u32) -> Claim {
    Claim {
        worker: WorkerId("worker".into()),
        queues: ["default".into()].into(),
        kinds: ["a".into()].into(),
        tasks_max,
        lease_ms: 3_600_000,
        poll_interval_ms: 1000,
    }
}

fn completed(attempts: &[Attempt]) -> Vec<Completion> {
    let outcome = || Outcome::Completed(b"null".to_vec());
    let exit = |one: &Attempt| Completion { task: one.task, token: one.token, outcome: outcome() };
    attempts.iter().map(exit).collect()
}

/// The first attempt failed, and is retried in a minute.
fn one_failed(attempts: &[Attempt]) -> Vec<Completion> {
    let mut exits = completed(attempts);
    let retry_in_ms = Some(60_000);
    exits[0].outcome = Outcome::Failed { error: "no".into(), retryable: true, retry_in_ms };
    exits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submit_of_known_names_takes_one_round_trip() {
    let rig = RoundTripHarness::new().await;
    rig.submit(1).await;
    rig.submit(1).await;
    let ((), trips) = rig.counted(rig.submit(3)).await;
    assert_eq!(trips, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_of_tasks_without_limit_takes_one_round_trip() {
    let rig = RoundTripHarness::new().await;
    rig.submit(30).await;
    for _ in 0..2 {
        assert_eq!(rig.store.claim(claim(5)).await.expect("claim").len(), 5);
    }
    let (claimed, trips) = rig.counted(rig.store.claim(claim(10))).await;
    assert_eq!((claimed.expect("claim").len(), trips), (10, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finish_without_limit_takes_one_round_trip_and_two_with_failure() {
    let rig = RoundTripHarness::new().await;
    rig.submit(100).await;
    let mut running = rig.store.claim(claim(10)).await.expect("claim");
    for _ in 0..2 {
        running = rig.finish(completed(&running), 10).await;
        running = rig.finish(one_failed(&running), 10).await;
    }
    let (running, trips) = rig.counted(rig.finish(completed(&running), 10)).await;
    assert_eq!((running.len(), trips), (10, 1));
    let (running, trips) = rig.counted(rig.finish(one_failed(&running), 10)).await;
    assert_eq!((running.len(), trips), (10, 2));
    assert_eq!(rig.number_of(TaskState::Scheduled).await, 3);
    rig.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finish_with_hand_off_takes_one_round_trip_and_two_with_failure() {
    let (rig, mut running) = RoundTripHarness::full(10, 90).await;
    for _ in 0..2 {
        running = rig.finish(completed(&running), 10).await;
        running = rig.finish(one_failed(&running), 10).await;
    }
    let (running, trips) = rig.counted(rig.finish(completed(&running), 10)).await;
    assert_eq!((running.len(), trips), (10, 1));
    let (running, trips) = rig.counted(rig.finish(one_failed(&running), 10)).await;
    assert_eq!((running.len(), trips), (10, 2));
    assert!(running.iter().all(|attempt| attempt.slots.len() == 1), "{running:?}");
    assert_eq!(rig.number_of(TaskState::Scheduled).await, 3);
    rig.check().await;
}

/// Fails the first attempt, to be retried a moment later, and waits until the retry is due.
async fn fail_first(rig: &RoundTripHarness, attempts: &[Attempt]) -> Vec<Attempt> {
    let mut exits = completed(attempts);
    let retry_in_ms = Some(100);
    exits[0].outcome = Outcome::Failed { error: "no".into(), retryable: true, retry_in_ms };
    let running = rig.finish(exits, attempts.len() as u32).await;
    is_due(rig, attempts[0].task).await;
    running
}

async fn is_due(rig: &RoundTripHarness, task: TaskId) {
    wait::until_async("the task is due", async || {
        let snapshot = rig.store.snapshot().await.expect("snapshot");
        let row = snapshot.tasks.iter().find(|row| row.id == task).expect("the task");
        // A margin, so that it is due by the clock of this process too.
        matches!(row.positions[..], [Position::Scheduled(at)] if at + 5 < snapshot.now)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finish_with_hand_off_takes_one_more_round_trip_for_due_retry() {
    let rig = RoundTripHarness::with_grace(Duration::ZERO).await;
    let mut running = rig.fill(10, 90).await;
    for _ in 0..2 {
        running = fail_first(&rig, &running).await;
        running = rig.finish(completed(&running), 10).await;
    }
    let running = fail_first(&rig, &running).await;
    let (running, trips) = rig.counted(rig.finish(completed(&running), 10)).await;
    assert_eq!((running.len(), trips), (10, 2));
    assert_eq!(rig.number_of(TaskState::Scheduled).await, 0, "the retry waits for a slot");
    rig.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finish_without_limit_takes_one_more_round_trip_for_due_retry() {
    let rig = RoundTripHarness::with_grace(Duration::ZERO).await;
    rig.submit(100).await;
    let mut running = rig.store.claim(claim(10)).await.expect("claim");
    for _ in 0..2 {
        running = fail_first(&rig, &running).await;
        running = rig.finish(completed(&running), 10).await;
    }
    let failed = running[0].task;
    let running = fail_first(&rig, &running).await;
    let (running, trips) = rig.counted(rig.finish(completed(&running), 10)).await;
    assert_eq!((running.len(), trips), (10, 2));
    assert!(running.iter().any(|attempt| attempt.task == failed), "the retry runs first");
    rig.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn due_retry_within_grace_takes_no_round_trip_until_worker_lacks_tasks() {
    let rig = RoundTripHarness::with_grace(Duration::from_secs(3600)).await;
    let mut running = rig.fill(10, 30).await;
    running = rig.finish(completed(&running), 10).await;
    let failed = running[0].task;
    let running = fail_first(&rig, &running).await;
    let (running, trips) = rig.counted(rig.finish(completed(&running), 10)).await;
    assert_eq!((running.len(), trips), (10, 1));
    assert_eq!(rig.number_of(TaskState::Scheduled).await, 1, "it is passed");
    let running = rig.finish(completed(&running), 10).await;
    assert_eq!(running.iter().map(|attempt| attempt.task).collect::<Vec<_>>(), [failed]);
    rig.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_with_due_task_of_another_process_takes_three_round_trips() {
    let rig = RoundTripHarness::with_grace(Duration::ZERO).await;
    let other = Postgres::connect(&rig.database.url(), Options::default()).await.expect("connect");
    rig.submit(20).await;
    let mut trips = 0;
    // The statements are prepared by the first of them.
    for _ in 0..2 {
        let running = rig.store.claim(claim(1)).await.expect("claim");
        let outcome = Outcome::Snoozed { delay_ms: 100 };
        let exits = vec![Completion { task: running[0].task, token: running[0].token, outcome }];
        other.finish(Finish { completions: exits, claim: None }).await.expect("finish");
        is_due(&rig, running[0].task).await;
        let claimed;
        (claimed, trips) = rig.counted(rig.store.claim(claim(5))).await;
        assert_eq!(claimed.expect("claim").len(), 5);
    }
    assert_eq!(trips, 3);
    rig.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finish_with_smaller_claim_takes_one_round_trip() {
    let (rig, running) = RoundTripHarness::full(10, 90).await;
    // The statements are prepared by a first call; the rest of the ready tasks is claimed again.
    let mut running = rig.finish(completed(&running), 4).await;
    running.extend(rig.store.claim(claim(6)).await.expect("claim"));
    let (claimed, trips) = rig.counted(rig.finish(completed(&running), 4)).await;
    assert_eq!((claimed.len(), trips), (4, 1));
    let limit = rig.store.limits().await.expect("limits").remove(0);
    assert_eq!((limit.held, limit.waiting), (10, 70));
    assert_eq!(rig.number_of(TaskState::Pending).await, 6);
    rig.check().await;
}

/// Reports progress of an attempt.
async fn report(rig: &RoundTripHarness, attempt: &Attempt) {
    let report = Progress { percent: 50, message: "half".into() };
    let extend = Heartbeat {
        worker: WorkerId("worker".into()),
        tokens: vec![attempt.token],
        lease_ms: 3_600_000,
        progress: vec![(attempt.task, attempt.token, report)],
        run_times: vec![],
        report: None,
    };
    rig.store.heartbeat(extend).await.expect("heartbeat");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finish_of_whole_lease_after_progress_report_hands_off_slots() {
    let (rig, mut running) = RoundTripHarness::full(10, 90).await;
    let mut trips = 0;
    // The statements are prepared by the first of them.
    for _ in 0..3 {
        report(&rig, &running[4]).await;
        (running, trips) = rig.counted(rig.finish(completed(&running), 10)).await;
        assert_eq!(running.len(), 10);
        assert!(running.iter().all(|attempt| attempt.slots.len() == 1), "{running:?}");
        rig.check().await;
    }
    println!("{trips} round trips");
    assert!(trips <= 5, "{trips} round trips");
    let counts = rig.store.request_stats().counts;
    let expanded = |count: &&tidegate_core::request_stats::RequestCount| {
        count.verb == "finish" && count.reason == Some(FallbackReason::LeaseExpanded)
    };
    assert_eq!(counts.iter().find(expanded).map(|count| count.requests), Some(3), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_report_keeps_other_attempts_of_lease_on_fast_path() {
    let (rig, mut running) = RoundTripHarness::full(10, 90).await;
    for _ in 0..2 {
        running = rig.finish(completed(&running), 10).await;
    }
    report(&rig, &running[0]).await;
    rig.check().await;
    let shown = rig.store.task(running[0].task).await.expect("task").expect("it runs");
    assert_eq!(shown.progress.map(|progress| progress.percent), Some(50));
    let (claimed, trips) = rig.counted(rig.finish(completed(&running[1..]), 9)).await;
    assert_eq!((claimed.len(), trips), (9, 1));
    let claimed = rig.finish(completed(&running[..1]), 1).await;
    assert_eq!(claimed.len(), 1);
    rig.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_takes_at_most_five_round_trips() {
    let (rig, _running) = RoundTripHarness::full(10, 0).await;
    for parked in 1..=3 {
        rig.submit(1).await;
        let (admitted, trips) = rig.counted(rig.store.admit()).await;
        assert_eq!(admitted.expect("admit").parked, 1);
        assert_eq!(rig.number_of(TaskState::Blocked).await, parked);
        // The statements are prepared by the first of them.
        assert!(parked == 1 || trips <= 5, "{trips} round trips");
    }
    rig.check().await;
}

/// Fails the only running attempt, to be retried a moment later, and waits until the retry is due. The limit
/// has a free slot then, and no task waits for it.
async fn due_with_a_free_slot(rig: &RoundTripHarness, store: &Postgres, running: &[Attempt]) {
    let outcome = Outcome::Failed { error: "no".into(), retryable: true, retry_in_ms: Some(100) };
    let exits = vec![Completion { task: running[0].task, token: running[0].token, outcome }];
    store.finish(Finish { completions: exits, claim: None }).await.expect("finish");
    is_due(rig, running[0].task).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_of_due_retry_takes_at_most_five_round_trips() {
    let rig = RoundTripHarness::with_grace(Duration::ZERO).await;
    let mut running = rig.fill(1, 0).await;
    let mut trips = 0;
    // The statements are prepared by the first of them.
    for _ in 0..3 {
        due_with_a_free_slot(&rig, &rig.store, &running).await;
        let admitted;
        (admitted, trips) = rig.counted(rig.store.admit()).await;
        assert_eq!(admitted.expect("admit").ready, 1);
        running = rig.store.claim(claim(1)).await.expect("claim");
        assert_eq!(running.len(), 1);
    }
    println!("{trips} round trips");
    assert!(trips <= 5, "{trips} round trips");
    rig.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_with_admission_of_due_retry_takes_at_most_seven_round_trips() {
    let rig = RoundTripHarness::with_grace(Duration::ZERO).await;
    // The task of another process: this one does not know beforehand that it is due.
    let other = Postgres::connect(&rig.database.url(), Options::default()).await.expect("connect");
    let mut running = rig.fill(1, 0).await;
    let mut trips = 0;
    for _ in 0..3 {
        due_with_a_free_slot(&rig, &other, &running).await;
        let claimed;
        (claimed, trips) = rig.counted(rig.store.claim(claim(1))).await;
        running = claimed.expect("claim");
        assert_eq!(running.len(), 1);
    }
    println!("{trips} round trips");
    assert!(trips <= 2 + 5, "{trips} round trips");
    rig.check().await;
}
