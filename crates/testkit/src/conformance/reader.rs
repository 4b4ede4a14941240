//! What people see.

use tidegate_core::reader::{NotRunningReason, TaskFilter};
use tidegate_core::tables::WaitReason;
use tidegate_core::{LimitId, NewTask, TaskId, TaskState, WorkerId};

use super::fixture::{Fixture, LEASE_MS, claim_request, task, task_ids, tasks};

fn any_task() -> TaskFilter {
    TaskFilter { tasks_max: 100, ..TaskFilter::default() }
}

async fn list(fx: &Fixture, filter: TaskFilter) -> Vec<TaskId> {
    let views = fx.reader.tasks(filter).await.expect("tasks");
    views.iter().map(|view| view.id).collect()
}

pub async fn reader_returns_time_of_the_store(fx: &Fixture) {
    fx.advance(12_345);
    assert_eq!(fx.reader.now().await.expect("now"), fx.now());
    assert_eq!(fx.snapshot().await.now, fx.now());
}

pub async fn task_list_is_ordered_by_id_and_paged(fx: &Fixture) {
    let stored = fx.submit_all(tasks("a", 5)).await;
    assert_eq!(list(fx, any_task()).await, stored);
    let two = |after| TaskFilter { after_task: after, tasks_max: 2, ..TaskFilter::default() };
    assert_eq!(list(fx, two(None)).await, stored[..2]);
    assert_eq!(list(fx, two(Some(stored[1]))).await, stored[2..4]);
    assert_eq!(list(fx, two(Some(stored[4]))).await, []);
    assert_eq!(list(fx, TaskFilter::default()).await, [], "at most none");
}

pub async fn task_list_applies_filters(fx: &Fixture) {
    let new = vec![
        task("a"),
        task("b"),
        NewTask { queue: Some("q".into()), ..task("a") },
        NewTask { job: Some("j".into()), ..task("a") },
        NewTask { workflow: Some("w".into()), ..task("a") },
        NewTask { run_at: Some(fx.now() + 1), ..task("a") },
    ];
    let stored = fx.submit_all(new).await;
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(list(fx, TaskFilter { kind: name("b"), ..any_task() }).await, [stored[1]]);
    assert_eq!(list(fx, TaskFilter { queue: name("q"), ..any_task() }).await, [stored[2]]);
    assert_eq!(list(fx, TaskFilter { job: name("j"), ..any_task() }).await, [stored[3]]);
    assert_eq!(list(fx, TaskFilter { workflow: name("w"), ..any_task() }).await, [stored[4]]);
    let states = vec![TaskState::Scheduled, TaskState::Failed];
    assert_eq!(list(fx, TaskFilter { states, ..any_task() }).await, [stored[5]]);
    let both = TaskFilter { kind: name("b"), queue: name("q"), ..any_task() };
    assert_eq!(list(fx, both).await, []);
    assert_eq!(list(fx, TaskFilter { kind: name("%"), ..any_task() }).await, []);
}

/// A list of many tasks does not carry their payloads.
pub async fn task_list_omits_payloads_and_results(fx: &Fixture) {
    fx.submit(task("a")).await;
    fx.run_all().await;
    let views = fx.reader.tasks(any_task()).await.expect("tasks");
    assert_eq!((views[0].payload.as_ref(), views[0].result.as_ref()), (None, None));
}

pub async fn task_counts_are_by_state(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let late = NewTask { run_at: Some(fx.now() + 1), ..task("a") };
    let stored = fx.submit_all(vec![task("a"), task("a"), task("a"), task("x"), late]).await;
    let running = fx.claim(9).await;
    fx.complete(&running).await;
    fx.cancel(stored[2]).await;
    let counts = fx.reader.task_counts().await.expect("counts");
    use TaskState::{Cancelled, Completed, Pending, Scheduled};
    let wanted = [(Scheduled, 1), (Pending, 2), (Completed, 1), (Cancelled, 1)];
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), wanted);
}

pub async fn reader_returns_nothing_for_unknown_ids(fx: &Fixture) {
    assert_eq!(fx.reader.task(TaskId(5)).await.expect("task"), None);
    assert_eq!(fx.reader.explain(TaskId(5)).await.expect("explain"), None);
    assert_eq!(fx.reader.slot_holders(LimitId(5)).await.expect("holders"), []);
    assert_eq!(fx.reader.jobs().await.expect("jobs"), []);
    assert_eq!(fx.reader.limits().await.expect("limits"), []);
}

pub async fn explain_shows_due_time_of_scheduled_task(fx: &Fixture) {
    let run_at = fx.now() + 10;
    let id = fx.submit(NewTask { run_at: Some(run_at), ..task("a") }).await;
    let explanation = fx.explain(id).await;
    assert_eq!((explanation.task, explanation.state), (id, TaskState::Scheduled));
    assert_eq!(explanation.reason, NotRunningReason::NotDue { run_at });
}

pub async fn explain_shows_task_waiting_for_admission(fx: &Fixture) {
    let id = fx.submit(NewTask { workflow: Some("w".into()), ..task("a") }).await;
    let explanation = fx.explain(id).await;
    let at_gate = |is_served| (TaskState::Pending, NotRunningReason::InInbox { is_served });
    assert_eq!((explanation.state, explanation.reason), at_gate(false));
    // One that has room for none looks at nothing, and is there all the same.
    fx.claim_as(claim_request("w", &["a"], 0)).await;
    let other = fx.submit(NewTask { workflow: Some("w".into()), ..task("a") }).await;
    let explanation = fx.explain(other).await;
    assert_eq!((explanation.state, explanation.reason), at_gate(true));
}

/// Reason, limit and holders, place in line, since when.
pub async fn explain_shows_limit_holders_and_position_of_parked_task(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let stored = fx.submit_all(tasks("a", 4)).await;
    let since = fx.now();
    fx.claim(9).await;
    fx.advance(1000);
    for (place, id) in [(1, stored[2]), (2, stored[3])] {
        let explanation = fx.explain(id).await;
        assert_eq!(
            (explanation.state, explanation.reason_since),
            (TaskState::Blocked, Some(since))
        );
        let NotRunningReason::InWaitQueue {
            limit,
            capacity,
            held,
            wait_reason: class,
            queue_position: found,
            holders,
            ..
        } = explanation.reason
        else {
            panic!("{:?}", explanation.reason)
        };
        assert_eq!((&*limit, capacity, held), ("group:a", Some(2), 2));
        assert_eq!((class, found), (WaitReason::Queued, place));
        let tasks: Vec<_> = holders.iter().map(|holder| (holder.slot, holder.task)).collect();
        assert_eq!(tasks, [(0, stored[0]), (1, stored[1])]);
        assert_eq!(holders[0].worker, Some(WorkerId("worker".into())));
        assert_eq!(holders[0].expires_at, Some(since + LEASE_MS));
        assert_eq!(&*holders[0].kind, "a");
    }
}

pub async fn explain_shows_whether_ready_task_is_served(fx: &Fixture) {
    let stored = fx.submit_all(tasks("a", 2)).await;
    let reason = |is_served, ahead| NotRunningReason::Ready {
        queue: "default".into(),
        kind: "a".into(),
        is_served,
        is_in_day_window: true,
        tasks_ahead: ahead,
    };
    assert_eq!(fx.explain(stored[0]).await.reason, reason(false, 0));
    fx.claim_as(claim_request("w", &["a"], 0)).await;
    let explanation = fx.explain(stored[1]).await;
    assert_eq!(explanation.reason, reason(true, 1));
    assert_eq!(explanation.reason_since, Some(fx.now()));
    fx.advance(LEASE_MS);
    assert_eq!(fx.explain(stored[0]).await.reason, reason(false, 0), "the worker is gone");
}

pub async fn explain_shows_worker_and_slots_of_running_task(fx: &Fixture) {
    fx.set_limit("group:a", Some(5)).await;
    let id = fx.submit(NewTask { weight: 2, ..task("a") }).await;
    let since = fx.now();
    let attempt = fx.claim_one().await;
    fx.advance(7);
    let explanation = fx.explain(id).await;
    assert_eq!((explanation.state, explanation.reason_since), (TaskState::Processing, Some(since)));
    let NotRunningReason::Running { worker, expires_at, slots } = explanation.reason else {
        panic!("{:?}", explanation.reason)
    };
    assert_eq!((worker, expires_at), (WorkerId("worker".into()), since + LEASE_MS));
    assert_eq!(slots, attempt.slots);
}

pub async fn explain_shows_finished_task(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.run_all().await;
    fx.advance(9);
    let explanation = fx.explain(id).await;
    assert_eq!(
        (explanation.state, explanation.reason),
        (TaskState::Completed, NotRunningReason::Finished)
    );
    assert_eq!(explanation.reason_since, Some(fx.now() - 9));
}

pub async fn holders_are_ordered_by_slot(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    let stored = fx.submit_all(tasks("a", 3)).await;
    fx.claim_as(claim_request("w", &["a"], 2)).await;
    let holders = fx.holders("group:a").await;
    let seen: Vec<_> = holders.iter().map(|holder| (holder.slot, holder.task)).collect();
    assert_eq!(seen, [(0, stored[0]), (1, stored[1]), (2, stored[2])]);
    assert_eq!(holders[2].worker, None, "admitted, and not claimed yet");
    assert_eq!(holders[1].expires_at, Some(fx.now() + LEASE_MS));
}

pub async fn limits_and_jobs_are_ordered_by_name(fx: &Fixture) {
    for name in ["group:z", "group:a", "group:m"] {
        fx.set_limit(name, Some(1)).await;
    }
    let of = |job: &str| NewTask { job: Some(job.into()), ..task("a") };
    fx.submit_all(vec![of("z"), of("b")]).await;
    let limits = fx.reader.limits().await.expect("limits");
    let names: Vec<_> = limits.iter().map(|limit| &*limit.name).collect();
    assert_eq!(names, ["group:a", "group:m", "group:z", "job:b", "job:z"]);
    let jobs = fx.reader.jobs().await.expect("jobs");
    assert_eq!(jobs.iter().map(|job| &*job.name).collect::<Vec<_>>(), ["b", "z"]);
}

/// Reading changes nothing.
pub async fn reads_change_nothing(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let stored = fx.submit_all(tasks("a", 3)).await;
    let claimed = fx.claim(1).await;
    assert_eq!(task_ids(&claimed), stored[..1]);
    let before = fx.snapshot().await;
    for id in &stored {
        fx.explain(*id).await;
        fx.view(*id).await;
    }
    list(fx, any_task()).await;
    assert_eq!(fx.snapshot().await, before);
}
