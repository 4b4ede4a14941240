//! Every request is counted by the path that served it, and by the reason for the general path.

use std::sync::Arc;

use tidegate_core::requests::{FallbackReason, RequestPath};
use tidegate_core::{
    Attempt, Claim, Exit, Finish, Inspect, NewTask, Outcome, SetLimit, Source, Store, Submission,
    WorkerId,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};

struct Lab {
    store: Postgres,
    _database: Database,
}

impl Lab {
    async fn new() -> Self {
        let database = Server::shared().database();
        let store = Postgres::connect(&database.url(), Options::default()).await.expect("connect");
        store.migrate().await.expect("migrate");
        Self { store, _database: database }
    }

    async fn submit(&self, tasks: Vec<NewTask>) {
        self.store.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    }

    async fn claim(&self, tasks_max: u32) -> Vec<Attempt> {
        self.store.claim(claim(tasks_max)).await.expect("claim")
    }

    async fn finish(&self, attempts: &[Attempt], outcome: Outcome, tasks_max: u32) -> Vec<Attempt> {
        let exit = |attempt: &Attempt| Exit {
            task: attempt.task,
            token: attempt.token,
            outcome: outcome.clone(),
        };
        let exits = attempts.iter().map(exit).collect();
        let claim = (tasks_max > 0).then(|| claim(tasks_max));
        let finished = self.store.finish(Finish { exits, claim }).await.expect("finish");
        assert!(finished.lost.is_empty(), "{finished:?}");
        finished.claimed
    }

    /// The number of requests of a verb on a path, for a reason.
    fn requests(&self, verb: &str, path: RequestPath, reason: Option<FallbackReason>) -> u64 {
        let counts = self.store.requests().counts;
        let is_meant = |count: &&tidegate_core::requests::RequestCount| {
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
        poll_ms: 1000,
    }
}

fn tasks(number: usize) -> Vec<NewTask> {
    vec![NewTask::new("a", "null"); number]
}

fn done() -> Outcome {
    Outcome::Completed(b"null".to_vec())
}

#[tokio::test]
async fn unlimited_tasks_take_the_fast_paths() {
    let lab = Lab::new().await;
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

#[tokio::test]
async fn submit_with_options_names_them_as_the_reason() {
    let lab = Lab::new().await;
    lab.submit(tasks(1)).await;
    let mut task = NewTask::new("a", "null");
    task.unique_key = Some("k".into());
    lab.submit(vec![task]).await;
    let options = Some(FallbackReason::TaskOptions);
    assert_eq!(lab.requests("submit", RequestPath::General, options), 1);
}

#[tokio::test]
async fn completed_attempts_under_a_full_limit_are_handed_off() {
    let lab = Lab::new().await;
    let set = SetLimit { name: "group:a".into(), capacity: Some(2), source: Source::Operator };
    lab.store.set_limit(set).await.expect("set the limit");
    lab.submit(tasks(20)).await;
    let mut running = lab.claim(2).await;
    assert_eq!(running.len(), 2);
    let pending = Some(FallbackReason::AdmissionPending);
    let first = lab.requests("claim", RequestPath::General, pending)
        + lab.requests("claim", RequestPath::General, Some(FallbackReason::WorkerNotRecorded));
    assert_eq!(first, 1, "{:?}", lab.store.requests().counts);
    for _ in 0..4 {
        running = lab.finish(&running, done(), 2).await;
        assert_eq!(running.len(), 2);
    }
    let handed_off = lab.requests("finish", RequestPath::HandOff, None);
    assert!(handed_off >= 3, "{:?}", lab.store.requests().counts);
}

#[tokio::test]
async fn requests_have_durations_for_each_verb_and_path() {
    let lab = Lab::new().await;
    lab.submit(tasks(1)).await;
    let times = lab.store.requests().times;
    let submit = times.iter().find(|times| times.verb == "submit").expect("a submit");
    assert_eq!(submit.buckets.iter().sum::<u64>(), 1);
    assert!(!submit.total.is_zero());
}
