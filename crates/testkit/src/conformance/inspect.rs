//! What people see.

use tidegate_core::inspect::{Reason, TaskFilter};
use tidegate_core::tables::Class;
use tidegate_core::{LimitId, NewTask, State, TaskId, WorkerId};

use super::fixture::{Fixture, LEASE_MS, asks, ids, task, tasks};

fn all() -> TaskFilter {
    TaskFilter { tasks_max: 100, ..TaskFilter::default() }
}

async fn list(fx: &Fixture, filter: TaskFilter) -> Vec<TaskId> {
    let views = fx.inspect.tasks(filter).await.expect("tasks");
    views.iter().map(|view| view.id).collect()
}

pub async fn the_time_is_the_stores(fx: &Fixture) {
    fx.advance(12_345);
    assert_eq!(fx.inspect.now().await.expect("now"), fx.now());
    assert_eq!(fx.snapshot().await.now, fx.now());
}

pub async fn tasks_are_listed_by_id_and_paged(fx: &Fixture) {
    let stored = fx.submit_all(tasks("a", 5)).await;
    assert_eq!(list(fx, all()).await, stored);
    let two = |after| TaskFilter { after, tasks_max: 2, ..TaskFilter::default() };
    assert_eq!(list(fx, two(None)).await, stored[..2]);
    assert_eq!(list(fx, two(Some(stored[1]))).await, stored[2..4]);
    assert_eq!(list(fx, two(Some(stored[4]))).await, []);
    assert_eq!(list(fx, TaskFilter::default()).await, [], "at most none");
}

pub async fn tasks_are_filtered(fx: &Fixture) {
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
    assert_eq!(list(fx, TaskFilter { kind: name("b"), ..all() }).await, [stored[1]]);
    assert_eq!(list(fx, TaskFilter { queue: name("q"), ..all() }).await, [stored[2]]);
    assert_eq!(list(fx, TaskFilter { job: name("j"), ..all() }).await, [stored[3]]);
    assert_eq!(list(fx, TaskFilter { workflow: name("w"), ..all() }).await, [stored[4]]);
    let states = vec![State::Scheduled, State::Failed];
    assert_eq!(list(fx, TaskFilter { states, ..all() }).await, [stored[5]]);
    let both = TaskFilter { kind: name("b"), queue: name("q"), ..all() };
    assert_eq!(list(fx, both).await, []);
    assert_eq!(list(fx, TaskFilter { kind: name("%"), ..all() }).await, []);
}

/// A list of many tasks does not carry their payloads.
pub async fn lists_leave_payloads_out(fx: &Fixture) {
    fx.submit(task("a")).await;
    fx.work_off().await;
    let views = fx.inspect.tasks(all()).await.expect("tasks");
    assert_eq!((views[0].payload.as_ref(), views[0].result.as_ref()), (None, None));
}

pub async fn states_are_counted(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let late = NewTask { run_at: Some(fx.now() + 1), ..task("a") };
    let stored = fx.submit_all(vec![task("a"), task("a"), task("a"), task("x"), late]).await;
    let running = fx.claim(9).await;
    fx.complete(&running).await;
    fx.cancel(stored[2]).await;
    let counts = fx.inspect.counts().await.expect("counts");
    use State::{Cancelled, Completed, Pending, Scheduled};
    let wanted = [(Scheduled, 1), (Pending, 2), (Completed, 1), (Cancelled, 1)];
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), wanted);
}

pub async fn what_is_unknown_is_none(fx: &Fixture) {
    assert_eq!(fx.inspect.task(TaskId(5)).await.expect("task"), None);
    assert_eq!(fx.inspect.explain(TaskId(5)).await.expect("explain"), None);
    assert_eq!(fx.inspect.holders(LimitId(5)).await.expect("holders"), []);
    assert_eq!(fx.inspect.jobs().await.expect("jobs"), []);
    assert_eq!(fx.inspect.limits().await.expect("limits"), []);
}

pub async fn explain_says_when_a_task_is_due(fx: &Fixture) {
    let run_at = fx.now() + 10;
    let id = fx.submit(NewTask { run_at: Some(run_at), ..task("a") }).await;
    let explanation = fx.explain(id).await;
    assert_eq!((explanation.task, explanation.state), (id, State::Scheduled));
    assert_eq!(explanation.reason, Reason::NotDue { run_at });
}

pub async fn explain_says_what_is_at_the_gate(fx: &Fixture) {
    let id = fx.submit(NewTask { workflow: Some("w".into()), ..task("a") }).await;
    let explanation = fx.explain(id).await;
    let at_gate = |is_served| (State::Pending, Reason::AtGate { is_served });
    assert_eq!((explanation.state, explanation.reason), at_gate(false));
    // One that has room for none looks at nothing, and is there all the same.
    fx.claim_as(asks("w", &["a"], 0)).await;
    let other = fx.submit(NewTask { workflow: Some("w".into()), ..task("a") }).await;
    let explanation = fx.explain(other).await;
    assert_eq!((explanation.state, explanation.reason), at_gate(true));
}

/// Reason, limit and holders, place in line, since when.
pub async fn explain_says_who_is_in_the_way(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let stored = fx.submit_all(tasks("a", 4)).await;
    let since = fx.now();
    fx.claim(9).await;
    fx.advance(1000);
    for (place, id) in [(1, stored[2]), (2, stored[3])] {
        let explanation = fx.explain(id).await;
        assert_eq!((explanation.state, explanation.since), (State::Blocked, Some(since)));
        let Reason::InLine { limit, capacity, held, class, place: found, holders, .. } =
            explanation.reason
        else {
            panic!("{:?}", explanation.reason)
        };
        assert_eq!((&*limit, capacity, held), ("group:a", Some(2), 2));
        assert_eq!((class, found), (Class::Waiting, place));
        let tasks: Vec<_> = holders.iter().map(|holder| (holder.slot, holder.task)).collect();
        assert_eq!(tasks, [(0, stored[0]), (1, stored[1])]);
        assert_eq!(holders[0].worker, Some(WorkerId("worker".into())));
        assert_eq!(holders[0].expires_at, Some(since + LEASE_MS));
        assert_eq!(&*holders[0].kind, "a");
    }
}

pub async fn explain_says_whether_anybody_serves_a_ready_task(fx: &Fixture) {
    let stored = fx.submit_all(tasks("a", 2)).await;
    let reason = |is_served, ahead| Reason::Ready {
        queue: "default".into(),
        kind: "a".into(),
        is_served,
        is_open: true,
        ahead,
    };
    assert_eq!(fx.explain(stored[0]).await.reason, reason(false, 0));
    fx.claim_as(asks("w", &["a"], 0)).await;
    let explanation = fx.explain(stored[1]).await;
    assert_eq!(explanation.reason, reason(true, 1));
    assert_eq!(explanation.since, Some(fx.now()));
    fx.advance(LEASE_MS);
    assert_eq!(fx.explain(stored[0]).await.reason, reason(false, 0), "the worker is gone");
}

pub async fn explain_says_where_a_task_runs(fx: &Fixture) {
    fx.set_limit("group:a", Some(5)).await;
    let id = fx.submit(NewTask { weight: 2, ..task("a") }).await;
    let since = fx.now();
    let attempt = fx.claim_one().await;
    fx.advance(7);
    let explanation = fx.explain(id).await;
    assert_eq!((explanation.state, explanation.since), (State::Processing, Some(since)));
    let Reason::Running { worker, expires_at, slots } = explanation.reason else {
        panic!("{:?}", explanation.reason)
    };
    assert_eq!((worker, expires_at), (WorkerId("worker".into()), since + LEASE_MS));
    assert_eq!(slots, attempt.slots);
}

pub async fn explain_says_that_a_task_ended(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.work_off().await;
    fx.advance(9);
    let explanation = fx.explain(id).await;
    assert_eq!((explanation.state, explanation.reason), (State::Completed, Reason::Ended));
    assert_eq!(explanation.since, Some(fx.now() - 9));
}

pub async fn holders_are_listed_by_slot(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    let stored = fx.submit_all(tasks("a", 3)).await;
    fx.claim_as(asks("w", &["a"], 2)).await;
    let holders = fx.holders("group:a").await;
    let seen: Vec<_> = holders.iter().map(|holder| (holder.slot, holder.task)).collect();
    assert_eq!(seen, [(0, stored[0]), (1, stored[1]), (2, stored[2])]);
    assert_eq!(holders[2].worker, None, "admitted, and not claimed yet");
    assert_eq!(holders[1].expires_at, Some(fx.now() + LEASE_MS));
}

pub async fn limits_and_jobs_are_listed_by_name(fx: &Fixture) {
    for name in ["group:z", "group:a", "group:m"] {
        fx.set_limit(name, Some(1)).await;
    }
    let of = |job: &str| NewTask { job: Some(job.into()), ..task("a") };
    fx.submit_all(vec![of("z"), of("b")]).await;
    let limits = fx.inspect.limits().await.expect("limits");
    let names: Vec<_> = limits.iter().map(|limit| &*limit.name).collect();
    assert_eq!(names, ["group:a", "group:m", "group:z", "job:b", "job:z"]);
    let jobs = fx.inspect.jobs().await.expect("jobs");
    assert_eq!(jobs.iter().map(|job| &*job.name).collect::<Vec<_>>(), ["b", "z"]);
}

/// Reading changes nothing.
pub async fn a_look_changes_nothing(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let stored = fx.submit_all(tasks("a", 3)).await;
    let claimed = fx.claim(1).await;
    assert_eq!(ids(&claimed), stored[..1]);
    let before = fx.snapshot().await;
    for id in &stored {
        fx.explain(*id).await;
        fx.view(*id).await;
    }
    list(fx, all()).await;
    assert_eq!(fx.snapshot().await, before);
}
