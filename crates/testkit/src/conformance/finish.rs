//! The one fenced exit.

use tidegate_core::bounds::{BATCH_MAX, ERROR_BYTES_MAX, PAYLOAD_BYTES_MAX};
use tidegate_core::{
    Backoff, ErrorKind, Exit, Finish, Kind, Lost, NewTask, Outcome, Registration, State, TaskId,
    Token,
};

use super::fixture::{Fixture, asks, done, fatal, ids, retry_in, task, tasks};

fn failed() -> Outcome {
    Outcome::Failed { error: "no".into(), retryable: true, retry_in_ms: None }
}

pub async fn a_result_is_kept_byte_by_byte(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.advance(5);
    fx.exit(&attempt, Outcome::Completed(b"{\"b\":1, \"a\":2}\0\xff".to_vec())).await;
    let view = fx.view(id).await;
    assert_eq!((view.state, view.finished_at), (State::Completed, Some(fx.now())));
    assert_eq!(view.result.as_deref(), Some(&b"{\"b\":1, \"a\":2}\0\xff"[..]));
    fx.check_at_rest().await;
}

pub async fn a_fatal_error_is_final_at_once(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.exit(&attempt, fatal("broken")).await;
    let view = fx.view(id).await;
    assert_eq!((view.state, view.error.as_deref()), (State::Failed, Some("broken")));
    assert_eq!(view.spent, 1);
    fx.check_at_rest().await;
}

pub async fn failures_spend_attempts_until_none_is_left(fx: &Fixture) {
    let id = fx.submit(NewTask { max_attempts: Some(3), ..task("a") }).await;
    for number in 1..=3 {
        let attempt = fx.claim_one().await;
        assert_eq!(attempt.number, number);
        fx.exit(&attempt, retry_in(10)).await;
        fx.advance(10);
    }
    let view = fx.view(id).await;
    assert_eq!((view.state, view.spent), (State::Failed, 3));
    assert_eq!(view.error.as_deref(), Some("try again"));
    assert_eq!(fx.claim(1).await, []);
}

/// Also those of one claim, which have one token.
pub async fn tasks_that_fail_together_come_back_apart(fx: &Fixture) {
    let all = fx.submit_all(vec![task("a"); 20]).await;
    let claimed = fx.claim(20).await;
    for attempt in &claimed {
        fx.exit(attempt, failed()).await;
    }
    let mut due = std::collections::BTreeSet::new();
    for id in all {
        due.insert(fx.view(id).await.run_at.expect("it is scheduled"));
    }
    assert!(due.len() > 10, "{due:?}");
}

pub async fn a_retry_backs_off_with_jitter_up_to_the_cap(fx: &Fixture) {
    let backoff = Backoff { base_ms: 1000, cap_ms: 3000 };
    let kind = Kind { backoff, ..Kind::new("a") };
    let registration = Registration { kinds: vec![kind], ..Registration::default() };
    fx.store.register(registration).await.expect("register");
    let id = fx.submit(task("a")).await;
    for full in [1000, 2000, 3000, 3000] {
        let attempt = fx.claim_one().await;
        fx.exit(&attempt, failed()).await;
        let view = fx.view(id).await;
        assert_eq!(view.state, State::Scheduled);
        let delay = view.run_at.expect("it is scheduled") - fx.now();
        assert!((full / 2..=full).contains(&delay), "{delay} after {}", view.spent);
        assert_eq!(delay, backoff.delay_ms(view.spent, attempt.task), "the same on every store");
        fx.advance(delay - 1);
        assert_eq!(fx.claim(1).await, []);
        fx.advance(1);
    }
    assert_eq!(fx.claim_one().await.number, 5);
}

pub async fn a_retry_without_delay_runs_at_once(fx: &Fixture) {
    for ms in [0, -5] {
        let id = fx.submit(task("a")).await;
        let attempt = fx.claim_one().await;
        fx.exit(&attempt, retry_in(ms)).await;
        assert_eq!(fx.state(id).await, State::Pending);
        let attempt = fx.claim_one().await;
        assert_eq!((attempt.task, attempt.number), (id, 2));
        fx.complete(&[attempt]).await;
    }
}

pub async fn a_snooze_costs_no_attempt(fx: &Fixture) {
    let id = fx.submit(NewTask { max_attempts: Some(1), ..task("a") }).await;
    for _ in 0..3 {
        let attempt = fx.claim_one().await;
        assert_eq!(attempt.number, 1);
        fx.exit(&attempt, Outcome::Snoozed { for_ms: 100 }).await;
        assert_eq!(fx.state(id).await, State::Scheduled);
        fx.advance(99);
        assert_eq!(fx.claim(1).await, []);
        fx.advance(1);
    }
    let attempt = fx.claim_one().await;
    fx.complete(&[attempt]).await;
    assert_eq!(fx.state(id).await, State::Completed);
}

pub async fn a_release_gives_the_attempt_back(fx: &Fixture) {
    let id = fx.submit(NewTask { max_attempts: Some(1), ..task("a") }).await;
    let first = fx.claim_one().await;
    fx.exit(&first, Outcome::Released).await;
    let second = fx.claim_one().await;
    assert_eq!((second.task, second.number), (id, 1));
    assert!(second.token > first.token);
    assert_eq!(fx.view(id).await.spent, 0);
}

pub async fn a_handler_may_report_a_cancel(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.exit(&attempt, Outcome::Cancelled).await;
    assert_eq!(fx.state(id).await, State::Cancelled);
    fx.check_at_rest().await;
}

pub async fn a_stale_token_changes_nothing(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    let first = fx.claim_one().await;
    fx.exit(&first, Outcome::Released).await;
    let second = fx.claim_one().await;
    let before = fx.snapshot().await;
    for outcome in [done(), fatal("no"), retry_in(1), Outcome::Released, Outcome::Cancelled] {
        for token in [first.token, Token(0), Token(i64::MAX)] {
            let finished = fx.finish(id, token, outcome.clone()).await;
            assert_eq!(finished.lost, [Lost { task: id, token }]);
        }
    }
    assert_eq!(fx.snapshot().await, before);
    fx.exit(&second, done()).await;
    assert_eq!(fx.state(id).await, State::Completed);
}

pub async fn a_completion_is_accepted_once(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.exit(&attempt, Outcome::Completed(b"1".to_vec())).await;
    let again = fx.finish(id, attempt.token, Outcome::Completed(b"2".to_vec())).await;
    assert_eq!(again.lost, [Lost { task: id, token: attempt.token }]);
    assert_eq!(fx.view(id).await.result.as_deref(), Some(&b"1"[..]));
}

pub async fn the_same_exit_twice_in_one_batch_counts_once(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let token = fx.claim_one().await.token;
    let exit = Exit { task: id, token, outcome: done() };
    let finish = Finish { exits: vec![exit.clone(), exit], claim: None };
    let finished = fx.store.finish(finish).await.expect("finish");
    assert_eq!(finished.lost, [Lost { task: id, token }]);
    assert_eq!(fx.state(id).await, State::Completed);
}

pub async fn a_token_is_good_for_its_own_tasks_only(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let first = fx.claim_one().await;
    let second = fx.claim_one().await;
    assert_eq!(fx.finish(all[0], second.token, done()).await.lost.len(), 1);
    assert_eq!(fx.finish(all[1], first.token, done()).await.lost.len(), 1);
    assert_eq!(fx.states(&all).await, [State::Processing; 2]);
}

pub async fn an_unknown_task_is_lost(fx: &Fixture) {
    let finished = fx.finish(TaskId(424_242), Token(1), done()).await;
    assert_eq!(finished.lost.len(), 1);
}

pub async fn one_stale_exit_does_not_hold_up_the_batch(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 4)).await;
    let claimed = fx.claim(4).await;
    let exit = |i: usize, token, outcome| Exit { task: claimed[i].task, token, outcome };
    let token = claimed[0].token;
    let exits = vec![
        exit(0, token, done()),
        exit(1, Token(token.0 + 7), done()),
        exit(2, token, fatal("no")),
        exit(3, token, Outcome::Snoozed { for_ms: 5 }),
    ];
    let finished = fx.store.finish(Finish { exits, claim: None }).await.expect("finish");
    assert_eq!(finished.lost, [Lost { task: all[1], token: Token(token.0 + 7) }]);
    let wanted = [State::Completed, State::Processing, State::Failed, State::Scheduled];
    assert_eq!(fx.states(&all).await, wanted);
}

/// The freed slot goes to the next in line, and to the finishing worker in the same round trip.
pub async fn the_next_in_line_is_handed_over(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let all = fx.submit_all(tasks("a", 3)).await;
    let mut attempt = fx.claim_one().await;
    for next in &all[1..] {
        let exits = vec![Exit { task: attempt.task, token: attempt.token, outcome: done() }];
        let finish = Finish { exits, claim: Some(asks("worker", &["a"], 1)) };
        let finished = fx.store.finish(finish).await.expect("finish");
        // A store may leave the hand-over to the next transaction.
        let claimed = match finished.claimed {
            claimed if claimed.is_empty() && fx.backend().settles() => fx.claim(1).await,
            claimed => claimed,
        };
        assert_eq!(ids(&claimed), [*next]);
        attempt = claimed[0].clone();
        fx.check().await;
    }
}

pub async fn a_finish_may_only_claim(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let finish = Finish { exits: vec![], claim: Some(asks("worker", &["a"], 1)) };
    let finished = fx.store.finish(finish).await.expect("finish");
    assert_eq!(ids(&finished.claimed), [id]);
}

pub async fn a_result_that_is_too_large_fails_the_task(fx: &Fixture) {
    let all = fx.submit_all(tasks("a", 2)).await;
    let claimed = fx.claim(2).await;
    fx.exit(&claimed[0], Outcome::Completed(vec![b'1'; PAYLOAD_BYTES_MAX])).await;
    fx.exit(&claimed[1], Outcome::Completed(vec![b'1'; PAYLOAD_BYTES_MAX + 1])).await;
    assert_eq!(fx.states(&all).await, [State::Completed, State::Failed]);
    let kept = fx.view(all[0]).await.result.expect("a result");
    assert_eq!(kept.len(), PAYLOAD_BYTES_MAX);
}

pub async fn a_long_error_is_cut_between_characters(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.exit(&attempt, fatal(&format!("x{}", "ä".repeat(ERROR_BYTES_MAX)))).await;
    let error = fx.view(id).await.error.expect("an error");
    assert_eq!(error.len(), ERROR_BYTES_MAX - 1);
    assert!(error.starts_with('x') && error[1..].chars().all(|c| c == 'ä'));
}

/// A handler may fail with any text; a store that cannot keep a character of it must still
/// take the exit.
pub async fn no_error_text_holds_up_an_exit(fx: &Fixture) {
    for text in ["", "a\0b", "\n\t\r\u{1b}[31m", "\u{fffd}\u{10ffff}", "'; drop table task; --"] {
        let id = fx.submit(task("a")).await;
        let attempt = fx.claim_one().await;
        fx.exit(&attempt, fatal(text)).await;
        let view = fx.view(id).await;
        assert_eq!(view.state, State::Failed);
        assert_eq!(view.error.as_deref(), Some(&*text.replace('\0', "\u{fffd}")));
    }
}

pub async fn too_many_exits_at_once_are_refused(fx: &Fixture) {
    let exit = Exit { task: TaskId(1), token: Token(1), outcome: done() };
    let finish = Finish { exits: vec![exit; BATCH_MAX + 1], claim: None };
    assert_eq!(fx.store.finish(finish).await.expect_err("many").kind(), ErrorKind::Invalid);
}

/// A refused claim takes the exits of the same call with it: nothing was written.
pub async fn a_refused_claim_takes_no_exit(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    let exits = vec![Exit { task: id, token: attempt.token, outcome: done() }];
    let claim = tidegate_core::Claim { lease_ms: -1, ..asks("worker", &["a"], 1) };
    let error = fx.store.finish(Finish { exits, claim: Some(claim) }).await.expect_err("lease");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(fx.state(id).await, State::Processing);
    fx.exit(&attempt, done()).await;
}

async fn leases(fx: &Fixture) -> Vec<Token> {
    fx.snapshot().await.leases.iter().map(|lease| lease.token).collect()
}

/// Invariant 6: at rest no lease is left over, and nobody has to reap for it.
pub async fn a_lease_ends_with_its_last_attempt(fx: &Fixture) {
    for last in [done(), fatal("no"), retry_in(1000), Outcome::Released, Outcome::Cancelled] {
        fx.submit_all(tasks("a", 2)).await;
        let claimed = fx.claim(2).await;
        fx.exit(&claimed[0], done()).await;
        assert_eq!(leases(fx).await, [claimed[1].token], "something runs under it");
        fx.exit(&claimed[1], last).await;
        assert_eq!(leases(fx).await, []);
        fx.advance(1000);
        fx.work_off().await;
        fx.check_at_rest().await;
    }
}

pub async fn one_batch_ends_several_leases(fx: &Fixture) {
    fx.submit_all(tasks("a", 5)).await;
    let mut claimed = fx.claim(2).await;
    claimed.extend(fx.claim(1).await);
    claimed.extend(fx.claim(2).await);
    let exits = claimed[..4]
        .iter()
        .map(|attempt| Exit { task: attempt.task, token: attempt.token, outcome: done() })
        .collect();
    let claim = Some(asks("worker", &["a"], 1));
    let finished = fx.store.finish(Finish { exits, claim }).await.expect("finish");
    assert_eq!((finished.lost, finished.claimed.len()), (vec![], 0));
    assert_eq!(leases(fx).await, [claimed[4].token]);
}

pub async fn a_finish_after_the_end_of_its_lease_is_lost(fx: &Fixture) {
    let id = fx.submit(task("a")).await;
    let ended = fx.claim_one().await;
    fx.exit(&ended, Outcome::Released).await;
    let runs = fx.claim_one().await;
    let before = fx.snapshot().await;
    let late = Exit { task: id, token: ended.token, outcome: done() };
    let finish = Finish { exits: vec![late], claim: None };
    let finished = fx.store.finish(finish).await.expect("finish");
    assert_eq!(finished.lost, [Lost { task: id, token: ended.token }]);
    assert_eq!(fx.snapshot().await, before);
    fx.exit(&runs, done()).await;
    fx.check_at_rest().await;
}
