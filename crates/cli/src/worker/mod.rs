//! A worker that runs the built-in kinds.

pub(crate) mod history;
pub(crate) mod metrics_server;
pub(crate) mod telemetry;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{CapacitySource, Kind, Registration, Store, StoreReader};
use tidegate_engine::{KindConfig, Metrics, Observer, Result, Worker, WorkerConfig};

use crate::config::{print_overridden_limits, print_replaced_limits};
use crate::kinds::{self, Handlers};

/// What a worker is built from.
#[derive(Debug)]
pub(crate) struct WorkerParts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: WorkerConfig,
    /// The kinds it serves, with their settings.
    pub(crate) kinds: Vec<Kind>,
    /// The limits it brings for kinds.
    pub(crate) limits: Vec<(String, u32)>,
    /// Tasks of kinds that run at once in this process.
    pub(crate) kind_concurrency: Vec<(String, u32)>,
    /// What they need to run.
    pub(crate) handlers: Handlers,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Who counts what it does.
    pub(crate) metrics: Option<Metrics>,
}

/// Builds the worker.
pub(crate) fn build_worker(parts: WorkerParts) -> Result<Worker> {
    let mut builder = Worker::builder(parts.store).config(parts.options);
    for kind in parts.kinds {
        let name = kind.name.clone();
        let mut options = KindConfig::from(kind).keep_existing_settings();
        if let Some((_, limit)) = parts.limits.iter().find(|(of, _)| **of == *name) {
            options = options.max_concurrent(*limit);
        }
        if let Some((_, cap)) = parts.kind_concurrency.iter().find(|(of, _)| **of == *name) {
            options = options.kind_concurrency(*cap);
        }
        builder = parts.handlers.register_handler(builder, options, &name);
    }
    if let Some(observer) = parts.observer {
        builder = builder.observer(observer);
    }
    if let Some(metrics) = parts.metrics {
        builder = builder.metrics(&metrics);
    }
    builder.build()
}

/// The settings of the built-in kinds: as the store has them, or the defaults.
pub(crate) async fn kind_settings(reader: &dyn StoreReader) -> Result<Vec<Kind>> {
    let known = reader.kinds().await?;
    let setting = |kind: Kind| {
        let as_stored = known.iter().find(|stored| stored.name == kind.name);
        as_stored.cloned().unwrap_or(kind)
    };
    Ok(kinds::default_kinds().into_iter().map(setting).collect())
}

/// Registers kinds and limits, and says which limits somebody else holds. The built-in kinds
/// are made known beside them, and are left alone where they are known: their settings may be
/// those of another run.
pub(crate) async fn register_kinds(
    store: &dyn Store,
    kinds: Vec<Kind>,
    limits: &[(String, u32)],
    source: CapacitySource,
) -> Result<()> {
    let registration = Registration {
        kinds,
        default_kinds: kinds::default_kinds(),
        limits: limits.to_vec(),
        source: Some(source),
        ..Registration::default()
    };
    print_overridden_limits(store.register(registration).await?.overridden_limits);
    Ok(())
}

/// Registers the limits that a worker brings, and says what counts instead of them and what they
/// change.
pub(crate) async fn register_limits(
    store: &dyn Store,
    worker: &Worker,
    limits: &[(String, u32)],
    lease: Duration,
) -> Result<()> {
    let registration = Registration {
        limits: limits.to_vec(),
        source: Some(CapacitySource::Registration),
        worker: Some(worker.id().clone()),
        lease_ms: i64::try_from(lease.as_millis()).unwrap_or(i64::MAX),
        ..Registration::default()
    };
    let registered = store.register(registration).await?;
    print_overridden_limits(registered.overridden_limits);
    print_replaced_limits(registered.changed_capacities);
    Ok(())
}
