//! A real PostgreSQL for tests: one server, and a fresh database for each test.
//!
//! Under nextest every test is a process of its own, so the server must outlive the process that
//! starts it. The first test that needs it starts it under a file lock; the others find it
//! answering on its socket. `scripts/test` gives each run its own folder (`TIDEGATE_PG_DIR`) and
//! stops the server at the end. In a run by hand the server is left running for the next one.
//!
//! Nothing in the server is worth keeping: one that does not answer is made anew, not repaired.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use tidegate_measure::server::{self, Programs, own_uid, url};
use tokio_postgres::NoTls;

/// The folder of the server: its socket, its log and its data. Default: a folder in the
/// temporary directory, one for each checkout and each PostgreSQL.
const DIR_VARIABLE: &str = "TIDEGATE_PG_DIR";

/// Durability off, because a test never outlives its machine; the rest as users have it.
const SETTINGS: [&str; 7] = [
    "max_connections=600",
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "autovacuum_naptime=10s",
    "log_min_messages=warning",
    "log_checkpoints=off",
];

/// A running PostgreSQL, reachable by a Unix socket only.
#[derive(Debug)]
pub struct Server {
    folder: PathBuf,
}

impl Server {
    /// The server of this run, started if it is not running yet.
    ///
    /// # Panics
    ///
    /// If there is no PostgreSQL on the machine, or it does not start; the text says why.
    pub fn shared() -> &'static Server {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| {
            let start = || {
                let programs = Programs::find(None)?;
                let folder = server_folder(programs.bin());
                Server::find_or_start(programs, folder)
            };
            start().unwrap_or_else(|error| panic!("no PostgreSQL for the test: {error:#}"))
        })
    }

    /// A new, empty database, dropped together with the value.
    ///
    /// May be called inside and outside of an async runtime; it blocks for some 50 ms.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub fn database(&self) -> Database {
        let name = unique_name();
        let database = Database { folder: self.folder.clone(), name };
        execute(&self.url("postgres"), format!("create database {}", database.name))
            .unwrap_or_else(|error| panic!("create database {}: {error:#}", database.name));
        database
    }

    /// The URL of a database of this server by name.
    pub fn url(&self, database: &str) -> String {
        url(&self.folder, database)
    }

    fn find_or_start(programs: Programs, folder: PathBuf) -> Result<Server> {
        let server = server::Server::at(programs, folder)
            .with_context(|| format!("{DIR_VARIABLE} chooses the folder of the server"))?;
        let lock = File::create(server.folder().join("lock")).context("create the lock file")?;
        lock.lock().context("take the lock file")?;
        // A connection proves more than the pid file does: the server is up, and nobody has
        // cleaned the socket away.
        if UnixStream::connect(server.socket()).is_err() {
            server.make(&SETTINGS)?;
            server.start()?;
        }
        Ok(Server { folder: server.folder().to_owned() })
    }
}

/// A database of its own for one test.
#[derive(Debug)]
pub struct Database {
    folder: PathBuf,
    name: String,
}

impl Database {
    /// The connection URL, as tokio-postgres, libpq and `tidegate` read it.
    pub fn url(&self) -> String {
        url(&self.folder, &self.name)
    }

    /// The socket of its server.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// The name of the database, unique on its server.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Database {
    /// Best effort: a database that is left over costs disk space until the server is made anew.
    fn drop(&mut self) {
        let drop = format!("drop database if exists {} with (force)", self.name);
        let _ = execute(&url(&self.folder, "postgres"), drop);
    }
}

/// Unique also among the leftovers of processes that had the same id.
#[expect(
    clippy::disallowed_methods,
    reason = "the one source of unique names in tests; no test depends on its value"
)]
fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since_epoch| since_epoch.as_nanos());
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("test_{}_{nanos:x}_{count}", std::process::id())
}

/// Runs one statement on a connection, runtime and thread of its own, so that the caller may be
/// anywhere: in a runtime, outside of one, or in a `drop`.
fn execute(url: &str, statement: String) -> Result<()> {
    let config: tokio_postgres::Config = url.parse().context("read the database URL")?;
    let work = async move {
        let (client, connection) = config.connect(NoTls).await.context("connect")?;
        let connection = tokio::spawn(connection);
        client.batch_execute(&statement).await.context("execute the statement")?;
        drop(client);
        connection.await?.context("close the connection")
    };
    let run =
        move || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work);
    match thread::spawn(run).join() {
        Ok(result) => result,
        Err(_) => bail!("the thread that executes the statement panicked"),
    }
}

/// Not below `target`: that may be too deep for a socket path, and closed to `nobody`.
fn server_folder(bin: &Path) -> PathBuf {
    if let Some(folder) = std::env::var_os(DIR_VARIABLE) {
        return PathBuf::from(folder);
    }
    let mut hasher = DefaultHasher::new();
    (env!("CARGO_MANIFEST_DIR"), bin, own_uid()).hash(&mut hasher);
    std::env::temp_dir().join(format!("tidegate-pg-{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_names_differ_and_need_no_quotes() {
        let (one, other) = (unique_name(), unique_name());
        assert_ne!(one, other);
        assert!(one.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    }
}
