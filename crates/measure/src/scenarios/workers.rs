//! Worker processes that run the built-in kinds, and the histories they write.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tidegate_core::StoreReader;
use tidegate_engine::time;
use tidegate_store::StoreLocation;
use tokio::process::{Child, Command};

/// Between two looks at who is there.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The folder of the histories.
pub(super) struct Histories {
    path: PathBuf,
    _folder: Option<TempDir>,
}

impl Histories {
    pub(super) fn new(given: Option<&Path>) -> anyhow::Result<Self> {
        let (path, folder) = match given {
            Some(path) => {
                std::fs::create_dir_all(path)
                    .with_context(|| format!("make {}", path.display()))?;
                (path.to_owned(), None)
            }
            None => {
                let folder = tempfile::tempdir().context("make a folder for the histories")?;
                (folder.path().to_owned(), Some(folder))
            }
        };
        let histories = Self { path, _folder: folder };
        ensure!(
            histories.files()?.is_empty(),
            "{} has histories already; give an empty folder",
            histories.path.display()
        );
        Ok(histories)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.jsonl"))
    }

    pub(super) fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }
}

/// How a worker is started.
#[derive(Debug, Clone)]
pub(super) struct WorkerCommand<'a> {
    /// The program that is `tidegate`.
    pub(super) binary: &'a Path,
    pub(super) url: &'a str,
    /// Handlers that run at once.
    pub(super) concurrency: u32,
    pub(super) lease: Duration,
    /// The server that its tasks call; none where they call nobody.
    pub(super) http_server: Option<SocketAddr>,
    /// Whether its workers look themselves for the end of all work. To look they count what there is,
    /// again and again.
    pub(super) until_idle: bool,
}

/// Workers that end when no task is left.
pub(super) struct Workers<'a> {
    command: WorkerCommand<'a>,
    histories: &'a Histories,
    running: Vec<Child>,
    started: u32,
}

impl<'a> Workers<'a> {
    pub(super) fn start(
        job: WorkerCommand<'a>,
        histories: &'a Histories,
        number: u32,
    ) -> anyhow::Result<Self> {
        let mut workers = Self { command: job, histories, running: Vec::new(), started: 0 };
        for _ in 0..number {
            let worker = workers.start_one()?;
            workers.running.push(worker);
        }
        Ok(workers)
    }

    pub(super) fn count(&self) -> usize {
        self.running.len()
    }

    fn start_one(&mut self) -> anyhow::Result<Child> {
        let name = format!("worker-{:04}", self.started);
        self.started += 1;
        let log = File::create(self.histories.path.join(format!("{name}.log")))?;
        let mut command = Command::new(self.command.binary);
        // What is set for other workers of this machine is not what is measured.
        let set = std::env::vars_os().map(|(name, _)| name);
        for name in set.filter(|name| name.to_string_lossy().starts_with("TIDEGATE_")) {
            command.env_remove(name);
        }
        let kinds = if self.command.http_server.is_some() { "http" } else { "noop,sleep" };
        if let Some(server) = self.command.http_server {
            command.env("TIDEGATE_HTTP_ALLOW", server.to_string());
        }
        command
            .env("TIDEGATE_CONFIG", "")
            .args(["worker", "--kinds", kinds])
            .args(self.command.until_idle.then_some("--until-idle"))
            .args(["--store", &with_application_name(self.command.url, &name)?])
            .args(["--concurrency", &self.command.concurrency.to_string()])
            .args(["--lease", &format!("{}ms", self.command.lease.as_millis())])
            .arg("--history")
            .arg(self.histories.file(&name))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("start a worker process")
    }

    /// Kills one; gives the number that its process had.
    pub(super) async fn kill(&mut self, victim: usize) -> anyhow::Result<Option<u32>> {
        let pid = self.running[victim].id();
        self.running[victim].kill().await.context("kill a worker")?;
        Ok(pid)
    }

    /// Starts another in the place of one that is dead.
    pub(super) fn replace(&mut self, victim: usize) -> anyhow::Result<()> {
        self.running[victim] = self.start_one()?;
        Ok(())
    }

    /// Returns when the store has heard of all of them, and nobody else works on it.
    pub(super) async fn wait_until_registered(
        &mut self,
        reader: &dyn StoreReader,
    ) -> anyhow::Result<()> {
        while reader.workers().await?.len() < self.count() {
            self.check_alive()?;
            time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// A worker that failed ends the run.
    pub(super) fn check_alive(&mut self) -> anyhow::Result<()> {
        for worker in &mut self.running {
            if let Some(status) = worker.try_wait()? {
                ensure!(status.success(), "a worker failed with {status}; see its log");
            }
        }
        Ok(())
    }

    /// To be called when nothing is left: the workers see it, or are told.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        for worker in &mut self.running {
            if let (false, Some(pid)) = (self.command.until_idle, worker.id().and_then(pid)) {
                kill_process(pid, Signal::TERM).context("ask a worker to end")?;
            }
        }
        for worker in &mut self.running {
            let status = worker.wait().await?;
            ensure!(status.success(), "a worker failed with {status}; see its log");
        }
        Ok(())
    }
}

fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(number.try_into().ok()?)
}

/// On PostgreSQL a process gives the server its own name, so that its connections can be told apart.
fn with_application_name(url: &str, name: &str) -> anyhow::Result<String> {
    let is_postgres = matches!(StoreLocation::parse(url)?, StoreLocation::Postgres(_));
    if !is_postgres || url.contains("application_name=") {
        return Ok(url.to_owned());
    }
    let and = if url.contains('?') { '&' } else { '?' };
    Ok(format!("{url}{and}application_name={name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_url_gets_application_name() {
        assert_eq!(with_application_name("sqlite:a.db", "w").unwrap(), "sqlite:a.db");
        assert_eq!(
            with_application_name("postgres://h/d", "w").unwrap(),
            "postgres://h/d?application_name=w"
        );
        let given = "postgres:///d?host=h";
        assert_eq!(
            with_application_name(given, "w").unwrap(),
            "postgres:///d?host=h&application_name=w"
        );
        let own = "postgres:///d?application_name=x";
        assert_eq!(with_application_name(own, "w").unwrap(), own);
    }
}
