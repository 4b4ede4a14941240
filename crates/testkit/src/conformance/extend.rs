//! Heartbeats.

use tidegate_core::bounds::{DURATION_MS_MAX, PROGRESS_BYTES_MAX, REPORT_BYTES_MAX};
use tidegate_core::inspect::Reason;
use tidegate_core::tables::Class;
use tidegate_core::{
    Attempt, CancelOutcome, ErrorKind, Extend, Extended, Memory, Progress, State, Token, WorkerId,
    WorkerReport,
};

use super::fixture::{Fixture, LEASE_MS, asks, ids, task, tasks};

fn beat(worker: &str, tokens: &[Token]) -> Extend {
    Extend {
        worker: WorkerId(worker.into()),
        tokens: tokens.to_vec(),
        lease_ms: LEASE_MS,
        progress: vec![],
        ran: vec![],
        report: None,
    }
}

fn report(attempt: &Attempt, percent: u8, message: &str) -> Extend {
    let progress = Progress { percent, message: message.into() };
    let progress = vec![(attempt.task, attempt.token, progress)];
    Extend { progress, ..beat("worker", &[attempt.token]) }
}

async fn extend(fx: &Fixture, extend: Extend) -> Extended {
    fx.store.extend(extend).await.expect("extend")
}

pub async fn a_heartbeat_keeps_the_lease(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let token = fx.claim_one().await.token;
    for _ in 0..5 {
        fx.advance(LEASE_MS - 1);
        assert_eq!(extend(fx, beat("worker", &[token])).await, Extended::default());
        assert_eq!(fx.snapshot().await.leases[0].expires_at, fx.now() + LEASE_MS);
        assert_eq!(fx.reap().await.expired, 0);
    }
    assert_eq!(fx.state(id).await, State::Processing);
}

pub async fn a_lease_that_ran_out_is_not_renewed(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let token = fx.claim_one().await.token;
    fx.advance(LEASE_MS);
    assert_eq!(extend(fx, beat("worker", &[token])).await.lost, [token], "not even unreaped");
    // The reaper leaves the lease to the worker for one lease length.
    fx.advance(LEASE_MS);
    assert_eq!(fx.reap().await.expired, 1);
    assert_eq!(extend(fx, beat("worker", &[token])).await.lost, [token]);
    assert_eq!(fx.state(id).await, State::Pending);
}

pub async fn only_its_own_worker_renews_a_lease(fx: &Fixture) {
    fx.submit(task("a")).await;
    let token = fx.claim_one().await.token;
    fx.advance(10);
    assert_eq!(extend(fx, beat("stranger", &[token])).await.lost, [token]);
    assert_eq!(fx.snapshot().await.leases[0].expires_at, fx.now() - 10 + LEASE_MS);
}

pub async fn an_unknown_lease_is_lost(fx: &Fixture) {
    let tokens = [Token(0), Token(99), Token(i64::MAX)];
    assert_eq!(extend(fx, beat("worker", &tokens)).await.lost, tokens);
}

pub async fn one_lost_lease_does_not_hold_up_the_others(fx: &Fixture) {
    fx.submit_all(tasks("a", 2)).await;
    let (first, second) = (fx.claim_one().await.token, fx.claim_one().await.token);
    fx.advance(1000);
    let extended = extend(fx, beat("worker", &[first, Token(777), second])).await;
    assert_eq!(extended.lost, [Token(777)]);
    let expiries: Vec<_> =
        fx.snapshot().await.leases.iter().map(|lease| lease.expires_at).collect();
    assert_eq!(expiries, [fx.now() + LEASE_MS; 2]);
}

pub async fn a_cancel_is_told_until_the_attempt_ends(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let claimed = fx.claim(2).await;
    let token = claimed[0].token;
    assert_eq!(fx.cancel(all[1]).await, CancelOutcome::Requested);
    for _ in 0..2 {
        let extended = extend(fx, beat("worker", &[token])).await;
        assert_eq!(extended, Extended { cancelled: vec![(all[1], token)], ..Extended::default() });
    }
    fx.exit(&claimed[1], tidegate_core::Outcome::Cancelled).await;
    assert_eq!(extend(fx, beat("worker", &[token])).await, Extended::default());
}

pub async fn progress_is_shown_while_the_attempt_runs(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    assert_eq!(fx.view(id).await.progress, None);
    for (percent, message) in [(0, ""), (50, "half \"way\" / ä"), (100, "done")] {
        extend(fx, report(&attempt, percent, message)).await;
        let shown = fx.view(id).await.progress;
        assert_eq!(shown, Some(Progress { percent, message: message.into() }));
    }
}

pub async fn progress_of_a_stale_attempt_changes_nothing(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let stale = fx.claim_one().await;
    fx.exit(&stale, tidegate_core::Outcome::Released).await;
    let attempt = fx.claim_one().await;
    extend(fx, report(&attempt, 10, "mine")).await;
    extend(fx, report(&stale, 90, "not mine")).await;
    assert_eq!(fx.view(id).await.progress.expect("progress").message, "mine");
}

pub async fn bad_progress_is_refused(fx: &Fixture) {
    fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    let before = fx.snapshot().await;
    let long = "x".repeat(PROGRESS_BYTES_MAX + 1);
    for (percent, message) in [(101, ""), (255, ""), (1, &*long), (1, "a\0b")] {
        let error = fx.store.extend(report(&attempt, percent, message)).await.expect_err("bad");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{percent} {message:?}");
    }
    assert_eq!(fx.snapshot().await, before);
}

pub async fn a_lease_out_of_bounds_is_refused(fx: &Fixture) {
    fx.submit(task("a")).await;
    let token = fx.claim_one().await.token;
    for lease_ms in [i64::MIN, -1, 0, 99, DURATION_MS_MAX + 1, i64::MAX] {
        let extend = Extend { lease_ms, ..beat("worker", &[token]) };
        let error = fx.store.extend(extend).await.expect_err("lease");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{lease_ms}");
    }
}

/// A heartbeat keeps what runs; it does not ask for more.
pub async fn a_heartbeat_asks_for_nothing(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    fx.submit(task("a")).await;
    let claimed = fx.claim_as(asks("full", &["a", "b"], 1)).await;
    fx.complete(&claimed).await;
    fx.submit(task("b")).await;
    let running = fx.claim_as(asks("full", &["a", "b"], 1)).await;
    for _ in 0..3 {
        fx.advance(LEASE_MS - 1);
        extend(fx, beat("full", &[running[0].token])).await;
    }
    let id = fx.submit(task("a")).await;
    fx.admit().await;
    assert_eq!(fx.class(id).await, Some(Class::NoWorker), "nobody asked for it");
    assert_eq!(fx.limit("group:a").await.held, 0);
    assert_eq!(ids(&fx.claim_as(asks("full", &["a", "b"], 1)).await), [id]);
}

fn says(available: u32, accepting: bool) -> WorkerReport {
    let memory = Some(Memory { used: 1 << 40, limit: 1 << 41 });
    WorkerReport { available, maximum: 9, memory, accepting, reason: "it \"has\" room".into() }
}

/// Idle workers send reports too. What one says is kept until it says something else.
pub async fn a_worker_says_how_much_room_it_has(fx: &Fixture) {
    let report = |worker, report| Extend { report, ..beat(worker, &[]) };
    let seen = async || {
        let workers = fx.inspect.workers().await.expect("workers");
        workers.into_iter().map(|worker| (worker.id, worker.report)).collect::<Vec<_>>()
    };
    let one = WorkerId("one".into());
    extend(fx, report("one", Some(says(3, true)))).await;
    assert_eq!(seen().await, [(one.clone(), Some(says(3, true)))]);
    extend(fx, report("one", None)).await;
    assert_eq!(seen().await, [(one.clone(), Some(says(3, true)))], "nothing new");
    extend(fx, report("one", Some(says(0, false)))).await;
    assert_eq!(seen().await, [(one.clone(), Some(says(0, false)))]);
    fx.claim_as(asks("one", &["a"], 0)).await;
    assert_eq!(seen().await, [(one, Some(says(0, false)))], "a claim leaves it");
    fx.advance(LEASE_MS);
    assert_eq!(seen().await, []);
}

pub async fn a_heartbeat_tells_how_many_others_have_room(fx: &Fixture) {
    let told =
        async |worker, report| extend(fx, Extend { report, ..beat(worker, &[]) }).await.peers;
    assert_eq!(told("one", Some(says(3, true))).await, 0, "it is no peer of its own");
    assert_eq!(told("two", None).await, 1);
    assert_eq!(told("one", None).await, 0, "who says nothing does not count");
    assert_eq!(told("three", Some(says(0, true))).await, 1);
    assert_eq!(told("four", Some(says(5, false))).await, 1);
    assert_eq!(told("two", Some(says(1, true))).await, 1);
    assert_eq!(told("four", None).await, 2, "neither who is full nor who does not accept");
    fx.advance(LEASE_MS);
    assert_eq!(told("one", None).await, 0, "the others are gone");
}

/// A worker without room does not ask; who looks sees what it works on all the same.
pub async fn a_worker_that_is_full_is_shown_with_what_it_serves(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let token = fx.claim_one().await.token;
    for _ in 0..3 {
        fx.advance(LEASE_MS - 1);
        extend(fx, beat("worker", &[token])).await;
    }
    let workers = fx.inspect.workers().await.expect("workers");
    assert_eq!(workers[0].kinds, ["a".into()]);
    let explained = fx.inspect.explain(all[1]).await.expect("explain").expect("a task");
    let is_served = matches!(explained.reason, Reason::Ready { is_served: true, .. });
    assert!(is_served, "{explained:?}");
    fx.advance(LEASE_MS);
    let explained = fx.inspect.explain(all[1]).await.expect("explain").expect("a task");
    assert!(matches!(explained.reason, Reason::Ready { is_served: false, .. }), "it is dead");
}

pub async fn a_bad_report_is_refused(fx: &Fixture) {
    for reason in ["x".repeat(REPORT_BYTES_MAX + 1), "\0".to_owned()] {
        let report = Some(WorkerReport { reason, ..says(1, true) });
        let refused = fx.store.extend(Extend { report, ..beat("worker", &[]) }).await;
        assert_eq!(refused.expect_err("a bad report").kind(), ErrorKind::Invalid);
    }
    assert_eq!(fx.inspect.workers().await.expect("workers"), []);
}

/// A heartbeat that was on its way while the last attempt ended. The attempts that run under
/// another lease are none of its business.
pub async fn a_lease_whose_attempts_have_ended_is_gone(fx: &Fixture) {
    fx.submit_all(tasks("a", 2)).await;
    let (ended, runs) = (fx.claim_one().await, fx.claim_one().await);
    fx.exit(&ended, tidegate_core::Outcome::Released).await;
    fx.advance(1000);
    let extended = extend(fx, beat("worker", &[ended.token, runs.token])).await;
    assert_eq!(extended, Extended { lost: vec![ended.token], ..Extended::default() });
    let leases = fx.snapshot().await.leases;
    assert_eq!(leases.len(), 1, "a heartbeat makes no lease");
    assert_eq!((leases[0].token, leases[0].expires_at), (runs.token, fx.now() + LEASE_MS));
}
