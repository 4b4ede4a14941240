//! The worker's side of a guard.

use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use tidegate_engine::time;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::deadline::Deadline;
use super::protocol::{CommandExit, StartRequest, SupervisorEvent};

/// How long a dropped attempt waits for its processes to be gone.
const KILL_TIMEOUT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// The guard is not told more often than this.
const RENEW_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// A guard at work. Dropped, it ends everything that its command has started.
#[derive(Debug)]
pub(super) struct SupervisorClient {
    /// Nobody else holds it: it is closed when this is dropped, or when the worker dies.
    requests: Option<ChildStdin>,
    events: Lines<BufReader<ChildStdout>>,
    group: Option<i32>,
    /// The end of the lease as the guard knows it.
    sent_deadline: Option<Instant>,
    has_ended: bool,
}

impl SupervisorClient {
    /// Starts a guard, and the command below it.
    pub(super) async fn start(order: &StartRequest) -> io::Result<Self> {
        let mut child = supervisor_command()?.spawn()?;
        let (Some(lifeline), Some(news)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let news = BufReader::new(news).lines();
        let mut guard = Self {
            requests: Some(lifeline),
            events: news,
            group: None,
            sent_deadline: None,
            has_ended: false,
        };
        guard.send(order).await?;
        Ok(guard)
    }

    /// Waits until the command has ended and nothing of it runs. Meanwhile it tells the guard when
    /// the lease ends.
    pub(super) async fn wait(
        &mut self,
        lease_deadline: impl Fn() -> Instant,
    ) -> io::Result<Result<CommandExit, String>> {
        loop {
            let deadline = lease_deadline();
            self.renew(deadline).await?;
            let left = deadline.saturating_duration_since(time::now());
            tokio::select! {
                line = self.events.next_line() => {
                    if let Some(end) = self.handle_event(line?)? {
                        return Ok(end);
                    }
                }
                // Often enough to tell of every renewal, each third of a lease, in good time.
                () = time::sleep((left / 6).max(RENEW_INTERVAL_MIN)) => {}
            }
        }
    }

    /// What a line from the guard says: nothing final, or how it ended.
    fn handle_event(
        &mut self,
        line: Option<String>,
    ) -> io::Result<Option<Result<CommandExit, String>>> {
        let Some(line) = line else {
            self.on_supervisor_died();
            return Err(io::Error::other("the guard of the command was killed"));
        };
        Ok(match serde_json::from_str(&line)? {
            SupervisorEvent::Started(group) => {
                self.group = Some(group);
                None
            }
            SupervisorEvent::Failed(why) => Some(Err(self.mark_ended(why))),
            SupervisorEvent::Exited(ended) => Some(Ok(self.mark_ended(ended))),
        })
    }

    async fn renew(&mut self, deadline: Instant) -> io::Result<()> {
        if self.sent_deadline == Some(deadline) {
            return Ok(());
        }
        self.sent_deadline = Some(deadline);
        self.send(&Deadline::before_lease_end(deadline)).await
    }

    /// A line to the guard. One that is gone is noticed by its silence.
    async fn send(&mut self, word: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(word)?;
        line.push(b'\n');
        let Some(lifeline) = &mut self.requests else { return Ok(()) };
        match lifeline.write_all(&line).await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }

    /// Ends the command and what it has started, and waits until all is gone.
    pub(super) async fn kill(&mut self) {
        self.requests = None;
        while let Ok(line) = self.events.next_line().await
            && let Ok(None) = self.handle_event(line)
        {}
    }

    fn mark_ended<T>(&mut self, told: T) -> T {
        self.has_ended = true;
        told
    }

    /// Without its guard, at least the group of the command is ended.
    fn on_supervisor_died(&mut self) {
        self.has_ended = true;
        if let Some(group) = self.group.take().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for SupervisorClient {
    /// The end of an attempt is told when its handler is dropped. Its slots are somebody else's
    /// then, so this waits for the few milliseconds until nothing of it runs.
    fn drop(&mut self) {
        self.requests = None;
        if self.has_ended {
            return;
        }
        let news = self.events.get_ref().get_ref();
        tokio::task::block_in_place(|| {
            // No event is asked for: only the end of the guard closes the pipe.
            let _ = poll(&mut [PollFd::new(news, PollFlags::empty())], Some(&KILL_TIMEOUT));
        });
    }
}

/// This very binary, also if its file was replaced since it was started.
fn supervisor_command() -> io::Result<Command> {
    let file =
        if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
    let mut command = Command::new(file);
    // A group of its own: Ctrl-C at a terminal is for the worker, which lets what runs finish.
    command.arg0("tidegate").arg("exec-supervisor").env_clear().process_group(0);
    if let Some(folder) = std::env::var_os("TMPDIR") {
        command.env("TMPDIR", folder);
    }
    command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(command)
}
