//! A PostgreSQL server of its own for one test, reachable by TCP, with its own configuration.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;

use tempfile::TempDir;
use tidegate_measure::postgres_server::{NOBODY_UID, Programs, Server, StopMode, own_uid};
use tokio_postgres::{Client, NoTls};

use crate::pgbouncer::free_port;

/// A server that is stopped and removed when the value is dropped. Every method panics if the server
/// refuses.
#[derive(Debug)]
pub struct OwnServer {
    server: Server,
    port: u16,
    _folder: TempDir,
}

impl OwnServer {
    /// Makes a server with settings written `name=value`; does not start it.
    pub fn init(settings: &[&str]) -> Self {
        let own = Self::in_new_folder();
        let port = own.port_settings();
        let settings: Vec<&str> =
            port.iter().map(|line| &**line).chain(settings.iter().copied()).collect();
        own.server.init(&settings).expect("make a server");
        own
    }

    /// Makes a standby of a running server; does not start it.
    pub fn standby_of(primary: &OwnServer) -> Self {
        let own = Self::in_new_folder();
        let port = own.port_settings();
        let settings: Vec<&str> = port.iter().map(|line| &**line).collect();
        let primary = format!("host=127.0.0.1 port={} user=postgres", primary.port);
        own.server.init_standby(&primary, &settings).expect("make a standby");
        own
    }

    fn in_new_folder() -> Self {
        let folder = tempfile::Builder::new().prefix("tidegate-pg-").tempdir().expect("a folder");
        let programs = Programs::find(None).expect("PostgreSQL");
        let server = Server::at(programs, folder.path().to_owned()).expect("a folder");
        Self { server, port: free_port(), _folder: folder }
    }

    fn port_settings(&self) -> [String; 2] {
        ["listen_addresses=127.0.0.1".to_owned(), format!("port={}", self.port)]
    }

    /// Writes a file into the folder of the data, readable by the server alone.
    pub fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::write(&path, content).expect("write a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("permissions");
        if own_uid() == 0 {
            chown(&path, Some(NOBODY_UID), Some(NOBODY_UID)).expect("give the file to the server");
        }
    }

    /// The path of a file in the folder of the data.
    pub fn path(&self, name: &str) -> PathBuf {
        self.server.data().join(name)
    }

    /// Starts it, and waits until it accepts connections.
    pub fn start(&self) {
        self.server.start().expect("start the server");
    }

    /// Stops it, and waits until it has ended.
    pub fn stop(&self, how: StopMode) {
        self.server.stop(how).expect("stop the server");
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        self.server.promote().expect("promote the standby");
    }

    /// Reads what it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.server.folder().join("log")).expect("read the log")
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connects by its socket, as the superuser.
    pub async fn connect(&self) -> Client {
        let folder = self.server.folder().display();
        let url = format!("postgres:///postgres?host={folder}&port={}&user=postgres", self.port);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connect");
        tokio::spawn(connection);
        client
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // Only fails where it has ended already.
        let _ = self.server.stop(StopMode::Immediate);
    }
}
