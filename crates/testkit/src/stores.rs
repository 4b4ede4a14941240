//! How the suites open each store.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;
use tidegate_store::memory::Memory;
use tidegate_store::postgres::{self, Postgres};
use tidegate_store::sqlite::{self, Sqlite, Synchronous};

use crate::conformance::{Backend, Clock, Handle};
use crate::pgbouncer::{PgBouncer, PoolMode};
use crate::postgres::{Database, Server};

/// The reference. Its handles share one clock, the first one's.
#[derive(Debug, Default)]
pub struct MemoryBackend(OnceLock<Memory>);

#[async_trait]
impl Backend for MemoryBackend {
    fn create() -> Self {
        Self::default()
    }

    async fn open(&self, clock: Clock) -> Handle {
        Handle::new(self.0.get_or_init(|| Memory::with_clock(move || clock())).clone())
    }
}

/// A file.
#[derive(Debug)]
pub struct SqliteBackend {
    path: PathBuf,
    #[cfg(feature = "fault_injection")]
    injected_bug: Option<sqlite::InjectedBug>,
    /// Removed with the value; a file that another process made is not ours to remove.
    _folder: Option<TempDir>,
}

impl SqliteBackend {
    fn over(path: PathBuf, folder: Option<TempDir>) -> Self {
        Self {
            path,
            #[cfg(feature = "fault_injection")]
            injected_bug: None,
            _folder: folder,
        }
    }

    /// A file whose store has a bug, or none.
    #[cfg(feature = "fault_injection")]
    pub fn with_injected_bug(injected_bug: Option<sqlite::InjectedBug>) -> Self {
        Self { injected_bug, ..Self::create() }
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    fn create() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::over(folder.path().join("tidegate.db"), Some(folder))
    }

    async fn open(&self, clock: Clock) -> Handle {
        // A test never outlives its machine.
        let synchronous = Synchronous::Normal;
        let options = sqlite::Options {
            synchronous,
            clock,
            #[cfg(feature = "fault_injection")]
            injected_bug: self.injected_bug,
            ..sqlite::Options::default()
        };
        Handle::new(Sqlite::open(&self.path, options).expect("open the file"))
    }

    fn address(&self) -> Option<String> {
        Some(self.path.to_str().expect("a path in UTF-8").to_owned())
    }

    fn from_address(address: &str) -> Option<Self> {
        Some(Self::over(address.into(), None))
    }
}

/// A database of the tests' own server.
#[derive(Debug)]
pub struct PostgresBackend {
    url: String,
    /// Dropped with the value; a database that another process made is not ours to drop.
    _database: Option<Database>,
}

#[async_trait]
impl Backend for PostgresBackend {
    fn create() -> Self {
        let database = Server::shared().database();
        Self { url: database.url(), _database: Some(database) }
    }

    async fn open(&self, clock: Clock) -> Handle {
        self.connect(clock, Duration::ZERO).await
    }

    fn promotes_parked_tasks(&self) -> bool {
        false
    }

    fn address(&self) -> Option<String> {
        Some(self.url.clone())
    }

    fn from_address(address: &str) -> Option<Self> {
        Some(Self { url: address.to_owned(), _database: None })
    }
}

impl PostgresBackend {
    async fn connect(&self, clock: Clock, due_grace: Duration) -> Handle {
        let options = postgres::Options {
            pool_size: 4,
            due_grace,
            clock: Some(clock),
            ..postgres::Options::default()
        };
        Handle::new(Postgres::connect(&self.url, options).await.expect("PostgreSQL answers"))
    }
}

/// The same, where claims may pass tasks that became due a moment ago. It does not answer every step as the
/// reference does.
#[derive(Debug)]
pub struct PostgresWithGraceBackend(PostgresBackend);

#[async_trait]
impl Backend for PostgresWithGraceBackend {
    fn create() -> Self {
        Self(PostgresBackend::create())
    }

    async fn open(&self, clock: Clock) -> Handle {
        self.0.connect(clock, postgres::Options::default().due_grace).await
    }

    fn address(&self) -> Option<String> {
        self.0.address()
    }

    fn from_address(address: &str) -> Option<Self> {
        PostgresBackend::from_address(address).map(Self)
    }
}

/// A database of the tests' own server, through a PgBouncer in session mode.
#[derive(Debug)]
pub struct PgBouncerBackend {
    url: String,
    /// Ends before the database is dropped.
    _bouncer: Option<PgBouncer>,
    _database: Option<Database>,
}

#[async_trait]
impl Backend for PgBouncerBackend {
    fn create() -> Self {
        let database = Server::shared().database();
        let bouncer = PgBouncer::start(&database, PoolMode::Session, 200);
        let url = bouncer.url().to_owned();
        Self { url, _bouncer: Some(bouncer), _database: Some(database) }
    }

    async fn open(&self, clock: Clock) -> Handle {
        let options = postgres::Options {
            pool_size: 4,
            due_grace: Duration::ZERO,
            clock: Some(clock),
            ..postgres::Options::default()
        };
        Handle::new(Postgres::connect(&self.url, options).await.expect("PgBouncer answers"))
    }

    fn address(&self) -> Option<String> {
        Some(self.url.clone())
    }

    fn from_address(address: &str) -> Option<Self> {
        Some(Self { url: address.to_owned(), _bouncer: None, _database: None })
    }
}
