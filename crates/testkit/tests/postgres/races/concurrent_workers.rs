//! Many workers at once, nothing held: what an interleaving of two cannot show.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::bounds::QUEUE_SWITCHES_BEFORE_RESERVING;
use tidegate_core::invariants::{check, check_idle_store};
use tidegate_core::{
    Attempt, Completion, Finish, JobSpec, Store, StoreReader, Submission, TaskId, TaskState,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};

use super::harness::{claim_request, completion_of, set_limit_request, task, task_of_job};

const WORKERS: usize = 8;
const TASKS: usize = 2000;
const CAPACITIES: [(&str, u32); 3] = [("group:a", 1), ("group:b", 4), ("job:j", 4)];

async fn connect(database: &Database) -> Postgres {
    let options = Options { pool_size: 2, ..Options::default() };
    Postgres::connect(&database.url(), options).await.expect("connect")
}

/// Who runs under which limit, by what the tasks themselves say.
#[derive(Default)]
struct ObservedLimits {
    held: BTreeMap<String, u32>,
    held_max: BTreeMap<String, u32>,
    completed: u64,
}

impl ObservedLimits {
    fn on_start(&mut self, attempt: &Attempt) {
        for (name, weight) in attempt.required_limits() {
            if CAPACITIES.iter().any(|(limited, _)| *limited == name) {
                assert_eq!(attempt.held_slots_of(&name), weight, "slots of {name} of {attempt:?}");
            }
            let held = self.held.entry(name.clone()).or_default();
            *held += weight;
            let most = self.held_max.entry(name).or_default();
            *most = (*most).max(*held);
        }
    }

    fn on_end(&mut self, attempt: &Attempt) {
        for (name, weight) in attempt.required_limits() {
            *self.held.entry(name).or_default() -= weight;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_workers_under_limits_finish_every_task() {
    let database = Server::shared().database();
    let store = connect(&database).await;
    store.migrate().await.expect("migrate");
    store.set_limit(set_limit_request("group:a", Some(1))).await.expect("set");
    store.set_limit(set_limit_request("group:b", Some(4))).await.expect("set");
    let jobs = vec![JobSpec { concurrency: Some(4), ..JobSpec::new("j") }];
    store.submit(Submission { jobs, tasks: vec![], ..Submission::default() }).await.expect("job");
    // Some under one limit, some under two, some under none.
    let kinds = (0..TASKS).map(|i| match i % 10 {
        0 => task("a"),
        1 => task_of_job("a", "j"),
        2..5 => task("b"),
        5..7 => task_of_job("b", "j"),
        7 => task_of_job("free", "j"),
        _ => task("free"),
    });
    let tasks: Vec<_> = kinds.collect();
    for tasks in tasks.chunks(500) {
        let submission = Submission { tasks: tasks.to_vec(), ..Submission::default() };
        store.submit(submission).await.expect("submit");
    }
    let witness = Arc::new(Mutex::new(ObservedLimits::default()));
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        let (store, witness) = (connect(&database).await, witness.clone());
        workers.push(tokio::spawn(async move { work(number, store, witness).await }));
    }
    let mut conflicts = 0;
    for worker in workers {
        conflicts += worker.await.expect("a worker");
    }
    assert_eq!(conflicts, 0, "the server undid transactions");
    let snapshot = store.snapshot().await.expect("snapshot");
    assert_eq!(check_idle_store(&snapshot), []);
    let witness = witness.lock().expect("lock");
    assert_eq!(witness.completed, TASKS as u64);
    for (limit, capacity) in CAPACITIES {
        let most = witness.held_max.get(limit).copied().unwrap_or_default();
        assert!((1..=capacity).contains(&most), "{most} held of {limit}, which is {capacity}");
        println!("{limit}: {most} of {capacity}");
    }
}

/// Finishes and claims until every task is completed; returns the undone transactions.
async fn work(number: usize, store: Postgres, witness: Arc<Mutex<ObservedLimits>>) -> u64 {
    let wanted = claim_request(&format!("worker {number}"), 4);
    let mut running: Vec<Attempt> = Vec::new();
    loop {
        let exits: Vec<Completion> = running.iter().map(completion_of).collect();
        {
            let mut witness = witness.lock().expect("lock");
            running.iter().for_each(|attempt| witness.on_end(attempt));
            witness.completed += exits.len() as u64;
        }
        let finish = Finish { completions: exits, claim: Some(wanted.clone()) };
        let finished = store.finish(finish).await.expect("finish");
        assert_eq!(finished.lost_attempts, []);
        running = finished.claimed;
        {
            let mut witness = witness.lock().expect("lock");
            running.iter().for_each(|attempt| witness.on_start(attempt));
            if running.is_empty() && witness.completed == TASKS as u64 {
                return store.transaction_conflicts();
            }
        }
        // The handlers run, or there is nothing to run.
        let a_while = Duration::from_millis(if running.is_empty() { 20 } else { 2 });
        let _ = tokio::time::timeout(a_while, std::future::pending::<()>()).await;
    }
}

/// A task that needs two saturated limits starts within `2 (n + 1) (moves + 2)` finishes, `n`
/// being the capacity of each, while two workers finish on both sides at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_of_two_saturated_limits_is_admitted_within_bound() {
    let database = Server::shared().database();
    let (left, right) = (connect(&database).await, connect(&database).await);
    left.migrate().await.expect("migrate");
    let n = 2_u32;
    left.set_limit(set_limit_request("group:a", Some(n))).await.expect("set");
    let jobs = vec![JobSpec { concurrency: Some(n), ..JobSpec::new("j") }];
    let pairs = (0..2 * n).flat_map(|_| [task("a"), task_of_job("b", "j")]).collect();
    left.submit(Submission { jobs, tasks: pairs, ..Submission::default() }).await.expect("submit");
    let mut running = left.claim(claim_request("left", 99)).await.expect("claim");
    let tasks = vec![task_of_job("a", "j")];
    let wanted = left.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    let wanted: TaskId = wanted[0].task;
    let bound = 2 * (n + 1) * (QUEUE_SWITCHES_BEFORE_RESERVING + 2);
    let mut finishes = 0;
    while left.task(wanted).await.expect("task").expect("it").state != TaskState::Processing {
        assert!(finishes <= bound, "not admitted after {finishes} finishes");
        // Both lines stay long.
        let more = vec![task("a"), task_of_job("b", "j")];
        left.submit(Submission { tasks: more, ..Submission::default() }).await.expect("submit");
        let ends: Vec<Attempt> = running.drain(..running.len().min(2)).collect();
        finishes += ends.len() as u32;
        let finish = |attempt: Option<&Attempt>| Finish {
            completions: attempt.iter().map(|attempt| completion_of(attempt)).collect(),
            claim: Some(claim_request("both", 99)),
        };
        let (one, other) =
            tokio::join!(left.finish(finish(ends.first())), right.finish(finish(ends.get(1))));
        running.extend(one.expect("finish").claimed);
        running.extend(other.expect("finish").claimed);
    }
    println!("admitted after {finishes} finishes; the bound is {bound}");
    assert_eq!(check(&left.snapshot().await.expect("snapshot")), []);
    assert_eq!(left.transaction_conflicts() + right.transaction_conflicts(), 0);
}
