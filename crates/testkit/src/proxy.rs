//! A way to PostgreSQL that can be cut at the worst moment, after the server has committed and before
//! the client hears of it; on which every notice is lost, unless the test lets it deliver them; and that can
//! go silent: it accepts and acknowledges all bytes of all connections and delivers none of them. A
//! connection that one side closes meanwhile stays open for the other side.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::postgres::Database;

/// What the server says when a COMMIT is done: a message that is complete.
const COMMITTED: &[u8] = b"C\0\0\0\x0bCOMMIT\0";

/// The kind of message that tells of a NOTIFY.
const NOTICE: u8 = b'A';

/// Forwards connections to a database; ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    /// COMMITs until the one whose answer is lost; none of them at 0.
    until_cut: Arc<AtomicU32>,
    /// Notices that were lost.
    lost: Arc<AtomicU32>,
    silence: Arc<Silence>,
    /// Whether notices are delivered.
    has_notices: Arc<AtomicBool>,
    /// Connections that were accepted so far.
    connections: watch::Sender<u32>,
    task: JoinHandle<()>,
}

/// Whether bytes are thrown away.
#[derive(Debug, Default)]
struct Silence {
    is_on: AtomicBool,
    ended: Notify,
}

impl Silence {
    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Waits until bytes are delivered.
    async fn until_over(&self) {
        loop {
            let ended = self.ended.notified();
            if !self.is_on() {
                return;
            }
            ended.await;
        }
    }
}

impl Proxy {
    /// A proxy on a port of its own.
    pub async fn start(database: &Database) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (until_cut, lost) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (socket, armed, lose) = (database.socket(), until_cut.clone(), lost.clone());
        let (silence, has_notices) = (Arc::<Silence>::default(), Arc::<AtomicBool>::default());
        let connections = watch::Sender::new(0);
        let (silent, notices, accepted) =
            (silence.clone(), has_notices.clone(), connections.clone());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                accepted.send_modify(|connections| *connections += 1);
                let (until_cut, lost) = (armed.clone(), lose.clone());
                let (silence, has_notices) = (silent.clone(), notices.clone());
                let answers = Answers { until_cut, lost, silence, has_notices };
                tokio::spawn(forward(client, socket.clone(), answers));
            }
        });
        // The proxy reads the messages, so they must not be encrypted.
        let (ip, port, name) = (address.ip(), address.port(), database.name());
        let url = format!("postgres://postgres@{ip}:{port}/{name}?sslmode=disable");
        Ok(Self { url, until_cut, lost, silence, has_notices, connections, task })
    }

    /// The URL of the database by this way.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The `nth` COMMIT from now is carried out, and its connection is lost before the answer.
    pub fn cut_commit(&self, nth: u32) {
        self.until_cut.store(nth, Ordering::SeqCst);
    }

    /// From now on the bytes of all connections, also of new ones, are read and thrown away.
    pub fn go_silent(&self) {
        self.silence.is_on.store(true, Ordering::SeqCst);
    }

    /// Returns whether bytes are thrown away.
    pub fn is_silent(&self) -> bool {
        self.silence.is_on()
    }

    /// From now on notices are delivered.
    pub fn deliver_notices(&self) {
        self.has_notices.store(true, Ordering::SeqCst);
    }

    /// Returns the number of connections that were accepted so far.
    pub fn connections(&self) -> u32 {
        *self.connections.borrow()
    }

    /// Waits until more connections were accepted than `connections`.
    pub async fn connection_after(&self, connections: u32) {
        let mut accepted = self.connections.subscribe();
        accepted.wait_for(|now| *now > connections).await.expect("the proxy has the sender");
    }

    /// From now on bytes are delivered again. Those that were thrown away stay lost, so a connection
    /// that sent a request meanwhile never gets an answer.
    pub fn deliver(&self) {
        self.silence.is_on.store(false, Ordering::SeqCst);
        self.silence.ended.notify_waiters();
    }

    /// How many notices were lost so far: no client behind it ever gets one.
    pub fn notices_lost(&self) -> u32 {
        self.lost.load(Ordering::SeqCst)
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

/// Both directions of one connection. The direction that ends first ends both, but not during a silence:
/// then the other side does not get to know.
async fn forward(client: TcpStream, socket: PathBuf, answers: Answers) -> io::Result<()> {
    let server = UnixStream::connect(socket).await?;
    client.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (silence, mut from_client) = (answers.silence.clone(), from_client);
    let (mut to_server, mut from_server, mut to_client) = (to_server, from_server, to_client);
    let ended = tokio::select! {
        copied = copy(&mut from_client, &mut to_server, &silence) => copied,
        answered = answers.forward(&mut from_server, &mut to_client) => answered,
    };
    silence.until_over().await;
    ended
}

/// Copies bytes until the sender closes the connection.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    silence: &Silence,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    while from.read_buf(&mut buffer).await? > 0 {
        if !silence.is_on() {
            to.write_all(&buffer).await?;
        }
        buffer.clear();
    }
    Ok(())
}

/// What the server says on the way to a client.
struct Answers {
    until_cut: Arc<AtomicU32>,
    lost: Arc<AtomicU32>,
    silence: Arc<Silence>,
    has_notices: Arc<AtomicBool>,
}

impl Answers {
    async fn forward(
        &self,
        mut server: impl AsyncRead + Unpin,
        mut client: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let (mut buffer, mut answer) = (Vec::new(), Vec::new());
        while server.read_buf(&mut buffer).await? > 0 {
            while let Some(message) = split_message(&mut buffer) {
                if message[0] == NOTICE && !self.has_notices.load(Ordering::SeqCst) {
                    self.lost.fetch_add(1, Ordering::SeqCst);
                } else if *message == *COMMITTED && self.is_to_cut() {
                    return client.write_all(&answer).await;
                } else {
                    answer.extend(message);
                }
            }
            if !self.silence.is_on() {
                client.write_all(&answer).await?;
            }
            answer.clear();
        }
        Ok(())
    }

    fn is_to_cut(&self) -> bool {
        let (order, less) = (Ordering::SeqCst, |commits: u32| commits.checked_sub(1));
        self.until_cut.fetch_update(order, order, less) == Ok(1)
    }
}

/// A kind, its length with itself, and what there is to say; none where it has not all come yet.
fn split_message(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(buffer.get(1..5)?.try_into().ok()?);
    let end = 1 + length as usize;
    (buffer.len() >= end).then(|| buffer.drain(..end).collect())
}
