//! The one fenced exit.

use tidegate_core::bounds::{BATCH_MAX, ERROR_BYTES_MAX, PAYLOAD_BYTES_MAX};
use tidegate_core::{
    Backoff, Completion, ErrorKind, Finish, Kind, LostAttempt, NewTask, Outcome, Registration,
    TaskId, TaskState, Token,
};

use super::fixture::{
    Fixture, claim_request, completed_outcome, fatal_failure, retry_in, task, task_ids, tasks,
};

fn failed() -> Outcome {
    Outcome::Failed { error: "no".into(), retryable: true, retry_in_ms: None }
}

pub async fn result_is_stored_unchanged(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.advance(5);
    fx.finish_attempt(&attempt, Outcome::Completed(b"{\"b\":1, \"a\":2}\0\xff".to_vec())).await;
    let view = fx.view(id).await;
    assert_eq!((view.state, view.finished_at), (TaskState::Completed, Some(fx.now())));
    assert_eq!(view.result.as_deref(), Some(&b"{\"b\":1, \"a\":2}\0\xff"[..]));
    fx.check_at_rest().await;
}

pub async fn fatal_error_fails_task_without_retry(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, fatal_failure("broken")).await;
    let view = fx.view(id).await;
    assert_eq!((view.state, view.error.as_deref()), (TaskState::Failed, Some("broken")));
    assert_eq!(view.attempts_used, 1);
    fx.check_at_rest().await;
}

pub async fn task_fails_after_its_last_attempt(fx: &Fixture) {
    let id = fx.submit(NewTask { max_attempts: Some(3), ..task("a") }).await;
    for number in 1..=3 {
        let attempt = fx.claim_one().await;
        assert_eq!(attempt.number, number);
        fx.finish_attempt(&attempt, retry_in(10)).await;
        fx.advance(10);
    }
    let view = fx.view(id).await;
    assert_eq!((view.state, view.attempts_used), (TaskState::Failed, 3));
    assert_eq!(view.error.as_deref(), Some("try again"));
    assert_eq!(fx.claim(1).await, []);
}

/// Also those of one claim, which have one token.
pub async fn tasks_of_one_claim_are_retried_with_different_delays(fx: &Fixture) {
    let all = fx.submit_all(vec![task("a"); 20]).await;
    let claimed = fx.claim(20).await;
    for attempt in &claimed {
        fx.finish_attempt(attempt, failed()).await;
    }
    let mut due = std::collections::BTreeSet::new();
    for id in all {
        due.insert(fx.view(id).await.run_at.expect("it is scheduled"));
    }
    assert!(due.len() > 10, "{due:?}");
}

pub async fn retry_delay_grows_with_jitter_up_to_the_cap(fx: &Fixture) {
    let backoff = Backoff { base_ms: 1000, cap_ms: 3000 };
    let kind = Kind { backoff, ..Kind::new("a") };
    let registration = Registration { kinds: vec![kind], ..Registration::default() };
    fx.store.register(registration).await.expect("register");
    let id = fx.submit(task("a")).await;
    for full in [1000, 2000, 3000, 3000] {
        let attempt = fx.claim_one().await;
        fx.finish_attempt(&attempt, failed()).await;
        let view = fx.view(id).await;
        assert_eq!(view.state, TaskState::Scheduled);
        let delay = view.run_at.expect("it is scheduled") - fx.now();
        assert!((full / 2..=full).contains(&delay), "{delay} after {}", view.attempts_used);
        assert_eq!(
            delay,
            backoff.delay_ms(view.attempts_used, attempt.task),
            "the same on every store"
        );
        fx.advance(delay - 1);
        assert_eq!(fx.claim(1).await, []);
        fx.advance(1);
    }
    assert_eq!(fx.claim_one().await.number, 5);
}

pub async fn retry_without_delay_is_ready_at_once(fx: &Fixture) {
    for ms in [0, -5] {
        let id = fx.submit(task("a")).await;
        let attempt = fx.claim_one().await;
        fx.finish_attempt(&attempt, retry_in(ms)).await;
        assert_eq!(fx.state(id).await, TaskState::Pending);
        let attempt = fx.claim_one().await;
        assert_eq!((attempt.task, attempt.number), (id, 2));
        fx.complete(&[attempt]).await;
    }
}

pub async fn snooze_uses_no_attempt(fx: &Fixture) {
    let id = fx.submit(NewTask { max_attempts: Some(1), ..task("a") }).await;
    for _ in 0..3 {
        let attempt = fx.claim_one().await;
        assert_eq!(attempt.number, 1);
        fx.finish_attempt(&attempt, Outcome::Snoozed { delay_ms: 100 }).await;
        assert_eq!(fx.state(id).await, TaskState::Scheduled);
        fx.advance(99);
        assert_eq!(fx.claim(1).await, []);
        fx.advance(1);
    }
    let attempt = fx.claim_one().await;
    fx.complete(&[attempt]).await;
    assert_eq!(fx.state(id).await, TaskState::Completed);
}

pub async fn released_attempt_is_not_counted(fx: &Fixture) {
    let id = fx.submit(NewTask { max_attempts: Some(1), ..task("a") }).await;
    let first = fx.claim_one().await;
    fx.finish_attempt(&first, Outcome::Released).await;
    let second = fx.claim_one().await;
    assert_eq!((second.task, second.number), (id, 1));
    assert!(second.token > first.token);
    assert_eq!(fx.view(id).await.attempts_used, 0);
}

pub async fn cancelled_outcome_cancels_task(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, Outcome::Cancelled).await;
    assert_eq!(fx.state(id).await, TaskState::Cancelled);
    fx.check_at_rest().await;
}

pub async fn completion_with_stale_token_changes_nothing(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    let first = fx.claim_one().await;
    fx.finish_attempt(&first, Outcome::Released).await;
    let second = fx.claim_one().await;
    let before = fx.snapshot().await;
    for outcome in [
        completed_outcome(),
        fatal_failure("no"),
        retry_in(1),
        Outcome::Released,
        Outcome::Cancelled,
    ] {
        for token in [first.token, Token(0), Token(i64::MAX)] {
            let finished = fx.finish(id, token, outcome.clone()).await;
            assert_eq!(finished.lost_attempts, [LostAttempt { task: id, token }]);
        }
    }
    assert_eq!(fx.snapshot().await, before);
    fx.finish_attempt(&second, completed_outcome()).await;
    assert_eq!(fx.state(id).await, TaskState::Completed);
}

pub async fn second_completion_of_an_attempt_is_rejected(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, Outcome::Completed(b"1".to_vec())).await;
    let again = fx.finish(id, attempt.token, Outcome::Completed(b"2".to_vec())).await;
    assert_eq!(again.lost_attempts, [LostAttempt { task: id, token: attempt.token }]);
    assert_eq!(fx.view(id).await.result.as_deref(), Some(&b"1"[..]));
}

pub async fn duplicate_completion_in_one_batch_is_rejected(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let token = fx.claim_one().await.token;
    let exit = Completion { task: id, token, outcome: completed_outcome() };
    let finish = Finish { completions: vec![exit.clone(), exit], claim: None };
    let finished = fx.store.finish(finish).await.expect("finish");
    assert_eq!(finished.lost_attempts, [LostAttempt { task: id, token }]);
    assert_eq!(fx.state(id).await, TaskState::Completed);
}

pub async fn completion_with_token_of_another_lease_is_rejected(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let first = fx.claim_one().await;
    let second = fx.claim_one().await;
    assert_eq!(fx.finish(all[0], second.token, completed_outcome()).await.lost_attempts.len(), 1);
    assert_eq!(fx.finish(all[1], first.token, completed_outcome()).await.lost_attempts.len(), 1);
    assert_eq!(fx.states(&all).await, [TaskState::Processing; 2]);
}

pub async fn completion_of_unknown_task_is_rejected(fx: &Fixture) {
    let finished = fx.finish(TaskId(424_242), Token(1), completed_outcome()).await;
    assert_eq!(finished.lost_attempts.len(), 1);
}

pub async fn stale_completion_does_not_block_rest_of_batch(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 4)).await;
    let claimed = fx.claim(4).await;
    let exit = |i: usize, token, outcome| Completion { task: claimed[i].task, token, outcome };
    let token = claimed[0].token;
    let exits = vec![
        exit(0, token, completed_outcome()),
        exit(1, Token(token.0 + 7), completed_outcome()),
        exit(2, token, fatal_failure("no")),
        exit(3, token, Outcome::Snoozed { delay_ms: 5 }),
    ];
    let finished =
        fx.store.finish(Finish { completions: exits, claim: None }).await.expect("finish");
    assert_eq!(finished.lost_attempts, [LostAttempt { task: all[1], token: Token(token.0 + 7) }]);
    let wanted =
        [TaskState::Completed, TaskState::Processing, TaskState::Failed, TaskState::Scheduled];
    assert_eq!(fx.states(&all).await, wanted);
}

/// The freed slot goes to the next in line, and to the finishing worker in the same round trip.
pub async fn finish_hands_slot_to_next_waiter_and_claims_it(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    let mut attempt = fx.claim_one().await;
    for next in &all[1..] {
        let exits = vec![Completion {
            task: attempt.task,
            token: attempt.token,
            outcome: completed_outcome(),
        }];
        let finish = Finish { completions: exits, claim: Some(claim_request("worker", &["a"], 1)) };
        let finished = fx.store.finish(finish).await.expect("finish");
        // A store may leave the hand-over to the next transaction.
        let claimed = match finished.claimed {
            claimed if claimed.is_empty() && fx.backend().needs_settling() => fx.claim(1).await,
            claimed => claimed,
        };
        assert_eq!(task_ids(&claimed), [*next]);
        attempt = claimed[0].clone();
        fx.check_invariants().await;
    }
}

pub async fn finish_without_completions_only_claims(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let finish = Finish { completions: vec![], claim: Some(claim_request("worker", &["a"], 1)) };
    let finished = fx.store.finish(finish).await.expect("finish");
    assert_eq!(task_ids(&finished.claimed), [id]);
}

pub async fn result_above_size_limit_fails_task(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let claimed = fx.claim(2).await;
    fx.finish_attempt(&claimed[0], Outcome::Completed(vec![b'1'; PAYLOAD_BYTES_MAX])).await;
    fx.finish_attempt(&claimed[1], Outcome::Completed(vec![b'1'; PAYLOAD_BYTES_MAX + 1])).await;
    assert_eq!(fx.states(&all).await, [TaskState::Completed, TaskState::Failed]);
    let kept = fx.view(all[0]).await.result.expect("a result");
    assert_eq!(kept.len(), PAYLOAD_BYTES_MAX);
}

pub async fn long_error_is_truncated_at_character_boundary(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.finish_attempt(&attempt, fatal_failure(&format!("x{}", "ä".repeat(ERROR_BYTES_MAX)))).await;
    let error = fx.view(id).await.error.expect("an error");
    assert_eq!(error.len(), ERROR_BYTES_MAX - 1);
    assert!(error.starts_with('x') && error[1..].chars().all(|c| c == 'ä'));
}

/// A handler may fail with any text; a store that cannot keep a character of it must still
/// take the exit.
pub async fn completion_with_any_error_text_is_accepted(fx: &Fixture) {
    for text in ["", "a\0b", "\n\t\r\u{1b}[31m", "\u{fffd}\u{10ffff}", "'; drop table task; --"] {
        let id = fx.submit(task("a")).await;
        let attempt = fx.claim_one().await;
        fx.finish_attempt(&attempt, fatal_failure(text)).await;
        let view = fx.view(id).await;
        assert_eq!(view.state, TaskState::Failed);
        assert_eq!(view.error.as_deref(), Some(&*text.replace('\0', "\u{fffd}")));
    }
}

pub async fn finish_of_too_many_completions_is_rejected(fx: &Fixture) {
    let exit = Completion { task: TaskId(1), token: Token(1), outcome: completed_outcome() };
    let finish = Finish { completions: vec![exit; BATCH_MAX + 1], claim: None };
    assert_eq!(fx.store.finish(finish).await.expect_err("many").kind(), ErrorKind::Invalid);
}

/// A refused claim takes the exits of the same call with it: nothing was written.
pub async fn finish_with_invalid_claim_completes_nothing(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    let exits = vec![Completion { task: id, token: attempt.token, outcome: completed_outcome() }];
    let claim = tidegate_core::Claim { lease_ms: -1, ..claim_request("worker", &["a"], 1) };
    let error = fx
        .store
        .finish(Finish { completions: exits, claim: Some(claim) })
        .await
        .expect_err("lease");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(fx.state(id).await, TaskState::Processing);
    fx.finish_attempt(&attempt, completed_outcome()).await;
}

async fn leases(fx: &Fixture) -> Vec<Token> {
    fx.snapshot().await.leases.iter().map(|lease| lease.token).collect()
}

/// Invariant 6: at rest no lease is left over, and nobody has to reap for it.
pub async fn lease_is_removed_with_its_last_attempt(fx: &Fixture) {
    for last in [
        completed_outcome(),
        fatal_failure("no"),
        retry_in(1000),
        Outcome::Released,
        Outcome::Cancelled,
    ] {
        fx.submit_all(tasks("a", 2)).await;
        let claimed = fx.claim(2).await;
        fx.finish_attempt(&claimed[0], completed_outcome()).await;
        assert_eq!(leases(fx).await, [claimed[1].token], "something runs under it");
        fx.finish_attempt(&claimed[1], last).await;
        assert_eq!(leases(fx).await, []);
        fx.advance(1000);
        fx.run_all().await;
        fx.check_at_rest().await;
    }
}

pub async fn finish_of_one_batch_removes_several_leases(fx: &Fixture) {
    fx.submit_all(tasks("a", 5)).await;
    let mut claimed = fx.claim(2).await;
    claimed.extend(fx.claim(1).await);
    claimed.extend(fx.claim(2).await);
    let exits = claimed[..4]
        .iter()
        .map(|attempt| Completion {
            task: attempt.task,
            token: attempt.token,
            outcome: completed_outcome(),
        })
        .collect();
    let claim = Some(claim_request("worker", &["a"], 1));
    let finished = fx.store.finish(Finish { completions: exits, claim }).await.expect("finish");
    assert_eq!((finished.lost_attempts, finished.claimed.len()), (vec![], 0));
    assert_eq!(leases(fx).await, [claimed[4].token]);
}

pub async fn completion_after_release_is_rejected(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let ended = fx.claim_one().await;
    fx.finish_attempt(&ended, Outcome::Released).await;
    let runs = fx.claim_one().await;
    let before = fx.snapshot().await;
    let late = Completion { task: id, token: ended.token, outcome: completed_outcome() };
    let finish = Finish { completions: vec![late], claim: None };
    let finished = fx.store.finish(finish).await.expect("finish");
    assert_eq!(finished.lost_attempts, [LostAttempt { task: id, token: ended.token }]);
    assert_eq!(fx.snapshot().await, before);
    fx.finish_attempt(&runs, completed_outcome()).await;
    fx.check_at_rest().await;
}
