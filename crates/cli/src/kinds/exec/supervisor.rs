//! The guard: a process between the worker and a command, which ends whatever the command
//! started when the command, the attempt or the worker ends.
//!
//! The worker holds the other end of the guard's stdin, the lifeline, and nobody else does. When
//! it closes, by a cancel, a lost lease, a timeout or the death of the worker, or when the worker
//! has not said for too long that the lease lasts, the guard kills the command's process group.
//! Whatever left the group is a child of the guard by then: the guard is the reaper of everything
//! below it, so a process whose parent dies becomes its child. It kills its children until it has
//! none.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};
use tidegate_engine::time;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

use super::children;
use super::deadline::Deadline;
use super::pipes::Pipes;
use super::protocol::{CommandExit, StartRequest, SupervisorEvent};

/// A child that a list left out is found by the next one.
const CHILD_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The worker's word: the order, and how long the lease lasts.
type WorkerMessages = Lines<BufReader<Receiver>>;

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
    let order: StartRequest = serde_json::from_str(&order)?;
    // Not in the worker: a folder is removed also where the worker was killed.
    let folder = tempfile::Builder::new().prefix("tidegate-exec-").tempdir()?;
    let news = match spawn(&order, folder.path()) {
        Ok(child) => SupervisedCommand::supervise(child, order, &mut ends, lifeline).await,
        Err(error) => SupervisorEvent::Failed(format!("it does not start: {error}")),
    };
    // What a command has made in a way that nobody may remove it is no fault of the task.
    let _ = folder.close();
    send_event(&news)?;
    Ok(ExitCode::SUCCESS)
}

/// A line to the worker. One that is gone needs none.
fn send_event(news: &SupervisorEvent) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(news)?;
    line.push(b'\n');
    match io::stdout().lock().write_all(&line) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// The end of the lease that a line tells; none if the lifeline is closed or says nonsense.
fn parse_deadline(line: io::Result<Option<String>>) -> Option<Deadline> {
    serde_json::from_str(&line.ok()??).ok()
}

fn spawn(order: &StartRequest, folder: &Path) -> io::Result<Child> {
    Command::new(&order.file)
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
        .spawn()
}

/// A command that runs. From here on there is no error that would end the guard before it.
struct SupervisedCommand {
    group: Pid,
}

impl SupervisedCommand {
    /// Waits for the end of the command, the lifeline or the lease, and ends what is left.
    async fn supervise(
        mut child: Child,
        order: StartRequest,
        ends: &mut SignalStream,
        lifeline: WorkerMessages,
    ) -> SupervisorEvent {
        let guarded = Self { group: Pid::from_child(&child) };
        let pipes = Pipes::attach(&mut child, order.stdin);
        let started = send_event(&SupervisorEvent::Started(guarded.group.as_raw_nonzero().get()));
        let (pipes, ended) = match (pipes, started) {
            (Ok(pipes), Ok(())) => {
                (Some(pipes), guarded.wait_for_exit(ends, lifeline, order.deadline).await)
            }
            _ => (None, None),
        };
        let status = guarded.kill_remaining(ended, ends).await;
        match (pipes, ended) {
            (Some(pipes), Some(_)) => SupervisorEvent::Exited(CommandExit {
                exit_code: status.and_then(WaitStatus::exit_status),
                signal: status.and_then(WaitStatus::terminating_signal),
                stdout: pipes.stdout.finish().await,
                stderr: pipes.stderr.finish().await,
            }),
            (Some(_), None) => SupervisorEvent::Failed(
                "it was ended, its lease was not renewed in time".to_owned(),
            ),
            (None, _) => {
                SupervisorEvent::Failed("it was ended, its output cannot be read".to_owned())
            }
        }
    }

    /// How the command ended; none if its time is over before.
    async fn wait_for_exit(
        &self,
        ends: &mut SignalStream,
        mut lifeline: WorkerMessages,
        mut until: Deadline,
    ) -> Option<WaitStatus> {
        loop {
            tokio::select! {
                _ = ends.recv() => {
                    if let (Some(status), _) = self.reap() {
                        return Some(status);
                    }
                }
                line = lifeline.next_line() => until = parse_deadline(line)?,
                () = until.reached() => return None,
            }
        }
    }

    /// Kills until nothing is left; gives how the command ended.
    async fn kill_remaining(
        &self,
        mut ended: Option<WaitStatus>,
        ends: &mut SignalStream,
    ) -> Option<WaitStatus> {
        loop {
            // Its number is its own as long as nobody has asked how it ended.
            if ended.is_none() {
                let _ = kill_process_group(self.group, Signal::KILL);
            }
            children::kill_children(self.group);
            let (status, is_empty) = self.reap();
            ended = ended.or(status);
            if is_empty {
                return ended;
            }
            tokio::select! {
                _ = ends.recv() => {}
                () = time::sleep(CHILD_POLL_INTERVAL) => {}
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
