//! The worker's side of a guard.

use std::io;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::order::{Ended, News, Order};

/// How long a dropped attempt waits for its processes to be gone.
const END_PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// A guard at work. Dropped, it ends everything that its command has started.
#[derive(Debug)]
pub(super) struct Guard {
    /// Nobody else holds it: it is closed when this is dropped, or when the worker dies.
    lifeline: Option<ChildStdin>,
    news: Lines<BufReader<ChildStdout>>,
    group: Option<i32>,
    is_over: bool,
}

impl Guard {
    /// Starts a guard, and the command below it.
    pub(super) async fn start(order: &Order) -> io::Result<Self> {
        let mut child = command()?.spawn()?;
        let (Some(lifeline), Some(news)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let news = BufReader::new(news).lines();
        let mut guard = Self { lifeline: Some(lifeline), news, group: None, is_over: false };
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        if let Some(lifeline) = &mut guard.lifeline {
            lifeline.write_all(&line).await?;
        }
        Ok(guard)
    }

    /// Waits until the command has ended and nothing of it runs.
    pub(super) async fn ended(&mut self) -> io::Result<Result<Ended, String>> {
        while let Some(line) = self.news.next_line().await? {
            match serde_json::from_str(&line)? {
                News::Started(group) => self.group = Some(group),
                News::Failed(why) => return Ok(Err(self.over(why))),
                News::Ended(ended) => return Ok(Ok(self.over(ended))),
            }
        }
        self.bereaved();
        Err(io::Error::other("the guard of the command was killed"))
    }

    /// Ends the command and what it has started, and waits until all is gone.
    pub(super) async fn end(&mut self) {
        self.lifeline = None;
        let _ = self.ended().await;
    }

    fn over<T>(&mut self, told: T) -> T {
        self.is_over = true;
        told
    }

    /// Without its guard, at least the group of the command is ended.
    fn bereaved(&mut self) {
        self.is_over = true;
        if let Some(group) = self.group.take().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Guard {
    /// The end of an attempt is told when its handler is dropped. Its slots are somebody else's
    /// then, so this waits for the few milliseconds until nothing of it runs.
    fn drop(&mut self) {
        self.lifeline = None;
        if self.is_over {
            return;
        }
        let news = self.news.get_ref().get_ref();
        tokio::task::block_in_place(|| {
            // No event is asked for: only the end of the guard closes the pipe.
            let _ = poll(&mut [PollFd::new(news, PollFlags::empty())], Some(&END_PATIENCE));
        });
    }
}

/// This very binary, also if its file was replaced since it was started.
fn command() -> io::Result<Command> {
    let file =
        if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
    let mut command = Command::new(file);
    // A group of its own: Ctrl-C at a terminal is for the worker, which lets what runs finish.
    command.arg0("tidegate").arg("guard-exec").env_clear().process_group(0);
    if let Some(folder) = std::env::var_os("TMPDIR") {
        command.env("TMPDIR", folder);
    }
    command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(command)
}
