//! Bringing a store up to date.

use tidegate_core::State;

use super::fixture::{Fixture, task};

pub async fn a_migration_can_be_repeated(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    let before = fx.snapshot().await;
    fx.store.migrate().await.expect("migrate again");
    fx.another().await.store.migrate().await.expect("migrate from another handle");
    assert_eq!(fx.snapshot().await, before);
    fx.work_off().await;
    assert_eq!(fx.state(id).await, State::Completed);
}
