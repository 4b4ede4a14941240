//! Ways to write a handler, and what it knows.

use std::time::Duration;

use insta::assert_snapshot;
use serde::{Deserialize, Serialize};
use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::{JobSpec, Kind, Registration, Store, StoreReader, TaskState};
use tidegate_engine::{Context, DayWindow, Failure, Handler, KindConfig, Task};

use crate::harness::{Harness, sleep_between_checks, within_timeout};

#[derive(Debug, Serialize, Deserialize)]
struct Sum {
    a: i32,
    b: i32,
}

async fn add(_: Context, sum: Sum) -> Result<i32, Failure> {
    sum.a.checked_add(sum.b).ok_or_else(|| Failure::fatal("too much"))
}

struct Multiply {
    by: i32,
}

impl Handler for Multiply {
    const KIND: &'static str = "multiply";
    type Payload = i32;
    type Output = i32;

    async fn run(&self, _: Context, payload: i32) -> Result<i32, Failure> {
        Ok(payload * self.by)
    }
}

/// Divides.
#[tidegate_engine::task(
    kind = "divide",
    queue = "arithmetic",
    max_concurrent = 7,
    kind_concurrency = 3,
    max_attempts = 2,
    timeout = "30s",
    window_start = "22:00",
    window_end = "06:00",
    remove_on_completed_days = 1,
    remove_on_failed_days = 9
)]
async fn divide(_context: Context, (a, b): (i32, i32)) -> Result<i32, Failure> {
    a.checked_div(b).ok_or_else(|| Failure::fatal("by zero"))
}

/// Any error becomes a failure, and the name of the function is the kind.
#[tidegate_engine::task]
async fn parse(_context: Context, text: String) -> Result<i32, std::num::ParseIntError> {
    text.parse()
}

#[tokio::test]
async fn function_handler_receives_payload_and_stores_result() {
    let rig = Harness::new();
    let worker = rig.start_worker(rig.worker_builder().handle("add", add));
    let task = rig.submit(Task::new("add", &Sum { a: 2, b: 3 })).await;
    let view = rig.wait_until_final(task).await;
    assert_eq!((view.state, view.result.as_deref()), (TaskState::Completed, Some(&b"5"[..])));
    assert_eq!(rig.drain_worker(worker).await.completed, 1);
}

#[tokio::test]
async fn trait_and_attribute_handlers_run() {
    let rig = Harness::new();
    let builder = rig.worker_builder().register(Multiply { by: 7 }).register(parse);
    let worker = rig.start_worker(builder);
    let multiply = rig.submit(Multiply::task(&6)).await;
    assert_eq!(rig.wait_until_final(multiply).await.result.as_deref(), Some(&b"42"[..]));
    let good = rig.submit(parse::task(&"12".to_owned())).await;
    assert_eq!(rig.wait_until_final(good).await.result.as_deref(), Some(&b"12"[..]));
    let bad = rig.submit(parse::task(&"x".to_owned()).max_attempts(1)).await;
    let error = rig.wait_until_final(bad).await.error.unwrap();
    assert_eq!(error, "invalid digit found in string");
    rig.drain_worker(worker).await;
}

#[test]
fn attribute_sets_kind_options() {
    let expected = KindConfig::new("divide")
        .queue("arithmetic")
        .max_concurrent(7)
        .kind_concurrency(3)
        .max_attempts(2)
        .timeout(std::time::Duration::from_secs(30))
        .day_window(DayWindow::parse("22:00", "06:00").unwrap())
        .remove_on_completed_days(1)
        .remove_on_failed_days(9);
    assert_eq!(divide::config(), expected);
    assert_eq!(parse::config(), KindConfig::new("parse"));
}

#[tokio::test]
async fn payload_that_does_not_deserialize_fails_without_retry() {
    let rig = Harness::new();
    let worker = rig.start_worker(rig.worker_builder().handle("add", add));
    let task = rig.submit(Task::new("add", &"no sum")).await;
    let view = rig.wait_until_final(task).await;
    assert_eq!((view.state, view.attempts_used), (TaskState::Failed, 1));
    let error = view.error.unwrap();
    assert_snapshot!(
        error,
        @r#"the payload does not fit kind "add": invalid type: string "no sum", expected struct Sum at line 1 column 8"#
    );
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn result_above_size_limit_fails_without_retry() {
    let rig = Harness::new();
    let big = |_: Context, (): ()| async { Ok::<_, Failure>("x".repeat(PAYLOAD_BYTES_MAX)) };
    let worker = rig.start_worker(rig.worker_builder().handle("big", big));
    let task = rig.submit(Task::new("big", &())).await;
    let view = rig.wait_until_final(task).await;
    assert_eq!((view.state, view.attempts_used), (TaskState::Failed, 1));
    assert_snapshot!(
        view.error.unwrap(),
        @"the result has 1048578 bytes; at most 1048576 are kept"
    );
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn context_describes_the_attempt() {
    let rig = Harness::new();
    let describe = |context: Context, (): ()| async move {
        let names = context.slots().iter().map(|slot| slot.name.to_string());
        let slots = std::collections::BTreeSet::from_iter(names);
        assert!(context.lease_deadline() > tidegate_engine::time::now());
        assert!(context.token().0 > 0 && !context.is_cancelled());
        Ok::<_, Failure>((
            context.task_id().0,
            context.kind().to_owned(),
            context.job().map(str::to_owned),
            context.workflow().map(str::to_owned),
            slots,
            (context.attempt_number(), context.max_attempts(), context.is_last_attempt()),
        ))
    };
    let kind = KindConfig::new("describe").max_concurrent(3).max_attempts(1);
    let worker = rig.start_worker(rig.worker_builder().handle(kind, describe));
    let task = rig.submit(Task::new("describe", &()).job("j").workflow("w")).await;
    let view = rig.wait_until_final(task).await;
    let text = String::from_utf8(view.result.unwrap()).unwrap();
    let slots = "[\"group:describe\",\"job:j\",\"workflow:w\"]";
    assert_eq!(text, format!("[{task},\"describe\",\"j\",\"w\",{slots},[1,1,true]]"));
    rig.drain_worker(worker).await;
}

#[tokio::test]
async fn invalid_input_is_rejected_before_it_reaches_the_store() {
    let rig = Harness::new();
    assert!(rig.client.submit(Task::new("a\0b", &())).await.is_err());
    let unwritable = std::collections::BTreeMap::from([((1, 2), 3)]);
    let error = rig.client.submit(Task::new("a", &unwritable)).await.unwrap_err();
    assert_snapshot!(error, @"the payload cannot be written as JSON: key must be a string");
    let same = || rig.worker_builder().handle("add", add).handle("add", add).build();
    assert_snapshot!(same().unwrap_err(), @r#"kind "add" has two handlers; keep one"#);
    assert!(rig.worker_builder().build().is_err(), "no handler");
    assert!(rig.worker_builder().handle("add", add).concurrency(0).build().is_err());
}

#[tokio::test]
async fn keep_stored_leaves_stored_kind_unchanged() {
    let rig = Harness::new();
    let stored = Kind { max_attempts: 9, ..Kind::new("kept") };
    let registration = Registration { kinds: vec![stored.clone()], ..Registration::default() };
    rig.store.register(registration).await.unwrap();
    let noop = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    let kinds =
        ["kept", "new"].map(|name| KindConfig::new(name).max_attempts(2).keep_existing_settings());
    let builder =
        kinds.into_iter().fold(rig.worker_builder(), |builder, kind| builder.handle(kind, noop));
    let worker = rig.start_worker(builder);
    let task = rig.submit(Task::new("kept", &())).await;
    assert_eq!(rig.wait_until_final(task).await.state, TaskState::Completed);
    let new = Kind { max_attempts: 2, ..Kind::new("new") };
    assert_eq!(rig.store.memory.kinds().await.unwrap(), [stored, new]);
    rig.drain_worker(worker).await;
}

/// A handler finds more work of its own job, as a crawler finds links.
#[tokio::test]
async fn handler_submits_tasks_to_its_own_job() {
    let rig = Harness::new();
    let crawl = |context: Context, depth: u32| async move {
        let links = (0..2 * depth.min(1)).map(|_| Task::new("crawl", &(depth - 1)));
        let added = context.submit_many(links).await.map_err(Failure::retryable)?;
        if context.job() == Some("site") {
            let other = Task::new("crawl", &0_u32).job("other").delay(Duration::from_millis(1));
            context.submit(other).await.map_err(Failure::retryable)?;
        }
        Ok::<_, Failure>(added.len())
    };
    let worker = rig.start_worker(rig.worker_builder().concurrency(8).handle("crawl", crawl));
    let site = JobSpec { concurrency: Some(2), ..JobSpec::new("site") };
    let first = Task::new("crawl", &3_u32).job("site");
    rig.client.submit_with_jobs([site], [first]).await.unwrap();
    let of_site = || async {
        let jobs = rig.store.memory.jobs().await.unwrap();
        jobs.into_iter().find(|job| &*job.name == "site").map(|job| job.tasks)
    };
    // Two links on each page, three levels deep.
    let whole = Some(std::collections::BTreeMap::from([(TaskState::Completed, 15)]));
    within_timeout("the whole site", async {
        while of_site().await != whole {
            sleep_between_checks().await;
        }
    })
    .await;
    rig.drain_worker(worker).await;
}
