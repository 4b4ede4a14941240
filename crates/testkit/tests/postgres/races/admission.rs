//! The races of the gate, each over all boundaries.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::{
    CancelOutcome, Completion, Finish, Heartbeat, JobSpec, NewTask, Store, StoreReader, Submission,
    TaskId, TaskState, WorkerId,
};
use tidegate_store::postgres::Options;

use super::harness::{
    AfterRace, CheckResult, Handle, LEASE_MS, Race, RaceHarness, START, VerbFuture, claim_request,
    set_limit_request, task, task_of_job,
};

pub(crate) fn nothing_else() -> AfterRace {
    Box::new(|_| Box::pin(async { Ok(()) }))
}

pub(crate) fn after<F>(look: impl FnOnce(Arc<RaceHarness>) -> F + Send + 'static) -> AfterRace
where
    F: Future<Output = CheckResult> + Send + 'static,
{
    Box::new(|lab| Box::pin(look(lab)))
}

pub(crate) async fn held(lab: &RaceHarness, limit: &str) -> (u32, u32) {
    let limits = lab.free_store.store.limits().await.expect("limits");
    let limit = limits.iter().find(|l| &*l.name == limit).expect("the limit");
    (limit.held, limit.waiting)
}

pub(crate) async fn state(lab: &RaceHarness, task: TaskId) -> TaskState {
    lab.free_store
        .store
        .task(task)
        .await
        .expect("task")
        .map_or(TaskState::Completed, |view| view.state)
}

pub(crate) fn ensure(is_so: bool, otherwise: impl FnOnce() -> String) -> CheckResult {
    if is_so { Ok(()) } else { Err(otherwise()) }
}

/// Runs a case and prints at how many boundaries a verb was held.
macro_rules! race {
    ($name:ident, $setup:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let lab = RaceHarness::new(Options::default()).await;
            println!("{}", lab.stride);
            let boundaries = Box::pin(lab.run_race($setup)).await.unwrap_or_else(|e| panic!("{e}"));
            println!("{boundaries:?}");
            assert!(boundaries.all > 5 && boundaries.held > 0, "{boundaries:?}");
        }
    };
}

pub(crate) use race;

async fn job(handle: &Handle, name: &str, concurrency: u32) {
    let jobs = vec![JobSpec { concurrency: Some(concurrency), ..JobSpec::new(name.to_owned()) }];
    handle
        .store
        .submit(Submission { jobs, tasks: vec![], ..Submission::default() })
        .await
        .expect("make the job");
}

/// The next in line of the job needs the group, and the next in line of the group the job.
async fn crossing(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    job(&x, "j", 1).await;
    let of_group = x.submit_and_claim(task("a")).await;
    x.submit(vec![task_of_job("a", "j")]).await;
    assert!(x.claim(10).await.is_empty(), "it waits for the group, past the job's line");
    let of_the_job = x.submit_and_claim(task_of_job("free", "j")).await;
    x.submit(vec![task_of_job("a", "j"), task("a"), task_of_job("free", "j")]).await;
    assert!(x.claim(10).await.is_empty());
    Race { a: x.finish_verb(&of_group), b: y.finish_verb(&of_the_job), after: nothing_else() }
}

race!(finishes_with_crossing_limits_do_not_deadlock, crossing);

/// A task comes to the gate while the last slot is freed: it must not park beside it.
async fn parking(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    let running = x.submit_and_claim(task("a")).await;
    let waits = x.submit(vec![task("a")]).await[0];
    let store = x.store.clone();
    Race {
        a: Box::pin(async move { store.admit().await.map(drop) }),
        b: y.finish_verb(&running),
        after: after(move |lab| async move {
            let claimed = lab.free_store.claim(10).await;
            ensure(claimed.len() == 1 && claimed[0].task == waits, || format!("{claimed:?}"))
        }),
    }
}

race!(parking_racing_with_freed_slot_leaves_no_idle_slot, parking);

/// Two tasks end at once under the same limit. Each has a lease of its own: the lock of one they
/// shared would keep them apart before they come to the limit.
async fn same_limit(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(2)).await;
    x.submit(vec![task("a"); 5]).await;
    let running = [x.claim(1).await, x.claim(1).await].concat();
    assert_eq!(running.len(), 2);
    Race {
        a: x.finish_verb(&running[0]),
        b: y.finish_verb(&running[1]),
        after: after(|lab| async move {
            let held = held(&lab, "group:a").await;
            ensure(held == (2, 1), || format!("{held:?} held and waiting"))
        }),
    }
}

race!(finishes_under_one_limit_keep_it_full, same_limit);

/// The same with the claim that goes along: the freed slot is given once, and what it admits is
/// claimed by one of them.
async fn hand_over(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(2)).await;
    x.submit(vec![task("a"); 5]).await;
    let running = x.claim(10).await;
    assert_eq!(running.len(), 2);
    y.claim(0).await;
    let finish = |handle: &Handle, of: usize| -> VerbFuture {
        let (store, exits) =
            (handle.store.clone(), vec![super::harness::completion_of(&running[of])]);
        Box::pin(async move {
            let finish = Finish { completions: exits, claim: Some(claim_request("worker", 10)) };
            store.finish(finish).await.map(|finished| assert_eq!(finished.lost_attempts, []))
        })
    };
    Race {
        a: finish(&x, 0),
        b: finish(&y, 1),
        after: after(|lab| async move {
            let held = held(&lab, "group:a").await;
            let running = lab.free_store.store.task_counts().await.expect("counts");
            let running = running.get(&TaskState::Processing).copied().unwrap_or_default();
            ensure(held == (2, 1) && running == 2, || format!("{held:?}, {running} run"))
        }),
    }
}

race!(finishes_with_claims_under_one_limit_hand_off_each_slot_once, hand_over);

/// The last two attempts of one lease end at once: one of the two must end the lease.
async fn same_lease(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.submit(vec![task("a"); 2]).await;
    let running = x.claim(10).await;
    assert_eq!(running.len(), 2);
    Race { a: x.finish_verb(&running[0]), b: y.finish_verb(&running[1]), after: no_lease() }
}

race!(finishes_of_last_attempts_of_a_lease_remove_it, same_lease);

pub(crate) fn no_lease() -> AfterRace {
    after(|lab| async move {
        let leases = lab.free_store.store.snapshot().await.expect("snapshot").leases;
        ensure(leases.is_empty(), || format!("{leases:?} are left"))
    })
}

/// A heartbeat meets the end of the lease's last attempt.
async fn late_heartbeat(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = x.submit_and_claim(task("a")).await;
    let (store, token) = (y.store.clone(), running.token);
    let worker = WorkerId("worker".into());
    let extend = Heartbeat {
        worker,
        tokens: vec![token],
        lease_ms: LEASE_MS,
        progress: vec![],
        run_times: vec![],
        report: None,
    };
    Race {
        a: x.finish_verb(&running),
        b: Box::pin(async move { store.heartbeat(extend).await.map(drop) }),
        after: no_lease(),
    }
}

race!(heartbeat_racing_with_last_completion_leaves_no_lease, late_heartbeat);

/// A submit that saw no limit commits after one was set; it knows the names already.
async fn late_submit(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.submit(vec![task("c")]).await;
    submit_and_set(&x, &y, vec![task("c"); 3])
}

/// The same where it has to look them up, as tasks with unique keys do.
async fn late_submit_of_keys(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.submit(vec![task("c")]).await;
    let keyed = |number| NewTask { unique_key: Some(format!("key-{number}")), ..task("c") };
    submit_and_set(&x, &y, (0..3).map(keyed).collect())
}

fn submit_and_set(x: &Handle, y: &Handle, tasks: Vec<NewTask>) -> Race {
    let store = x.store.clone();
    Race {
        a: Box::pin(async move {
            store.submit(Submission { tasks, ..Submission::default() }).await.map(drop)
        }),
        b: y.set_limit_verb("group:c", Some(1)),
        after: after(|lab| async move {
            let claimed = lab.free_store.claim(10).await;
            ensure(claimed.len() == 1, || format!("{} run under a limit of 1", claimed.len()))
        }),
    }
}

race!(submit_that_commits_after_limit_was_set_is_bound_by_it, late_submit);
race!(submit_of_unique_keys_after_limit_was_set_is_bound_by_it, late_submit_of_keys);

/// The same with a transaction of the caller's that stays open over the change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submit_in_long_transaction_blocks_no_other_call() {
    let database = tidegate_testkit::postgres::Server::shared().database();
    let url = database.url();
    let store = tidegate_store::postgres::Postgres::connect(&url, Options::default());
    let store = store.await.expect("connect");
    store.migrate().await.expect("migrate");
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.expect("connect");
    tokio::spawn(connection);
    let transaction = client.transaction().await.expect("begin");
    let tasks = vec![task_of_job("c", "j"), task("c"), task("c")];
    let long = Submission { tasks, ..Submission::default() };
    let submitted = store.submit_in(&transaction, &long).await.expect("submit");
    assert_eq!(submitted.len(), 3);
    // Others use the same kind and job, claim, finish and set limits meanwhile.
    let tasks = vec![task_of_job("c", "j"), task("c")];
    store.submit(Submission { tasks, ..Submission::default() }).await.expect("submit");
    let attempts = store.claim(claim_request("w", 10)).await.expect("claim");
    assert_eq!(attempts.len(), 2);
    store.set_limit(set_limit_request("group:c", Some(2))).await.expect("set");
    let exits = attempts.iter().map(super::harness::completion_of).collect();
    store.finish(Finish { completions: exits, claim: None }).await.expect("finish");
    assert!(store.claim(claim_request("w", 10)).await.expect("claim").is_empty());
    transaction.commit().await.expect("commit");
    // At once, although younger ones have come and gone: the task of the job has waited as long.
    let next = store.claim(claim_request("w", 10)).await.expect("claim");
    let next: Vec<_> = next.iter().map(|attempt| attempt.task).collect();
    let first: Vec<_> = submitted[..2].iter().map(|submitted| submitted.task).collect();
    assert_eq!(next, first);
    let found = tidegate_core::invariants::check(&store.snapshot().await.expect("snapshot"));
    assert_eq!(found, []);
    // A refused submission leaves the caller's transaction as it was.
    let transaction = client.transaction().await.expect("begin");
    let heavy = NewTask { weight: 3, unique_key: Some("k".into()), ..task("c") };
    let heavy = Submission { tasks: vec![heavy], ..Submission::default() };
    store.submit_in(&transaction, &heavy).await.expect_err("too heavy");
    transaction.query_one("SELECT 1", &[]).await.expect("the transaction goes on");
}

/// A waiter is cancelled while a finisher hands its slot over to it.
async fn cancelled_waiter(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    job(&x, "j", 5).await;
    let running = x.submit_and_claim(task("a")).await;
    let waiters = x.submit(vec![task_of_job("a", "j"), task("a")]).await;
    assert!(x.claim(10).await.is_empty());
    let (store, first, second) = (y.store.clone(), waiters[0], waiters[1]);
    Race {
        a: x.finish_verb(&running),
        b: Box::pin(async move {
            assert_eq!(store.cancel(vec![first]).await?, [CancelOutcome::Cancelled]);
            Ok(())
        }),
        after: after(move |lab| async move {
            ensure(state(&lab, first).await == TaskState::Cancelled, || {
                "not cancelled".to_owned()
            })?;
            let claimed = lab.free_store.claim(10).await;
            ensure(claimed.len() == 1 && claimed[0].task == second, || format!("{claimed:?}"))
        }),
    }
}

race!(cancel_of_waiter_racing_with_freed_slot_gives_it_to_next_waiter, cancelled_waiter);

/// A limit is lowered while a slot is handed over.
async fn lowering(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(2)).await;
    x.submit(vec![task("a"); 5]).await;
    let running = x.claim(10).await;
    assert_eq!(running.len(), 2);
    let stays = running[1].clone();
    Race {
        a: x.finish_verb(&running[0]),
        b: y.set_limit_verb("group:a", Some(1)),
        after: after(move |lab| async move {
            let before = held(&lab, "group:a").await.0;
            ensure(before <= 2, || format!("{before} held"))?;
            let handed = lab.free_store.claim(10).await;
            ensure(handed.len() + 1 == before as usize, || "held by nobody".to_owned())?;
            let mut exits: Vec<Completion> = vec![super::harness::completion_of(&stays)];
            exits.extend(handed.iter().map(super::harness::completion_of));
            for exit in exits {
                let finish = Finish { completions: vec![exit], claim: None };
                lab.free_store.store.finish(finish).await.map_err(|error| error.to_string())?;
                lab.check().await?;
            }
            let after = held(&lab, "group:a").await.0;
            ensure(after == 1, || format!("{after} held under a limit of 1"))
        }),
    }
}

race!(limit_lowered_during_finish_stays_exact, lowering);

/// A finish comes in as its lease has run out and the reaper is at work.
async fn late_finish(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    let running = x.submit_and_claim(task("a")).await;
    x.submit(vec![task("a")]).await;
    for handle in [&x, &y] {
        handle.clock.store(START + LEASE_MS + 1, Ordering::SeqCst);
    }
    let lost = Arc::new(std::sync::Mutex::new(None));
    let reaped = Arc::new(std::sync::Mutex::new(None));
    let (finisher, reaper) = (x.store.clone(), y.store.clone());
    let (told, found) = (lost.clone(), reaped.clone());
    let exits = vec![super::harness::completion_of(&running)];
    Race {
        a: Box::pin(async move {
            let finished = finisher.finish(Finish { completions: exits, claim: None }).await?;
            *told.lock().expect("lock") = Some(finished.lost_attempts.len());
            Ok(())
        }),
        b: Box::pin(async move {
            let reaped = reaper.reap().await?;
            *found.lock().expect("lock") = Some(reaped.expired_attempts);
            Ok(())
        }),
        after: after(move |lab| async move {
            let lost = lost.lock().expect("lock").expect("finish answered");
            let reaped = reaped.lock().expect("lock").expect("reap answered");
            ensure(lost as u32 == reaped, || format!("lost {lost}, reaped {reaped}"))?;
            let now = state(&lab, running.task).await;
            ensure((now == TaskState::Completed) == (lost == 0), || format!("{now}, lost {lost}"))
        }),
    }
}

race!(late_completion_racing_with_reap_is_counted_once, late_finish);

/// A heartbeat comes in as the reaper, whose clock is further, finds the lease run out.
async fn late_renewal(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    let running = x.submit_and_claim(task("a")).await;
    y.clock.store(START + LEASE_MS + 1, Ordering::SeqCst);
    let lost = Arc::new(std::sync::Mutex::new(None));
    let (renewer, reaper, told) = (x.store.clone(), y.store.clone(), lost.clone());
    let extend = Heartbeat {
        worker: WorkerId("worker".into()),
        tokens: vec![running.token],
        lease_ms: 10 * LEASE_MS,
        progress: vec![(
            running.task,
            running.token,
            tidegate_core::Progress { percent: 5, message: "going".into() },
        )],
        run_times: vec![],
        report: None,
    };
    Race {
        a: Box::pin(async move {
            let extended = renewer.heartbeat(extend).await?;
            *told.lock().expect("lock") = Some(extended.lost_leases.len());
            Ok(())
        }),
        b: Box::pin(async move { reaper.reap().await.map(drop) }),
        after: after(move |lab| async move {
            let lost = lost.lock().expect("lock").expect("extend answered");
            let now = state(&lab, running.task).await;
            ensure((now == TaskState::Processing) == (lost == 0), || format!("{now}, lost {lost}"))
        }),
    }
}

race!(heartbeat_racing_with_reap_renews_or_loses_lease, late_renewal);

/// A limit is set on a kind whose tasks are being claimed.
async fn claim_and_set(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.submit(vec![task("c"); 4]).await;
    let store = x.store.clone();
    Race {
        a: Box::pin(async move { store.claim(claim_request("worker", 2)).await.map(drop) }),
        b: y.set_limit_verb("group:c", Some(1)),
        after: after(|lab| async move {
            let (held, _) = held(&lab, "group:c").await;
            let running = lab.free_store.store.task_counts().await.expect("counts");
            let running = running.get(&TaskState::Processing).copied().unwrap_or_default();
            ensure(u64::from(held) == running, || format!("{held} held, {running} run"))?;
            let more = lab.free_store.claim(10).await.len() as u64;
            ensure(running + more <= running.max(1), || format!("{running} and {more} run"))
        }),
    }
}

race!(limit_set_during_claim_counts_claimed_tasks, claim_and_set);

/// Two workers meet the same tasks that a limit began to apply to, and send them back to the gate.
async fn two_meet_a_new_limit(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let tasks = x.submit(vec![task("c"); 6]).await;
    x.set_limit("group:c", Some(2)).await;
    let claim = |store: tidegate_store::postgres::Postgres, worker: &'static str| -> VerbFuture {
        Box::pin(async move { store.claim(claim_request(worker, 4)).await.map(drop) })
    };
    Race {
        a: claim(x.store.clone(), "one"),
        b: claim(y.store.clone(), "two"),
        after: after(move |lab| async move {
            lab.free_store.claim(10).await;
            let mut running = Vec::new();
            for task in &tasks {
                running.push(state(&lab, *task).await == TaskState::Processing);
            }
            // While one has the first four in hand the other finds the last two.
            let first = [true, true, false, false, false, false];
            let last = [false, false, false, false, true, true];
            ensure(running == first || running == last, || format!("{running:?}"))
        }),
    }
}

race!(claims_racing_over_backlog_of_new_limit_admit_up_to_capacity, two_meet_a_new_limit);

/// Two workers bring the steps of a workflow to the gate.
async fn workflow(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let step = || NewTask { workflow: Some("w".to_owned()), ..task("c") };
    let steps = x.submit(vec![step(), step(), step()]).await;
    let claim = |store: tidegate_store::postgres::Postgres, worker: &'static str| -> VerbFuture {
        Box::pin(async move { store.claim(claim_request(worker, 2)).await.map(drop) })
    };
    Race {
        a: claim(x.store.clone(), "one"),
        b: claim(y.store.clone(), "two"),
        after: after(move |lab| async move {
            lab.free_store.claim(10).await;
            let mut running = Vec::new();
            for task in &steps {
                running.push(state(&lab, *task).await == TaskState::Processing);
            }
            ensure(running == [true, false, false], || format!("{running:?}"))
        }),
    }
}

race!(claims_racing_over_workflow_start_only_first_step, workflow);

/// Two workers claim the tasks of a job, whose window moves on.
async fn windows(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    job(&x, "j", 40).await;
    x.set_limit("group:a", Some(20)).await;
    let tasks = (0..40).map(|i| task_of_job(if i % 2 == 0 { "a" } else { "free" }, "j"));
    x.submit(tasks.collect()).await;
    x.claim(1).await;
    let claim = |store: tidegate_store::postgres::Postgres, worker: &'static str| -> VerbFuture {
        Box::pin(async move { store.claim(claim_request(worker, 4)).await.map(drop) })
    };
    Race {
        a: claim(x.store.clone(), "one"),
        b: claim(y.store.clone(), "two"),
        after: after(no_window_forgotten),
    }
}

race!(claims_racing_over_job_window_refill_it, windows);

/// A job's window is filled while tasks leave it.
async fn filling(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    job(&x, "j", 40).await;
    x.submit((0..15).map(|_| task_of_job("free", "j")).collect()).await;
    x.claim(0).await;
    x.submit((0..3).map(|_| task_of_job("free", "j")).collect()).await;
    let (one, two) = (x.store.clone(), y.store.clone());
    Race {
        a: Box::pin(async move { one.claim(claim_request("one", 4)).await.map(drop) }),
        b: Box::pin(async move { two.admit().await.map(drop) }),
        after: after(no_window_forgotten),
    }
}

race!(claim_racing_with_admission_refills_job_window, filling);

/// Where tasks left a full window, somebody has looked who may pass.
async fn no_window_forgotten(lab: Arc<RaceHarness>) -> CheckResult {
    const FORGOTTEN: &str = "SELECT count(*) FROM tidegate.limits l WHERE window_full \
        AND EXISTS (SELECT FROM tidegate.limit_deltas p WHERE p.limit_id = l.id)";
    let forgotten: i64 = lab.monitor.query_one(FORGOTTEN, &[]).await.expect("look").get(0);
    ensure(forgotten == 0, || "the window has room and nobody looked".to_owned())
}

/// The cases that are clean above find the bugs that can be planted in the SQL.
#[cfg(feature = "fault_injection")]
mod planted {
    use tidegate_store::postgres::InjectedBug;

    use super::*;

    /// Runs a case on a store with a bug, which it must find.
    macro_rules! found {
        ($name:ident, $bug:ident, $($setup:expr),+) => {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $(
                    let options = Options { injected_bug: Some(InjectedBug::$bug), ..Options::default() };
                    let found = Box::pin(RaceHarness::new(options).await.run_race($setup)).await;
                    println!("{}: {found:?}", stringify!($setup));
                    assert!(found.is_err(), "{} does not find it", stringify!($setup));
                )+
            }
        };
    }

    found!(races_find_injected_bug_of_admission_without_lock, LimitsUnlocked, same_limit, parking);
    found!(races_find_injected_bug_of_claim_without_lock, ClaimUnlocked, windows);
    found!(races_find_injected_bug_of_unshared_limit_version, LimitsVersionUnlocked, claim_and_set);
    found!(races_find_injected_bug_of_reap_without_lock, ReapUnlocked, late_renewal);
    found!(races_find_injected_bug_of_unrefilled_job_window, WindowNotRechecked, filling, windows);
}
