//! Every request is counted by the path that served it, and by the reason for the general path.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::request_stats::{FallbackReason, RequestPath};
use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, Finish, Heartbeat, JobSpec, NewTask, Outcome,
    Progress, SetLimit, Store, StoreReader, Submission, WorkerId,
};
use tidegate_store::postgres::{Options, Postgres, Timeouts};
use tidegate_testkit::postgres::{Database, Server};
use tidegate_testkit::proxy::Proxy;

struct PathHarness {
    store: Postgres,
    database: Database,
}

impl PathHarness {
    async fn new() -> Self {
        let database = Server::shared().database();
        let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
        store.migrate().await.expect("migrate");
        Self { store, database }
    }

    async fn submit(&self, tasks: Vec<NewTask>) {
        self.store.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    }

    async fn claim(&self, tasks_max: u32) -> Vec<Attempt> {
        self.store.claim(claim(tasks_max)).await.expect("claim")
    }

    async fn finish(&self, attempts: &[Attempt], outcome: Outcome, tasks_max: u32) -> Vec<Attempt> {
        let exit = |attempt: &Attempt| Completion {
            task: attempt.task,
            token: attempt.token,
            outcome: outcome.clone(),
        };
        let exits = attempts.iter().map(exit).collect();
        let claim = (tasks_max > 0).then(|| claim(tasks_max));
        let finished =
            self.store.finish(Finish { completions: exits, claim }).await.expect("finish");
        assert!(finished.lost_attempts.is_empty(), "{finished:?}");
        finished.claimed
    }

    /// The number of requests of a verb on a path, for a reason.
    fn requests(&self, verb: &str, path: RequestPath, reason: Option<FallbackReason>) -> u64 {
        let counts = self.store.request_stats().counts;
        let is_meant = |count: &&tidegate_core::request_stats::RequestCount| {
            count.verb == verb && count.path == path && count.reason == reason
        };
        counts.iter().find(is_meant).map_or(0, |count| count.requests)
    }
}

fn claim(tasks_max: u32) -> Claim {
    Claim {
        worker: WorkerId("worker".into()),
        queues: Arc::from(["default".into()]),
        kinds: Arc::from(["a".into()]),
        tasks_max,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    }
}

fn tasks(number: usize) -> Vec<NewTask> {
    vec![NewTask::new("a", "null"); number]
}

fn done() -> Outcome {
    Outcome::Completed(b"null".to_vec())
}

#[tokio::test]
async fn tasks_without_limits_use_fast_paths() {
    let lab = PathHarness::new().await;
    lab.submit(tasks(1)).await;
    lab.submit(tasks(3)).await;
    let unknown = Some(FallbackReason::UnknownNames);
    assert_eq!(lab.requests("submit", RequestPath::General, unknown), 1);
    assert_eq!(lab.requests("submit", RequestPath::Fast, None), 1);
    let first = lab.claim(1).await;
    let before = lab.requests("claim", RequestPath::Fast, None);
    let second = lab.claim(1).await;
    assert_eq!(lab.requests("claim", RequestPath::Fast, None), before + 1);
    lab.finish(&[first, second].concat(), done(), 0).await;
    assert_eq!(lab.requests("finish", RequestPath::Fast, None), 1);
}

/// The path of a request is known before its statement is sent, so an outage does not look like a loss of the fast
/// path.
#[tokio::test]
async fn submit_without_an_answer_is_counted_on_its_path() {
    let database = Server::shared().database();
    let proxy = Proxy::start(&database).await.expect("a proxy");
    let request = Duration::from_millis(500);
    let timeouts = Timeouts { request, connect: request, ..Timeouts::default() };
    let options = Options { timeouts, ..Options::default() };
    let direct = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
    direct.migrate().await.expect("migrate");
    let store = Postgres::connect(proxy.url(), options).await.expect("connect");
    let lab = PathHarness { store, database };
    lab.submit(tasks(1)).await;
    proxy.go_silent();
    let silent = Submission { tasks: tasks(1), ..Submission::default() };
    lab.store.submit(silent).await.expect_err("the proxy is silent");
    let counts = lab.store.request_stats().counts;
    assert_eq!(lab.requests("submit", RequestPath::Fast, None), 1, "{counts:?}");
    assert_eq!(lab.requests("submit", RequestPath::General, None), 0, "{counts:?}");
}

#[tokio::test]
async fn submit_with_task_options_counts_task_options_as_reason() {
    let lab = PathHarness::new().await;
    lab.submit(tasks(1)).await;
    let mut task = NewTask::new("a", "null");
    task.unique_key = Some("k".into());
    lab.submit(vec![task]).await;
    let options = Some(FallbackReason::TaskOptions);
    assert_eq!(lab.requests("submit", RequestPath::General, options), 1);
}

#[tokio::test]
async fn finish_under_full_limit_counts_as_hand_off() {
    let lab = PathHarness::new().await;
    let set =
        SetLimit { name: "group:a".into(), capacity: Some(2), source: CapacitySource::Operator };
    lab.store.set_limit(set).await.expect("set the limit");
    lab.submit(tasks(20)).await;
    let mut running = lab.claim(2).await;
    assert_eq!(running.len(), 2);
    let pending = Some(FallbackReason::AdmissionPending);
    let first = lab.requests("claim", RequestPath::General, pending)
        + lab.requests("claim", RequestPath::General, Some(FallbackReason::WorkerNotRecorded));
    assert_eq!(first, 1, "{:?}", lab.store.request_stats().counts);
    for _ in 0..4 {
        running = lab.finish(&running, done(), 2).await;
        assert_eq!(running.len(), 2);
    }
    let handed_off = lab.requests("finish", RequestPath::HandOff, None);
    assert!(handed_off >= 3, "{:?}", lab.store.request_stats().counts);
}

/// Sets the limit of the kind `a`.
async fn limit(lab: &PathHarness, capacity: u32) {
    let name = "group:a".to_owned();
    let set = SetLimit { name, capacity: Some(capacity), source: CapacitySource::Operator };
    lab.store.set_limit(set).await.expect("set the limit");
}

/// A store whose worker is recorded as alive, with one attempt of the kind `a`.
async fn started() -> (PathHarness, Vec<Attempt>) {
    let lab = PathHarness::new().await;
    lab.submit(tasks(1)).await;
    let running = lab.claim(1).await;
    assert_eq!(running.len(), 1);
    (lab, running)
}

#[tokio::test]
async fn claim_of_tasks_with_slots_counts_slots_as_reason() {
    let (lab, _) = started().await;
    limit(&lab, 10).await;
    lab.submit(tasks(3)).await;
    lab.store.admit().await.expect("admit");
    assert_eq!(lab.claim(3).await.len(), 3);
    let slots = Some(FallbackReason::TasksHoldSlots);
    assert_eq!(lab.requests("claim", RequestPath::General, slots), 1);
}

#[tokio::test]
async fn claim_after_limit_was_set_counts_new_limit_as_reason() {
    let (lab, _) = started().await;
    lab.submit(tasks(5)).await;
    limit(&lab, 3).await;
    assert_eq!(lab.claim(5).await.len(), 2, "one runs already");
    let new = Some(FallbackReason::NewLimit);
    assert_eq!(
        lab.requests("claim", RequestPath::General, new),
        1,
        "{:?}",
        lab.store.request_stats()
    );
}

#[tokio::test]
async fn first_claim_of_worker_counts_missing_record_as_reason() {
    let (lab, _) = started().await;
    lab.submit(tasks(1)).await;
    let unrecorded = Some(FallbackReason::WorkerNotRecorded);
    let before = lab.requests("claim", RequestPath::General, unrecorded);
    let claim = Claim { worker: WorkerId("another".into()), ..claim(1) };
    assert_eq!(lab.store.claim(claim).await.expect("claim").len(), 1);
    assert_eq!(lab.requests("claim", RequestPath::General, unrecorded), before + 1);
}

#[tokio::test]
async fn claim_of_many_kinds_counts_many_queues_as_reason() {
    let lab = PathHarness::new().await;
    let kinds: Vec<Arc<str>> = (0..20).map(|number| format!("kind {number}").into()).collect();
    let of_all = || kinds.iter().map(|kind| NewTask::new(&**kind, "null")).collect();
    lab.submit(of_all()).await;
    let claim = Claim { kinds: kinds.clone().into(), ..claim(20) };
    assert_eq!(lab.store.claim(claim.clone()).await.expect("claim").len(), 20);
    lab.submit(of_all()).await;
    // Another process does not know yet how many there are.
    let options = Options::default();
    let other = Postgres::connect(&lab.database.url(), options).await.expect("connect");
    assert_eq!(other.claim(claim).await.expect("claim").len(), 20);
    let other = PathHarness { store: other, database: lab.database };
    let many = Some(FallbackReason::ManyQueues);
    assert_eq!(other.requests("claim", RequestPath::General, many), 1);
}

#[tokio::test]
async fn finish_of_retried_attempt_counts_uncompleted_attempts_as_reason() {
    let (lab, running) = started().await;
    let outcome = Outcome::Failed { error: "no".into(), retryable: true, retry_in_ms: Some(0) };
    lab.finish(&running, outcome, 0).await;
    let failed = Some(FallbackReason::AttemptsNotCompleted);
    assert_eq!(lab.requests("finish", RequestPath::General, failed), 1);
}

#[tokio::test]
async fn finish_after_progress_report_counts_expanded_lease_as_reason() {
    let (lab, running) = started().await;
    report(&lab, &running[0]).await;
    lab.finish(&running, done(), 0).await;
    let expanded = Some(FallbackReason::LeaseExpanded);
    assert_eq!(lab.requests("finish", RequestPath::General, expanded), 1);
}

#[tokio::test]
async fn finish_of_task_with_job_counts_slots_as_reason() {
    let lab = PathHarness::new().await;
    let of_job = NewTask { job: Some("j".into()), ..NewTask::new("a", "null") };
    let jobs = vec![JobSpec { concurrency: Some(5), ..JobSpec::new("j") }];
    let submission = Submission { jobs, tasks: vec![of_job; 2], ..Submission::default() };
    lab.store.submit(submission).await.expect("submit");
    let running = lab.claim(2).await;
    assert_eq!(running.len(), 2);
    lab.finish(&running[..1], done(), 1).await;
    lab.finish(&running[1..], done(), 0).await;
    let slots = Some(FallbackReason::TasksHoldSlots);
    let counts = lab.store.request_stats().counts;
    assert_eq!(lab.requests("finish", RequestPath::General, slots), 2, "{counts:?}");
}

#[tokio::test]
async fn finish_under_limit_without_claim_counts_slots_as_reason() {
    let lab = PathHarness::new().await;
    limit(&lab, 2).await;
    lab.submit(tasks(4)).await;
    let running = lab.claim(2).await;
    lab.finish(&running, done(), 0).await;
    let slots = Some(FallbackReason::TasksHoldSlots);
    let counts = lab.store.request_stats().counts;
    assert_eq!(lab.requests("finish", RequestPath::General, slots), 1, "{counts:?}");
}

/// Reports progress of an attempt.
async fn report(lab: &PathHarness, attempt: &Attempt) {
    let report = Progress { percent: 50, message: "half".into() };
    let extend = Heartbeat {
        worker: WorkerId("worker".into()),
        tokens: vec![attempt.token],
        lease_ms: 30_000,
        progress: vec![(attempt.task, attempt.token, report)],
        run_times: vec![],
        report: None,
    };
    lab.store.heartbeat(extend).await.expect("heartbeat");
}

/// Two attempts with a slot of the limit `group:g`, which is full, and two without slots.
async fn mixed() -> (PathHarness, Vec<Attempt>) {
    let lab = PathHarness::new().await;
    let set =
        SetLimit { name: "group:g".into(), capacity: Some(2), source: CapacitySource::Operator };
    lab.store.set_limit(set).await.expect("set the limit");
    let limited = NewTask { effective_group: Some("g".into()), ..NewTask::new("a", "null") };
    lab.submit(vec![limited.clone(); 2]).await;
    lab.submit(tasks(2)).await;
    let running = lab.claim(4).await;
    assert_eq!(running.iter().filter(|attempt| !attempt.slots.is_empty()).count(), 2);
    lab.submit(vec![limited; 10]).await;
    assert_eq!(lab.claim(1).await.len(), 0, "they wait for the slots");
    (lab, running)
}

#[tokio::test]
async fn finish_of_mixed_batch_counts_as_hand_off() {
    let (lab, running) = mixed().await;
    assert_eq!(lab.finish(&running, done(), 4).await.len(), 2);
    let counts = lab.store.request_stats().counts;
    assert_eq!(lab.requests("finish", RequestPath::HandOff, None), 1, "{counts:?}");
}

#[tokio::test]
async fn mixed_batch_after_progress_report_counts_expanded_lease_as_reason() {
    for is_limited in [true, false] {
        let (lab, running) = mixed().await;
        let reported = running.iter().find(|attempt| attempt.slots.is_empty() != is_limited);
        report(&lab, reported.expect("an attempt")).await;
        assert_eq!(lab.finish(&running, done(), 4).await.len(), 2);
        let expanded = Some(FallbackReason::LeaseExpanded);
        let counts = lab.store.request_stats().counts;
        assert_eq!(lab.requests("finish", RequestPath::General, expanded), 1, "{counts:?}");
    }
}

#[tokio::test]
async fn mixed_batch_after_foreign_cancel_counts_expanded_lease_as_reason() {
    let (lab, running) = mixed().await;
    let options = Options::default();
    let other = Postgres::connect(&lab.database.url(), options).await.expect("connect");
    let unlimited = running.iter().find(|attempt| attempt.slots.is_empty()).expect("an attempt");
    other.cancel(vec![unlimited.task]).await.expect("cancel");
    assert_eq!(lab.finish(&running, done(), 4).await.len(), 2);
    let expanded = Some(FallbackReason::LeaseExpanded);
    let counts = lab.store.request_stats().counts;
    assert_eq!(lab.requests("finish", RequestPath::General, expanded), 1, "{counts:?}");
}

#[tokio::test]
async fn attempts_completed_on_general_path_are_evicted_from_memory() {
    let lab = PathHarness::new().await;
    limit(&lab, 2).await;
    lab.submit(tasks(8)).await;
    let running = lab.claim(2).await;
    assert_eq!(lab.store.remembered_attempts(), 2);
    lab.submit(tasks(1)).await;
    let running = lab.finish(&running, done(), 2).await;
    let pending = Some(FallbackReason::AdmissionPending);
    assert_eq!(lab.requests("finish", RequestPath::General, pending), 1);
    assert_eq!((running.len(), lab.store.remembered_attempts()), (2, 2), "admission was pending");
    let outcome = Outcome::Failed { error: "no".into(), retryable: true, retry_in_ms: Some(0) };
    let running = lab.finish(&running, outcome, 2).await;
    assert_eq!((running.len(), lab.store.remembered_attempts()), (2, 2), "retried at once");
    report(&lab, &running[0]).await;
    lab.finish(&running, done(), 0).await;
    assert_eq!(lab.store.remembered_attempts(), 0, "no claim");
}

#[tokio::test]
async fn hand_off_to_task_with_job_is_rejected_and_counted() {
    let lab = PathHarness::new().await;
    limit(&lab, 1).await;
    lab.submit(tasks(1)).await;
    let running = lab.claim(1).await;
    let waiter = NewTask { job: Some("j".into()), ..NewTask::new("a", "null") };
    lab.submit(vec![waiter]).await;
    assert_eq!(lab.claim(1).await.len(), 0, "it waits for the slot");
    assert_eq!(lab.finish(&running, done(), 1).await.len(), 1);
    let refused = Some(FallbackReason::HandOffRefused);
    assert_eq!(lab.requests("finish", RequestPath::General, refused), 1);
}

#[tokio::test]
async fn hand_off_with_pending_admission_counts_it_as_reason() {
    let lab = PathHarness::new().await;
    limit(&lab, 1).await;
    lab.submit(tasks(3)).await;
    let running = lab.claim(1).await;
    lab.submit(tasks(1)).await;
    assert_eq!(lab.finish(&running, done(), 1).await.len(), 1);
    let pending = Some(FallbackReason::AdmissionPending);
    assert_eq!(lab.requests("finish", RequestPath::General, pending), 1);
}

#[tokio::test]
async fn request_durations_are_recorded_for_each_verb_and_path() {
    let lab = PathHarness::new().await;
    lab.submit(tasks(1)).await;
    let times = lab.store.request_stats().times;
    let submit = times.iter().find(|times| times.verb == "submit").expect("a submit");
    assert_eq!(submit.buckets.iter().sum::<u64>(), 1);
    assert!(!submit.total.is_zero());
}
