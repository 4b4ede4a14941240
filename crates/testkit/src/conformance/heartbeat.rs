//! Heartbeats.

use tidegate_core::bounds::{DURATION_MS_MAX, PROGRESS_MESSAGE_BYTES_MAX, REPORT_REASON_BYTES_MAX};
use tidegate_core::reader::NotRunningReason;
use tidegate_core::tables::WaitReason;
use tidegate_core::{
    Attempt, CancelOutcome, ErrorKind, Heartbeat, HeartbeatReply, MemoryUsage, Progress, TaskState,
    Token, WorkerId, WorkerReport,
};

use super::fixture::{Fixture, LEASE_MS, claim_request, task, task_ids, tasks};

fn heartbeat_request(worker: &str, tokens: &[Token]) -> Heartbeat {
    Heartbeat {
        worker: WorkerId(worker.into()),
        tokens: tokens.to_vec(),
        lease_ms: LEASE_MS,
        progress: vec![],
        run_times: vec![],
        report: None,
    }
}

fn progress_report(attempt: &Attempt, percent: u8, message: &str) -> Heartbeat {
    let progress = Progress { percent, message: message.into() };
    let progress = vec![(attempt.task, attempt.token, progress)];
    Heartbeat { progress, ..heartbeat_request("worker", &[attempt.token]) }
}

async fn send_heartbeat(fx: &Fixture, extend: Heartbeat) -> HeartbeatReply {
    fx.store.heartbeat(extend).await.expect("heartbeat")
}

pub async fn heartbeat_renews_lease(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let token = fx.claim_one().await.token;
    for _ in 0..5 {
        fx.advance(LEASE_MS - 1);
        assert_eq!(
            send_heartbeat(fx, heartbeat_request("worker", &[token])).await,
            HeartbeatReply::default()
        );
        assert_eq!(fx.snapshot().await.leases[0].expires_at, fx.now() + LEASE_MS);
        assert_eq!(fx.reap().await.expired_attempts, 0);
    }
    assert_eq!(fx.state(id).await, TaskState::Processing);
}

pub async fn heartbeat_does_not_renew_expired_lease(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let token = fx.claim_one().await.token;
    fx.advance(LEASE_MS);
    assert_eq!(
        send_heartbeat(fx, heartbeat_request("worker", &[token])).await.lost_leases,
        [token],
        "not even unreaped"
    );
    // The reaper leaves the lease to the worker for one lease length.
    fx.advance(LEASE_MS);
    assert_eq!(fx.reap().await.expired_attempts, 1);
    assert_eq!(
        send_heartbeat(fx, heartbeat_request("worker", &[token])).await.lost_leases,
        [token]
    );
    assert_eq!(fx.state(id).await, TaskState::Pending);
}

pub async fn heartbeat_of_another_worker_does_not_renew_lease(fx: &Fixture) {
    fx.submit(task("a")).await;
    let token = fx.claim_one().await.token;
    fx.advance(10);
    assert_eq!(
        send_heartbeat(fx, heartbeat_request("stranger", &[token])).await.lost_leases,
        [token]
    );
    assert_eq!(fx.snapshot().await.leases[0].expires_at, fx.now() - 10 + LEASE_MS);
}

pub async fn heartbeat_reports_unknown_lease_as_lost(fx: &Fixture) {
    let tokens = [Token(0), Token(99), Token(i64::MAX)];
    assert_eq!(send_heartbeat(fx, heartbeat_request("worker", &tokens)).await.lost_leases, tokens);
}

pub async fn heartbeat_with_lost_lease_renews_the_others(fx: &Fixture) {
    fx.submit_all(tasks("a", 2)).await;
    let (first, second) = (fx.claim_one().await.token, fx.claim_one().await.token);
    fx.advance(1000);
    let extended =
        send_heartbeat(fx, heartbeat_request("worker", &[first, Token(777), second])).await;
    assert_eq!(extended.lost_leases, [Token(777)]);
    let expiries: Vec<_> =
        fx.snapshot().await.leases.iter().map(|lease| lease.expires_at).collect();
    assert_eq!(expiries, [fx.now() + LEASE_MS; 2]);
}

pub async fn heartbeat_reports_cancel_until_attempt_completes(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let claimed = fx.claim(2).await;
    let token = claimed[0].token;
    assert_eq!(fx.cancel(all[1]).await, CancelOutcome::Requested);
    for _ in 0..2 {
        let extended = send_heartbeat(fx, heartbeat_request("worker", &[token])).await;
        assert_eq!(
            extended,
            HeartbeatReply { attempts_to_stop: vec![(all[1], token)], ..HeartbeatReply::default() }
        );
    }
    fx.finish_attempt(&claimed[1], tidegate_core::Outcome::Cancelled).await;
    assert_eq!(
        send_heartbeat(fx, heartbeat_request("worker", &[token])).await,
        HeartbeatReply::default()
    );
}

pub async fn progress_of_running_attempt_is_shown(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    assert_eq!(fx.view(id).await.progress, None);
    for (percent, message) in [(0, ""), (50, "half \"way\" / ä"), (100, "done")] {
        send_heartbeat(fx, progress_report(&attempt, percent, message)).await;
        let shown = fx.view(id).await.progress;
        assert_eq!(shown, Some(Progress { percent, message: message.into() }));
    }
}

pub async fn progress_of_stale_attempt_is_ignored(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let stale = fx.claim_one().await;
    fx.finish_attempt(&stale, tidegate_core::Outcome::Released).await;
    let attempt = fx.claim_one().await;
    send_heartbeat(fx, progress_report(&attempt, 10, "mine")).await;
    send_heartbeat(fx, progress_report(&stale, 90, "not mine")).await;
    assert_eq!(fx.view(id).await.progress.expect("progress").message, "mine");
}

pub async fn heartbeat_with_invalid_progress_is_rejected(fx: &Fixture) {
    fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    let before = fx.snapshot().await;
    let long = "x".repeat(PROGRESS_MESSAGE_BYTES_MAX + 1);
    for (percent, message) in [(101, ""), (255, ""), (1, &*long), (1, "a\0b")] {
        let error =
            fx.store.heartbeat(progress_report(&attempt, percent, message)).await.expect_err("bad");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{percent} {message:?}");
    }
    assert_eq!(fx.snapshot().await, before);
}

pub async fn heartbeat_with_lease_out_of_bounds_is_rejected(fx: &Fixture) {
    fx.submit(task("a")).await;
    let token = fx.claim_one().await.token;
    for lease_ms in [i64::MIN, -1, 0, 99, DURATION_MS_MAX + 1, i64::MAX] {
        let extend = Heartbeat { lease_ms, ..heartbeat_request("worker", &[token]) };
        let error = fx.store.heartbeat(extend).await.expect_err("lease");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{lease_ms}");
    }
}

/// A heartbeat keeps what runs; it does not ask for more.
pub async fn heartbeat_of_full_worker_requests_no_tasks(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    fx.submit(task("a")).await;
    let claimed = fx.claim_as(claim_request("full", &["a", "b"], 1)).await;
    fx.complete(&claimed).await;
    fx.submit(task("b")).await;
    let running = fx.claim_as(claim_request("full", &["a", "b"], 1)).await;
    for _ in 0..3 {
        fx.advance(LEASE_MS - 1);
        send_heartbeat(fx, heartbeat_request("full", &[running[0].token])).await;
    }
    let id = fx.submit(task("a")).await;
    fx.admit().await;
    assert_eq!(fx.wait_reason(id).await, Some(WaitReason::NoWorker), "nobody asked for it");
    assert_eq!(fx.limit("group:a").await.held, 0);
    assert_eq!(task_ids(&fx.claim_as(claim_request("full", &["a", "b"], 1)).await), [id]);
}

fn worker_report(available: u32, accepting: bool) -> WorkerReport {
    let memory = Some(MemoryUsage { used_bytes: 1 << 40, limit_bytes: 1 << 41 });
    WorkerReport {
        free: available,
        concurrency: 9,
        memory,
        accepting,
        reason: "it \"has\" room".into(),
    }
}

/// Idle workers send reports too. What one says is kept until it says something else.
pub async fn heartbeat_report_is_kept_until_the_next_report(fx: &Fixture) {
    let report = |worker, report| Heartbeat { report, ..heartbeat_request(worker, &[]) };
    let seen = async || {
        let workers = fx.reader.workers().await.expect("workers");
        workers.into_iter().map(|worker| (worker.id, worker.report)).collect::<Vec<_>>()
    };
    let one = WorkerId("one".into());
    send_heartbeat(fx, report("one", Some(worker_report(3, true)))).await;
    assert_eq!(seen().await, [(one.clone(), Some(worker_report(3, true)))]);
    send_heartbeat(fx, report("one", None)).await;
    assert_eq!(seen().await, [(one.clone(), Some(worker_report(3, true)))], "nothing new");
    send_heartbeat(fx, report("one", Some(worker_report(0, false)))).await;
    assert_eq!(seen().await, [(one.clone(), Some(worker_report(0, false)))]);
    fx.claim_as(claim_request("one", &["a"], 0)).await;
    assert_eq!(seen().await, [(one, Some(worker_report(0, false)))], "a claim leaves it");
    fx.advance(LEASE_MS);
    assert_eq!(seen().await, []);
}

pub async fn heartbeat_returns_number_of_peers_with_free_concurrency(fx: &Fixture) {
    let told = async |worker, report| {
        send_heartbeat(fx, Heartbeat { report, ..heartbeat_request(worker, &[]) })
            .await
            .peers_with_capacity
    };
    assert_eq!(told("one", Some(worker_report(3, true))).await, 0, "it is no peer of its own");
    assert_eq!(told("two", None).await, 1);
    assert_eq!(told("one", None).await, 0, "who says nothing does not count");
    assert_eq!(told("three", Some(worker_report(0, true))).await, 1);
    assert_eq!(told("four", Some(worker_report(5, false))).await, 1);
    assert_eq!(told("two", Some(worker_report(1, true))).await, 1);
    assert_eq!(told("four", None).await, 2, "neither who is full nor who does not accept");
    fx.advance(LEASE_MS);
    assert_eq!(told("one", None).await, 0, "the others are gone");
}

/// A worker without room does not ask; who looks sees what it works on all the same.
pub async fn worker_list_shows_served_kinds_of_full_worker(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let token = fx.claim_one().await.token;
    for _ in 0..3 {
        fx.advance(LEASE_MS - 1);
        send_heartbeat(fx, heartbeat_request("worker", &[token])).await;
    }
    let workers = fx.reader.workers().await.expect("workers");
    assert_eq!(workers[0].kinds, ["a".into()]);
    let explained = fx.reader.explain(all[1]).await.expect("explain").expect("a task");
    let is_served = matches!(explained.reason, NotRunningReason::Ready { is_served: true, .. });
    assert!(is_served, "{explained:?}");
    fx.advance(LEASE_MS);
    let explained = fx.reader.explain(all[1]).await.expect("explain").expect("a task");
    assert!(
        matches!(explained.reason, NotRunningReason::Ready { is_served: false, .. }),
        "it is dead"
    );
}

pub async fn heartbeat_with_invalid_report_is_rejected(fx: &Fixture) {
    for reason in ["x".repeat(REPORT_REASON_BYTES_MAX + 1), "\0".to_owned()] {
        let report = Some(WorkerReport { reason, ..worker_report(1, true) });
        let refused =
            fx.store.heartbeat(Heartbeat { report, ..heartbeat_request("worker", &[]) }).await;
        assert_eq!(refused.expect_err("a bad report").kind(), ErrorKind::Invalid);
    }
    assert_eq!(fx.reader.workers().await.expect("workers"), []);
}

/// A heartbeat that was on its way while the last attempt ended. The attempts that run under
/// another lease are none of its business.
pub async fn heartbeat_reports_lease_without_attempts_as_lost(fx: &Fixture) {
    fx.submit_all(tasks("a", 2)).await;
    let (ended, runs) = (fx.claim_one().await, fx.claim_one().await);
    fx.finish_attempt(&ended, tidegate_core::Outcome::Released).await;
    fx.advance(1000);
    let extended =
        send_heartbeat(fx, heartbeat_request("worker", &[ended.token, runs.token])).await;
    assert_eq!(
        extended,
        HeartbeatReply { lost_leases: vec![ended.token], ..HeartbeatReply::default() }
    );
    let leases = fx.snapshot().await.leases;
    assert_eq!(leases.len(), 1, "a heartbeat makes no lease");
    assert_eq!((leases[0].token, leases[0].expires_at), (runs.token, fx.now() + LEASE_MS));
}
