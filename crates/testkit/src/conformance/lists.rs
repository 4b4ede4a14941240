//! What people see of queues, workers, workflows and lines, and how long they are told to wait.

use std::collections::BTreeMap;

use tidegate_core::reader::{JobLoad, NotRunningReason, StoreLoad, TaskFilter};
use tidegate_core::tables::WaitReason;
use tidegate_core::{
    ErrorKind, Heartbeat, NewTask, PauseTarget, RunTimeSample, SetPaused, TaskId, TaskState,
    WorkerId,
};

use super::fixture::{Fixture, LEASE_MS, claim_request, task, task_ids, tasks};

async fn report_run_times(fx: &Fixture, group: &str, tasks: u32, total_ms: i64) {
    let beat = Heartbeat {
        worker: WorkerId("worker".into()),
        tokens: vec![],
        lease_ms: LEASE_MS,
        progress: vec![],
        run_times: vec![RunTimeSample { group: group.into(), tasks, total_ms }],
        report: None,
    };
    fx.store.heartbeat(beat).await.expect("heartbeat");
}

pub async fn queue_list_shows_tasks_and_workers(fx: &Fixture) {
    assert_eq!(fx.reader.queues().await.expect("queues"), []);
    let on = |queue: &str| NewTask { queue: Some(queue.into()), ..task("a") };
    fx.submit_all(vec![on("z"), on("default"), on("default")]).await;
    let running = fx.claim_one().await;
    let queues = fx.reader.queues().await.expect("queues");
    let names: Vec<_> = queues.iter().map(|queue| &*queue.name).collect();
    assert_eq!(names, ["default", "z"]);
    let wanted = BTreeMap::from([(TaskState::Pending, 1), (TaskState::Processing, 1)]);
    assert_eq!((&queues[0].tasks, queues[0].workers), (&wanted, 1));
    let wanted = BTreeMap::from([(TaskState::Pending, 1)]);
    assert_eq!((&queues[1].tasks, queues[1].workers), (&wanted, 0));
    fx.advance(LEASE_MS);
    let queues = fx.reader.queues().await.expect("queues");
    assert_eq!(queues[0].workers, 0, "its worker is gone");
    fx.reap().await;
    assert_ne!(running.task, TaskId(0));
}

pub async fn worker_list_shows_served_kinds_and_running_tasks(fx: &Fixture) {
    assert_eq!(fx.reader.workers().await.expect("workers"), []);
    fx.submit_all(tasks("a", 3)).await;
    fx.submit_all(vec![task("b"), task("c")]).await;
    fx.claim_as(claim_request("two", &["b"], 0)).await;
    fx.claim_as(claim_request("one", &["a", "c", "unheard-of"], 2)).await;
    let workers = fx.reader.workers().await.expect("workers");
    let [one, two] = &workers[..] else { panic!("{workers:?}") };
    assert_eq!((&*one.id.0, one.running), ("one", 2));
    assert_eq!((&*two.id.0, two.running), ("two", 0));
    assert_eq!(one.alive_until, fx.now() + LEASE_MS);
    let names = |names: &[std::sync::Arc<str>]| names.join(" ");
    assert_eq!((names(&one.queues), names(&one.kinds)), ("default".into(), "a c".into()));
    assert_eq!(names(&two.kinds), "b");
}

/// Who says goodbye is not waited for: it is neither listed nor thought to serve anything.
pub async fn deregistered_worker_is_not_listed(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.claim_as(claim_request("worker", &["a"], 0)).await;
    fx.claim_as(claim_request("other", &["b"], 0)).await;
    let served = async || {
        let told = fx.explain(id).await.reason;
        matches!(told, NotRunningReason::Ready { is_served: true, .. })
    };
    assert!(served().await);
    let goodbye = Heartbeat {
        worker: WorkerId("worker".into()),
        tokens: vec![],
        lease_ms: 0,
        progress: vec![],
        run_times: vec![],
        report: None,
    };
    fx.store.heartbeat(goodbye.clone()).await.expect("leave");
    fx.store.heartbeat(goodbye.clone()).await.expect("leave again");
    assert!(!served().await);
    let left = fx.reader.workers().await.expect("workers");
    assert!(left.iter().all(|worker| &*worker.id.0 != "worker"), "{left:?}");
    let running = fx.claim_as(claim_request("worker", &["a"], 1)).await;
    assert_eq!(task_ids(&running), [id], "it may come back");
    let with_leases = Heartbeat { tokens: vec![running[0].token], ..goodbye };
    let refused = fx.store.heartbeat(with_leases).await.expect_err("it cannot leave its leases");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

pub async fn workflow_list_counts_steps_by_state(fx: &Fixture) {
    assert_eq!(fx.reader.workflows().await.expect("workflows"), []);
    let step = |workflow: &str| NewTask { workflow: Some(workflow.into()), ..task("a") };
    fx.submit_all(vec![step("w"), step("w"), step("w"), step("v"), task("a")]).await;
    let running = fx.claim_one().await;
    fx.complete(&[running]).await;
    fx.admit().await;
    let workflows = fx.reader.workflows().await.expect("workflows");
    let seen: Vec<_> = workflows.iter().map(|one| (&*one.name, one.tasks.clone())).collect();
    let w = BTreeMap::from([
        (TaskState::Pending, 1),
        (TaskState::Blocked, 1),
        (TaskState::Completed, 1),
    ]);
    assert_eq!(seen, [("v", BTreeMap::from([(TaskState::Pending, 1)])), ("w", w)]);
}

pub async fn waiter_list_is_in_wait_queue_order(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let stored = fx.submit_all(tasks("a", 4)).await;
    fx.claim(1).await;
    fx.advance(5);
    let limit = fx.limit("group:a").await;
    let waiters = |tasks_max| fx.reader.waiters(limit.id, tasks_max);
    let line = waiters(9).await.expect("waiters");
    assert_eq!(line.iter().map(|one| one.task).collect::<Vec<_>>(), stored[1..]);
    let first = &line[0];
    assert_eq!((&*first.kind, &*first.queue, first.weight), ("a", "default", 1));
    assert_eq!((first.wait_reason, first.due_at), (WaitReason::Queued, fx.now() - 5));
    let line = waiters(2).await.expect("waiters");
    assert_eq!(line.iter().map(|one| one.task).collect::<Vec<_>>(), stored[1..3]);
    assert_eq!(waiters(0).await.expect("waiters"), []);
}

pub async fn load_shows_ready_waiting_and_abandoned_tasks(fx: &Fixture) {
    let load = async || fx.reader.store_load().await.expect("load");
    let none = StoreLoad { now: fx.now(), ..StoreLoad::default() };
    assert_eq!(load().await, none);
    fx.set_limit("group:a", Some(1)).await;
    let step = || NewTask { workflow: Some("w".into()), ..task("b") };
    let far = NewTask { queue: Some("z".into()), ..task("b") };
    fx.submit_all(vec![task("a"), task("a"), task("a"), far, step(), step()]).await;
    let since = fx.now();
    assert_eq!(fx.claim_as(claim_request("w", &["a"], 1)).await.len(), 1);
    fx.advance(5);
    let limit = fx.limit("group:a").await.id;
    let first_waits = BTreeMap::from([(limit, since)]);
    let wanted = StoreLoad {
        ready_tasks: 2,
        first_waiter_due_at: first_waits,
        now: fx.now(),
        ..StoreLoad::default()
    };
    assert_eq!(load().await, wanted, "a step behind another is not counted");
    let pause =
        |paused| fx.store.set_paused(SetPaused { target: PauseTarget::Queue("z".into()), paused });
    assert!(pause(true).await.expect("pause"));
    assert_eq!(load().await.ready_tasks, 1, "a paused queue waits for nobody");
    assert!(pause(false).await.expect("resume"));
    fx.advance(LEASE_MS);
    assert_eq!(load().await.abandoned_leases, 1);
    fx.reap().await;
    assert_eq!(load().await.abandoned_leases, 0);
}

/// However few tasks it has: all of a small job are past its line.
pub async fn load_shows_ready_and_running_tasks_of_jobs(fx: &Fixture) {
    let load = async |job: &str| {
        let limit = fx.limit(&format!("job:{job}")).await.id;
        fx.reader.store_load().await.expect("load").jobs.get(&limit).copied()
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
    let ready = JobLoad { first_ready_at: Some(first), running_tasks: 0 };
    assert_eq!(load("small").await, Some(ready));
    assert_eq!(load("elsewhere").await, None, "it stands in the line of another limit");
    let running = fx.claim(2).await;
    assert_eq!(task_ids(&running).len(), 2);
    let one_left = JobLoad { first_ready_at: Some(first + 5), running_tasks: 2 };
    assert_eq!(load("small").await, Some(one_left));
    fx.claim(9).await;
    assert_eq!(load("small").await, Some(JobLoad { first_ready_at: None, running_tasks: 3 }));
    fx.complete(&running).await;
    assert_eq!(load("small").await, Some(JobLoad { first_ready_at: None, running_tasks: 1 }));
}

/// A task that is sent to the line was refused once, however long it stands there.
pub async fn rejected_admissions_are_counted_once_per_task(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    fx.submit_all(tasks("a", 5)).await;
    let running = fx.claim(2).await;
    fx.claim(9).await;
    fx.admit().await;
    assert_eq!(fx.limit("group:a").await.parked_total, 3);
    fx.complete(&running).await;
    assert_eq!(fx.limit("group:a").await.parked_total, 3);
    fx.set_limit("group:a", Some(9)).await;
    fx.run_all().await;
    assert_eq!(fx.limit("group:a").await.parked_total, 3, "it outlives the line");
}

pub async fn task_list_is_filtered_by_group(fx: &Fixture) {
    let of =
        |kind: &str, group: &str| NewTask { effective_group: Some(group.into()), ..task(kind) };
    let stored = fx.submit_all(vec![task("a"), of("b", "a"), of("a", "b"), task("b")]).await;
    let list = async |group: &str| {
        let filter =
            TaskFilter { group: Some(group.into()), tasks_max: 9, ..TaskFilter::default() };
        let found = fx.reader.tasks(filter).await.expect("tasks");
        found.iter().map(|view| view.id).collect::<Vec<_>>()
    };
    assert_eq!(list("a").await, stored[..2], "a task without a group has its kind's");
    assert_eq!(list("b").await, stored[2..]);
    assert_eq!(list("c").await, []);
    fx.run_all().await;
    assert_eq!(list("a").await, stored[..2], "also when they have ended");
}

/// Two run at once, a task takes a second: the line moves on every half second.
pub async fn wait_estimate_uses_run_times_and_position(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let stored = fx.submit_all(tasks("a", 5)).await;
    assert_eq!(fx.claim(9).await.len(), 2);
    assert_eq!(fx.explain(stored[4]).await.estimated_wait_ms, None, "nothing is known yet");
    report_run_times(fx, "a", 3, 2000).await;
    report_run_times(fx, "a", 1, 2000).await;
    report_run_times(fx, "other", 5, 500_000).await;
    assert_eq!(fx.explain(stored[0]).await.estimated_wait_ms, None, "it runs");
    for (task, wanted) in [(2, 500), (3, 1000), (4, 1500)] {
        assert_eq!(fx.explain(stored[task]).await.estimated_wait_ms, Some(wanted));
    }
    fx.set_limit("group:a", Some(0)).await;
    assert_eq!(fx.explain(stored[4]).await.estimated_wait_ms, None, "its limit is paused");
}

pub async fn run_times_expire(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let stored = fx.submit_all(tasks("a", 2)).await;
    assert_eq!(task_ids(&fx.claim(9).await), stored[..1]);
    report_run_times(fx, "a", 1, 1000).await;
    assert_eq!(fx.explain(stored[1]).await.estimated_wait_ms, Some(1000));
    fx.store.prune().await.expect("prune");
    assert_eq!(fx.explain(stored[1]).await.estimated_wait_ms, Some(1000));
    fx.advance(8 * 86_400_000);
    fx.store.prune().await.expect("prune");
    assert_eq!(fx.explain(stored[1]).await.estimated_wait_ms, None);
}

/// A sound store has nothing to mend, whatever stands in it.
pub async fn repair_of_consistent_store_changes_nothing(fx: &Fixture) {
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
