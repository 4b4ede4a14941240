//! A TCP proxy before PostgreSQL that injects faults: it drops the answer to a chosen COMMIT, discards
//! notifications (NOTIFY) until `deliver_notifications` is called, and can go silent: it accepts bytes on all
//! connections and forwards none. During a silence a close by one side is not forwarded. It can also be silent on
//! the connections that are open and forward new ones, as a firewall does that has lost its connection table.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::postgres::Database;

/// The complete CommandComplete message of a COMMIT.
const COMMITTED: &[u8] = b"C\0\0\0\x0bCOMMIT\0";

/// Message type of NotificationResponse.
const NOTIFICATION: u8 = b'A';

/// Forwards connections to a database until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    /// Number of COMMITs up to the one whose answer is dropped; 0 if no cut is armed.
    until_cut: Arc<AtomicU32>,
    /// Notifications that were discarded.
    discarded: Arc<AtomicU32>,
    silence: Arc<Silence>,
    /// Whether notifications are forwarded.
    forwards_notifications: Arc<AtomicBool>,
    /// Number of connections accepted so far.
    connections: watch::Sender<u32>,
    task: JoinHandle<()>,
}

/// Whether bytes are discarded instead of forwarded.
#[derive(Debug, Default)]
struct Silence {
    is_on: AtomicBool,
    ended: Notify,
    /// Number of the last connection whose bytes are discarded for good.
    last_forgotten: AtomicU32,
}

impl Silence {
    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }
}

/// The silence as it applies to one connection.
#[derive(Debug, Clone)]
struct Flow {
    silence: Arc<Silence>,
    /// The first connection has the number 1.
    number: u32,
}

impl Flow {
    fn is_silent(&self) -> bool {
        self.silence.is_on() || self.is_forgotten()
    }

    fn is_forgotten(&self) -> bool {
        self.number <= self.silence.last_forgotten.load(Ordering::SeqCst)
    }

    /// Waits until bytes are forwarded; forever if the connection is forgotten.
    async fn until_forwarded(&self) {
        loop {
            let ended = self.silence.ended.notified();
            if !self.is_silent() {
                return;
            }
            ended.await;
        }
    }
}

impl Proxy {
    /// Starts a proxy on a free port.
    pub async fn start(database: &Database) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (until_cut, discarded) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (socket, armed, counted) = (database.socket(), until_cut.clone(), discarded.clone());
        let silence = Arc::<Silence>::default();
        let forwards_notifications = Arc::<AtomicBool>::default();
        let connections = watch::Sender::new(0);
        let (silent, forwards, accepted) =
            (silence.clone(), forwards_notifications.clone(), connections.clone());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                accepted.send_modify(|connections| *connections += 1);
                let number = *accepted.borrow();
                let answers = Answers {
                    until_cut: armed.clone(),
                    discarded: counted.clone(),
                    flow: Flow { silence: silent.clone(), number },
                    forwards_notifications: forwards.clone(),
                };
                tokio::spawn(forward(client, socket.clone(), answers));
            }
        });
        // The proxy reads the messages, so they must not be encrypted.
        let (ip, port, name) = (address.ip(), address.port(), database.name());
        let url = format!("postgres://postgres@{ip}:{port}/{name}?sslmode=disable");
        Ok(Self { url, until_cut, discarded, silence, forwards_notifications, connections, task })
    }

    /// Returns the URL of the database through this proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Drops the connection in place of the answer to the `nth` COMMIT from now; 0 disarms.
    pub fn cut_commit(&self, nth: u32) {
        self.until_cut.store(nth, Ordering::SeqCst);
    }

    /// Discards the bytes of all connections, also of new ones, from now on.
    pub fn go_silent(&self) {
        self.silence.is_on.store(true, Ordering::SeqCst);
    }

    /// Discards the bytes of the connections opened so far, for good. Neither side learns of it, and a close by one
    /// side is never forwarded. New connections are forwarded. A NAT gateway or a firewall that has lost its
    /// connection table behaves like this.
    pub fn forget_connections(&self) {
        self.silence.last_forgotten.store(self.connections(), Ordering::SeqCst);
    }

    /// Returns whether the bytes of all connections are discarded.
    pub fn is_silent(&self) -> bool {
        self.silence.is_on()
    }

    /// Forwards notifications from now on.
    pub fn deliver_notifications(&self) {
        self.forwards_notifications.store(true, Ordering::SeqCst);
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> u32 {
        *self.connections.borrow()
    }

    /// Waits until more connections were accepted than `connections`.
    pub async fn connection_after(&self, connections: u32) {
        let mut accepted = self.connections.subscribe();
        accepted.wait_for(|now| *now > connections).await.expect("the proxy has the sender");
    }

    /// Ends the silence: bytes are forwarded again. Discarded bytes stay lost, so a connection that sent a
    /// request during the silence never gets an answer.
    pub fn deliver(&self) {
        self.silence.is_on.store(false, Ordering::SeqCst);
        self.silence.ended.notify_waiters();
    }

    /// Returns the number of notifications discarded so far.
    pub fn notifications_discarded(&self) -> u32 {
        self.discarded.load(Ordering::SeqCst)
    }

    /// Returns whether no cut is armed: the last armed one has happened, or none was armed.
    pub fn has_cut(&self) -> bool {
        self.until_cut.load(Ordering::SeqCst) == 0
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Forwards both directions of one connection. The direction that ends first ends both, but not during a
/// silence: the close is forwarded only after it, and never on a forgotten connection.
async fn forward(client: TcpStream, socket: PathBuf, answers: Answers) -> io::Result<()> {
    let server = UnixStream::connect(socket).await?;
    client.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (flow, mut from_client) = (answers.flow.clone(), from_client);
    let (mut to_server, mut from_server, mut to_client) = (to_server, from_server, to_client);
    let ended = tokio::select! {
        copied = copy(&mut from_client, &mut to_server, &flow) => copied,
        answered = answers.forward(&mut from_server, &mut to_client) => answered,
    };
    flow.until_forwarded().await;
    ended
}

/// Copies bytes until the sender closes the connection.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    flow: &Flow,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    while from.read_buf(&mut buffer).await? > 0 {
        if !flow.is_silent() {
            to.write_all(&buffer).await?;
        }
        buffer.clear();
    }
    Ok(())
}

/// State for forwarding server messages to one client.
struct Answers {
    until_cut: Arc<AtomicU32>,
    discarded: Arc<AtomicU32>,
    flow: Flow,
    forwards_notifications: Arc<AtomicBool>,
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
                let is_notification = message[0] == NOTIFICATION;
                if is_notification && !self.forwards_notifications.load(Ordering::SeqCst) {
                    self.discarded.fetch_add(1, Ordering::SeqCst);
                } else if *message == *COMMITTED && self.count_commit() {
                    return client.write_all(&answer).await;
                } else {
                    answer.extend(message);
                }
            }
            if !self.flow.is_silent() {
                client.write_all(&answer).await?;
            }
            answer.clear();
        }
        Ok(())
    }

    /// Counts a COMMIT. Returns whether its answer is to be dropped together with the connection.
    fn count_commit(&self) -> bool {
        let (order, less) = (Ordering::SeqCst, |commits: u32| commits.checked_sub(1));
        self.until_cut.fetch_update(order, order, less) == Ok(1)
    }
}

/// Removes one complete message (type byte, length including itself, body). None if it has not arrived
/// completely.
fn split_message(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(buffer.get(1..5)?.try_into().ok()?);
    let end = 1 + length as usize;
    (buffer.len() >= end).then(|| buffer.drain(..end).collect())
}
