//! Real races: many workers over several handles, and over several processes, with nobody to
//! repair what they leave behind. Whatever is started must finish.

pub mod concurrent_workers;
pub mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tidegate_core::reader::TaskFilter;
use tidegate_core::{CapacitySource, NewTask, SetLimit, Store, Submission, TaskId, TaskState};

use super::fixture::{Fixture, Handle, claim_request, job, settle, task};
use concurrent_workers::ConcurrentWorkers;

/// Handles on one store, each with connections of its own where the store has connections.
const HANDLES: usize = 3;

async fn handles(fx: &Fixture) -> Vec<Handle> {
    let mut handles = Vec::new();
    for _ in 0..HANDLES {
        handles.push(fx.backend().open(Arc::new(tidegate_store::clock::system_now)).await);
    }
    handles
}

/// So many tasks of kinds that stand under limits of 1 and 4, under weights, and under none.
fn mixed_tasks(number: usize) -> Vec<NewTask> {
    let of = |i: usize| match i % 6 {
        0 => task("one"),
        1 | 2 => task("four"),
        3 | 4 => NewTask { weight: 1 + (i as u32 / 6) % 3, ..task("heavy") },
        _ => task("free"),
    };
    (0..number).map(of).collect()
}

async fn set_mixed_limits(fx: &Fixture) {
    for (name, capacity) in [("group:one", 1), ("group:four", 4), ("group:heavy", 5)] {
        fx.set_limit(name, Some(capacity)).await;
    }
}

/// Limits of 1 and 4, weights, retries and releases; tasks come while others run.
pub async fn limits_are_exact_with_many_workers(fx: &Fixture) {
    set_mixed_limits(fx).await;
    let contest = ConcurrentWorkers::new(&["one", "four", "heavy", "free"])
        .with_limit("group:one", 1)
        .with_limit("group:four", 4)
        .with_limit("group:heavy", 5);
    let handles = handles(fx).await;
    let submitted = contest.submit_over_handles(&handles, mixed_tasks(240), 20);
    contest.work(&handles, 4).await;
    assert_eq!(submitted.await.expect("the submitter"), 240);
    contest.assert_all_done(240);
    fx.check_at_rest().await;
}

/// Two finishers whose next in line need each other's limit: nobody waits for ever and no
/// limit is exceeded.
pub async fn crossing_limits_do_not_deadlock(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    fx.set_limit("group:b", Some(1)).await;
    let mut contest =
        ConcurrentWorkers::new(&["a", "b", "c"]).with_limit("group:a", 2).with_limit("group:b", 1);
    for (name, capacity) in [("i", 1), ("j", 2)] {
        fx.job(job(name, Some(capacity))).await;
        contest = contest.with_limit(&format!("job:{name}"), capacity as i64);
    }
    let of = |i: usize| NewTask {
        job: [None, Some("i"), Some("j")][i % 3].map(str::to_owned),
        ..task(["a", "b", "c", "a", "b"][i % 5])
    };
    let handles = handles(fx).await;
    let submitted = contest.submit_over_handles(&handles, (0..150).map(of).collect(), 10);
    contest.work(&handles, 3).await;
    submitted.await.expect("the submitter");
    contest.assert_all_done(150);
    fx.check_at_rest().await;
}

/// Invariant 4: step k+1 starts after step k is finished for good, across all workers.
pub async fn workflow_order_holds_with_many_workers(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    let contest = ConcurrentWorkers::new(&["a", "b"]).with_limit("group:a", 3).with_workflows();
    let of = |i: usize| NewTask {
        workflow: Some(format!("w{}", i % 7)),
        ..task(if i.is_multiple_of(2) { "a" } else { "b" })
    };
    let handles = handles(fx).await;
    let submitted = contest.submit_over_handles(&handles[..1], (0..140).map(of).collect(), 10);
    contest.work(&handles, 4).await;
    submitted.await.expect("the submitter");
    contest.assert_all_done(140);
    fx.check_at_rest().await;
}

/// A limit that is changed all the time, set and unset while tasks come and go.
pub async fn limit_changed_under_load_leaks_no_slots(fx: &Fixture) {
    let contest = ConcurrentWorkers::new(&["a"]).with_limit("group:none", 1);
    let handles = handles(fx).await;
    let submitted = contest.submit_over_handles(&handles, vec![task("a"); 200], 10);
    let stop = Arc::new(AtomicBool::new(false));
    let operator = tokio::spawn(change_limits(handles[0].store.clone(), stop.clone()));
    contest.work(&handles, 4).await;
    submitted.await.expect("the submitter");
    stop.store(true, Ordering::SeqCst);
    operator.await.expect("the operator");
    contest.assert_all_done(200);
    fx.check_at_rest().await;
}

async fn change_limits(store: Arc<dyn Store>, stop: Arc<AtomicBool>) {
    for capacity in [Some(1), Some(3), None, Some(2), None].into_iter().cycle() {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let set = SetLimit { name: "group:a".into(), capacity, source: CapacitySource::Operator };
        store.set_limit(set).await.expect("set_limit");
        if capacity.is_none() {
            store.prune().await.expect("prune");
        }
        tokio::task::yield_now().await;
    }
}

/// A cancel races with the claim, the run and the end of a task: it ends once.
pub async fn cancel_racing_with_workers_finishes_each_task_once(fx: &Fixture) {
    set_mixed_limits(fx).await;
    let contest = ConcurrentWorkers::new(&["one", "four", "heavy", "free"])
        .with_limit("group:one", 1)
        .with_limit("group:four", 4)
        .with_limit("group:heavy", 5);
    let handles = handles(fx).await;
    let all = fx.submit_all(mixed_tasks(180)).await;
    contest.expect_tasks(&all);
    let doomed: Vec<TaskId> = all.iter().copied().step_by(3).collect();
    let canceller = handles[1].store.clone();
    let cancels = tokio::spawn(async move {
        for chunk in doomed.chunks(5).rev() {
            canceller.cancel(chunk.to_vec()).await.expect("cancel");
        }
    });
    contest.work_until_rest(&handles, 4).await;
    cancels.await.expect("the canceller");
    contest.work_until_rest(&handles, 4).await;
    let counts = fx.reader.task_counts().await.expect("counts");
    let ended = |state| counts.get(&state).copied().unwrap_or_default();
    assert_eq!(ended(TaskState::Completed), contest.completed_count());
    assert_eq!(ended(TaskState::Completed) + ended(TaskState::Cancelled), 180);
    fx.check_at_rest().await;
}

/// Of many submits of one key at once exactly one stores a task, and all name the same one.
pub async fn concurrent_submits_of_one_key_store_one_task(fx: &Fixture) {
    let handles = handles(fx).await;
    for round in 0..10 {
        let new = Arc::new(AtomicU32::new(0));
        let mut submits = Vec::new();
        for i in 0..12 {
            let (store, new) = (handles[i % HANDLES].store.clone(), new.clone());
            let keyed = NewTask { unique_key: Some(format!("key {round}")), ..task("a") };
            submits.push(tokio::spawn(async move {
                let tasks = vec![keyed];
                let stored =
                    store.submit(Submission { jobs: vec![], tasks, ..Submission::default() }).await;
                let stored = stored.expect("submit")[0];
                new.fetch_add(u32::from(stored.is_new), Ordering::SeqCst);
                stored.task
            }));
        }
        let mut named = Vec::new();
        for submit in submits {
            named.push(submit.await.expect("a submit"));
        }
        named.dedup();
        assert_eq!((named.len(), new.load(Ordering::SeqCst)), (1, 1));
    }
}

/// A submit that commits around the moment a limit is set is held by it all the same.
pub async fn limit_set_during_submit_is_exact(fx: &Fixture) {
    let handles = handles(fx).await;
    for round in 0..12 {
        let kind = format!("kind {round}");
        let (submitter, setter) = (handles[0].store.clone(), handles[1].store.clone());
        let tasks = vec![task(&kind); 20];
        let submit = tokio::spawn(async move {
            submitter.submit(Submission { jobs: vec![], tasks, ..Submission::default() }).await
        });
        let name = format!("group:{kind}");
        let set =
            SetLimit { name: name.clone(), capacity: Some(2), source: CapacitySource::Operator };
        let set = tokio::spawn(async move { setter.set_limit(set).await });
        submit.await.expect("a task").expect("submit");
        set.await.expect("a task").expect("set_limit");
        let store = &handles[2].store;
        store.claim(claim_request("w", &[&kind], 0)).await.expect("claim");
        settle(&**store).await;
        let claimed = store.claim(claim_request("w", &[&kind], 99)).await.expect("claim");
        assert_eq!(claimed.len(), 2, "round {round}");
        assert_eq!(fx.limit(&name).await.held, 2);
    }
}

/// Workers that vanish with their tasks, and come back late to report: each task is accepted
/// once, and no slot is left behind.
pub async fn late_completion_of_crashed_worker_changes_nothing(fx: &Fixture) {
    set_mixed_limits(fx).await;
    let contest = ConcurrentWorkers::new(&["one", "four", "heavy", "free"]).with_crashes();
    let handles = handles(fx).await;
    let all = fx.submit_all(mixed_tasks(60)).await;
    contest.expect_tasks(&all);
    let stop = Arc::new(AtomicBool::new(false));
    let reaper = tokio::spawn(reap_until(fx.clock.clone(), handles[0].store.clone(), stop.clone()));
    contest.work_until_rest(&handles, 3).await;
    stop.store(true, Ordering::SeqCst);
    reaper.await.expect("the reaper");
    let completed =
        TaskFilter { states: vec![TaskState::Completed], tasks_max: 1000, ..TaskFilter::default() };
    let completed = fx.reader.tasks(completed).await.expect("tasks").len() as u64;
    assert_eq!(completed, contest.completed_count(), "each accepted report is one completion");
    fx.check_at_rest().await;
}

async fn reap_until(clock: super::ManualClock, store: Arc<dyn Store>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::SeqCst) {
        // For stores that have no other clock; the others read the system's.
        clock.advance(10);
        store.reap().await.expect("reap");
        concurrent_workers::pause().await;
    }
}

/// Several processes work off one store; see [`processes`].
pub async fn limits_are_exact_across_processes(fx: &Fixture) {
    processes::run_processes(fx).await;
}
