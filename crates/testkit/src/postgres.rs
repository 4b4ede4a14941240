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
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use tokio_postgres::NoTls;

/// The folder with `initdb`, `pg_ctl` and `postgres`. Default: the newest in
/// `/usr/lib/postgresql/*/bin`.
const BIN_VARIABLE: &str = "TIDEGATE_PG_BIN";

/// The folder of the server: its socket, its log and its data. Default: a folder in the
/// temporary directory, one for each checkout and each PostgreSQL.
const DIR_VARIABLE: &str = "TIDEGATE_PG_DIR";

/// PostgreSQL refuses to run as root; it then runs as `nobody`, which has this number.
const NOBODY: u32 = 65534;

/// The kernel takes socket paths of up to 107 bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Durability off, because a test never outlives its machine; the rest as users have it.
const SETTINGS: [&str; 9] = [
    "listen_addresses=",
    "port=5432",
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
                let bin = bin_folder()?;
                let folder = server_folder(&bin);
                Server::find_or_start(&bin, folder)
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

    fn find_or_start(bin: &Path, folder: PathBuf) -> Result<Server> {
        let socket = folder.join(".s.PGSQL.5432");
        ensure!(
            socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX,
            "the socket path {} is too long for the kernel: set {DIR_VARIABLE} to a shorter folder",
            socket.display(),
        );
        create_folder(&folder)?;
        let lock = File::create(folder.join("lock")).context("create the lock file")?;
        lock.lock().context("take the lock file")?;
        // A connection proves more than the pid file does: `pg_ctl start` has returned, and
        // nobody has cleaned the socket away.
        if UnixStream::connect(&socket).is_err() {
            start_anew(bin, &folder)?;
        }
        Ok(Server { folder })
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

fn url(folder: &Path, database: &str) -> String {
    format!("postgres:///{database}?host={}&user=postgres", folder.display())
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

fn bin_folder() -> Result<PathBuf> {
    if let Some(bin) = std::env::var_os(BIN_VARIABLE) {
        let bin = PathBuf::from(bin);
        ensure!(bin.join("initdb").exists(), "no initdb in {BIN_VARIABLE}={}", bin.display());
        return Ok(bin);
    }
    newest_bin_folder(Path::new("/usr/lib/postgresql")).context(
        "there is none in /usr/lib/postgresql. Run scripts/test, which installs one, \
         or set TIDEGATE_PG_BIN to the folder that has initdb and pg_ctl",
    )
}

/// Among `<installed>/<version>/bin`, the one of the highest version.
fn newest_bin_folder(installed: &Path) -> Option<PathBuf> {
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    fs::read_dir(installed)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("bin/initdb").exists())
        .max_by_key(|path| version(path))
        .map(|path| path.join("bin"))
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

/// The folder belongs to the server's user, and nobody else may look in.
fn create_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).context("close the folder")?;
    if own_uid() == 0 {
        chown(folder, Some(NOBODY), Some(NOBODY)).context("give the folder to nobody")?;
    }
    Ok(())
}

fn own_uid() -> u32 {
    fs::metadata("/proc/self").map_or(NOBODY, |process| process.uid())
}

fn start_anew(bin: &Path, folder: &Path) -> Result<()> {
    let data = folder.join("data");
    if data.exists() {
        // It does not answer but may still be alive, for example if its socket was cleaned away.
        let mut stop = tool(bin, "pg_ctl", folder);
        let _ = run(stop.arg("-D").arg(&data).args(["stop", "-m", "immediate"]));
        fs::remove_dir_all(&data).context("remove the old data")?;
    }
    let mut initdb = tool(bin, "initdb", folder);
    initdb.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8"]);
    run(initdb.args(["--no-locale", "--no-sync"]))?;
    fs::write(data.join("postgresql.auto.conf"), configuration(folder)).context("configure")?;

    let log = folder.join("log");
    let mut start = tool(bin, "pg_ctl", folder);
    start.arg("-D").arg(&data).arg("-l").arg(&log);
    run(start.args(["-w", "-t", "60", "start"])).with_context(|| {
        let log = fs::read_to_string(&log).unwrap_or_default();
        format!("the server said: {log}")
    })
}

fn configuration(folder: &Path) -> String {
    let line = |setting: &&str| {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        format!("{name} = '{value}'\n")
    };
    let socket = format!("unix_socket_directories = '{}'\n", folder.display());
    SETTINGS.iter().map(line).chain([socket]).collect()
}

/// One of PostgreSQL's programs, as the server's user, away from the caller's environment.
fn tool(bin: &Path, name: &str, folder: &Path) -> Command {
    let mut command = Command::new(bin.join(name));
    command.current_dir(folder);
    for (variable, _) in std::env::vars_os() {
        if variable.to_str().is_some_and(|variable| variable.starts_with("PG")) {
            command.env_remove(variable);
        }
    }
    if own_uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Runs a program to its end. Its output goes to a file: the server inherits it and lives on, and
/// a pipe would keep the test runner waiting for the end of it.
fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output_path = std::env::temp_dir().join(format!("tidegate-{}", unique_name()));
    let output = File::create(&output_path).context("create the output file")?;
    let status = output
        .try_clone()
        .and_then(|copy| command.stdin(Stdio::null()).stdout(output).stderr(copy).status());
    let said = fs::read_to_string(&output_path).unwrap_or_default();
    let _ = fs::remove_file(&output_path);
    let status = status.map_err(|error| explain_spawn(&program, error))?;
    ensure!(status.success(), "{program} ended with {status}: {said}");
    Ok(())
}

fn explain_spawn(program: &str, error: io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied if own_uid() == 0 => {
            " (as root it is run by the user nobody, who must be able to reach it)"
        }
        _ => "",
    };
    anyhow::Error::new(error).context(format!("run {program}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_bin_folder_compares_versions_as_numbers() {
        let installed = std::env::temp_dir().join(unique_name());
        for version in ["9", "15", "18"] {
            fs::create_dir_all(installed.join(version).join("bin")).unwrap();
        }
        for version in ["9", "15"] {
            fs::write(installed.join(version).join("bin/initdb"), "").unwrap();
        }
        let newest = newest_bin_folder(&installed);
        fs::remove_dir_all(&installed).unwrap();
        assert_eq!(newest, Some(installed.join("15/bin")));
    }

    #[test]
    fn unique_names_differ_and_need_no_quotes() {
        let (one, other) = (unique_name(), unique_name());
        assert_ne!(one, other);
        assert!(one.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    }

    #[test]
    fn configuration_closes_the_network_and_names_the_socket() {
        let configuration = configuration(Path::new("/sockets"));
        assert!(configuration.contains("listen_addresses = ''\n"));
        assert!(configuration.contains("unix_socket_directories = '/sockets'\n"));
    }
}
