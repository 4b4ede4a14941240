//! Times of day in which a kind may be claimed.

use tidegate_core::reader::NotRunningReason;
use tidegate_core::{DayWindow, Kind, Millis, NewTask, Registration, TaskState};

use super::fixture::{Fixture, LEASE_MS, task, task_ids, tasks};

const HOUR_MS: i64 = 60 * 60 * 1000;
const DAY_MS: i64 = 24 * HOUR_MS;

async fn window(fx: &Fixture, start: &str, end: &str) {
    let window = Some(DayWindow::parse(start, end).expect("window"));
    let kinds = vec![Kind { day_window: window, ..Kind::new("a") }];
    fx.store.register(Registration { kinds, ..Default::default() }).await.expect("register");
}

/// Moves on to the next time it is so late.
fn advance_to(fx: &Fixture, time_of_day: Millis) {
    fx.advance((time_of_day - fx.now()).rem_euclid(DAY_MS));
}

pub async fn kind_is_claimed_inside_its_window_only(fx: &Fixture) {
    window(fx, "10:00", "12:00").await;
    let all = fx.submit_all(tasks("a", 4)).await;
    for (time, opens) in [
        (10 * HOUR_MS - 1, false),
        (10 * HOUR_MS, true),
        (12 * HOUR_MS - 1, true),
        (12 * HOUR_MS, false),
        (0, false),
        (11 * HOUR_MS, true),
    ] {
        advance_to(fx, time);
        assert_eq!(fx.claim(1).await.len(), usize::from(opens), "at {time}");
    }
    assert_eq!(fx.state(all[3]).await, TaskState::Pending, "it waits, it is not blocked");
}

pub async fn window_may_span_midnight(fx: &Fixture) {
    window(fx, "22:00", "06:00").await;
    fx.submit_all(tasks("a", 4)).await;
    for (hour, opens) in [(21, false), (22, true), (23, true), (0, true), (5, true), (6, false)] {
        advance_to(fx, hour * HOUR_MS);
        assert_eq!(fx.claim(1).await.len(), usize::from(opens), "at {hour}:00");
    }
}

pub async fn closed_window_does_not_delay_other_kinds(fx: &Fixture) {
    window(fx, "10:00", "12:00").await;
    advance_to(fx, 20 * HOUR_MS);
    let closed = fx.submit(task("a")).await;
    let open = fx.submit(task("b")).await;
    assert_eq!(task_ids(&fx.claim(9).await), [open]);
    match fx.explain(closed).await.reason {
        NotRunningReason::Ready { is_in_day_window: is_open, .. } => assert!(!is_open),
        reason => panic!("{reason:?}"),
    }
}

pub async fn running_task_may_continue_after_window_closes(fx: &Fixture) {
    window(fx, "10:00", "12:00").await;
    advance_to(fx, 12 * HOUR_MS - 1);
    let id = fx.submit(task("a")).await;
    let attempt = fx.claim_one().await;
    fx.advance(10);
    fx.complete(&[attempt]).await;
    assert_eq!(fx.state(id).await, TaskState::Completed);
}

pub async fn kind_without_window_is_always_claimed(fx: &Fixture) {
    window(fx, "10:00", "12:00").await;
    fx.submit(task("a")).await;
    advance_to(fx, 20 * HOUR_MS);
    assert_eq!(fx.claim(1).await, []);
    let kinds = vec![Kind::new("a")];
    fx.store.register(Registration { kinds, ..Default::default() }).await.expect("register");
    assert_eq!(fx.claim(1).await.len(), 1);
}

/// Until its hours begin again, others of its group have the slot.
pub async fn kind_outside_its_window_keeps_no_slot(fx: &Fixture) {
    window(fx, "10:00", "12:00").await;
    fx.set_limit("group:g", Some(1)).await;
    let of = |kind| NewTask { effective_group: Some("g".into()), ..task(kind) };
    advance_to(fx, 12 * HOUR_MS - 1);
    let closed = fx.submit(of("a")).await;
    fx.claim(0).await;
    let open = fx.submit(of("b")).await;
    for _ in 0..3 {
        fx.advance(LEASE_MS / 2);
        assert_eq!(fx.claim(1).await, [], "the slot is taken");
    }
    assert_eq!(fx.reap().await.unserved_tasks, 1);
    let claimed = fx.claim(9).await;
    assert_eq!(task_ids(&claimed), [open]);
    fx.complete(&claimed).await;
    assert_eq!(fx.claim(9).await, []);
    assert_eq!(fx.state(closed).await, TaskState::Blocked);
    advance_to(fx, 10 * HOUR_MS);
    assert_eq!(task_ids(&fx.claim(9).await), [closed]);
}
