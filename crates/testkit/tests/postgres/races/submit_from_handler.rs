//! The races of a handler that submits on behalf of its attempt, each over all boundaries.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tidegate_core::{
    Attempt, Completion, ErrorKind, Finish, Heartbeat, NewTask, Outcome, Progress, ReleaseOutcome,
    ReleaseSlot, Store, StoreReader, Submission, WorkerId,
};
use tidegate_store::postgres::{Options, Postgres};

use super::admission::{after, ensure, race};
use super::harness::{
    Handle, LEASE_MS, Race, RaceHarness, START, VerbFuture, completed_outcome, task, task_of_job,
};

/// What was seen of one race.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Whether the submission was taken.
    accepted: Option<bool>,
    /// Whether the attempt was ended by the other, and what it added was there right after.
    ended: Option<bool>,
}

type Notes = Arc<Mutex<Seen>>;

async fn is_added(store: &Postgres) -> bool {
    let snapshot = store.snapshot().await.expect("snapshot");
    snapshot.tasks.iter().any(|task| task.unique_key.as_deref() == Some("link"))
}

/// An attempt adds tasks, or is told that it has lost its lease.
fn adding(handle: &Handle, attempt: &Attempt, notes: &Notes) -> VerbFuture {
    let (store, notes) = (handle.store.clone(), notes.clone());
    let keyed = NewTask { unique_key: Some("link".into()), ..task("b") };
    let submission = Submission {
        tasks: vec![keyed, task_of_job("b", "site")],
        submitting_attempt: Some((attempt.task, attempt.token)),
        ..Submission::default()
    };
    Box::pin(async move {
        let accepted = match store.submit(submission).await {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        notes.lock().expect("lock").accepted = Some(accepted);
        Ok(())
    })
}

/// Another ends the attempt, and looks.
fn ending(handle: &Handle, notes: &Notes, end: VerbFuture) -> VerbFuture {
    let (store, notes) = (handle.store.clone(), notes.clone());
    Box::pin(async move {
        end.await?;
        let is_added = is_added(&store).await;
        notes.lock().expect("lock").ended = Some(is_added);
        Ok(())
    })
}

/// The submission came before the end, and was there when the attempt had ended, or it never is.
fn in_order(submitter: &Handle, ender: &Handle, attempt: &Attempt, end: VerbFuture) -> Race {
    let notes = Notes::default();
    Race {
        a: adding(submitter, attempt, &notes),
        b: ending(ender, &notes, end),
        after: after(move |lab| async move {
            let seen = *notes.lock().expect("lock");
            let now = is_added(&lab.free_store.store).await;
            let is_so = seen.accepted == Some(now) && seen.ended == Some(now);
            ensure(is_so, || format!("{seen:?}, and in the end {now}"))
        }),
    }
}

fn reaping(handle: &Handle) -> VerbFuture {
    let store = handle.store.clone();
    Box::pin(async move {
        assert_eq!(store.reap().await?.expired_attempts, 1);
        Ok(())
    })
}

fn ending_as(handle: &Handle, attempt: &Attempt, outcome: Outcome) -> VerbFuture {
    let exits = vec![Completion { task: attempt.task, token: attempt.token, outcome }];
    let store = handle.store.clone();
    Box::pin(async move {
        let finished = store.finish(Finish { completions: exits, claim: None }).await?;
        assert_eq!(finished.lost_attempts, []);
        Ok(())
    })
}

fn reporting(handle: &Handle, attempt: &Attempt) -> VerbFuture {
    let (store, Attempt { task, token, .. }) = (handle.store.clone(), attempt.clone());
    let progress = vec![(task, token, Progress { percent: 5, message: "going".into() })];
    let (worker, tokens) = (WorkerId("worker".into()), vec![token]);
    let extend =
        Heartbeat { worker, tokens, lease_ms: LEASE_MS, progress, run_times: vec![], report: None };
    Box::pin(async move {
        assert_eq!(store.heartbeat(extend).await?.lost_leases, []);
        Ok(())
    })
}

fn run_out(handles: [&Handle; 2]) {
    for handle in handles {
        handle.clock.store(START + LEASE_MS + 1, Ordering::SeqCst);
    }
}

/// The reaper takes the lease back that lists the attempt.
async fn listed_and_reaped(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = x.submit_and_claim(task("a")).await;
    run_out([&x, &y]);
    in_order(&x, &y, &running, reaping(&y))
}

race!(submit_of_listed_attempt_racing_with_reap_is_stored_or_rejected, listed_and_reaped);

/// The same with a slot and somebody who waits for it.
async fn slotted_and_reaped(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    let running = x.submit_and_claim(task("a")).await;
    x.submit(vec![task("a")]).await;
    run_out([&x, &y]);
    in_order(&x, &y, &running, reaping(&y))
}

race!(submit_of_attempt_with_slot_racing_with_reap_is_stored_or_rejected, slotted_and_reaped);

/// The same where the attempt has a row of its own.
async fn apart_and_reaped(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = x.submit_and_claim(task("a")).await;
    reporting(&x, &running).await.expect("it runs");
    run_out([&x, &y]);
    in_order(&x, &y, &running, reaping(&y))
}

race!(submit_of_attempt_with_own_row_racing_with_reap_is_stored_or_rejected, apart_and_reaped);

/// The attempt ends well: its lease goes with it.
async fn added_and_done(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = x.submit_and_claim(task("a")).await;
    in_order(&x, &y, &running, ending_as(&y, &running, completed_outcome()))
}

race!(submit_of_attempt_racing_with_its_completion_is_stored_or_rejected, added_and_done);

/// The attempt fails, for which its lease is unpacked; another of the same lease runs on.
async fn added_and_failed(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.submit(vec![task("a"), task("a")]).await;
    let running = x.claim(10).await;
    assert_eq!(running.len(), 2);
    let failed = Outcome::Failed { error: "no".into(), retryable: false, retry_in_ms: None };
    in_order(&x, &y, &running[0], ending_as(&y, &running[0], failed))
}

race!(submit_of_attempt_racing_with_its_failure_is_stored_or_rejected, added_and_failed);

/// An operator takes the slot away.
async fn added_and_released(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(1)).await;
    let running = x.submit_and_claim(task("a")).await;
    let (store, held) = (y.store.clone(), running.task);
    let release = ReleaseSlot { limit: "group:a".into(), slot: 0 };
    let release: VerbFuture = Box::pin(async move {
        assert_eq!(store.release_slot(release).await?, ReleaseOutcome::Released(held));
        Ok(())
    });
    in_order(&x, &y, &running, release)
}

race!(submit_of_attempt_racing_with_slot_release_is_stored_or_rejected, added_and_released);

/// A heartbeat, which unpacks the lease for its report, ends nothing: the submission is taken.
async fn added_and_renewed(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let running = x.submit_and_claim(task("a")).await;
    in_order_of_none(&x, &running, reporting(&y, &running))
}

race!(submit_of_attempt_racing_with_progress_report_is_stored, added_and_renewed);

/// Nor does another attempt of the same lease that ends.
async fn added_beside_the_end(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.submit(vec![task("a"), task("a")]).await;
    let running = x.claim(10).await;
    in_order_of_none(&x, &running[0], y.finish_verb(&running[1]))
}

race!(submit_of_attempt_racing_with_completion_of_another_is_stored, added_beside_the_end);

fn in_order_of_none(submitter: &Handle, attempt: &Attempt, other: VerbFuture) -> Race {
    let notes = Notes::default();
    Race {
        a: adding(submitter, attempt, &notes),
        b: other,
        after: after(move |lab| async move {
            let accepted = notes.lock().expect("lock").accepted;
            let is_so = accepted == Some(true) && is_added(&lab.free_store.store).await;
            ensure(is_so, || "an attempt that runs was refused".to_owned())
        }),
    }
}

/// A heartbeat does not wait for a submission, however long its transaction stands still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeat_does_not_wait_for_submit_of_an_attempt() {
    let lab = RaceHarness::new(Options::default()).await;
    let running = lab.free_store.submit_and_claim(task("a")).await;
    let keeps = include_str!("../../../../store/src/postgres/queries/lock_attempt.sql");
    let Attempt { task, token, .. } = running.clone();
    lab.monitor.batch_execute("BEGIN").await.expect("begin");
    lab.monitor.query_one(keeps, &[&task.0, &token.0]).await.expect("it runs");
    let beat = Heartbeat {
        worker: WorkerId("worker".into()),
        tokens: vec![token],
        lease_ms: LEASE_MS,
        progress: vec![],
        run_times: vec![],
        report: None,
    };
    let beat = lab.free_store.store.heartbeat(beat);
    let beat = tokio::time::timeout(std::time::Duration::from_secs(20), beat).await;
    assert_eq!(beat.expect("it does not wait").expect("heartbeat").lost_leases, []);
    lab.monitor.batch_execute("COMMIT").await.expect("commit");
}

/// The cases that are clean above find an attempt that is only looked at.
#[cfg(feature = "fault_injection")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn races_find_injected_bug_of_submit_without_attempt_lock() {
    let options = || Options {
        injected_bug: Some(tidegate_store::postgres::InjectedBug::SubmitUnlocked),
        ..Options::default()
    };
    let listed = Box::pin(RaceHarness::new(options()).await.run_race(listed_and_reaped)).await;
    let apart = Box::pin(RaceHarness::new(options()).await.run_race(apart_and_reaped)).await;
    let done = Box::pin(RaceHarness::new(options()).await.run_race(added_and_done)).await;
    println!("{listed:?} {apart:?} {done:?}");
    assert!(listed.is_err() && apart.is_err() && done.is_err(), "{listed:?} {apart:?} {done:?}");
}
