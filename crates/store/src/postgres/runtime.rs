//! The runtime of a store, and the verbs that run on it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::{Error, ErrorKind, Result};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Threads that serve the connections.
const RUNTIME_THREADS: usize = 2;

/// How long it may take to close one connection, and all connections of a dropped store. Also the longest that
/// [`wait_until_closed`] waits.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Held as long as a connection is open, or may be opened.
pub(super) type OpenConnection = mpsc::Sender<Infallible>;

/// The threads that serve the connections. A connection is driven by the runtime it was opened
/// on, so it must not be one whose threads the caller can block.
pub(super) struct StoreRuntime {
    /// None while the store is dropped.
    closing: Option<Closing>,
    open: OpenConnection,
}

impl StoreRuntime {
    pub(super) fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .thread_name("tidegate-postgres")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|cause| {
            Error::new(ErrorKind::Unavailable, format!("no threads for the store: {cause}"))
        })?;
        let (open, all_closed) = mpsc::channel(1);
        let closing = Closing { runtime: Some(runtime), all_closed, _counted: Counted::new() };
        Ok(Self { closing: Some(closing), open })
    }

    fn runtime(&self) -> Option<&Runtime> {
        self.closing.as_ref()?.runtime.as_ref()
    }

    pub(super) fn handle(&self) -> Result<Handle> {
        let runtime = self.runtime().map(|runtime| runtime.handle().clone());
        runtime.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the store has ended"))
    }

    /// Returns what each connection holds while it is open. The runtime of a dropped store waits for it.
    pub(super) fn open_connection(&self) -> OpenConnection {
        self.open.clone()
    }

    pub(super) fn spawn<T: Send + 'static>(
        &self,
        verb: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        match self.runtime() {
            Some(runtime) => runtime.spawn(verb),
            None => tokio::spawn(verb),
        }
    }
}

impl Drop for StoreRuntime {
    /// Lets the connections close on a thread of their own: the store may be dropped by async code, also
    /// by its own, which must not wait.
    fn drop(&mut self) {
        let Some(closing) = self.closing.take() else { return };
        let thread = std::thread::Builder::new().name("tidegate-postgres-close".to_owned());
        if let Err(error) = thread.spawn(move || closing.run()) {
            tracing::debug!(%error, "no thread for closing connections; they are cut off");
        }
    }
}

/// The runtime of a store that is dropped, until its connections are closed.
struct Closing {
    runtime: Option<Runtime>,
    /// Ends when the last connection is closed.
    all_closed: mpsc::Receiver<Infallible>,
    _counted: Counted,
}

impl Closing {
    /// Waits until all connections are closed, or for [`CLOSE_TIMEOUT`].
    fn run(mut self) {
        let Some(runtime) = &self.runtime else { return };
        let all_closed = self.all_closed.recv();
        let waited =
            runtime.block_on(async { tokio::time::timeout(CLOSE_TIMEOUT, all_closed).await });
        if waited.is_err() {
            tracing::debug!("connections to PostgreSQL did not close in time; they are cut off");
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        // Without a thread of its own this runs in async code, which must not wait for threads to end.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Number of runtimes of this process that have not ended.
static RUNTIMES: Mutex<usize> = Mutex::new(0);

/// Signals that [`RUNTIMES`] has become smaller.
static RUNTIME_ENDED: Condvar = Condvar::new();

/// A runtime that is counted in [`RUNTIMES`].
struct Counted;

impl Counted {
    fn new() -> Self {
        *RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        RUNTIME_ENDED.notify_all();
    }
}

/// Waits until every store of this process on PostgreSQL is dropped and its connections are closed, for at
/// most one second. A program calls it last, after its stores are dropped: a connection that the end of
/// the process cuts off is reported in the log of a server with TLS. It blocks the thread, so async code
/// must not call it.
pub fn wait_until_closed() {
    let runtimes = RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner);
    // A second that is over is not an error.
    drop(RUNTIME_ENDED.wait_timeout_while(runtimes, CLOSE_TIMEOUT, |runtimes| *runtimes > 0));
}

/// Counts a verb until it has ended.
pub(super) struct PendingCall(Arc<AtomicUsize>);

impl PendingCall {
    pub(super) fn new(pending: &Arc<AtomicUsize>) -> Self {
        pending.fetch_add(1, Ordering::Relaxed);
        Self(pending.clone())
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
