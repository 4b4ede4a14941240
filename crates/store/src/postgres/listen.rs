//! Wake-ups: a LISTEN on a connection of its own. A hint only: callers poll as well.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::{Claim, Error, ErrorKind, Millis, Result, WorkerId};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client};

use super::connection::{Connector, Listener, Object, Pool};
use super::error::translate;
use super::floors::Floors;
use super::jitter::jittered;
use super::network::Network;
use super::timeouts::Timeouts;

/// The longest pause of a listener that lost its connection before it connects again; while there is
/// no connection, callers are woken at this pace.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// How long a connection attempt may be under way before another one starts beside it. A silent network
/// loses the first bytes of an attempt, so an attempt that begins after the network's return finds
/// that out, while the older ones wait for their timeouts.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(1500);

/// Connection attempts that are under way at once.
const ATTEMPTS_MAX: usize = 8;

/// Notices of one process are at least so far apart. At its commit a notice locks out those of
/// all others, so there is not one per transaction.
const APART: Duration = Duration::from_millis(10);

/// Sent on the connection that listens when nothing was received for a while.
const PROBE: &str = "SELECT 1";

const NOTIFY_SOON: &str = include_str!("queries/notify_without_sync.sql");

/// How long an answer holds that there is nothing, at most, while nobody says otherwise.
const QUIET: Duration = Duration::from_secs(5);

/// Who polls more often than this has each of its polls sent: a notice may be lost and nobody know it.
const BRISK: Duration = Duration::from_secs(1);

const KEEPER_QUIET: Duration = Duration::from_secs(30);

/// Claims whose answers are remembered at most; a worker has two sorts of them.
const CLAIMS_MAX: usize = 64;

/// The way to the server. Its tasks run on the runtime of the store: the runtime of a caller may end.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) connector: Arc<Connector>,
    pub(super) pool: Pool,
    pub(super) timeouts: Timeouts,
    pub(super) network: Arc<Network>,
    pub(super) runtime: Handle,
}

pub(super) struct Changed {
    link: Link,
    floors: Arc<Floors>,
    quiet: Arc<Quiet>,
    /// Somebody else should look.
    news: Arc<Notify>,
    notify: Arc<Notify>,
    listener: OnceLock<Background>,
    teller: OnceLock<Background>,
}

/// Ends the task when the store is dropped.
struct Background(tokio::task::JoinHandle<()>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Changed {
    pub(super) fn new(link: Link, floors: Arc<Floors>) -> Self {
        Self {
            link,
            floors,
            quiet: Arc::default(),
            news: Arc::default(),
            notify: Arc::default(),
            listener: OnceLock::new(),
            teller: OnceLock::new(),
        }
    }

    /// Tells other processes soon that something changed.
    pub(super) fn tell(&self) {
        self.quiet.end();
        self.floors.arrive();
        self.news.notify_one();
        self.teller.get_or_init(|| {
            let (link, news) = (self.link.clone(), self.news.clone());
            Background(self.link.runtime.spawn(async move {
                loop {
                    news.notified().await;
                    link.notify().await;
                    pause(APART).await;
                }
            }))
        });
    }

    /// Something changed here; nobody in this process has to wait for the server to say so.
    pub(super) fn here(&self) {
        self.quiet.end();
        self.floors.arrive();
        self.notify.notify_waiters();
    }

    /// What a claim should do that is about to look, or the keeper.
    pub(super) fn since_nothing(&self, claim: Option<&Claim>) -> Since {
        self.quiet.since_nothing(claim)
    }

    /// It found nothing, and the next task is due in so many milliseconds.
    pub(super) fn nothing_for(&self, claim: Option<&Claim>, news: u64, due_in: Option<Millis>) {
        self.quiet.nothing_for(claim, news, due_in);
    }

    /// The first caller starts the listener.
    pub(super) async fn wait(&self) {
        let changed = self.notify.notified();
        self.listener.get_or_init(|| {
            let link = self.link.clone();
            let (floors, notify) = (self.floors.clone(), self.notify.clone());
            let (quiet, is_heard) = (self.quiet.clone(), self.quiet.clone());
            let wake = move || {
                quiet.end();
                floors.ask();
                notify.notify_waiters();
            };
            Background(self.link.runtime.spawn(async move {
                let mut failures = 0;
                loop {
                    let error = listen(&link, &wake, &is_heard).await.err();
                    if is_heard.listen(false) {
                        failures = 0;
                    }
                    log_lost_listener(error, failures);
                    failures += 1;
                    wake();
                    pause(jittered(RECONNECT_PAUSE)).await;
                }
            }))
        });
        changed.await;
    }
}

/// What is known since a claim found nothing.
#[derive(Debug, Clone, Copy)]
pub(super) enum Since {
    /// Nothing has changed: the server need not be asked.
    Nothing,
    /// Nothing was heard of, which may mean little: a look is enough. With the number of the last
    /// news, as below.
    NothingHeard(u64),
    /// It found something, or something has changed.
    News(u64),
}

/// Whether anything has changed since a claim found nothing. As long as this process hears of every
/// change, an idle worker need not ask.
#[derive(Default)]
struct Quiet(Mutex<Heard>);

#[derive(Default)]
struct Heard {
    is_listening: bool,
    /// How often something has changed.
    news: u64,
    /// What found nothing since the last news, at which that was, and until when it holds.
    nothing: HashMap<Asker, (u64, Instant)>,
}

/// A worker and what it serves, or none for the keeper.
type Asker = Option<(WorkerId, Names, Names)>;

type Names = Arc<[Arc<str>]>;

impl Quiet {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        let mut heard = self.heard();
        heard.news += 1;
        heard.nothing.clear();
    }

    /// Returns whether it was listening before.
    fn listen(&self, is_listening: bool) -> bool {
        std::mem::replace(&mut self.heard().is_listening, is_listening)
    }

    fn since_nothing(&self, claim: Option<&Claim>) -> Since {
        let heard = self.heard();
        match heard.nothing.get(&key(claim)) {
            Some((_, until)) if heard.is_listening && now() < *until => Since::Nothing,
            Some((news, _)) => Since::NothingHeard(*news),
            None => Since::News(heard.news),
        }
    }

    fn nothing_for(&self, claim: Option<&Claim>, news: u64, due_in: Option<Millis>) {
        // The keeper only does what workers that ask do as well.
        let longest = claim.map_or(KEEPER_QUIET, longest);
        let due_in = due_in.map(millis);
        let until = now() + due_in.map_or(longest, |due_in| due_in.min(longest));
        let mut heard = self.heard();
        if heard.nothing.len() >= CLAIMS_MAX {
            heard.nothing.clear();
        }
        if heard.news == news {
            heard.nothing.insert(key(claim), (news, until));
        }
    }
}

/// How long a worker is told from memory that there is nothing. One that asks is noted as alive, so it
/// may not be silent for long. Polls are jittered by less than half, so each of a brisk one is sent.
fn longest(claim: &Claim) -> Duration {
    let poll = millis(claim.poll_ms);
    let quiet = if poll < BRISK { poll / 2 } else { QUIET };
    quiet.min(millis(claim.lease_ms) / 6)
}

fn millis(ms: Millis) -> Duration {
    Duration::from_millis(ms.max(0).unsigned_abs())
}

fn key(claim: Option<&Claim>) -> Asker {
    claim.map(|claim| (claim.worker.clone(), claim.queues.clone(), claim.kinds.clone()))
}

#[expect(clippy::disallowed_methods, reason = "how long a hint holds; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a pace in the background; nothing depends on it")]
pub(super) async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

impl Link {
    /// Notifies other processes. A notification that is lost costs them a poll.
    async fn notify(&self) {
        let client = match self.pool.get().await {
            Ok(client) => client,
            Err(error) => return tracing::debug!(%error, "no connection for a notification"),
        };
        match timeout(self.timeouts.request, client.batch_execute(NOTIFY_SOON)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a notification could not be sent"),
            Err(_) => {
                tracing::debug!("a notification was not answered; its connection is closed");
                return Object::take(client).abort();
            }
        }
        if !self.connector.is_current(&client) {
            drop(Object::take(client));
        }
    }

    /// Opens the connection that listens; see [`ATTEMPT_INTERVAL`].
    async fn connect(&self, wake: &Wake) -> Result<(Client, Listener)> {
        let mut attempts = JoinSet::new();
        loop {
            if attempts.len() < ATTEMPTS_MAX {
                let connector = self.connector.clone();
                attempts.spawn(async move { connector.listen().await });
            }
            tokio::select! {
                Some(ended) = attempts.join_next() => {
                    let connection = ended.unwrap_or_else(|cause| {
                        let text = format!("connecting was interrupted: {cause}");
                        Err(Error::new(ErrorKind::Unavailable, text))
                    });
                    match connection {
                        Err(error) if !attempts.is_empty() => {
                            tracing::debug!(%error, "one of several attempts to connect failed");
                        }
                        connection => return connection,
                    }
                }
                () = pause(jittered(ATTEMPT_INTERVAL)) => {
                    self.network.note_lost();
                    wake();
                }
            }
        }
    }

    /// Reports that the connection that listens did not answer.
    fn no_answer(&self) -> Error {
        let seconds = self.timeouts.heartbeat.as_secs_f64();
        let text = format!(
            "the LISTEN connection did not answer within {seconds} s (postgres.heartbeat_timeout_ms)"
        );
        Error::new(ErrorKind::Unavailable, text)
    }
}

/// Logs that the LISTEN connection was lost or could not be opened: at first for operators, and each
/// further failure in a row for debugging.
fn log_lost_listener(error: Option<Error>, failures: u32) {
    let error = error.map_or_else(|| "closed by the server".to_owned(), |error| error.to_string());
    if failures == 0 {
        tracing::info!(error, "the LISTEN connection is lost; workers poll until it is back");
    } else {
        tracing::debug!(error, failures, "the LISTEN connection could not be opened");
    }
}

/// Wakes the callers that wait for a change.
type Wake = dyn Fn() + Send + Sync;

/// Listens until the connection is lost, or does not answer a probe. A connection on which nothing
/// was received for the deadline of a heartbeat is probed, with the same deadline.
async fn listen(link: &Link, wake: &Wake, quiet: &Quiet) -> Result<()> {
    let opened = link.connect(wake).await;
    let opened = opened.inspect_err(|error| link.network.note_failed_attempt(error));
    let (client, mut connection) = opened?;
    link.network.note_answer();
    let is_alive = AtomicBool::new(true);
    let mut messages = std::pin::pin!(std::future::poll_fn(|cx| {
        loop {
            match std::task::ready!(connection.poll_message(cx)) {
                Some(Ok(AsyncMessage::Notification(_))) => {
                    is_alive.store(true, Ordering::Relaxed);
                    wake();
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return std::task::Poll::Ready(Err(error)),
                None => return std::task::Poll::Ready(Ok(())),
            }
        }
    }));
    let mut statement = "LISTEN tidegate";
    loop {
        let answer = timeout(link.timeouts.heartbeat, client.batch_execute(statement));
        let answer = tokio::select! {
            lost = &mut messages => return lost.map_err(|error| translate(&error)),
            answer = answer => answer,
        };
        let answer = answer.inspect_err(|_| link.network.note_lost());
        let answer = answer.map_err(|_| link.no_answer())?;
        answer.map_err(|error| {
            // A standby executes no LISTEN. The next attempt begins with the first server of the URL.
            if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                link.connector.forget_failures();
            }
            translate(&error)
        })?;
        if statement != PROBE {
            // What changed before the LISTEN took effect.
            wake();
            quiet.listen(true);
            statement = PROBE;
        }
        while is_alive.swap(false, Ordering::Relaxed) {
            tokio::select! {
                lost = &mut messages => return lost.map_err(|error| translate(&error)),
                () = pause(link.timeouts.heartbeat) => {}
            }
        }
        is_alive.store(true, Ordering::Relaxed);
    }
}
