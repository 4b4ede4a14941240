//! Wake-ups: a LISTEN on a connection of its own. A hint only: callers poll as well.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::{Claim, Millis, WorkerId};
use tokio::sync::Notify;
use tokio_postgres::AsyncMessage;

use super::connection::{Connector, Pool};
use super::floors::Floors;

/// How long a listener that lost its connection waits before it tries again; while there is
/// none, callers are woken at this pace.
const PACE: Duration = Duration::from_millis(250);

/// Notices of one process are at least so far apart. At its commit a notice locks out those of
/// all others, so there is not one per transaction.
const APART: Duration = Duration::from_millis(10);

const NOTIFY_SOON: &str = include_str!("queries/notify_soon.sql");

/// How long an answer holds that there is nothing, at most, while nobody says otherwise.
const QUIET: Duration = Duration::from_secs(5);

/// Who polls more often than this has each of its polls sent: a notice may be lost and nobody know it.
const BRISK: Duration = Duration::from_secs(1);

const KEEPER_QUIET: Duration = Duration::from_secs(30);

/// Claims whose answers are remembered at most; a worker has two sorts of them.
const CLAIMS_MAX: usize = 64;

pub(super) struct Changed {
    connector: Arc<Connector>,
    pool: Pool,
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
    pub(super) fn new(connector: Arc<Connector>, pool: Pool, floors: Arc<Floors>) -> Self {
        Self {
            connector,
            pool,
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
            let (pool, news) = (self.pool.clone(), self.news.clone());
            Background(tokio::spawn(async move {
                loop {
                    news.notified().await;
                    if let Ok(client) = pool.get().await {
                        // A notice that is lost costs a poll.
                        let _ = client.batch_execute(NOTIFY_SOON).await;
                    }
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
            let connector = self.connector.clone();
            let (floors, notify) = (self.floors.clone(), self.notify.clone());
            let (quiet, is_heard) = (self.quiet.clone(), self.quiet.clone());
            let wake = move || {
                quiet.end();
                floors.ask();
                notify.notify_waiters();
            };
            Background(tokio::spawn(async move {
                loop {
                    listen(&connector, &wake, &is_heard).await;
                    is_heard.listen(false);
                    wake();
                    pause(PACE).await;
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

    fn listen(&self, is_listening: bool) {
        self.heard().is_listening = is_listening;
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

/// Listens until the connection is lost.
async fn listen(connector: &Arc<Connector>, wake: &(dyn Fn() + Send + Sync), quiet: &Quiet) {
    let Ok((client, mut connection)) = connector.listen().await else {
        return;
    };
    let mut messages = std::pin::pin!(std::future::poll_fn(move |cx| {
        loop {
            match std::task::ready!(connection.poll_message(cx)) {
                Some(Ok(AsyncMessage::Notification(_))) => wake(),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return std::task::Poll::Ready(()),
            }
        }
    }));
    let listen = client.batch_execute("LISTEN tidegate");
    tokio::select! {
        () = &mut messages => return,
        listening = listen => if listening.is_err() { return },
    }
    // What changed before the LISTEN took effect.
    wake();
    quiet.listen(true);
    messages.await;
    drop(client);
}
