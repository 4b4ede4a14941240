//! A real PgBouncer in front of a database.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use tempfile::TempDir;
use tidegate_measure::postgres_server::{NOBODY_UID, own_uid};

use crate::postgres::Database;

/// The program. Default: the first of the search path, or that of the Debian package.
const PROGRAM_VARIABLE: &str = "TIDEGATE_PGBOUNCER";

const PACKAGED: &str = "/usr/sbin/pgbouncer";

/// When a server connection goes back to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// When the client disconnects.
    Session,
    /// After each transaction.
    Transaction,
    /// After each statement.
    Statement,
}

/// A running PgBouncer; ends when it is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    url: String,
    process: Child,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts one on a port of its own, with up to `pool_size` connections to the server.
    ///
    /// # Panics
    ///
    /// If there is no PgBouncer on the machine, or it does not start.
    pub fn start(database: &Database, mode: PoolMode, pool_size: usize) -> Self {
        Self::start_with_client_limit(database, mode, pool_size, 500)
    }

    /// Starts one that accepts at most `clients_max` connections.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with_client_limit(
        database: &Database,
        mode: PoolMode,
        pool_size: usize,
        clients_max: usize,
    ) -> Self {
        let folder = tempfile::Builder::new().prefix("tidegate-pgbouncer-").tempdir();
        let folder = folder.expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
        let port = free_port();
        let file = folder.path().join("pgbouncer.ini");
        let socket = database.socket();
        let sockets = socket.parent().expect("the folder of the socket");
        let configuration = configuration(sockets, port, mode, pool_size, clients_max);
        fs::write(&file, configuration).expect("write the file");
        let mut process = command()
            .arg(&file)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("run PgBouncer ({PROGRAM_VARIABLE}): {error}"));
        let mut messages = BufReader::new(process.stderr.take().expect("piped")).lines();
        let mut said = Vec::new();
        loop {
            match messages.next() {
                Some(Ok(line)) if line.contains("process up") => break,
                Some(Ok(line)) => said.push(line),
                _ => panic!("PgBouncer does not start: {}", said.join("\n")),
            }
        }
        // It would wait for a reader of its messages.
        thread::spawn(move || messages.for_each(drop));
        let url = format!("postgres://postgres@127.0.0.1:{port}/{}", database.name());
        Self { url, process, _folder: folder }
    }

    /// The URL of the database by this way.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // Only fails where it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a port of this machine that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

/// As root it refuses to run.
fn command() -> Command {
    let program = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from).unwrap_or_else(|| {
        let packaged = Path::new(PACKAGED);
        if packaged.exists() { packaged.to_owned() } else { "pgbouncer".into() }
    });
    let mut command = Command::new(program);
    if own_uid() == 0 {
        command.uid(NOBODY_UID).gid(NOBODY_UID);
    }
    command
}

fn configuration(
    sockets: &Path,
    port: u16,
    mode: PoolMode,
    pool_size: usize,
    clients_max: usize,
) -> String {
    let mode = match mode {
        PoolMode::Session => "session",
        PoolMode::Transaction => "transaction",
        PoolMode::Statement => "statement",
    };
    format!(
        "[databases]\n\
         * = host={} port=5432 user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = {mode}\n\
         max_client_conn = {clients_max}\n\
         default_pool_size = {pool_size}\n",
        sockets.display()
    )
}
