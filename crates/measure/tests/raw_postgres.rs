//! The raw loop on PostgreSQL, where there is one.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_measure::raw::{Outcome, RawPostgres, Task};

/// Says where a PostgreSQL is that the test may write to.
const URL_VARIABLE: &str = "TIDEGATE_MEASURE_POSTGRES";

#[tokio::test]
#[ignore = "needs a PostgreSQL, named by TIDEGATE_MEASURE_POSTGRES"]
async fn every_task_is_completed_once_and_retried_where_asked() {
    let url = std::env::var(URL_VARIABLE).expect("a PostgreSQL is named");
    let raw = RawPostgres::open(&url, 4).await.unwrap();
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
