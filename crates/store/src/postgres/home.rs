//! The runtime of a store, and the verbs that run on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::{Error, ErrorKind, Result};
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;

/// Threads that serve the connections.
const HOME_THREADS: usize = 2;

/// The threads that serve the connections. A connection is driven by the runtime it was opened
/// on, so it must not be one whose threads the caller can block.
pub(super) struct Home(Option<Runtime>);

impl Home {
    pub(super) fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(HOME_THREADS)
            .thread_name("tidegate-postgres")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|cause| {
            Error::new(ErrorKind::Unavailable, format!("no threads for the store: {cause}"))
        })?;
        Ok(Self(Some(runtime)))
    }

    pub(super) fn handle(&self) -> Result<Handle> {
        let runtime = self.0.as_ref().map(|runtime| runtime.handle().clone());
        runtime.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the store has ended"))
    }

    pub(super) fn spawn<T: Send + 'static>(
        &self,
        verb: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        match &self.0 {
            Some(runtime) => runtime.spawn(verb),
            None => tokio::spawn(verb),
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // The store may be dropped by async code, which must not wait for threads to end.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Counts a verb until it has ended.
pub(super) struct Pending(Arc<AtomicUsize>);

impl Pending {
    pub(super) fn new(pending: &Arc<AtomicUsize>) -> Self {
        pending.fetch_add(1, Ordering::Relaxed);
        Self(pending.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
