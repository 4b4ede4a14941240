//! A way to PostgreSQL that can be cut at the worst moment: after the server has committed, before
//! the client hears of it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;

use crate::postgres::Database;

/// What the server says when a COMMIT is done: a message that is complete.
const COMMITTED: &[u8] = b"C\0\0\0\x0bCOMMIT\0";

/// Forwards connections to a database; ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    /// COMMITs until the one whose answer is lost; none of them at 0.
    until_cut: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A proxy on a port of its own.
    pub async fn start(database: &Database) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let until_cut = Arc::new(AtomicU32::new(0));
        let (socket, armed) = (database.socket(), until_cut.clone());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, socket.clone(), armed.clone()));
            }
        });
        let url =
            format!("postgres://postgres@{}:{}/{}", address.ip(), address.port(), database.name());
        Ok(Self { url, until_cut, task })
    }

    /// The URL of the database by this way.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The `nth` COMMIT from now is carried out, and its connection is lost before the answer.
    pub fn cut_commit(&self, nth: u32) {
        self.until_cut.store(nth, Ordering::SeqCst);
    }

    /// Whether that has happened.
    pub fn has_cut(&self) -> bool {
        self.until_cut.load(Ordering::SeqCst) == 0
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Both directions of one connection. Whoever ends first ends both.
async fn forward(client: TcpStream, socket: PathBuf, until_cut: Arc<AtomicU32>) -> io::Result<()> {
    let server = UnixStream::connect(socket).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::select! {
        copied = tokio::io::copy(&mut from_client, &mut to_server) => copied.map(drop),
        answered = async {
            let mut buffer = vec![0; 1 << 16];
            // An answer may come in two parts.
            let mut tail: Vec<u8> = Vec::new();
            loop {
                let read = from_server.read(&mut buffer).await?;
                if read == 0 {
                    return Ok(());
                }
                tail.extend_from_slice(&buffer[..read]);
                let has_committed = tail.windows(COMMITTED.len()).any(|part| part == COMMITTED);
                let (order, less) = (Ordering::SeqCst, |commits: u32| commits.checked_sub(1));
                if has_committed && until_cut.fetch_update(order, order, less) == Ok(1) {
                    return Ok(());
                }
                let keep = if has_committed { 0 } else { COMMITTED.len() - 1 };
                tail.drain(..tail.len().saturating_sub(keep));
                to_client.write_all(&buffer[..read]).await?;
            }
        } => answered,
    }
}
