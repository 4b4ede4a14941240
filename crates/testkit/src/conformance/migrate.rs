//! Bringing a store up to date.

use tidegate_core::TaskState;

use super::fixture::{Fixture, task};

pub async fn migrate_on_current_schema_changes_nothing(fx: &Fixture) {
    fx.set_limit("group:a", Some(1)).await;
    let id = fx.submit(task("a")).await;
    let before = fx.snapshot().await;
    fx.store.migrate().await.expect("migrate again");
    fx.second_handle().await.store.migrate().await.expect("migrate from another handle");
    assert_eq!(fx.snapshot().await, before);
    fx.run_all().await;
    assert_eq!(fx.state(id).await, TaskState::Completed);
}
