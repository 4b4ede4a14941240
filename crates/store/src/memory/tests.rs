//! A verb that fails or panics leaves no part of its writes behind.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tidegate_core::tables::Lease;
use tidegate_core::{
    CapacitySource, Claim, Completion, Error, Finish, Heartbeat, JobSpec, Kind, NewTask, Outcome,
    Registration, Result, SetJob, SetLimit, SetPaused, Submission, TaskId, Token, WorkerId,
    WorkerReport, rules,
};

use super::{Memory, WorkingState};

const START: i64 = 1_700_000_000_000;
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

type TestVerb = Box<dyn Fn(&mut WorkingState) -> Result<()>>;

fn test_verb<T>(verb: impl Fn(&mut WorkingState) -> Result<T> + 'static) -> TestVerb {
    Box::new(move |state| verb(state).map(drop))
}

fn claim(worker: &str, tasks_max: u32) -> Claim {
    Claim {
        worker: WorkerId(worker.into()),
        queues: ["default".into()].into(),
        kinds: ["a".into(), "b".into()].into(),
        tasks_max,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    }
}

fn finish(task: i64, token: i64, outcome: Outcome) -> TestVerb {
    test_verb(move |state| {
        let exits =
            vec![Completion { task: TaskId(task), token: Token(token), outcome: outcome.clone() }];
        rules::finish(state, Finish { completions: exits, claim: Some(claim("w", 1)) })
    })
}

fn submission() -> Submission {
    let of_job = NewTask { job: Some("j".into()), ..NewTask::new("a", "null") };
    let step = NewTask { workflow: Some("flow".into()), ..NewTask::new("b", "null") };
    let unique = NewTask { unique_key: Some("k".into()), ..NewTask::new("b", "null") };
    let later = NewTask { run_at: Some(START + 1000), ..NewTask::new("a", "null") };
    Submission {
        jobs: vec![JobSpec { concurrency: Some(2), ..JobSpec::new("j") }],
        tasks: vec![of_job.clone(), of_job.clone(), of_job, step.clone(), step, unique, later],
        limits: vec![("b".into(), 2)],
        submitting_attempt: None,
    }
}

fn registration(worker: &str, limit: u32) -> Registration {
    Registration {
        kinds: vec![Kind { remove_on_completed_days: Some(1), ..Kind::new("a") }],
        default_kinds: vec![],
        limits: vec![("a".into(), limit)],
        source: Some(CapacitySource::Registration),
        worker: Some(WorkerId(worker.into())),
        lease_ms: 30_000,
    }
}

/// Verbs that together write to every table.
fn verbs_that_write_every_table() -> Vec<TestVerb> {
    let failed = Outcome::Failed { error: "no".into(), retryable: true, retry_in_ms: Some(1) };
    let report = WorkerReport {
        free: 1,
        concurrency: 2,
        memory: None,
        accepting: true,
        reason: "room".into(),
    };
    let set = |name: &'static str, capacity: u32| {
        test_verb(move |state| {
            let (name, capacity) = (name.to_owned(), Some(capacity));
            rules::set_limit(state, &SetLimit { name, capacity, source: CapacitySource::Operator })
        })
    };
    vec![
        test_verb(|state| rules::register(state, &registration("w", 5))),
        test_verb(|state| rules::register(state, &registration("v", 4))),
        test_verb(|state| rules::submit(state, &submission())),
        test_verb(admit_after_due_time),
        test_verb(|state| rules::claim(state, &claim("w", 3))),
        test_verb(|state| rules::claim(state, &claim("v", 1))),
        test_verb(move |state| {
            let (worker, report) = (WorkerId("w".into()), Some(report.clone()));
            let extend = tidegate_core::Heartbeat {
                worker,
                tokens: vec![Token(1)],
                lease_ms: 60_000,
                progress: vec![],
                run_times: vec![tidegate_core::RunTimeSample {
                    group: "a".into(),
                    tasks: 1,
                    total_ms: 5,
                }],
                report,
            };
            rules::heartbeat(state, &extend)
        }),
        finish(1, 1, Outcome::Completed(b"null".to_vec())),
        finish(2, 1, failed),
        set("group:a", 1),
        set("job:j", 1),
        test_verb(|state| {
            let set = SetJob {
                job: "j".into(),
                concurrency: None,
                min_concurrency: None,
                weight: Some(3),
                priority: None,
                delay_ms: Some(10),
            };
            rules::set_job(state, &set)
        }),
        test_verb(|state| {
            let target = tidegate_core::PauseTarget::Queue("q".into());
            rules::set_paused(state, &SetPaused { target, paused: true })
        }),
        test_verb(|state| rules::cancel(state, &[TaskId(3), TaskId(6), TaskId(7)])),
        test_verb(|state| rules::retry(state, &[TaskId(6)])),
        test_verb(|state| {
            state.now += DAY_MS;
            rules::reap(state)
        }),
        test_verb(|state| {
            state.now += 3 * DAY_MS;
            rules::prune(state)
        }),
    ]
}

fn admit_after_due_time(state: &mut WorkingState) -> Result<tidegate_core::AdmitReply> {
    state.now += 2000;
    rules::admit(state)
}

/// Runs every step three times: once so that it fails behind its writes, once so that it panics there, and
/// once to its end.
#[test]
fn failed_or_panicked_verb_changes_nothing() {
    let store = Memory::with_clock(|| START);
    let mut changes = 0;
    for (number, step) in verbs_that_write_every_table().into_iter().enumerate() {
        let text = || format!("{:?}", *store.lock_state());
        // The time of the last transaction is no row.
        store.run_transaction("test", |_| Ok(())).expect("an empty transaction");
        let before = text();
        let failed: Result<()> = store.run_transaction("test", |state| {
            step(state)?;
            Err(Error::invalid("by the test"))
        });
        assert_eq!(failed.expect_err("it fails").to_string(), "by the test", "step {number}");
        assert_eq!(text(), before, "step {number} failed");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            store.run_transaction("test", |state| -> Result<()> {
                step(state).expect("the step");
                panic!("by the test");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(text(), before, "step {number} panicked");
        store.run_transaction("test", |state| step(state)).expect("the step");
        changes += usize::from(text() != before);
    }
    assert!(changes > 14, "only {changes} steps change anything");
}

/// The time in which a debug build looks every lease up once, many times over. A comparison of every expired lease
/// with every listed one takes minutes.
const LOOKUP_MAX: std::time::Duration = std::time::Duration::from_secs(60);

#[test]
fn release_beside_many_listed_leases_looks_each_up_once() {
    const LISTED: i64 = 100_000;
    let mut state = WorkingState { now: START, ..WorkingState::default() };
    let worker = WorkerId("w".into());
    for token in (0..LISTED + 50).map(Token) {
        let lease = Lease { token, worker: worker.clone(), expires_at: START };
        state.leases.insert(token, lease);
        state.lease_expiries.insert((START, token));
    }
    let extend = Heartbeat {
        worker,
        tokens: (0..LISTED).map(Token).collect(),
        lease_ms: 30_000,
        progress: vec![],
        run_times: vec![],
        report: None,
    };
    let began = crate::requests::now();
    rules::release_unlisted_leases(&mut state, &extend).expect("released");
    let took = crate::requests::now() - began;
    assert_eq!(state.leases.len(), LISTED as usize);
    assert!(took < LOOKUP_MAX, "{took:?}");
}
