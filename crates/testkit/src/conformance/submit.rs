//! Storing tasks.

use std::time::Duration;

use insta::{allow_duplicates, assert_snapshot};
use tidegate_core::bounds::{
    BATCH_MAX, HEARTBEAT_LEASES_MAX, PRIORITY_MAX, SUBMIT_TASKS_MAX, TASK_WEIGHT_MAX,
};
use tidegate_core::reader::NotRunningReason;
use tidegate_core::{
    Attempt, CapacitySource, ErrorKind, Heartbeat, JobSpec, Kind, NewTask, Registration,
    Submission, TaskId, TaskState, Token, WorkerId,
};

use super::fixture::{
    Fixture, LEASE_MS, completed_outcome, fatal_failure, job, retry_in, task, task_ids, tasks,
};

pub async fn task_without_limit_is_ready_after_submit(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    assert_eq!(fx.state(id).await, TaskState::Pending);
    assert!(matches!(fx.explain(id).await.reason, NotRunningReason::Ready { .. }));
    assert_eq!(task_ids(&fx.claim(1).await), [id]);
}

pub async fn task_with_limit_is_admitted_by_next_claim(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let first = fx.submit_all(tasks("a", 2)).await;
    assert_eq!(fx.states(&first).await, [TaskState::Pending; 2], "submit only inserts");
    assert_eq!(fx.claim(9).await.len(), 1, "claim lets arrivals through first");
    assert_eq!(fx.states(&first).await, [TaskState::Processing, TaskState::Blocked]);
}

pub async fn empty_submit_is_accepted(fx: &Fixture) {
    assert_eq!(fx.submit_all(vec![]).await, []);
}

pub async fn task_ids_ascend_in_submit_order(fx: &Fixture) {
    let mut all = fx.submit_all(tasks("a", 5)).await;
    all.extend(fx.submit_all(tasks("b", 5)).await);
    assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
}

pub async fn first_submit_creates_kind(fx: &Fixture) {
    fx.submit(task("a")).await;
    assert_eq!(fx.reader.kinds().await.expect("kinds"), [tidegate_core::Kind::new("a")]);
}

pub async fn task_view_shows_submitted_fields(fx: &Fixture) {
    let new = NewTask {
        queue: Some("q".into()),
        effective_group: Some("g".into()),
        job: Some("j".into()),
        workflow: Some("w".into()),
        weight: 3,
        priority: -7,
        unique_key: Some("u".into()),
        max_attempts: Some(9),
        ..NewTask::new("a", "[1]")
    };
    let id = fx.submit(new).await;
    let view = fx.view(id).await;
    assert_eq!((&*view.kind, &*view.queue), ("a", "q"));
    let names = [view.group, view.job, view.workflow, view.unique_key];
    assert_eq!(names.map(|name| name.expect("a name").to_string()), ["g", "j", "w", "u"]);
    assert_eq!((view.weight, view.priority, view.attempts_used, view.crashes), (3, -7, 0, 0));
    assert_eq!((view.max_attempts, view.created_at), (9, fx.now()));
    assert_eq!((view.run_at, view.finished_at, view.error), (None, None, None));
    assert_eq!((view.payload, view.result), (Some(b"[1]".to_vec()), None));
}

pub async fn scheduled_task_is_not_claimed_before_it_is_due(fx: &Fixture) {
    let run_at = Some(fx.now() + 5000);
    let id = fx.submit(NewTask { run_at, ..task("a") }).await;
    assert_eq!(fx.state(id).await, TaskState::Scheduled);
    assert_eq!(fx.view(id).await.run_at, run_at);
    fx.advance(4999);
    assert_eq!(fx.claim(1).await, []);
    fx.advance(1);
    assert_eq!(task_ids(&fx.claim(1).await), [id]);
    assert_eq!(fx.view(id).await.run_at, None);
}

pub async fn task_with_run_at_in_the_past_is_ready_at_once(fx: &Fixture) {
    let past = NewTask { run_at: Some(fx.now() - 1), ..task("a") };
    let now = NewTask { run_at: Some(fx.now()), ..task("a") };
    let both = fx.submit_all(vec![past, now]).await;
    assert_eq!(fx.states(&both).await, [TaskState::Pending; 2]);
    assert_eq!(task_ids(&fx.claim(2).await), both);
}

pub async fn due_tasks_are_admitted_in_order_of_due_time(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let late = |ms| NewTask { run_at: Some(fx.now() + ms), ..task("a") };
    let both = fx.submit_all(vec![late(200), late(100)]).await;
    fx.advance(300);
    assert_eq!(task_ids(&fx.claim(2).await), [both[1]], "the earlier one comes first");
    assert_eq!(fx.state(both[0]).await, TaskState::Blocked);
}

pub async fn rejected_submit_stores_nothing(fx: &Fixture) {
    let refused = [
        NewTask { weight: 0, ..task("a") },
        NewTask { weight: TASK_WEIGHT_MAX + 1, ..task("a") },
        NewTask { priority: PRIORITY_MAX + 1, ..task("a") },
        NewTask { max_attempts: Some(0), ..task("a") },
        NewTask { timeout_ms: Some(0), ..task("a") },
        NewTask { timeout_ms: Some(i64::MAX), ..task("a") },
    ];
    for bad in refused {
        let tasks = vec![task("good"), bad.clone()];
        let jobs = vec![job("made", Some(1))];
        let error = fx
            .store
            .submit(Submission { jobs, tasks, ..Submission::default() })
            .await
            .expect_err("bad");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:?}");
    }
    assert!(fx.reader.task_counts().await.expect("counts").is_empty());
    assert_eq!(fx.reader.jobs().await.expect("jobs"), []);
    assert_eq!(fx.reader.kinds().await.expect("kinds"), []);
}

pub async fn weight_above_capacity_is_rejected(fx: &Fixture) {
    fx.set_limit("group:a", Some(3)).await;
    let heavy = |weight| NewTask { weight, ..task("a") };
    let error = fx.try_submit(vec![task("b"), heavy(4)]).await.expect_err("too heavy");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(fx.reader.task_counts().await.expect("counts").is_empty(), "all or none");
    let id = fx.submit(heavy(3)).await;
    assert_eq!(task_ids(&fx.claim(1).await), [id], "the whole capacity is not too heavy");
}

/// A paused limit is full, not too small: what fits an ordinary day may be submitted.
pub async fn weight_is_accepted_while_limit_is_paused(fx: &Fixture) {
    fx.set_limit("group:a", Some(0)).await;
    fx.submit(NewTask { weight: 4, ..task("a") }).await;
    assert_eq!(fx.claim(1).await, []);
    fx.set_limit("group:a", Some(4)).await;
    fx.claim_one().await;
}

pub async fn submit_of_invalid_job_is_rejected(fx: &Fixture) {
    for (name, weight) in [("", 1), ("a\0", 1), ("j", 0), ("j", 1001)] {
        let bad = JobSpec { weight, ..JobSpec::new(name) };
        let submission =
            Submission { jobs: vec![bad], tasks: vec![task("a")], ..Submission::default() };
        let error = fx.store.submit(submission).await.expect_err("bad job");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?} {weight}");
    }
    assert!(fx.reader.task_counts().await.expect("counts").is_empty());
}

pub async fn submit_of_too_many_tasks_is_rejected(fx: &Fixture) {
    let error = fx.try_submit(tasks("a", SUBMIT_TASKS_MAX + 1)).await.expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(fx.reader.task_counts().await.expect("counts").is_empty());
}

/// Nor too many of anything else that comes in one call.
pub async fn calls_above_batch_bounds_are_rejected(fx: &Fixture) {
    let many = BATCH_MAX + 1;
    let jobs = (0..many).map(|n| job(&format!("j{n}"), None)).collect();
    let jobs = fx.store.submit(Submission { jobs, ..Submission::default() }).await;
    let limits: Vec<_> = (0..many).map(|n| (format!("g{n}"), 1)).collect();
    let brought = Submission { limits: limits.clone(), ..Submission::default() };
    let brought = fx.store.submit(brought).await;
    let kinds = (0..many).map(|n| Kind::new(format!("k{n}"))).collect();
    let kinds = fx.store.register(Registration { kinds, ..Registration::default() }).await;
    let limits = fx.store.register(Registration { limits, ..Registration::default() }).await;
    let cancelled = fx.store.cancel(vec![TaskId(1); many]).await;
    let beat = Heartbeat {
        worker: WorkerId("w".into()),
        tokens: vec![Token(1); HEARTBEAT_LEASES_MAX + 1],
        lease_ms: LEASE_MS,
        progress: vec![],
        run_times: vec![],
        report: None,
    };
    let beat = fx.store.heartbeat(beat).await;
    let errors = [
        ("jobs", jobs.err()),
        ("brought limits", brought.err()),
        ("kinds", kinds.err()),
        ("limits", limits.err()),
        ("cancelled tasks", cancelled.err()),
        ("leases", beat.err()),
    ];
    for (what, error) in errors {
        assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Invalid), "{what}");
    }
    assert!(fx.reader.limits().await.expect("limits").is_empty());
}

pub async fn submitted_limit_applies_only_where_none_is_set(fx: &Fixture) {
    assert!(fx.set_limit_as("group:a", Some(2), CapacitySource::Submit).await.is_some());
    assert_eq!(fx.set_limit_as("group:a", Some(9), CapacitySource::Submit).await, None);
    assert_eq!(fx.limit("group:a").await.capacity, Some(2), "the first one counts");
    assert!(fx.set_limit_as("group:a", Some(4), CapacitySource::Registration).await.is_some());
    assert_eq!(fx.set_limit_as("group:a", Some(9), CapacitySource::Submit).await, None);
    assert_eq!(fx.limit("group:a").await.capacity, Some(4));
}

fn with_limit(group: &str, capacity: u32, tasks: Vec<NewTask>) -> Submission {
    Submission { limits: vec![(group.into(), capacity)], tasks, ..Submission::default() }
}

pub async fn submit_sets_its_limits(fx: &Fixture) {
    fx.store.submit(with_limit("a", 2, tasks("a", 5))).await.expect("submit");
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.source), (Some(2), CapacitySource::Submit));
    assert_eq!(fx.claim(9).await.len(), 2, "it applies to the tasks that bring it");
    fx.store.submit(with_limit("a", 9, tasks("a", 1))).await.expect("submit");
    assert_eq!(fx.limit("group:a").await.capacity, Some(2), "the first one counts");
    // Under an operator's setting it is remembered.
    fx.set_limit("group:b", Some(7)).await;
    fx.store.submit(with_limit("b", 3, vec![])).await.expect("submit");
    assert_eq!(fx.limit("group:b").await.capacity, Some(7));
    fx.set_limit("group:b", None).await;
    assert_eq!(fx.limit("group:b").await.capacity, Some(3));
}

pub async fn rejected_submit_sets_no_limit(fx: &Fixture) {
    let heavy = NewTask { weight: 4, ..task("a") };
    let bad_job = JobSpec { weight: 0, ..job("j", None) };
    let refused = [
        with_limit("a", 3, vec![heavy]),
        with_limit("a", 3, vec![NewTask { weight: 0, ..task("b") }]),
        Submission { jobs: vec![bad_job], ..with_limit("a", 3, vec![task("a")]) },
        Submission {
            limits: vec![("a".into(), 3), ("b".into(), u32::MAX)],
            ..Submission::default()
        },
        with_limit("a\0", 3, vec![task("a")]),
    ];
    for bad in refused {
        let error = fx.store.submit(bad.clone()).await.expect_err("bad");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:?}");
    }
    assert_eq!(fx.reader.limits().await.expect("limits"), []);
    assert_eq!(fx.reader.kinds().await.expect("kinds"), []);
}

pub async fn acknowledged_submit_is_visible_to_another_handle(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let other = fx.second_handle().await;
    let view = other.reader.task(id).await.expect("task").expect("it is there");
    assert_eq!(view.state, TaskState::Pending);
}

/// A wake-up is a hint, but one that comes: whoever waits on another handle learns of a submit.
pub async fn submit_notifies_waiting_handle(fx: &Fixture) {
    let other = fx.second_handle().await;
    let mut changed = std::pin::pin!(other.store.wait_for_notification());
    for _ in 0..200 {
        fx.submit(task("a")).await;
        if tokio::time::timeout(Duration::from_millis(50), &mut changed).await.is_ok() {
            return;
        }
    }
    panic!("nobody was woken");
}

/// What a handler adds: with a new kind, a new job, a limit and a unique key.
fn submission_on_behalf_of(task: TaskId, token: Token) -> Submission {
    let keyed =
        NewTask { unique_key: Some("link".into()), job: Some("found".into()), ..new_task() };
    Submission {
        jobs: vec![job("site", Some(2))],
        limits: vec![("new".into(), 3)],
        tasks: vec![keyed, new_task()],
        submitting_attempt: Some((task, token)),
    }
}

fn new_task() -> NewTask {
    task("new")
}

/// An attempt adds tasks, and may be asked for more of them.
async fn assert_adds(fx: &Fixture, attempt: &Attempt) {
    let plain = Submission {
        tasks: vec![new_task()],
        submitting_attempt: Some((attempt.task, attempt.token)),
        ..Submission::default()
    };
    assert!(fx.store.submit(plain).await.expect("it runs")[0].is_new);
    let added = fx
        .store
        .submit(submission_on_behalf_of(attempt.task, attempt.token))
        .await
        .expect("it runs");
    assert_eq!(added.len(), 2);
}

/// Nothing that such an attempt submits is stored, nor what comes along with it.
async fn assert_adds_nothing(fx: &Fixture, task: TaskId, token: Token) {
    let before = fx.snapshot().await;
    let plain = Submission {
        limits: vec![],
        jobs: vec![],
        tasks: vec![new_task()],
        ..submission_on_behalf_of(task, token)
    };
    for submission in [submission_on_behalf_of(task, token), plain] {
        let error = fx.store.submit(submission).await.expect_err("it does not run");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let ids = format!("task {} with token {}", task.0, token.0);
        assert!(error.to_string().contains(&ids), "{error}");
        allow_duplicates! {
            assert_snapshot!(
                error.to_string().replace(&ids, "IDS"),
                @"nothing was stored: the attempt at IDS has lost its lease and the task runs elsewhere, or it has ended; stop the handler"
            );
        }
        assert!(!error.is_retryable());
    }
    let (tasks, limits) = (before.tasks.len(), before.limits.len());
    let after = fx.snapshot().await;
    assert_eq!((after.tasks.len(), after.limits.len()), (tasks, limits));
    let kinds = fx.reader.kinds().await.expect("kinds");
    assert!(kinds.iter().all(|kind| &*kind.name != "new"), "{kinds:?}");
    assert_eq!(fx.reader.jobs().await.expect("jobs"), []);
    let keyed = NewTask { unique_key: Some("link".into()), ..self::task("a") };
    let keyed = fx.submit(keyed).await;
    fx.cancel(keyed).await;
}

pub async fn running_attempt_may_submit(fx: &Fixture) {
    fx.set_limit("group:b", Some(1)).await;
    fx.submit_all(vec![task("a"), task("b"), task("c")]).await;
    let running = fx.claim(9).await;
    assert_eq!(running.len(), 3);
    assert_adds(fx, &running[0]).await;
    assert_adds(fx, &running[1]).await;
    // One of the same lease fails, and the others run on.
    fx.finish_attempt(&running[0], fatal_failure("no")).await;
    assert_adds(fx, &running[1]).await;
    assert_adds(fx, &running[2]).await;
    // Somebody wants it to stop, and it has run out: as long as nobody takes it back, it runs.
    fx.cancel(running[2].task).await;
    fx.advance(LEASE_MS);
    assert_adds(fx, &running[2]).await;
    fx.check_invariants().await;
}

pub async fn attempt_with_lost_lease_may_not_submit(fx: &Fixture) {
    fx.set_limit("group:b", Some(1)).await;
    fx.submit_all(vec![task("a"), task("b")]).await;
    let lost = fx.claim(9).await;
    fx.advance(LEASE_MS);
    assert_eq!(fx.reap().await.expired_attempts, 2);
    for attempt in &lost {
        assert_adds_nothing(fx, attempt.task, attempt.token).await;
    }
    // It runs elsewhere, and it is that attempt that adds.
    let again = fx.claim(9).await;
    assert_eq!(task_ids(&again), task_ids(&lost));
    for attempt in &lost {
        assert_adds_nothing(fx, attempt.task, attempt.token).await;
    }
    assert_adds(fx, &again[0]).await;
    fx.check_invariants().await;
}

pub async fn completed_attempt_may_not_submit(fx: &Fixture) {
    fx.set_limit("group:b", Some(2)).await;
    fx.submit_all(vec![task("a"), task("b"), task("a"), task("b"), task("c")]).await;
    let ended = fx.claim(9).await;
    assert_eq!(ended.len(), 5);
    fx.finish_attempt(&ended[0], completed_outcome()).await;
    assert_adds_nothing(fx, ended[0].task, ended[0].token).await;
    fx.finish_attempt(&ended[1], completed_outcome()).await;
    fx.finish_attempt(&ended[2], fatal_failure("no")).await;
    fx.finish_attempt(&ended[3], retry_in(1000)).await;
    for attempt in &ended[..4] {
        assert_adds_nothing(fx, attempt.task, attempt.token).await;
    }
    fx.finish_attempt(&ended[4], completed_outcome()).await;
    assert_adds_nothing(fx, ended[4].task, ended[4].token).await;
    fx.check_invariants().await;
}

pub async fn attempt_may_not_submit_under_foreign_token(fx: &Fixture) {
    fx.submit(task("a")).await;
    let first = fx.claim_one().await;
    fx.submit(task("c")).await;
    let second = fx.claim_one().await;
    let waits = fx.submit(task("b")).await;
    assert_adds_nothing(fx, first.task, second.token).await;
    assert_adds_nothing(fx, second.task, first.token).await;
    assert_adds_nothing(fx, first.task, Token(second.token.0 + 1000)).await;
    assert_adds_nothing(fx, waits, first.token).await;
    assert_adds_nothing(fx, TaskId(waits.0 + 1000), first.token).await;
    assert_adds(fx, &first).await;
}
