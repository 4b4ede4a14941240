//! Expired leases that a heartbeat of their worker does not list.

use tidegate_core::{
    CancelOutcome, Heartbeat, Kind, NewTask, Registration, TaskState, Token, WorkerId, WorkerReport,
};

use super::fixture::{Fixture, LEASE_MS, claim_request, completed_outcome, task, task_ids, tasks};

/// Sends a heartbeat, and returns the number of attempts that it released.
async fn heartbeat(fx: &Fixture, worker: &str, tokens: &[Token]) -> u32 {
    send_heartbeat(fx, worker, tokens, LEASE_MS).await
}

async fn send_heartbeat(fx: &Fixture, worker: &str, tokens: &[Token], lease_ms: i64) -> u32 {
    send_heartbeat_with_report(fx, worker, tokens, lease_ms, None).await
}

async fn send_heartbeat_with_report(
    fx: &Fixture,
    worker: &str,
    tokens: &[Token],
    lease_ms: i64,
    report: Option<WorkerReport>,
) -> u32 {
    let extend = Heartbeat {
        worker: WorkerId(worker.into()),
        tokens: tokens.to_vec(),
        lease_ms,
        progress: vec![],
        run_times: vec![],
        report,
    };
    let extended = fx.store.heartbeat(extend).await.expect("a heartbeat");
    fx.settle().await;
    extended.released_attempts
}

/// The answer to the claim was lost: the worker does not know the lease.
pub async fn unlisted_expired_lease_is_released_without_using_attempts(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 3)).await;
    let claimed = fx.claim(3).await;
    fx.complete(&claimed[..1]).await;
    fx.advance(LEASE_MS);
    assert_eq!(heartbeat(fx, "worker", &[]).await, 2, "the finished attempt is not touched");
    assert_eq!(fx.snapshot().await.leases, []);
    assert_eq!(fx.reap().await.expired_attempts, 0, "nothing is left for the reaper");
    let again = fx.claim(9).await;
    assert_eq!(task_ids(&again), all[1..]);
    assert_eq!((again[0].number, again[0].token > claimed[0].token), (1, true));
    let view = fx.view(all[1]).await;
    assert_eq!((view.attempts_used, view.crashes, view.error), (0, 0, None));
}

/// The answer to the claim may still be on its way.
pub async fn unlisted_unexpired_lease_is_kept(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.advance(LEASE_MS - 1);
    assert_eq!(heartbeat(fx, "worker", &[]).await, 0);
    assert_eq!(fx.state(id).await, TaskState::Processing);
    fx.finish_attempt(&attempt, completed_outcome()).await;
    assert_eq!(fx.state(id).await, TaskState::Completed);
}

/// The worker still has a completion to report, and it is accepted until another process ends the lease.
pub async fn listed_expired_lease_is_not_released(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let (listed, unlisted) = (fx.claim_one().await, fx.claim_one().await);
    fx.advance(LEASE_MS);
    assert_eq!(heartbeat(fx, "worker", &[listed.token]).await, 1);
    assert_eq!(fx.states(&all).await, [TaskState::Processing, TaskState::Pending]);
    assert_eq!(
        fx.finish(unlisted.task, unlisted.token, completed_outcome()).await.lost_attempts.len(),
        1
    );
    fx.finish_attempt(&listed, completed_outcome()).await;
    assert_eq!(fx.state(all[0]).await, TaskState::Completed);
}

pub async fn expired_lease_of_another_worker_is_not_released(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    fx.advance(LEASE_MS);
    assert_eq!(heartbeat(fx, "other", &[]).await, 0);
    assert_eq!(fx.reap().await.expired_attempts, 1);
    assert_eq!(fx.view(id).await.crashes, 1);
}

pub async fn release_of_unlisted_lease_hands_off_its_slots(fx: &Fixture) {
    fx.set_limit("group:a", Some(2)).await;
    let heavy = NewTask { weight: 2, priority: -1, ..task("a") };
    let first = fx.submit(heavy).await;
    assert_eq!(task_ids(&fx.claim(9).await), [first]);
    let next = fx.submit_all(tasks("a", 2)).await;
    fx.admit().await;
    assert_eq!(fx.limit("group:a").await.held, 2);
    fx.advance(LEASE_MS);
    // A worker must have asked for a slot to be handed to a task of its kind.
    fx.claim(0).await;
    assert_eq!(heartbeat(fx, "worker", &[]).await, 1);
    let claimed = fx.claim(9).await;
    assert_eq!(task_ids(&claimed), next, "the limit was full, and these have precedence");
    fx.complete(&claimed).await;
    assert_eq!(fx.run_all().await, [first]);
    fx.check_at_rest().await;
}

pub async fn released_task_is_ordered_before_its_rank(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    assert_eq!(fx.claim_one().await.task, all[0]);
    fx.advance(LEASE_MS);
    fx.claim(0).await;
    assert_eq!(heartbeat(fx, "worker", &[]).await, 1);
    assert_eq!(fx.run_all().await, all);
}

pub async fn released_lease_rejects_late_completion(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let stale = fx.claim_one().await;
    fx.advance(LEASE_MS);
    assert_eq!(heartbeat(fx, "worker", &[]).await, 1);
    let attempt = fx.claim_one().await;
    let before = fx.snapshot().await;
    assert_eq!(fx.finish(id, stale.token, completed_outcome()).await.lost_attempts.len(), 1);
    assert_eq!(fx.snapshot().await, before);
    fx.finish_attempt(&attempt, completed_outcome()).await;
    fx.check_at_rest().await;
}

pub async fn released_task_with_cancel_request_is_cancelled(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    assert_eq!(fx.cancel(id).await, CancelOutcome::Requested);
    fx.advance(LEASE_MS);
    assert_eq!(heartbeat(fx, "worker", &[]).await, 1);
    assert_eq!(fx.state(id).await, TaskState::Cancelled);
    fx.check_at_rest().await;
}

pub async fn repeated_release_counts_no_crash(fx: &Fixture) {
    let id = fx.submit(NewTask { max_attempts: Some(1), ..task("a") }).await;
    for _ in 0..=Kind::new("a").max_crashes {
        assert_eq!(fx.claim_one().await.number, 1);
        fx.advance(LEASE_MS);
        assert_eq!(heartbeat(fx, "worker", &[]).await, 1);
    }
    let view = fx.view(id).await;
    assert_eq!((view.state, view.attempts_used, view.crashes), (TaskState::Pending, 0, 0));
}

pub async fn deregistration_releases_expired_leases(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    fx.advance(LEASE_MS);
    assert_eq!(send_heartbeat(fx, "worker", &[], 0).await, 1);
    let view = fx.view(id).await;
    assert_eq!((view.state, view.crashes), (TaskState::Pending, 0));
}

pub async fn heartbeat_releases_many_leases_in_steps(fx: &Fixture) {
    fx.submit_all(tasks("a", 130)).await;
    let mut listed = Vec::new();
    for number in 0..130 {
        let claimed = fx.store.claim(claim_request("worker", &["a"], 1)).await.expect("claim");
        if number < 10 {
            listed.push(claimed[0].token);
        }
    }
    fx.advance(LEASE_MS);
    assert_eq!(heartbeat(fx, "worker", &listed).await, 100, "as many as one heartbeat releases");
    assert_eq!(heartbeat(fx, "worker", &listed).await, 20);
    assert_eq!(heartbeat(fx, "worker", &listed).await, 0);
    assert_eq!(fx.snapshot().await.leases.len(), 10);
}

/// A store may take several steps behind one heartbeat.
pub async fn many_attempts_of_a_lease_are_released_in_steps(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 1250)).await;
    fx.claim(1200).await;
    fx.claim(50).await;
    fx.advance(LEASE_MS);
    let mut released = 0;
    for _ in 0..3 {
        released += heartbeat(fx, "worker", &[]).await;
    }
    assert_eq!(released, 1250);
    assert_eq!(fx.snapshot().await.leases, []);
    let mut again = fx.claim(1250).await;
    assert!(again.iter().all(|attempt| attempt.number == 1));
    again.sort_unstable_by_key(|attempt| attempt.task);
    assert_eq!(task_ids(&again), all);
}

fn worker_report() -> WorkerReport {
    WorkerReport { free: 1, concurrency: 1, memory: None, accepting: true, reason: String::new() }
}

/// The answer to the claim was lost, and the reaper of another process runs before the next heartbeat of
/// the worker.
pub async fn reaper_skips_expired_lease_of_worker_with_recent_heartbeat(fx: &Fixture) {
    for report in [None, Some(worker_report())] {
        let id = fx.submit(task("a")).await;
        let attempt = fx.claim_one().await;
        for _ in 0..2 {
            fx.advance(LEASE_MS / 2);
            assert_eq!(fx.reap().await.expired_attempts, 0, "the worker ends this lease");
            assert_eq!(fx.state(id).await, TaskState::Processing);
            let is_expired = fx.now() >= attempt.expires_at;
            let released =
                send_heartbeat_with_report(fx, "worker", &[], LEASE_MS, report.clone()).await;
            assert_eq!(released, u32::from(is_expired));
        }
        let again = fx.claim_one().await;
        assert_eq!((again.task, again.number), (id, 1));
        let view = fx.view(id).await;
        assert_eq!((view.attempts_used, view.crashes, view.error), (0, 0, None));
        fx.finish_attempt(&again, completed_outcome()).await;
        // The next round begins without a heartbeat.
        send_heartbeat(fx, "worker", &[], 0).await;
    }
    fx.check_at_rest().await;
}

/// A claim and a registration are no heartbeats: the worker may have crashed right after them.
pub async fn reaper_takes_expired_lease_of_worker_without_recent_heartbeat(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let first = fx.claim_one().await;
    assert_eq!(heartbeat(fx, "worker", &[first.token]).await, 0);
    fx.advance(LEASE_MS / 2);
    fx.claim_one().await;
    let worker = Some(WorkerId("worker".into()));
    let registration = Registration { worker, lease_ms: LEASE_MS, ..Registration::default() };
    fx.store.register(registration).await.expect("register");
    fx.advance(LEASE_MS / 2 - 1);
    assert_eq!(fx.reap().await.expired_attempts, 0, "one millisecond is left");
    fx.advance(1);
    assert_eq!(fx.reap().await.expired_attempts, 1, "the last heartbeat is older than a lease");
    assert_eq!(fx.states(&all).await, [TaskState::Pending, TaskState::Processing]);
    fx.advance(LEASE_MS / 2);
    assert_eq!(fx.reap().await.expired_attempts, 1);
    for id in all {
        let view = fx.view(id).await;
        assert_eq!((view.attempts_used, view.crashes), (1, 1));
    }
}

/// A worker lists a lease whose completions it could not report yet.
pub async fn reaper_takes_listed_lease_one_lease_length_after_expiry(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let token = fx.claim_one().await.token;
    fx.advance(LEASE_MS);
    for _ in 0..3 {
        assert_eq!(heartbeat(fx, "worker", &[token]).await, 0);
        assert_eq!(
            fx.reap().await.expired_attempts,
            0,
            "the worker may still report the completion"
        );
        assert_eq!(fx.reader.store_load().await.expect("load").abandoned_leases, 0);
        fx.advance(LEASE_MS / 3 - 1);
    }
    assert_eq!(heartbeat(fx, "worker", &[token]).await, 0);
    fx.advance(2);
    assert_eq!(fx.reap().await.expired_attempts, 0, "one millisecond is left");
    fx.advance(1);
    assert_eq!(fx.reader.store_load().await.expect("load").abandoned_leases, 1);
    assert_eq!(fx.reap().await.expired_attempts, 1);
    let view = fx.view(id).await;
    assert_eq!((view.state, view.attempts_used, view.crashes), (TaskState::Pending, 1, 1));
}

pub async fn reaper_takes_expired_lease_of_deregistered_worker_at_once(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    fx.claim_one().await;
    fx.advance(LEASE_MS - 1);
    assert_eq!(heartbeat(fx, "worker", &[]).await, 0);
    assert_eq!(send_heartbeat(fx, "worker", &[], 0).await, 0, "the lease has not expired");
    fx.advance(1);
    assert_eq!(fx.reap().await.expired_attempts, 1);
    assert_eq!(fx.view(id).await.crashes, 1);
}

/// A page of leases that the reaper leaves to their worker does not hide later leases of another worker.
pub async fn reaper_takes_leases_behind_a_page_of_skipped_leases(fx: &Fixture) {
    fx.submit_all(tasks("a", 103)).await;
    for worker in std::iter::repeat_n("worker", 101).chain(["crashed", "crashed"]) {
        assert_eq!(fx.claim_as(claim_request(worker, &["a"], 1)).await.len(), 1);
    }
    fx.advance(LEASE_MS - 1);
    assert_eq!(heartbeat(fx, "worker", &[]).await, 0);
    fx.advance(1);
    let reaped = fx.reap().await;
    assert_eq!((reaped.expired_attempts, reaped.has_more), (2, false));
    assert_eq!(fx.snapshot().await.leases.len(), 101);
}
