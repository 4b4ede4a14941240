//! What the attribute writes, where nothing but the attribute is in scope.

/// Can be read and not written: no task is made of it here.
#[derive(Debug, serde::Deserialize)]
struct ReadOnly {
    number: i32,
}

#[tidegate_engine::task]
async fn reads(_: tidegate_engine::Context, payload: ReadOnly) -> Result<i32, std::fmt::Error> {
    Ok(payload.number)
}

#[tidegate_engine::task(kind = "twice")]
async fn doubles(_: tidegate_engine::Context, number: i32) -> Result<i32, std::fmt::Error> {
    Ok(2 * number)
}

#[tokio::test]
async fn attribute_builds_tasks_without_trait_in_scope() {
    let rig = crate::harness::Harness::new();
    let worker = rig.start_worker(rig.worker_builder().register(doubles).register(reads));
    let doubled = rig.submit(doubles::task(&21)).await;
    assert_eq!(rig.wait_until_final(doubled).await.result.as_deref(), Some(&b"42"[..]));
    let payload = std::collections::BTreeMap::from([("number", 7)]);
    let read = rig.submit(tidegate_engine::Task::new("reads", &payload)).await;
    assert_eq!(rig.wait_until_final(read).await.result.as_deref(), Some(&b"7"[..]));
    rig.drain_worker(worker).await;
}
