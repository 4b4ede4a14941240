//! The raw loop on PostgreSQL, against a real server.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_measure::raw::{Outcome, RawPostgres, Task};
use tidegate_testkit::postgres::Server;

#[tokio::test]
async fn raw_loop_completes_each_task_once_and_retries() {
    let database = Server::shared().database();
    let raw = RawPostgres::open(&database.url(), 4).await.unwrap();
    raw.insert(1_000).await.unwrap();
    let handled = AtomicU64::new(0);
    let handle = |task: &Task| {
        handled.fetch_add(1, Ordering::Relaxed);
        if task.id % 10 == 0 && task.attempts == 1 { Outcome::Retry } else { Outcome::Complete }
    };
    assert_eq!(raw.drain_with(7, handle).await.unwrap(), 1_000);
    assert_eq!(handled.into_inner(), 1_100);
    assert_eq!(raw.count().await.unwrap(), 0);
}
