//! Many workers at once, nothing held: what an interleaving of two cannot show.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::bounds::MOVES_BEFORE_RESERVING;
use tidegate_core::check::{check, check_at_rest};
use tidegate_core::{Attempt, Exit, Finish, Inspect, JobSpec, State, Store, Submission, TaskId};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};

use super::lab::{claim, exit, of_job, set, task};

const WORKERS: usize = 8;
const TASKS: usize = 2000;
const CAPACITIES: [(&str, u32); 3] = [("group:a", 1), ("group:b", 4), ("job:j", 4)];

async fn connect(database: &Database) -> Postgres {
    let options = Options { pool_size: 2, ..Options::default() };
    Postgres::connect(&database.url(), options).await.expect("connect")
}

/// Who runs under which limit, by what the tasks themselves say.
#[derive(Default)]
struct Witness {
    held: BTreeMap<String, u32>,
    most: BTreeMap<String, u32>,
    completed: u64,
}

impl Witness {
    fn enter(&mut self, attempt: &Attempt) {
        for (name, weight) in attempt.needs() {
            if CAPACITIES.iter().any(|(limited, _)| *limited == name) {
                assert_eq!(attempt.held_of(&name), weight, "slots of {name} of {attempt:?}");
            }
            let held = self.held.entry(name.clone()).or_default();
            *held += weight;
            let most = self.most.entry(name).or_default();
            *most = (*most).max(*held);
        }
    }

    fn leave(&mut self, attempt: &Attempt) {
        for (name, weight) in attempt.needs() {
            *self.held.entry(name).or_default() -= weight;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_finish_two_thousand_limited_tasks() {
    let database = Server::shared().database();
    let store = connect(&database).await;
    store.migrate().await.expect("migrate");
    store.set_limit(set("group:a", Some(1))).await.expect("set");
    store.set_limit(set("group:b", Some(4))).await.expect("set");
    let jobs = vec![JobSpec { concurrency: Some(4), ..JobSpec::new("j") }];
    store.submit(Submission { jobs, tasks: vec![], ..Submission::default() }).await.expect("job");
    // Some under one limit, some under two, some under none.
    let kinds = (0..TASKS).map(|i| match i % 10 {
        0 => task("a"),
        1 => of_job("a", "j"),
        2..5 => task("b"),
        5..7 => of_job("b", "j"),
        7 => of_job("free", "j"),
        _ => task("free"),
    });
    let tasks: Vec<_> = kinds.collect();
    for tasks in tasks.chunks(500) {
        let submission = Submission { tasks: tasks.to_vec(), ..Submission::default() };
        store.submit(submission).await.expect("submit");
    }
    let witness = Arc::new(Mutex::new(Witness::default()));
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
    assert_eq!(check_at_rest(&snapshot), []);
    let witness = witness.lock().expect("lock");
    assert_eq!(witness.completed, TASKS as u64);
    for (limit, capacity) in CAPACITIES {
        let most = witness.most.get(limit).copied().unwrap_or_default();
        assert!((1..=capacity).contains(&most), "{most} held of {limit}, which is {capacity}");
        println!("{limit}: {most} of {capacity}");
    }
}

/// Finishes and claims until every task is completed; returns the undone transactions.
async fn work(number: usize, store: Postgres, witness: Arc<Mutex<Witness>>) -> u64 {
    let wanted = claim(&format!("worker {number}"), 4);
    let mut running: Vec<Attempt> = Vec::new();
    loop {
        let exits: Vec<Exit> = running.iter().map(exit).collect();
        {
            let mut witness = witness.lock().expect("lock");
            running.iter().for_each(|attempt| witness.leave(attempt));
            witness.completed += exits.len() as u64;
        }
        let finish = Finish { exits, claim: Some(wanted.clone()) };
        let finished = store.finish(finish).await.expect("finish");
        assert_eq!(finished.lost, []);
        running = finished.claimed;
        {
            let mut witness = witness.lock().expect("lock");
            running.iter().for_each(|attempt| witness.enter(attempt));
            if running.is_empty() && witness.completed == TASKS as u64 {
                return store.conflicts();
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
async fn a_task_of_two_saturated_limits_is_admitted_in_time() {
    let database = Server::shared().database();
    let (left, right) = (connect(&database).await, connect(&database).await);
    left.migrate().await.expect("migrate");
    let n = 2_u32;
    left.set_limit(set("group:a", Some(n))).await.expect("set");
    let jobs = vec![JobSpec { concurrency: Some(n), ..JobSpec::new("j") }];
    let pairs = (0..2 * n).flat_map(|_| [task("a"), of_job("b", "j")]).collect();
    left.submit(Submission { jobs, tasks: pairs, ..Submission::default() }).await.expect("submit");
    let mut running = left.claim(claim("left", 99)).await.expect("claim");
    let tasks = vec![of_job("a", "j")];
    let wanted = left.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    let wanted: TaskId = wanted[0].task;
    let bound = 2 * (n + 1) * (MOVES_BEFORE_RESERVING + 2);
    let mut finishes = 0;
    while left.task(wanted).await.expect("task").expect("it").state != State::Processing {
        assert!(finishes <= bound, "not admitted after {finishes} finishes");
        // Both lines stay long.
        let more = vec![task("a"), of_job("b", "j")];
        left.submit(Submission { tasks: more, ..Submission::default() }).await.expect("submit");
        let ends: Vec<Attempt> = running.drain(..running.len().min(2)).collect();
        finishes += ends.len() as u32;
        let finish = |attempt: Option<&Attempt>| Finish {
            exits: attempt.iter().map(|attempt| exit(attempt)).collect(),
            claim: Some(claim("both", 99)),
        };
        let (one, other) =
            tokio::join!(left.finish(finish(ends.first())), right.finish(finish(ends.get(1))));
        running.extend(one.expect("finish").claimed);
        running.extend(other.expect("finish").claimed);
    }
    println!("admitted after {finishes} finishes; the bound is {bound}");
    assert_eq!(check(&left.snapshot().await.expect("snapshot")), []);
    assert_eq!(left.conflicts() + right.conflicts(), 0);
}
