//! A worker that runs the built-in kinds.

pub(crate) mod endpoint;
pub(crate) mod history;
pub(crate) mod watched;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Inspect, Kind, Registration, Source, Store};
use tidegate_engine::{KindOptions, Metrics, Observer, Options, Result, Worker};

use crate::config::{tell_changed, tell_overruled};
use crate::kinds::{self, Handlers};

/// What a worker is built from.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Options,
    /// The kinds it serves, with their settings.
    pub(crate) kinds: Vec<Kind>,
    /// The limits it brings for kinds.
    pub(crate) limits: Vec<(String, u32)>,
    /// Tasks of kinds that run at once in this process.
    pub(crate) caps: Vec<(String, u32)>,
    /// What they need to run.
    pub(crate) handlers: Handlers,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Who counts what it does.
    pub(crate) metrics: Option<Metrics>,
}

/// Builds the worker.
pub(crate) fn build(parts: Parts) -> Result<Worker> {
    let mut builder = Worker::builder(parts.store).options(parts.options);
    for kind in parts.kinds {
        let name = kind.name.clone();
        let mut options = KindOptions::from(kind).keep_stored();
        if let Some((_, limit)) = parts.limits.iter().find(|(of, _)| **of == *name) {
            options = options.max_concurrent(*limit);
        }
        if let Some((_, cap)) = parts.caps.iter().find(|(of, _)| **of == *name) {
            options = options.max_running(*cap);
        }
        builder = parts.handlers.add(builder, options, &name);
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
pub(crate) async fn settings(inspect: &dyn Inspect) -> Result<Vec<Kind>> {
    let known = inspect.kinds().await?;
    let setting = |kind: Kind| {
        let as_stored = known.iter().find(|stored| stored.name == kind.name);
        as_stored.cloned().unwrap_or(kind)
    };
    Ok(kinds::settings().into_iter().map(setting).collect())
}

/// Registers kinds and limits, and says which limits somebody else holds. The built-in kinds
/// are made known beside them, and are left alone where they are known: their settings may be
/// those of another run.
pub(crate) async fn register(
    store: &dyn Store,
    kinds: Vec<Kind>,
    limits: &[(String, u32)],
    source: Source,
) -> Result<()> {
    let registration = Registration {
        kinds,
        defaults: kinds::settings(),
        limits: limits.to_vec(),
        source: Some(source),
        ..Registration::default()
    };
    tell_overruled(store.register(registration).await?.overruled);
    Ok(())
}

/// Registers the limits that a worker brings, and says what counts instead of them and what they
/// change.
pub(crate) async fn bring(
    store: &dyn Store,
    worker: &Worker,
    limits: &[(String, u32)],
    lease: Duration,
) -> Result<()> {
    let registration = Registration {
        limits: limits.to_vec(),
        source: Some(Source::Registration),
        worker: Some(worker.id().clone()),
        lease_ms: i64::try_from(lease.as_millis()).unwrap_or(i64::MAX),
        ..Registration::default()
    };
    let registered = store.register(registration).await?;
    tell_overruled(registered.overruled);
    tell_changed(registered.changed);
    Ok(())
}
