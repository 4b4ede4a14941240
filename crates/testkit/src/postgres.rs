//! A real PostgreSQL for tests: one server, and a fresh database for each test.
//!
//! Under nextest every test is a process of its own, so the server must outlive the process that
//! starts it. The first test that needs it starts it under a file lock; the others find it
//! answering on its socket. `scripts/test` gives each run its own folder (`TIDEGATE_PG_DIR`) and
//! stops the server at the end. In a run by hand the server is left running for the next one.
//!
//! Nothing in the server is worth keeping: one that does not answer is made anew, not repaired.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use tidegate_core::Store;
use tidegate_measure::postgres_server::{self, Programs, own_uid, url};
use tidegate_store::postgres::{self, Postgres};
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

    /// Creates a database with the current schema, dropped together with the value. It is a copy of a
    /// template that was migrated once for the server, because a migration takes longer than most tests.
    ///
    /// May be called inside and outside of an async runtime; it blocks for some 50 ms.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub fn database(&self) -> Database {
        let template = self.template().unwrap_or_else(|error| panic!("template: {error:#}"));
        self.create(&format!("template {template}"))
    }

    /// Creates an empty database, dropped together with the value. For tests of migrations.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub fn empty_database(&self) -> Database {
        self.create("")
    }

    fn create(&self, options: &str) -> Database {
        let name = unique_name();
        let database = Database { folder: self.folder.clone(), name };
        execute(&self.url("postgres"), format!("create database {} {options}", database.name))
            .unwrap_or_else(|error| panic!("create database {}: {error:#}", database.name));
        database
    }

    /// Returns the name of the migrated template. The first caller creates it, under a file lock. Its name
    /// contains a hash of the migrations, so a server that outlives a change of them gets a new one.
    fn template(&self) -> Result<String> {
        let name = format!("template_{:016x}", migrations_hash()?);
        let is_made = self.folder.join(&name);
        let lock =
            File::create(self.folder.join("template.lock")).context("create the lock file")?;
        lock.lock().context("take the lock file")?;
        if is_made.exists() {
            return Ok(name);
        }
        let admin = self.url("postgres");
        execute(&admin, format!("drop database if exists {name}"))?;
        execute(&admin, format!("create database {name}"))?;
        let url = self.url(&name);
        block_on(async move {
            let options = postgres::Options { pool_size: 1, ..postgres::Options::default() };
            Ok(Postgres::connect(&url, options).await?.migrate().await?)
        })?;
        // A database that has connections cannot be copied.
        execute(&admin, format!("alter database {name} allow_connections false"))?;
        execute(
            &admin,
            format!(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
            ),
        )?;
        File::create(is_made).context("note the template")?;
        Ok(name)
    }

    /// The URL of a database of this server by name.
    pub fn url(&self, database: &str) -> String {
        url(&self.folder, database)
    }

    fn find_or_start(programs: Programs, folder: PathBuf) -> Result<Server> {
        let server = postgres_server::Server::at(programs, folder)
            .with_context(|| format!("{DIR_VARIABLE} chooses the folder of the server"))?;
        let lock = File::create(server.folder().join("lock")).context("create the lock file")?;
        lock.lock().context("take the lock file")?;
        // A connection proves more than the pid file does: the server is up, and nobody has
        // cleaned the socket away.
        if UnixStream::connect(server.socket()).is_err() {
            server.init(&SETTINGS)?;
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
    block_on(work)
}

/// Runs work on a runtime and a thread of its own.
fn block_on(work: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
    let run =
        move || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work);
    match thread::spawn(run).join() {
        Ok(result) => result,
        Err(_) => bail!("the thread that works for the caller panicked"),
    }
}

/// Returns a hash of the migrations of the store.
fn migrations_hash() -> Result<u64> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/src/postgres/migrations");
    let files = fs::read_dir(folder).context("read the migrations")?;
    let mut paths = files.map(|file| Ok(file?.path())).collect::<Result<Vec<PathBuf>>>()?;
    paths.sort_unstable();
    let mut hasher = DefaultHasher::new();
    for path in paths {
        fs::read(path)?.hash(&mut hasher);
    }
    Ok(hasher.finish())
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
