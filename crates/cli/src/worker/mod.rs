//! A worker that runs the built-in kinds.

pub(crate) mod history;

use std::sync::Arc;

use tidegate_core::{Inspect, Kind, Registration, Source, Store};
use tidegate_engine::{KindOptions, Observer, Options, Result, Worker};

use crate::config::tell_overruled;
use crate::kinds::{self, Handlers};

/// What a worker is built from.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Options,
    /// The kinds it serves, with their settings.
    pub(crate) kinds: Vec<Kind>,
    /// What they need to run.
    pub(crate) handlers: Handlers,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

/// Builds the worker.
pub(crate) fn build(parts: Parts) -> Result<Worker> {
    let mut builder = Worker::builder(parts.store).options(parts.options);
    for kind in parts.kinds {
        let name = kind.name.clone();
        let options = KindOptions::from(kind).keep_stored();
        builder = parts.handlers.add(builder, options, &name);
    }
    if let Some(observer) = parts.observer {
        builder = builder.observer(observer);
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
