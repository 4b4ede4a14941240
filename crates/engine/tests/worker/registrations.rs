//! What a worker says when others registered something else.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use insta::assert_snapshot;
use tidegate_core::StoreReader as _;
use tidegate_engine::{Context, Failure, KindConfig};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::harness::{Harness, sleep_between_checks, within_timeout};

/// Keeps the warnings of this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Words(&mut self.0.lock().unwrap()));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

async fn work(_: Context, (): ()) -> Result<(), Failure> {
    Ok(())
}

/// Waits until the limit of group `work` is this.
async fn capacity(rig: &Harness, capacity: Option<u32>) {
    let is_so = async || {
        // One that nobody uses may be gone already.
        let limits = rig.store.memory.limits().await.unwrap();
        limits.first().and_then(|limit| limit.capacity) == capacity
    };
    let until = async {
        while !is_so().await {
            sleep_between_checks().await;
        }
    };
    within_timeout("the limit", until).await;
}

#[tokio::test]
async fn worker_warns_when_it_replaces_a_registered_limit() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let rig = Harness::new();
    let kind = |capacity| KindConfig::new("work").max_concurrent(capacity);
    let first = rig.start_worker(rig.worker_builder().handle(kind(500), work));
    capacity(&rig, Some(500)).await;
    assert_eq!(*warnings.0.lock().unwrap(), "", "there was nothing before");
    let second = rig.start_worker(rig.worker_builder().handle(kind(10), work));
    capacity(&rig, Some(10)).await;
    let told = warnings.0.lock().unwrap().clone();
    assert!(told.contains("group=\"work\" before=500 after=10 others=1"), "{told}");
    assert_snapshot!(
        told,
        @r#"message=another max_concurrent was registered before; the latest counts, and `others` live workers still bring another group="work" before=500 after=10 others=1"#
    );
    rig.drain_worker(first).await;
    rig.drain_worker(second).await;
}

#[tokio::test]
async fn worker_warns_when_it_removes_a_registered_limit() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let rig = Harness::new();
    let memory = rig.store.memory.clone();
    let first = rig
        .start_worker(rig.worker_builder().handle(KindConfig::new("work").max_concurrent(5), work));
    capacity(&rig, Some(5)).await;
    rig.drain_worker(first).await;
    let rig = Harness::with_memory(memory);
    let second = rig.start_worker(rig.worker_builder().handle("work", work));
    capacity(&rig, None).await;
    let told = warnings.0.lock().unwrap().clone();
    assert!(told.contains("group=\"work\" before=5 "), "{told}");
    assert_snapshot!(
        told,
        @r#"message=no live worker brings a max_concurrent any more; what was registered is unset group="work" before=5"#
    );
    rig.drain_worker(second).await;
}
