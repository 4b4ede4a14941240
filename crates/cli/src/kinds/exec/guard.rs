//! The guard: a process between the worker and a command, which ends whatever the command
//! started when the command, the attempt or the worker ends.
//!
//! The worker holds the other end of the guard's stdin, the lifeline, and nobody else does. When
//! it closes, by a cancel, a lost lease, a timeout or the death of the worker, or when the worker has
//! not said for too long that the lease lasts, the guard kills the command's process group. Whatever left the group is a child of the guard by then: the guard
//! is the reaper of everything below it, so a process whose parent dies becomes its child. It kills
//! its children until it has none.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};
use tidegate_engine::time;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::task::JoinHandle;

use super::children;
use super::lease::Until;
use super::order::{Captured, Ended, News, Order};

/// Bytes kept of each output. Written as JSON each may become six, and a result has at most 1 MiB.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// How long the last output may take when nobody is left who could write it. Somebody outside
/// may hold the pipe, where the command handed it on.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);

/// A child that a list left out is found by the next one.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The worker's word: the order, and how long the lease lasts.
type Lifeline = Lines<BufReader<Receiver>>;

/// Runs the order that comes on stdin and tells on stdout how it went.
pub(crate) async fn run() -> anyhow::Result<ExitCode> {
    // Registered before anything is started, so that no end is missed.
    let mut ends = signal(SignalKind::child())?;
    // A signal to all of a service's processes must not end the guard before what it guards.
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let _deaf = kinds.map(signal);
    children::adopt()?;
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let mut lifeline = BufReader::new(Receiver::from_owned_fd(stdin)?).lines();
    let order = lifeline.next_line().await?.unwrap_or_default();
    let order: Order = serde_json::from_str(&order)?;
    // Not in the worker: a folder is removed also where the worker was killed.
    let folder = tempfile::Builder::new().prefix("tidegate-exec-").tempdir()?;
    let news = match Guarded::start(&order, folder.path()) {
        Ok(guarded) => guarded.watch(&mut ends, lifeline, order.until).await?,
        Err(error) => News::Failed(format!("it does not start: {error}")),
    };
    folder.close()?;
    tell(&news)?;
    Ok(ExitCode::SUCCESS)
}

/// A line to the worker. One that is gone needs none.
fn tell(news: &News) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(news)?;
    line.push(b'\n');
    match io::stdout().lock().write_all(&line) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// The end of the lease that a line tells; none if the lifeline is closed or says nonsense.
fn renewed(line: io::Result<Option<String>>) -> Option<Until> {
    serde_json::from_str(&line.ok()??).ok()
}

/// A command that runs.
struct Guarded {
    group: Pid,
    stdout: Capture,
    stderr: Capture,
}

impl Guarded {
    fn start(order: &Order, folder: &Path) -> io::Result<Self> {
        let mut child = Command::new(&order.file)
            .arg0(&order.argv[0])
            .args(&order.argv[1..])
            .env_clear()
            .envs(&order.environment)
            .env("HOME", folder)
            .env("TMPDIR", folder)
            .current_dir(folder)
            .process_group(0)
            .stdin(if order.stdin.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(stdin) = child.stdin.take() {
            feed(stdin.into(), order.stdin.clone())?;
        }
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        Ok(Self {
            group: Pid::from_child(&child),
            stdout: Capture::begin(stdout.map(Into::into))?,
            stderr: Capture::begin(stderr.map(Into::into))?,
        })
    }

    /// Waits for the end of the command or of the lifeline, and ends what is left.
    async fn watch(
        self,
        ends: &mut SignalStream,
        mut lifeline: Lifeline,
        mut until: Until,
    ) -> anyhow::Result<News> {
        tell(&News::Started(self.group.as_raw_nonzero().get()))?;
        let ended = loop {
            tokio::select! {
                _ = ends.recv() => {
                    if let (Some(status), _) = self.reap() {
                        break Some(status);
                    }
                }
                line = lifeline.next_line() => match renewed(line) {
                    Some(renewed) => until = renewed,
                    None => break None,
                },
                () = until.is_over() => break None,
            }
        };
        let status = self.end_all(ended, ends).await;
        if ended.is_none() {
            return Ok(News::Failed("it was ended, its lease was not renewed in time".to_owned()));
        }
        Ok(News::Ended(Ended {
            exit: status.and_then(WaitStatus::exit_status),
            signal: status.and_then(WaitStatus::terminating_signal),
            stdout: self.stdout.end().await,
            stderr: self.stderr.end().await,
        }))
    }

    /// Kills until nothing is left; gives how the command ended.
    async fn end_all(
        &self,
        mut ended: Option<WaitStatus>,
        ends: &mut SignalStream,
    ) -> Option<WaitStatus> {
        loop {
            // Its number is its own as long as nobody has asked how it ended.
            if ended.is_none() {
                let _ = kill_process_group(self.group, Signal::KILL);
            }
            children::kill(self.group);
            let (status, is_empty) = self.reap();
            ended = ended.or(status);
            if is_empty {
                return ended;
            }
            tokio::select! {
                _ = ends.recv() => {}
                () = time::sleep(LOOK_AGAIN) => {}
            }
        }
    }

    /// Takes note of children that have ended: whether the command is one, and whether that
    /// was all.
    fn reap(&self) -> (Option<WaitStatus>, bool) {
        let mut ended = None;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.group => ended = Some(status),
                Ok(Some(_)) => {}
                Ok(None) => return (ended, false),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return (ended, true),
            }
        }
    }
}

/// Writes the command's stdin. One that does not read it is not waited for.
fn feed(stdin: OwnedFd, text: String) -> io::Result<()> {
    let mut stdin = Sender::from_owned_fd(stdin)?;
    tokio::spawn(async move { stdin.write_all(text.as_bytes()).await });
    Ok(())
}

/// Reads an output to its end and keeps its beginning.
struct Capture {
    kept: Arc<Mutex<(Vec<u8>, bool)>>,
    reader: JoinHandle<()>,
}

impl Capture {
    fn begin(output: Option<OwnedFd>) -> io::Result<Self> {
        let output = match output {
            Some(output) => Receiver::from_owned_fd(output)?,
            None => Receiver::from_file(File::open("/dev/null")?)?,
        };
        let kept = Arc::new(Mutex::new((Vec::new(), false)));
        let reader = tokio::spawn(capture(output, kept.clone()));
        Ok(Self { kept, reader })
    }

    async fn end(self) -> Captured {
        tokio::select! {
            _ = self.reader => {}
            () = time::sleep(OUTPUT_PATIENCE) => {}
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Captured { text: String::from_utf8_lossy(&kept.0).into_owned(), is_cut: kept.1 }
    }
}

async fn capture(mut output: Receiver, kept: Arc<Mutex<(Vec<u8>, bool)>>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(bytes) = output.read(&mut buffer).await
        && bytes > 0
    {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let room = OUTPUT_BYTES_MAX - kept.0.len();
        kept.1 |= bytes > room;
        kept.0.extend_from_slice(&buffer[..bytes.min(room)]);
    }
}
