//! What a command reads and writes.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_engine::time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::JoinHandle;

use super::protocol::Captured;

/// Bytes kept of each output. Written as JSON each may become six, and a result has at most 1 MiB.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// How long the last output may take when nobody is left who could write it. Somebody outside
/// may hold the pipe, where the command handed it on.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// The pipes of a command that runs.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdout: Capture,
    pub(super) stderr: Capture,
}

impl Pipes {
    /// Takes the pipes and begins to feed and to read them.
    pub(super) fn attach(child: &mut Child, stdin: String) -> io::Result<Self> {
        if let Some(pipe) = child.stdin.take() {
            write_stdin(pipe.into(), stdin)?;
        }
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Self { stdout: Capture::start(stdout.into())?, stderr: Capture::start(stderr.into())? })
    }
}

/// Writes the command's stdin. One that does not read it is not waited for.
fn write_stdin(stdin: OwnedFd, text: String) -> io::Result<()> {
    let mut stdin = Sender::from_owned_fd(stdin)?;
    tokio::spawn(async move { stdin.write_all(text.as_bytes()).await });
    Ok(())
}

/// Reads an output to its end and keeps its beginning.
#[derive(Debug)]
pub(super) struct Capture {
    captured: Arc<Mutex<(Vec<u8>, bool)>>,
    reader: JoinHandle<()>,
}

impl Capture {
    pub(super) fn start(output: OwnedFd) -> io::Result<Self> {
        let output = Receiver::from_owned_fd(output)?;
        let kept = Arc::new(Mutex::new((Vec::new(), false)));
        let reader = tokio::spawn(capture(output, kept.clone()));
        Ok(Self { captured: kept, reader })
    }

    pub(super) async fn finish(self) -> Captured {
        tokio::select! {
            _ = self.reader => {}
            () = time::sleep(OUTPUT_TIMEOUT) => {}
        }
        let kept = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        Captured { text: String::from_utf8_lossy(&kept.0).into_owned(), is_truncated: kept.1 }
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
