//! Real races: many workers over several handles, and over several processes, with nobody to
//! repair what they leave behind. Whatever is started must finish.

pub mod contest;
pub mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tidegate_core::inspect::TaskFilter;
use tidegate_core::{NewTask, SetLimit, Source, State, Store, Submission, TaskId};

use super::fixture::{Fixture, Handle, asks, job, settle, task};
use contest::Contest;

/// Handles on one store, each with connections of its own where the store has connections.
const HANDLES: usize = 3;

async fn handles(fx: &Fixture) -> Vec<Handle> {
    let mut handles = Vec::new();
    for _ in 0..HANDLES {
        handles.push(fx.backend().open(Arc::new(tidegate_store::clock::system)).await);
    }
    handles
}

/// So many tasks of kinds that stand under limits of 1 and 4, under weights, and under none.
fn mixed(number: usize) -> Vec<NewTask> {
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
pub async fn limits_hold_under_many_workers(fx: &Fixture) {
    set_mixed_limits(fx).await;
    let contest = Contest::new(&["one", "four", "heavy", "free"])
        .limit("group:one", 1)
        .limit("group:four", 4)
        .limit("group:heavy", 5);
    let handles = handles(fx).await;
    let submitted = contest.submit_in_turns(&handles, mixed(240), 20);
    contest.work(&handles, 4).await;
    assert_eq!(submitted.await.expect("the submitter"), 240);
    contest.assert_all_done(240);
    fx.check_at_rest().await;
}

/// Two finishers whose next in line need each other's limit: nobody waits for ever and no
/// limit is exceeded.
pub async fn crossing_limits_do_not_lock_up(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    fx.set_limit("group:b", Some(1)).await;
    let mut contest = Contest::new(&["a", "b", "c"]).limit("group:a", 2).limit("group:b", 1);
    for (name, capacity) in [("i", 1), ("j", 2)] {
        fx.job(job(name, Some(capacity))).await;
        contest = contest.limit(&format!("job:{name}"), capacity as i64);
    }
    let of = |i: usize| NewTask {
        job: [None, Some("i"), Some("j")][i % 3].map(str::to_owned),
        ..task(["a", "b", "c", "a", "b"][i % 5])
    };
    let handles = handles(fx).await;
    let submitted = contest.submit_in_turns(&handles, (0..150).map(of).collect(), 10);
    contest.work(&handles, 3).await;
    submitted.await.expect("the submitter");
    contest.assert_all_done(150);
    fx.check_at_rest().await;
}

/// Invariant 4: step k+1 starts after step k is finished for good, across all workers.
pub async fn workflows_keep_their_order(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    let contest = Contest::new(&["a", "b"]).limit("group:a", 3).workflows();
    let of = |i: usize| NewTask {
        workflow: Some(format!("w{}", i % 7)),
        ..task(if i.is_multiple_of(2) { "a" } else { "b" })
    };
    let handles = handles(fx).await;
    let submitted = contest.submit_in_turns(&handles[..1], (0..140).map(of).collect(), 10);
    contest.work(&handles, 4).await;
    submitted.await.expect("the submitter");
    contest.assert_all_done(140);
    fx.check_at_rest().await;
}

/// A limit that is changed all the time, set and unset while tasks come and go.
pub async fn a_limit_changed_while_busy_leaves_nothing_behind(fx: &Fixture) {
    let contest = Contest::new(&["a"]).limit("group:none", 1);
    let handles = handles(fx).await;
    let submitted = contest.submit_in_turns(&handles, vec![task("a"); 200], 10);
    let stop = Arc::new(AtomicBool::new(false));
    let operator = tokio::spawn(operate(handles[0].store.clone(), stop.clone()));
    contest.work(&handles, 4).await;
    submitted.await.expect("the submitter");
    stop.store(true, Ordering::SeqCst);
    operator.await.expect("the operator");
    contest.assert_all_done(200);
    fx.check_at_rest().await;
}

async fn operate(store: Arc<dyn Store>, stop: Arc<AtomicBool>) {
    for capacity in [Some(1), Some(3), None, Some(2), None].into_iter().cycle() {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let set = SetLimit { name: "group:a".into(), capacity, source: Source::Operator };
        store.set_limit(set).await.expect("set_limit");
        if capacity.is_none() {
            store.prune().await.expect("prune");
        }
        tokio::task::yield_now().await;
    }
}

/// A cancel races with the claim, the run and the end of a task: it ends once.
pub async fn cancels_race_with_workers(fx: &Fixture) {
    set_mixed_limits(fx).await;
    let contest = Contest::new(&["one", "four", "heavy", "free"])
        .limit("group:one", 1)
        .limit("group:four", 4)
        .limit("group:heavy", 5);
    let handles = handles(fx).await;
    let all = fx.submit_all(mixed(180)).await;
    contest.expect(&all);
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
    let counts = fx.inspect.counts().await.expect("counts");
    let ended = |state| counts.get(&state).copied().unwrap_or_default();
    assert_eq!(ended(State::Completed), contest.completed());
    assert_eq!(ended(State::Completed) + ended(State::Cancelled), 180);
    fx.check_at_rest().await;
}

/// Of many submits of one key at once exactly one stores a task, and all name the same one.
pub async fn a_unique_key_is_stored_once(fx: &Fixture) {
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
pub async fn a_limit_set_during_a_submit_holds(fx: &Fixture) {
    let handles = handles(fx).await;
    for round in 0..12 {
        let kind = format!("kind {round}");
        let (submitter, setter) = (handles[0].store.clone(), handles[1].store.clone());
        let tasks = vec![task(&kind); 20];
        let submit = tokio::spawn(async move {
            submitter.submit(Submission { jobs: vec![], tasks, ..Submission::default() }).await
        });
        let name = format!("group:{kind}");
        let set = SetLimit { name: name.clone(), capacity: Some(2), source: Source::Operator };
        let set = tokio::spawn(async move { setter.set_limit(set).await });
        submit.await.expect("a task").expect("submit");
        set.await.expect("a task").expect("set_limit");
        let store = &handles[2].store;
        store.claim(asks("w", &[&kind], 0)).await.expect("claim");
        settle(&**store).await;
        let claimed = store.claim(asks("w", &[&kind], 99)).await.expect("claim");
        assert_eq!(claimed.len(), 2, "round {round}");
        assert_eq!(fx.limit(&name).await.held, 2);
    }
}

/// Workers that vanish with their tasks, and come back late to report: each task is accepted
/// once, and no slot is left behind.
pub async fn late_workers_change_nothing(fx: &Fixture) {
    set_mixed_limits(fx).await;
    let contest = Contest::new(&["one", "four", "heavy", "free"]).forgetful();
    let handles = handles(fx).await;
    let all = fx.submit_all(mixed(60)).await;
    contest.expect(&all);
    let stop = Arc::new(AtomicBool::new(false));
    let reaper = tokio::spawn(reap(fx.clock.clone(), handles[0].store.clone(), stop.clone()));
    contest.work_until_rest(&handles, 3).await;
    stop.store(true, Ordering::SeqCst);
    reaper.await.expect("the reaper");
    let completed =
        TaskFilter { states: vec![State::Completed], tasks_max: 1000, ..TaskFilter::default() };
    let completed = fx.inspect.tasks(completed).await.expect("tasks").len() as u64;
    assert_eq!(completed, contest.completed(), "each accepted report is one completion");
    fx.check_at_rest().await;
}

async fn reap(clock: super::ManualClock, store: Arc<dyn Store>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::SeqCst) {
        // For stores that have no other clock; the others read the system's.
        clock.advance(10);
        store.reap().await.expect("reap");
        contest::pause().await;
    }
}

/// Several processes work off one store; see [`processes`].
pub async fn many_processes_share_one_store(fx: &Fixture) {
    processes::race(fx).await;
}
