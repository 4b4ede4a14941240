//! The order of starts: priority, raised by waiting; then age.

use tidegate_core::bounds::AGEING_INTERVAL_MS;
use tidegate_core::{NewTask, TaskId};

use super::fixture::{Fixture, ids, task};

async fn with(fx: &Fixture, kind: &str, priority: i32) -> TaskId {
    fx.submit(NewTask { priority, ..task(kind) }).await
}

/// From the beginning of an ageing interval, so that a case knows where the next one starts.
fn align(fx: &Fixture) {
    fx.advance(AGEING_INTERVAL_MS - fx.now().rem_euclid(AGEING_INTERVAL_MS));
}

pub async fn a_higher_priority_goes_first(fx: &Fixture) {
    let low = with(fx, "a", -3).await;
    let middle = with(fx, "a", 0).await;
    let high = with(fx, "a", 8).await;
    assert_eq!(ids(&fx.claim(9).await), [high, middle, low]);
}

pub async fn a_priority_counts_across_kinds_and_queues(fx: &Fixture) {
    let low = with(fx, "a", 0).await;
    let high = with(fx, "b", 1).await;
    let middle = with(fx, "a", 1).await;
    assert_eq!(ids(&fx.claim(9).await), [high, middle, low]);
}

pub async fn equals_go_by_age(fx: &Fixture) {
    align(fx);
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(with(fx, "a", 2).await);
        all.push(with(fx, "b", 2).await);
        fx.advance(10);
    }
    assert_eq!(ids(&fx.claim(9).await), all);
}

/// Nothing starves: waiting is worth one step of priority per interval.
pub async fn waiting_raises_the_priority(fx: &Fixture) {
    let old = with(fx, "a", 0).await;
    fx.advance(2 * AGEING_INTERVAL_MS);
    let urgent = with(fx, "a", 3).await;
    fx.advance(2 * AGEING_INTERVAL_MS);
    let late = with(fx, "a", 3).await;
    assert_eq!(ids(&fx.claim(9).await), [urgent, old, late]);
}

pub async fn lines_go_by_priority_too(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let first = with(fx, "a", 0).await;
    let running = fx.claim(1).await;
    assert_eq!(ids(&running), [first]);
    let low = with(fx, "a", -1).await;
    fx.claim(0).await;
    let high = with(fx, "a", 5).await;
    fx.claim(0).await;
    fx.complete(&running).await;
    assert_eq!(fx.work_off().await, [high, low]);
}

pub async fn waiting_counts_in_lines_too(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    with(fx, "a", 0).await;
    let running = fx.claim(1).await;
    let old = with(fx, "a", 0).await;
    fx.claim(0).await;
    fx.advance(4 * AGEING_INTERVAL_MS);
    let urgent = with(fx, "a", 3).await;
    fx.claim(0).await;
    fx.complete(&running).await;
    assert_eq!(fx.work_off().await, [old, urgent]);
}

/// An arrival of higher priority does not overtake the head of a line it ranks behind, and one
/// it ranks before it does overtake.
pub async fn an_arrival_joins_the_line_at_its_place(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    with(fx, "a", 0).await;
    let running = fx.claim(1).await;
    let mut placed = Vec::new();
    for priority in [0, 4, 2, -2] {
        placed.push(with(fx, "a", priority).await);
        fx.claim(0).await;
    }
    fx.complete(&running).await;
    assert_eq!(fx.work_off().await, [placed[1], placed[2], placed[0], placed[3]]);
}
