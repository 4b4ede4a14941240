//! One file, shared by every process of a machine.
//!
//! One thread writes, with one commit for all commands that wait; see [`writer`]. Reads have
//! connections of their own. Tasks, lines and slots are rows; the layout is in
//! `migrations/0001_initial.sql`, every other query is a file in `queries/`.

mod cache;
mod error;
mod inspect;
mod lock;
mod planted;
mod queue;
mod reader;
mod schema;
mod statements;
mod tables;
mod writer;

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
    Admitted, Attempt, CancelOutcome, Claim, Error, ErrorKind, Extend, Extended, Finish, Finished,
    Millis, Pause, Pruned, Reaped, Registered, Registration, Release, ReleaseOutcome, Result,
    RetryOutcome, SetJob, SetLimit, Store, Submission, Submitted, TaskId, repair, rules,
};
use tokio::sync::Notify;

use crate::clock;
use crate::requests::Requests;
use error::{Translated, at};
use lock::Lock;
use planted::Planted;
use queue::Queue;
use reader::Reader;
use tables::Transaction;
use writer::Writer;

/// Older versions can lose a commit when a writer restarts the write-ahead log during a
/// checkpoint of another.
const VERSION_MIN: i32 = 3_052_000;

/// Reads that run at once.
const READERS: usize = 2;

pub use planted::Bug;

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
    #[cfg(feature = "planted")]
    pub planted: Option<Bug>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            synchronous: Synchronous::default(),
            clock: Arc::new(clock::system),
            busy_timeout: Duration::from_secs(30),
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}

impl Options {
    fn planted(&self) -> Planted {
        Planted {
            #[cfg(feature = "planted")]
            bug: self.planted,
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
    writes: Arc<Queue>,
    reads: Arc<Queue>,
    changed: Arc<Notify>,
    requests: Requests,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.writes.close();
        self.reads.close();
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
        Self::open_at(path, options).map_err(|error| at(path, error))
    }

    fn open_at(path: &Path, options: Options) -> Result<Self> {
        check_version(rusqlite::version_number())?;
        let lock = Lock::open(path);
        // Two processes that make the same file would disturb each other.
        let turn = lock.turn();
        let connection = open_writer(path, &options)?;
        let readers = (0..READERS).map(|_| open_reader(path, &options));
        let readers = readers.collect::<Result<Vec<Connection>>>()?;
        drop(turn);
        let (writes, reads) = (Queue::new(), Queue::new());
        let changed = Arc::new(Notify::new());
        let writer = Writer {
            connection,
            lock,
            path: path.to_owned(),
            clock: options.clock.clone(),
            queue: writes.clone(),
            changed: changed.clone(),
            planted: options.planted(),
        };
        let mut threads = vec![spawn("tidegate-writer", move || writer.work())?];
        for connection in readers {
            let reader = Reader {
                connection,
                path: path.to_owned(),
                clock: options.clock.clone(),
                queue: reads.clone(),
                planted: options.planted(),
            };
            threads.push(spawn("tidegate-reader", move || reader.work())?);
        }
        let path = path.to_owned();
        let (clock, requests) = (options.clock, Requests::default());
        let inner = Inner { path, clock, writes, reads, changed, requests, threads };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Bounds the file to this many pages, so that a test can fill the disk.
    #[doc(hidden)]
    pub async fn set_pages_max(&self, pages: u32) -> Result<()> {
        let set = move |tx: &mut Transaction<'_, '_>| {
            let connection = tx.statements.connection();
            connection
                .pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
                .translated()
        };
        self.inner.writes.run(0, set).await
    }

    /// Steps of SQLite's machine that the writer has made since the last call, so that a
    /// benchmark can tell what a verb costs.
    #[doc(hidden)]
    pub async fn take_steps(&self) -> Result<u64> {
        self.inner.writes.run(0, |tx| Ok(tx.statements.take_steps())).await
    }

    /// Runs one verb in a transaction of the writer. `size` is how many tasks it is about.
    async fn write<T: Send + 'static>(
        &self,
        verb: &'static str,
        size: usize,
        body: impl FnOnce(&mut Transaction<'_, '_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let checked = move |tx: &mut Transaction<'_, '_>| {
            tx.schema.check()?;
            body(tx)
        };
        self.inner.requests.general(verb, self.inner.writes.run(size, checked)).await
    }

    /// Runs one read in a transaction of a reader.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Transaction<'_, '_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let checked = move |tx: &mut Transaction<'_, '_>| {
            tx.schema.check()?;
            read(tx)
        };
        self.inner.requests.general("read", self.inner.reads.run(0, checked)).await
    }
}

#[async_trait]
impl Store for Sqlite {
    async fn migrate(&self) -> Result<()> {
        let migrate = |tx: &mut Transaction<'_, '_>| {
            let connection = tx.statements.connection();
            schema::migrate(connection, tx.now)?;
            tx.schema = schema::read(connection)?;
            Ok(())
        };
        self.inner.requests.general("migrate", self.inner.writes.run(0, migrate)).await
    }

    async fn register(&self, registration: Registration) -> Result<Registered> {
        let kinds = registration.kinds.len() + registration.defaults.len();
        self.write("register", kinds, move |tx| rules::register(tx, &registration)).await
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>> {
        rules::check_submission(&submission, PAYLOAD_BYTES_MAX)?;
        self.write("submit", submission.tasks.len(), move |tx| rules::submit(tx, &submission)).await
    }

    async fn admit(&self) -> Result<Admitted> {
        self.write("admit", 1, |tx| rules::admit(tx)).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Attempt>> {
        self.write("claim", claim.tasks_max as usize, move |tx| rules::claim(tx, &claim)).await
    }

    async fn extend(&self, extend: Extend) -> Result<Extended> {
        self.write("extend", extend.tokens.len(), move |tx| rules::extend(tx, &extend)).await
    }

    async fn finish(&self, finish: Finish) -> Result<Finished> {
        self.write("finish", finish.exits.len(), move |tx| rules::finish(tx, finish)).await
    }

    async fn cancel(&self, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>> {
        self.write("cancel", tasks.len(), move |tx| rules::cancel(tx, &tasks)).await
    }

    async fn retry(&self, tasks: Vec<TaskId>) -> Result<Vec<RetryOutcome>> {
        self.write("retry", tasks.len(), move |tx| rules::retry(tx, &tasks)).await
    }

    async fn release(&self, release: Release) -> Result<ReleaseOutcome> {
        self.write("release", 1, move |tx| rules::release(tx, &release)).await
    }

    async fn pause(&self, pause: Pause) -> Result<bool> {
        self.write("pause", 1, move |tx| rules::pause(tx, &pause)).await
    }

    async fn repair(&self) -> Result<Vec<Repair>> {
        self.write("repair", 1, |tx| {
            let mut steps = Vec::new();
            loop {
                tx.flush()?;
                let plan = repair::plan(&inspect::snapshot(tx)?);
                rules::repair(tx, &plan)?;
                let is_first = repair::is_first_part(&plan);
                steps.extend(plan);
                if !is_first {
                    return Ok(steps);
                }
            }
        })
        .await
    }

    async fn reap(&self) -> Result<Reaped> {
        self.write("reap", 1, |tx| rules::reap(tx)).await
    }

    async fn prune(&self) -> Result<Pruned> {
        self.write("prune", 1, |tx| rules::prune(tx)).await
    }

    async fn set_limit(&self, set: SetLimit) -> Result<Option<i64>> {
        self.write("set_limit", 1, move |tx| rules::set_limit(tx, &set)).await
    }

    async fn set_job(&self, set: SetJob) -> Result<()> {
        self.write("set_job", 1, move |tx| rules::set_job(tx, &set)).await
    }

    async fn changed(&self) {
        let _watching = self.inner.writes.watch();
        self.inner.changed.notified().await;
    }
}

fn check_version(version: i32) -> Result<()> {
    if version >= VERSION_MIN {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Incompatible,
        format!("SQLite {} can lose commits; build with 3.52.0 or newer", rusqlite::version()),
    ))
}

fn open_writer(path: &Path, options: &Options) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = open(path, flags, options)?;
    if schema::read(&connection)? != schema::Schema::Missing {
        schema::verify(&connection)?;
    }
    let synchronous = match options.synchronous {
        Synchronous::Full => "full",
        Synchronous::Normal => "normal",
    };
    let set = |name: &str, value: &str| connection.pragma_update(None, name, value).translated();
    set("journal_mode", "wal")?;
    set("synchronous", synchronous)?;
    set("cache_size", "-65536")?;
    // A log that grew behind a long read is cut back to this.
    set("journal_size_limit", "67108864")?;
    check_journal(&connection)?;
    Ok(connection)
}

fn open_reader(path: &Path, options: &Options) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    open(path, flags, options)
}

fn open(path: &Path, flags: OpenFlags, options: &Options) -> Result<Connection> {
    let connection = Connection::open_with_flags(path, flags).translated()?;
    connection.busy_timeout(options.busy_timeout).translated()?;
    connection.pragma_update(None, "temp_store", "memory").translated()?;
    // Otherwise a statement with a range is planned anew for every value bound to it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).translated()?;
    Ok(connection)
}

/// Without the write-ahead log readers would hold up the writer.
fn check_journal(connection: &Connection) -> Result<()> {
    let mode: String =
        connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).translated()?;
    if mode == "wal" {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Refused,
        format!("the file cannot have a write-ahead log (it has {mode:?}); use a local disk"),
    ))
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|error| Error::new(ErrorKind::Unavailable, format!("no thread: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sqlite_that_loses_commits_is_refused() {
        check_version(VERSION_MIN).unwrap();
        assert_eq!(check_version(3_051_002).unwrap_err().kind(), ErrorKind::Incompatible);
    }
}
