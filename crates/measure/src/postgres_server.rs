//! A PostgreSQL to oneself: made, started, stopped and started again, in a folder of its own.
//!
//! It is reached by a Unix socket in that folder, and by nothing else.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

/// The folder with `initdb`, `pg_ctl` and `postgres`. Default: the newest in
/// `/usr/lib/postgresql/*/bin`.
pub const BIN_VARIABLE: &str = "TIDEGATE_PG_BIN";

/// PostgreSQL refuses to run as root; it then runs as `nobody`, which has this number.
pub const NOBODY_UID: u32 = 65534;

/// The kernel takes socket paths of up to 107 bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// PostgreSQL's programs.
#[derive(Debug, Clone)]
pub struct Programs {
    bin: PathBuf,
}

impl Programs {
    /// Those in the folder that is given, or else in the one that the environment names, or else
    /// the newest that are installed.
    pub fn find(given: Option<&Path>) -> Result<Self> {
        let named = || std::env::var_os(BIN_VARIABLE).map(PathBuf::from);
        if let Some(bin) = given.map(Path::to_owned).or_else(named) {
            ensure!(bin.join("initdb").exists(), "there is no initdb in {}", bin.display());
            // The programs are started in another folder.
            let bin = bin.canonicalize().with_context(|| format!("look at {}", bin.display()))?;
            return Ok(Self { bin });
        }
        let bin = newest_bin(Path::new("/usr/lib/postgresql")).with_context(|| {
            format!(
                "no PostgreSQL is installed in /usr/lib/postgresql; set {BIN_VARIABLE} to the \
                 folder that has initdb and pg_ctl"
            )
        })?;
        Ok(Self { bin })
    }

    /// Their folder.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// One of them, as the server's user, away from the caller's environment.
    fn command(&self, name: &str, folder: &Path) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command.current_dir(folder);
        for (variable, _) in std::env::vars_os() {
            if variable.to_str().is_some_and(|variable| variable.starts_with("PG")) {
                command.env_remove(variable);
            }
        }
        if own_uid() == 0 {
            command.uid(NOBODY_UID).gid(NOBODY_UID);
        }
        command
    }
}

/// Among `<installed>/<version>/bin`, the one of the highest version.
fn newest_bin(installed: &Path) -> Option<PathBuf> {
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    fs::read_dir(installed)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("bin/initdb").exists())
        .max_by_key(|path| version(path))
        .map(|path| path.join("bin"))
}

/// How to stop a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Sessions are ended and all is written down.
    Fast,
    /// As if it had crashed: the next start recovers.
    Immediate,
}

/// A server in a folder: its socket, its log and its data.
#[derive(Debug)]
pub struct Server {
    programs: Programs,
    folder: PathBuf,
}

impl Server {
    /// The server of a folder, which is made if there is none. It belongs to the server's user, and
    /// nobody else may look in.
    pub fn at(programs: Programs, folder: PathBuf) -> Result<Self> {
        let server = Self { programs, folder };
        let socket = server.socket();
        ensure!(
            socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX,
            "the path of the socket {} is too long for the kernel: choose a shorter folder",
            socket.display(),
        );
        create_folder(&server.folder)?;
        Ok(server)
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// The URL of one of its databases.
    pub fn url(&self, database: &str) -> String {
        url(&self.folder, database)
    }

    /// Makes its data anew, with settings written `name=value`.
    pub fn init(&self, settings: &[&str]) -> Result<()> {
        let data = self.data();
        if data.exists() {
            // It may be alive still, for example if its socket was cleaned away.
            let _ = self.stop(StopMode::Immediate);
            fs::remove_dir_all(&data).context("remove the old data")?;
        }
        let mut initdb = self.programs.command("initdb", &self.folder);
        initdb.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8"]);
        self.run(initdb.args(["--no-locale", "--no-sync"]))?;
        fs::write(data.join("postgresql.auto.conf"), self.configuration(settings))
            .context("configure the server")
    }

    /// Makes its data a copy of a running server, of which it becomes a standby. Later settings,
    /// written `name=value`, override those of the copy.
    pub fn init_standby(&self, primary: &str, settings: &[&str]) -> Result<()> {
        let mut copy = self.programs.command("pg_basebackup", &self.folder);
        copy.arg("-D").arg(self.data()).args(["-d", primary, "-R", "-c", "fast"]);
        self.run(&mut copy)?;
        let path = self.data().join("postgresql.auto.conf");
        let copied = fs::read_to_string(&path).context("read the copied configuration")?;
        fs::write(&path, copied + &self.configuration(settings)).context("configure the server")
    }

    /// Makes a standby the primary, and waits until it accepts writes.
    pub fn promote(&self) -> Result<()> {
        self.run(self.pg_ctl().args(["-w", "-t", "60", "promote"]))
    }

    /// Starts it, and waits until it takes connections.
    pub fn start(&self) -> Result<()> {
        self.run_start(&["-w", "-t", "60", "start"])
    }

    /// Starts it without waiting.
    pub fn start_without_waiting(&self) -> Result<()> {
        self.run_start(&["-W", "start"])
    }

    /// Stops it, and waits until it is gone.
    pub fn stop(&self, how: StopMode) -> Result<()> {
        let mode = match how {
            StopMode::Fast => "fast",
            StopMode::Immediate => "immediate",
        };
        self.run(self.pg_ctl().args(["-w", "-t", "60", "stop", "-m", mode]))
    }

    fn run_start(&self, how: &[&str]) -> Result<()> {
        let log = self.folder.join("log");
        self.run(self.pg_ctl().arg("-l").arg(&log).args(how)).with_context(|| {
            let log = fs::read_to_string(&log).unwrap_or_default();
            format!("the server said: {log}")
        })
    }

    fn pg_ctl(&self) -> Command {
        let mut command = self.programs.command("pg_ctl", &self.folder);
        command.arg("-D").arg(self.data());
        command
    }

    /// Where its data is.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn configuration(&self, settings: &[&str]) -> String {
        let line = |setting: &&str| {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            format!("{name} = '{value}'\n")
        };
        let socket = format!("unix_socket_directories = '{}'\n", self.folder.display());
        let own = ["listen_addresses=", "port=5432"];
        own.iter().chain(settings).map(line).chain([socket]).collect()
    }

    /// Runs a program to its end. Its output goes to a file: the server inherits it and lives on,
    /// and a pipe would keep the caller waiting for the end of it.
    fn run(&self, command: &mut Command) -> Result<()> {
        let program = command.get_program().to_string_lossy().into_owned();
        let output = tempfile::NamedTempFile::new().context("make a file for the output")?;
        let status = run_into(command, output.as_file());
        let said = fs::read_to_string(output.path()).unwrap_or_default();
        let status = status.map_err(|error| explain_spawn(&program, error))?;
        ensure!(status.success(), "{program} ended with {status}: {said}");
        Ok(())
    }
}

/// The URL of a database of the server whose socket is in a folder.
pub fn url(folder: &Path, database: &str) -> String {
    format!("postgres:///{database}?host={}&user=postgres", folder.display())
}

fn run_into(command: &mut Command, output: &File) -> io::Result<std::process::ExitStatus> {
    let copies = (output.try_clone()?, output.try_clone()?);
    command.stdin(Stdio::null()).stdout(copies.0).stderr(copies.1).status()
}

fn create_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).context("close the folder")?;
    if own_uid() == 0 {
        chown(folder, Some(NOBODY_UID), Some(NOBODY_UID)).context("give the folder to nobody")?;
    }
    Ok(())
}

/// The number of the user that runs this.
pub fn own_uid() -> u32 {
    fs::metadata("/proc/self").map_or(NOBODY_UID, |process| process.uid())
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

/// A server that is stopped and gone when the value is dropped.
#[derive(Debug)]
pub struct TemporaryServer {
    server: Server,
    _folder: TempDir,
}

impl TemporaryServer {
    /// Makes and starts one, with settings written `name=value`.
    pub fn start(programs: Programs, settings: &[&str]) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("tidegate-pg-")
            .tempdir()
            .context("make a folder for the server")?;
        let server = Server::at(programs, folder.path().to_owned())?;
        server.init(settings)?;
        server.start()?;
        Ok(Self { server, _folder: folder })
    }
}

impl std::ops::Deref for TemporaryServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Drop for TemporaryServer {
    fn drop(&mut self) {
        // One that is stopped already says so, and nobody needs to know.
        let _ = self.server.stop(StopMode::Immediate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_installed_version_is_found() {
        let installed = tempfile::tempdir().unwrap();
        for version in ["9", "15", "18"] {
            fs::create_dir_all(installed.path().join(version).join("bin")).unwrap();
        }
        for version in ["9", "15"] {
            fs::write(installed.path().join(version).join("bin/initdb"), "").unwrap();
        }
        assert_eq!(newest_bin(installed.path()), Some(installed.path().join("15/bin")));
    }

    #[test]
    fn directory_without_programs_is_rejected_by_name() {
        let empty = tempfile::tempdir().unwrap();
        let refused = Programs::find(Some(empty.path())).unwrap_err().to_string();
        assert!(refused.contains(&empty.path().display().to_string()), "{refused}");
    }

    #[test]
    fn server_configuration_disables_network_and_sets_socket() {
        let folder = tempfile::tempdir().unwrap();
        let programs = Programs { bin: PathBuf::new() };
        let server = Server { programs, folder: folder.path().to_owned() };
        let configuration = server.configuration(&["fsync=off"]);
        assert!(configuration.contains("listen_addresses = ''\n"));
        assert!(configuration.contains("fsync = 'off'\n"));
        let socket = format!("unix_socket_directories = '{}'\n", folder.path().display());
        assert!(configuration.contains(&socket));
    }
}
