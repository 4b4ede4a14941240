//! One file, shared by every process of a machine.
//!
//! One thread writes, with one commit for all commands that wait; see [`writer`]. Reads have
//! connections of their own. Tasks, lines and slots are rows; the layout is in
//! `migrations/0001_initial.sql`, every other query is a file in `queries/`.

mod command_queue;
mod error;
mod fault_injection;
mod file_lock;
mod inspect;
mod reader_thread;
mod row_cache;
mod schema;
mod statements;
mod tables;
mod writer_thread;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::repair::Repair;
use tidegate_core::{
    AdmitReply, Attempt, CancelOutcome, Claim, Error, ErrorKind, Finish, FinishReply, Heartbeat,
    HeartbeatReply, Millis, PruneReply, ReapReply, RegisterReply, Registration, ReleaseOutcome,
    ReleaseSlot, Result, RetryOutcome, SetJob, SetLimit, SetPaused, Store, Submission,
    SubmittedTask, TaskId, repair, rules,
};
use tokio::sync::Notify;

use crate::clock;
use crate::requests::RequestRecorder;
use command_queue::CommandQueue;
use error::{SqliteResultExt, with_file_path};
use fault_injection::FaultInjection;
use file_lock::FileLock;
use reader_thread::ReaderThread;
use tables::Transaction;
use writer_thread::WriterThread;

/// Older versions can lose a commit when a writer restarts the write-ahead log during a
/// checkpoint of another.
const SQLITE_VERSION_MIN: i32 = 3_052_000;

/// Reads that run at once.
const READER_THREADS: usize = 2;

pub use fault_injection::InjectedBug;

type Clock = Arc<dyn Fn() -> Millis + Send + Sync>;

/// When a commit is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// When it returns, also against the loss of power.
    #[default]
    Full,
    /// Against the death of the process at once, against the loss of power a little later: the
    /// last commits can be lost, the file stays sound.
    Normal,
}

/// How to open a file.
#[derive(Clone)]
pub struct Options {
    /// When a commit is safe. Default: at once.
    pub synchronous: Synchronous,
    /// The store's time. Default: the system's.
    pub clock: Arc<dyn Fn() -> Millis + Send + Sync>,
    /// How long to wait for a program that locks the file without the advisory lock.
    pub busy_timeout: Duration,
    /// The bug to plant. Default: none.
    #[cfg(feature = "fault_injection")]
    pub injected_bug: Option<InjectedBug>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            synchronous: Synchronous::default(),
            clock: Arc::new(clock::system_now),
            busy_timeout: Duration::from_secs(30),
            #[cfg(feature = "fault_injection")]
            injected_bug: None,
        }
    }
}

impl Options {
    fn planted(&self) -> FaultInjection {
        FaultInjection {
            #[cfg(feature = "fault_injection")]
            bug: self.injected_bug,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("synchronous", &self.synchronous)
            .field("busy_timeout", &self.busy_timeout)
            .finish_non_exhaustive()
    }
}

/// A store in a file.
#[derive(Clone)]
pub struct Sqlite {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    clock: Clock,
    write_queue: Arc<CommandQueue>,
    read_queue: Arc<CommandQueue>,
    notify: Arc<Notify>,
    requests: RequestRecorder,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.write_queue.close();
        self.read_queue.close();
        for thread in self.threads.drain(..) {
            // The callers of a thread that panicked got an error each.
            if thread.join().is_err() {
                tracing::error!(path = %self.path.display(), "a thread of the store panicked");
            }
        }
    }
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

impl Sqlite {
    /// Opens the file, or makes it. Refuses a file that a newer version or another program
    /// made. A file without a schema can be opened; every verb but `migrate` refuses it.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        Self::open_connections(path, options).map_err(|error| with_file_path(path, error))
    }

    fn open_connections(path: &Path, options: Options) -> Result<Self> {
        check_sqlite_version(rusqlite::version_number())?;
        let lock = FileLock::open(path);
        // Two processes that make the same file would disturb each other.
        let turn = lock.acquire();
        let connection = open_writer_connection(path, &options)?;
        let readers = (0..READER_THREADS).map(|_| open_reader_connection(path, &options));
        let readers = readers.collect::<Result<Vec<Connection>>>()?;
        drop(turn);
        let (writes, reads) = (CommandQueue::new(), CommandQueue::new());
        let changed = Arc::new(Notify::new());
        let writer = WriterThread {
            connection,
            file_lock: lock,
            path: path.to_owned(),
            clock: options.clock.clone(),
            queue: writes.clone(),
            notify: changed.clone(),
            fault_injection: options.planted(),
        };
        let mut threads = vec![spawn_thread("tidegate-writer", move || writer.run())?];
        for connection in readers {
            let reader = ReaderThread {
                connection,
                path: path.to_owned(),
                clock: options.clock.clone(),
                queue: reads.clone(),
                fault_injection: options.planted(),
            };
            threads.push(spawn_thread("tidegate-reader", move || reader.run())?);
        }
        let path = path.to_owned();
        let (clock, requests) = (options.clock, RequestRecorder::default());
        let inner = Inner {
            path,
            clock,
            write_queue: writes,
            read_queue: reads,
            notify: changed,
            requests,
            threads,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Bounds the file to this many pages, so that a test can fill the disk.
    #[doc(hidden)]
    pub async fn set_page_count_max(&self, pages: u32) -> Result<()> {
        let set = move |tx: &mut Transaction<'_, '_>| {
            let connection = tx.statements.connection();
            connection
                .pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
                .into_store_result()
        };
        self.inner.write_queue.run_command(0, set).await
    }

    /// Steps of SQLite's machine that the writer has made since the last call, so that a
    /// benchmark can tell what a verb costs.
    #[doc(hidden)]
    pub async fn take_vm_steps(&self) -> Result<u64> {
        self.inner.write_queue.run_command(0, |tx| Ok(tx.statements.take_vm_steps())).await
    }

    /// Runs one verb in a transaction of the writer. `size` is how many tasks it is about.
    async fn run_write<T: Send + 'static>(
        &self,
        verb: &'static str,
        size: usize,
        body: impl FnOnce(&mut Transaction<'_, '_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let checked = move |tx: &mut Transaction<'_, '_>| {
            tx.schema_status.check_is_current()?;
            body(tx)
        };
        self.inner
            .requests
            .run_general(verb, self.inner.write_queue.run_command(size, checked))
            .await
    }

    /// Runs one read in a transaction of a reader.
    async fn run_read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Transaction<'_, '_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let checked = move |tx: &mut Transaction<'_, '_>| {
            tx.schema_status.check_is_current()?;
            read(tx)
        };
        self.inner.requests.run_general("read", self.inner.read_queue.run_command(0, checked)).await
    }
}

#[async_trait]
impl Store for Sqlite {
    async fn migrate(&self) -> Result<()> {
        let migrate = |tx: &mut Transaction<'_, '_>| {
            let connection = tx.statements.connection();
            schema::migrate(connection, tx.now)?;
            tx.schema_status = schema::read_schema_status(connection)?;
            Ok(())
        };
        self.inner
            .requests
            .run_general("migrate", self.inner.write_queue.run_command(0, migrate))
            .await
    }

    async fn register(&self, registration: Registration) -> Result<RegisterReply> {
        let kinds = registration.kinds.len() + registration.default_kinds.len();
        self.run_write("register", kinds, move |tx| rules::register(tx, &registration)).await
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<SubmittedTask>> {
        rules::check_submission(&submission, PAYLOAD_BYTES_MAX)?;
        self.run_write("submit", submission.tasks.len(), move |tx| rules::submit(tx, &submission))
            .await
    }

    async fn admit(&self) -> Result<AdmitReply> {
        self.run_write("admit", 1, |tx| rules::admit(tx)).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Attempt>> {
        self.run_write("claim", claim.tasks_max as usize, move |tx| rules::claim(tx, &claim)).await
    }

    async fn heartbeat(&self, extend: Heartbeat) -> Result<HeartbeatReply> {
        self.run_write("heartbeat", extend.tokens.len(), move |tx| rules::heartbeat(tx, &extend))
            .await
    }

    async fn finish(&self, finish: Finish) -> Result<FinishReply> {
        self.run_write("finish", finish.completions.len(), move |tx| rules::finish(tx, finish))
            .await
    }

    async fn cancel(&self, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>> {
        self.run_write("cancel", tasks.len(), move |tx| rules::cancel(tx, &tasks)).await
    }

    async fn retry(&self, tasks: Vec<TaskId>) -> Result<Vec<RetryOutcome>> {
        self.run_write("retry", tasks.len(), move |tx| rules::retry(tx, &tasks)).await
    }

    async fn release_slot(&self, release: ReleaseSlot) -> Result<ReleaseOutcome> {
        self.run_write("release", 1, move |tx| rules::release_slot(tx, &release)).await
    }

    async fn set_paused(&self, pause: SetPaused) -> Result<bool> {
        self.run_write("pause", 1, move |tx| rules::set_paused(tx, &pause)).await
    }

    async fn repair(&self) -> Result<Vec<Repair>> {
        self.run_write("repair", 1, |tx| {
            let mut steps = Vec::new();
            loop {
                tx.write_pending_rows()?;
                let plan = repair::plan_repairs(&inspect::read_snapshot(tx)?);
                rules::repair(tx, &plan)?;
                let is_first = repair::is_partial_plan(&plan);
                steps.extend(plan);
                if !is_first {
                    return Ok(steps);
                }
            }
        })
        .await
    }

    async fn reap(&self) -> Result<ReapReply> {
        self.run_write("reap", 1, |tx| rules::reap(tx)).await
    }

    async fn prune(&self) -> Result<PruneReply> {
        self.run_write("prune", 1, |tx| rules::prune(tx)).await
    }

    async fn set_limit(&self, set: SetLimit) -> Result<Option<i64>> {
        self.run_write("set_limit", 1, move |tx| rules::set_limit(tx, &set)).await
    }

    async fn set_job(&self, set: SetJob) -> Result<()> {
        self.run_write("set_job", 1, move |tx| rules::set_job(tx, &set)).await
    }

    async fn wait_for_notification(&self) {
        let _watching = self.inner.write_queue.add_watcher();
        self.inner.notify.notified().await;
    }
}

fn check_sqlite_version(version: i32) -> Result<()> {
    if version >= SQLITE_VERSION_MIN {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Incompatible,
        format!("SQLite {} can lose commits; build with 3.52.0 or newer", rusqlite::version()),
    ))
}

fn open_writer_connection(path: &Path, options: &Options) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = open_connection(path, flags, options)?;
    if schema::read_schema_status(&connection)? != schema::SchemaStatus::Missing {
        schema::verify_checksums(&connection)?;
    }
    let synchronous = match options.synchronous {
        Synchronous::Full => "full",
        Synchronous::Normal => "normal",
    };
    let set =
        |name: &str, value: &str| connection.pragma_update(None, name, value).into_store_result();
    set("journal_mode", "wal")?;
    set("synchronous", synchronous)?;
    set("cache_size", "-65536")?;
    // A log that grew behind a long read is cut back to this.
    set("journal_size_limit", "67108864")?;
    check_wal_mode(&connection)?;
    Ok(connection)
}

fn open_reader_connection(path: &Path, options: &Options) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    open_connection(path, flags, options)
}

fn open_connection(path: &Path, flags: OpenFlags, options: &Options) -> Result<Connection> {
    let connection = Connection::open_with_flags(path, flags).into_store_result()?;
    connection.busy_timeout(options.busy_timeout).into_store_result()?;
    connection.pragma_update(None, "temp_store", "memory").into_store_result()?;
    // Otherwise a statement with a range is planned anew for every value bound to it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).into_store_result()?;
    Ok(connection)
}

/// Without the write-ahead log readers would hold up the writer.
fn check_wal_mode(connection: &Connection) -> Result<()> {
    let mode: String = connection
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .into_store_result()?;
    if mode == "wal" {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Refused,
        format!("the file cannot have a write-ahead log (it has {mode:?}); use a local disk"),
    ))
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|error| Error::new(ErrorKind::Unavailable, format!("no thread: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_version_that_loses_commits_is_rejected() {
        check_sqlite_version(SQLITE_VERSION_MIN).unwrap();
        assert_eq!(check_sqlite_version(3_051_002).unwrap_err().kind(), ErrorKind::Incompatible);
    }
}
