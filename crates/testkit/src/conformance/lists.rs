//! What people see of queues, workers, workflows and lines, and how long they are told to wait.

use std::collections::BTreeMap;

use tidegate_core::inspect::{JobLoad, Load, Reason, TaskFilter};
use tidegate_core::tables::Class;
use tidegate_core::{ErrorKind, Extend, NewTask, Pausable, Pause, Ran, State, TaskId, WorkerId};

use super::fixture::{Fixture, LEASE_MS, asks, ids, task, tasks};

async fn ran(fx: &Fixture, group: &str, tasks: u32, total_ms: i64) {
    let beat = Extend {
        worker: WorkerId("worker".into()),
        tokens: vec![],
        lease_ms: LEASE_MS,
        progress: vec![],
        ran: vec![Ran { group: group.into(), tasks, total_ms }],
        report: None,
    };
    fx.store.extend(beat).await.expect("extend");
}

pub async fn queues_show_their_tasks_and_workers(fx: &Fixture) {
    assert_eq!(fx.inspect.queues().await.expect("queues"), []);
    let on = |queue: &str| NewTask { queue: Some(queue.into()), ..task("a") };
    fx.submit_all(vec![on("z"), on("default"), on("default")]).await;
    let running = fx.claim_one().await;
    let queues = fx.inspect.queues().await.expect("queues");
    let names: Vec<_> = queues.iter().map(|queue| &*queue.name).collect();
    assert_eq!(names, ["default", "z"]);
    let wanted = BTreeMap::from([(State::Pending, 1), (State::Processing, 1)]);
    assert_eq!((&queues[0].tasks, queues[0].workers), (&wanted, 1));
    let wanted = BTreeMap::from([(State::Pending, 1)]);
    assert_eq!((&queues[1].tasks, queues[1].workers), (&wanted, 0));
    fx.advance(LEASE_MS);
    let queues = fx.inspect.queues().await.expect("queues");
    assert_eq!(queues[0].workers, 0, "its worker is gone");
    fx.reap().await;
    assert_ne!(running.task, TaskId(0));
}

pub async fn workers_show_what_they_serve_and_run(fx: &Fixture) {
    assert_eq!(fx.inspect.workers().await.expect("workers"), []);
    fx.submit_all(tasks("a", 3)).await;
    fx.submit_all(vec![task("b"), task("c")]).await;
    fx.claim_as(asks("two", &["b"], 0)).await;
    fx.claim_as(asks("one", &["a", "c", "unheard-of"], 2)).await;
    let workers = fx.inspect.workers().await.expect("workers");
    let [one, two] = &workers[..] else { panic!("{workers:?}") };
    assert_eq!((&*one.id.0, one.running), ("one", 2));
    assert_eq!((&*two.id.0, two.running), ("two", 0));
    assert_eq!(one.alive_until, fx.now() + LEASE_MS);
    let names = |names: &[std::sync::Arc<str>]| names.join(" ");
    assert_eq!((names(&one.queues), names(&one.kinds)), ("default".into(), "a c".into()));
    assert_eq!(names(&two.kinds), "b");
}

/// Who says goodbye is not waited for: it is neither listed nor thought to serve anything.
pub async fn a_worker_that_leaves_is_forgotten(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.claim_as(asks("worker", &["a"], 0)).await;
    fx.claim_as(asks("other", &["b"], 0)).await;
    let served = async || {
        let told = fx.explain(id).await.reason;
        matches!(told, Reason::Ready { is_served: true, .. })
    };
    assert!(served().await);
    let goodbye = Extend {
        worker: WorkerId("worker".into()),
        tokens: vec![],
        lease_ms: 0,
        progress: vec![],
        ran: vec![],
        report: None,
    };
    fx.store.extend(goodbye.clone()).await.expect("leave");
    fx.store.extend(goodbye.clone()).await.expect("leave again");
    assert!(!served().await);
    let left = fx.inspect.workers().await.expect("workers");
    assert!(left.iter().all(|worker| &*worker.id.0 != "worker"), "{left:?}");
    let running = fx.claim_as(asks("worker", &["a"], 1)).await;
    assert_eq!(ids(&running), [id], "it may come back");
    let with_leases = Extend { tokens: vec![running[0].token], ..goodbye };
    let refused = fx.store.extend(with_leases).await.expect_err("it cannot leave its leases");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

pub async fn workflows_show_their_steps(fx: &Fixture) {
    assert_eq!(fx.inspect.workflows().await.expect("workflows"), []);
    let step = |workflow: &str| NewTask { workflow: Some(workflow.into()), ..task("a") };
    fx.submit_all(vec![step("w"), step("w"), step("w"), step("v"), task("a")]).await;
    let running = fx.claim_one().await;
    fx.complete(&[running]).await;
    fx.admit().await;
    let workflows = fx.inspect.workflows().await.expect("workflows");
    let seen: Vec<_> = workflows.iter().map(|one| (&*one.name, one.tasks.clone())).collect();
    let w = BTreeMap::from([(State::Pending, 1), (State::Blocked, 1), (State::Completed, 1)]);
    assert_eq!(seen, [("v", BTreeMap::from([(State::Pending, 1)])), ("w", w)]);
}

pub async fn a_line_is_listed_in_its_order(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let stored = fx.submit_all(tasks("a", 4)).await;
    fx.claim(1).await;
    fx.advance(5);
    let limit = fx.limit("group:a").await;
    let waiters = |tasks_max| fx.inspect.waiters(limit.id, tasks_max);
    let line = waiters(9).await.expect("waiters");
    assert_eq!(line.iter().map(|one| one.task).collect::<Vec<_>>(), stored[1..]);
    let first = &line[0];
    assert_eq!((&*first.kind, &*first.queue, first.weight), ("a", "default", 1));
    assert_eq!((first.class, first.since), (Class::Waiting, fx.now() - 5));
    let line = waiters(2).await.expect("waiters");
    assert_eq!(line.iter().map(|one| one.task).collect::<Vec<_>>(), stored[1..3]);
    assert_eq!(waiters(0).await.expect("waiters"), []);
}

pub async fn the_load_says_what_waits(fx: &Fixture) {
    let load = async || fx.inspect.load().await.expect("load");
    let none = Load { now: fx.now(), ..Load::default() };
    assert_eq!(load().await, none);
    fx.set_limit("group:a", Some(1)).await;
    let step = || NewTask { workflow: Some("w".into()), ..task("b") };
    let far = NewTask { queue: Some("z".into()), ..task("b") };
    fx.submit_all(vec![task("a"), task("a"), task("a"), far, step(), step()]).await;
    let since = fx.now();
    assert_eq!(fx.claim_as(asks("w", &["a"], 1)).await.len(), 1);
    fx.advance(5);
    let limit = fx.limit("group:a").await.id;
    let first_waits = BTreeMap::from([(limit, since)]);
    let wanted = Load { ready: 2, first_waits, now: fx.now(), ..Load::default() };
    assert_eq!(load().await, wanted, "a step behind another is not counted");
    let pause = |paused| fx.store.pause(Pause { what: Pausable::Queue("z".into()), paused });
    assert!(pause(true).await.expect("pause"));
    assert_eq!(load().await.ready, 1, "a paused queue waits for nobody");
    assert!(pause(false).await.expect("resume"));
    fx.advance(LEASE_MS);
    assert_eq!(load().await.abandoned, 1);
    fx.reap().await;
    assert_eq!(load().await.abandoned, 0);
}

/// However few tasks it has: all of a small job are past its line.
pub async fn the_load_says_of_jobs_what_is_ready_and_what_runs(fx: &Fixture) {
    let load = async |job: &str| {
        let limit = fx.limit(&format!("job:{job}")).await.id;
        fx.inspect.load().await.expect("load").jobs.get(&limit).copied()
    };
    let of = |job: &str, kind: &str| NewTask { job: Some(job.into()), ..task(kind) };
    fx.submit_all(vec![task("a"), task("b")]).await;
    assert_eq!(fx.claim(9).await.len(), 2, "a worker serves both kinds");
    fx.submit_all(vec![of("small", "a"), of("small", "a")]).await;
    fx.admit().await;
    let first = fx.now();
    fx.advance(5);
    fx.set_limit("group:b", Some(0)).await;
    fx.submit_all(vec![of("small", "a"), of("elsewhere", "b")]).await;
    fx.admit().await;
    let ready = JobLoad { ready_since: Some(first), running: 0 };
    assert_eq!(load("small").await, Some(ready));
    assert_eq!(load("elsewhere").await, None, "it stands in the line of another limit");
    let running = fx.claim(2).await;
    assert_eq!(ids(&running).len(), 2);
    let one_left = JobLoad { ready_since: Some(first + 5), running: 2 };
    assert_eq!(load("small").await, Some(one_left));
    fx.claim(9).await;
    assert_eq!(load("small").await, Some(JobLoad { ready_since: None, running: 3 }));
    fx.complete(&running).await;
    assert_eq!(load("small").await, Some(JobLoad { ready_since: None, running: 1 }));
}

/// A task that is sent to the line was refused once, however long it stands there.
pub async fn refusals_are_counted(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    fx.submit_all(tasks("a", 5)).await;
    let running = fx.claim(2).await;
    fx.claim(9).await;
    fx.admit().await;
    assert_eq!(fx.limit("group:a").await.refused, 3);
    fx.complete(&running).await;
    assert_eq!(fx.limit("group:a").await.refused, 3);
    fx.set_limit("group:a", Some(9)).await;
    fx.work_off().await;
    assert_eq!(fx.limit("group:a").await.refused, 3, "it outlives the line");
}

pub async fn tasks_are_filtered_by_group(fx: &Fixture) {
    let of = |kind: &str, group: &str| NewTask { group: Some(group.into()), ..task(kind) };
    let stored = fx.submit_all(vec![task("a"), of("b", "a"), of("a", "b"), task("b")]).await;
    let list = async |group: &str| {
        let filter =
            TaskFilter { group: Some(group.into()), tasks_max: 9, ..TaskFilter::default() };
        let found = fx.inspect.tasks(filter).await.expect("tasks");
        found.iter().map(|view| view.id).collect::<Vec<_>>()
    };
    assert_eq!(list("a").await, stored[..2], "a task without a group has its kind's");
    assert_eq!(list("b").await, stored[2..]);
    assert_eq!(list("c").await, []);
    fx.work_off().await;
    assert_eq!(list("a").await, stored[..2], "also when they have ended");
}

/// Two run at once, a task takes a second: the line moves on every half second.
pub async fn the_wait_is_estimated_from_run_times_and_place(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let stored = fx.submit_all(tasks("a", 5)).await;
    assert_eq!(fx.claim(9).await.len(), 2);
    assert_eq!(fx.explain(stored[4]).await.estimate_ms, None, "nothing is known yet");
    ran(fx, "a", 3, 2000).await;
    ran(fx, "a", 1, 2000).await;
    ran(fx, "other", 5, 500_000).await;
    assert_eq!(fx.explain(stored[0]).await.estimate_ms, None, "it runs");
    for (task, wanted) in [(2, 500), (3, 1000), (4, 1500)] {
        assert_eq!(fx.explain(stored[task]).await.estimate_ms, Some(wanted));
    }
    fx.set_limit("group:a", Some(0)).await;
    assert_eq!(fx.explain(stored[4]).await.estimate_ms, None, "its limit is paused");
}

pub async fn run_times_are_forgotten_in_time(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let stored = fx.submit_all(tasks("a", 2)).await;
    assert_eq!(ids(&fx.claim(9).await), stored[..1]);
    ran(fx, "a", 1, 1000).await;
    assert_eq!(fx.explain(stored[1]).await.estimate_ms, Some(1000));
    fx.store.prune().await.expect("prune");
    assert_eq!(fx.explain(stored[1]).await.estimate_ms, Some(1000));
    fx.advance(8 * 86_400_000);
    fx.store.prune().await.expect("prune");
    assert_eq!(fx.explain(stored[1]).await.estimate_ms, None);
}

/// A sound store has nothing to mend, whatever stands in it.
pub async fn a_repair_leaves_what_is_sound(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let of = |job: &str| NewTask { job: Some(job.into()), ..task("a") };
    let keyed = NewTask { unique_key: Some("k".into()), ..task("a") };
    let late = NewTask { run_at: Some(fx.now() + 9), ..task("b") };
    let step = NewTask { workflow: Some("w".into()), ..task("b") };
    let heavy = NewTask { weight: 2, ..task("a") };
    fx.submit_all(vec![of("j"), keyed, late, step.clone(), step, heavy, task("a")]).await;
    fx.claim(2).await;
    let before = fx.snapshot().await;
    assert_eq!(fx.store.repair().await.expect("repair"), []);
    assert_eq!(fx.snapshot().await, before);
}
