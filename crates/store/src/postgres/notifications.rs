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

use super::claim_cursors::ClaimCursors;
use super::connection::{Connector, ListenerConnection, Pool, PooledConnection};
use super::error::to_store_error;
use super::jitter::jittered;
use super::network::Network;
use super::timeouts::Timeouts;

/// The longest pause of a listener that lost its connection before it connects again; while there is
/// no connection, callers are woken at this pace.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_millis(500);

/// How long a connection attempt may be under way before another one starts beside it. A silent network
/// loses the first bytes of an attempt, so an attempt that begins after the network's return finds
/// that out, while the older ones wait for their timeouts.
const CONNECT_ATTEMPT_INTERVAL: Duration = Duration::from_millis(1500);

/// Connection attempts that are under way at once.
const CONNECT_ATTEMPTS_MAX: usize = 8;

/// Notices of one process are at least so far apart. At its commit a notice locks out those of
/// all others, so there is not one per transaction.
const NOTIFY_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Sent on the connection that listens when nothing was received for a while.
const PROBE_STATEMENT: &str = "SELECT 1";

const NOTIFY_WITHOUT_SYNC: &str = include_str!("queries/notify_without_sync.sql");

/// How long an answer holds that there is nothing, at most, while nobody says otherwise.
const IDLE_ANSWER_MAX: Duration = Duration::from_secs(5);

/// Who polls more often than this has each of its polls sent: a notice may be lost and nobody know it.
const FREQUENT_POLL_MAX: Duration = Duration::from_secs(1);

const MAINTENANCE_IDLE_MAX: Duration = Duration::from_secs(30);

/// Claims whose answers are remembered at most; a worker has two sorts of them.
const IDLE_ANSWERS_MAX: usize = 64;

/// The way to the server. Its tasks run on the runtime of the store: the runtime of a caller may end.
#[derive(Clone)]
pub(super) struct NotifierContext {
    pub(super) connector: Arc<Connector>,
    pub(super) pool: Pool,
    pub(super) timeouts: Timeouts,
    pub(super) network: Arc<Network>,
    pub(super) runtime: Handle,
}

pub(super) struct Notifier {
    context: NotifierContext,
    claim_cursors: Arc<ClaimCursors>,
    idle_cache: Arc<IdleCache>,
    /// Somebody else should look.
    notify_requested: Arc<Notify>,
    local_wake: Arc<Notify>,
    listener_task: OnceLock<BackgroundTask>,
    sender_task: OnceLock<BackgroundTask>,
}

/// Ends the task when the store is dropped.
struct BackgroundTask(tokio::task::JoinHandle<()>);

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Notifier {
    pub(super) fn new(context: NotifierContext, claim_cursors: Arc<ClaimCursors>) -> Self {
        Self {
            context,
            claim_cursors,
            idle_cache: Arc::default(),
            notify_requested: Arc::default(),
            local_wake: Arc::default(),
            listener_task: OnceLock::new(),
            sender_task: OnceLock::new(),
        }
    }

    /// Tells other processes soon that something changed.
    pub(super) fn notify_others(&self) {
        self.idle_cache.clear();
        self.claim_cursors.on_inbox_write();
        self.notify_requested.notify_one();
        self.sender_task.get_or_init(|| {
            let (link, news) = (self.context.clone(), self.notify_requested.clone());
            BackgroundTask(self.context.runtime.spawn(async move {
                loop {
                    news.notified().await;
                    link.send_notification().await;
                    sleep(NOTIFY_INTERVAL_MIN).await;
                }
            }))
        });
    }

    /// Something changed here; nobody in this process has to wait for the server to say so.
    pub(super) fn notify_local(&self) {
        self.idle_cache.clear();
        self.claim_cursors.on_inbox_write();
        self.local_wake.notify_waiters();
    }

    /// What a claim should do that is about to look, or the keeper.
    pub(super) fn idle_answer(&self, claim: Option<&Claim>) -> IdleAnswer {
        self.idle_cache.idle_answer(claim)
    }

    /// It found nothing, and the next task is due in so many milliseconds.
    pub(super) fn record_idle(
        &self,
        claim: Option<&Claim>,
        change_count: u64,
        due_in: Option<Millis>,
    ) {
        self.idle_cache.record_idle(claim, change_count, due_in);
    }

    /// The first caller starts the listener.
    pub(super) async fn wait_for_notification(&self) {
        let changed = self.local_wake.notified();
        self.listener_task.get_or_init(|| {
            let link = self.context.clone();
            let (floors, notify) = (self.claim_cursors.clone(), self.local_wake.clone());
            let (quiet, is_heard) = (self.idle_cache.clone(), self.idle_cache.clone());
            let wake = move || {
                quiet.clear();
                floors.on_notification();
                notify.notify_waiters();
            };
            BackgroundTask(self.context.runtime.spawn(async move {
                let mut failures = 0;
                loop {
                    let error = run_listener(&link, &wake, &is_heard).await.err();
                    if is_heard.set_listening(false) {
                        failures = 0;
                    }
                    log_lost_listener(error, failures);
                    failures += 1;
                    wake();
                    sleep(jittered(RECONNECT_PAUSE_MAX)).await;
                }
            }))
        });
        changed.await;
    }
}

/// What is known since a claim found nothing.
#[derive(Debug, Clone, Copy)]
pub(super) enum IdleAnswer {
    /// Nothing has changed: the server need not be asked.
    StillIdle,
    /// Nothing was heard of, which may mean little: a look is enough. With the number of the last
    /// news, as below.
    ProbeNeeded(u64),
    /// It found something, or something has changed.
    ClaimNeeded(u64),
}

/// Whether anything has changed since a claim found nothing. As long as this process hears of every
/// change, an idle worker need not ask.
#[derive(Default)]
struct IdleCache(Mutex<IdleState>);

#[derive(Default)]
struct IdleState {
    is_listening: bool,
    /// How often something has changed.
    change_count: u64,
    /// What found nothing since the last news, at which that was, and until when it holds.
    idle_until: HashMap<IdleKey, (u64, Instant)>,
}

/// A worker and what it serves, or none for the keeper.
type IdleKey = Option<(WorkerId, NameList, NameList)>;

type NameList = Arc<[Arc<str>]>;

impl IdleCache {
    fn lock_state(&self) -> MutexGuard<'_, IdleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clear(&self) {
        let mut heard = self.lock_state();
        heard.change_count += 1;
        heard.idle_until.clear();
    }

    /// Returns whether it was listening before.
    fn set_listening(&self, is_listening: bool) -> bool {
        std::mem::replace(&mut self.lock_state().is_listening, is_listening)
    }

    fn idle_answer(&self, claim: Option<&Claim>) -> IdleAnswer {
        let heard = self.lock_state();
        match heard.idle_until.get(&idle_key(claim)) {
            Some((_, until)) if heard.is_listening && now() < *until => IdleAnswer::StillIdle,
            Some((news, _)) => IdleAnswer::ProbeNeeded(*news),
            None => IdleAnswer::ClaimNeeded(heard.change_count),
        }
    }

    fn record_idle(&self, claim: Option<&Claim>, news: u64, due_in: Option<Millis>) {
        // The keeper only does what workers that ask do as well.
        let longest = claim.map_or(MAINTENANCE_IDLE_MAX, idle_answer_max);
        let due_in = due_in.map(duration_from_millis);
        let until = now() + due_in.map_or(longest, |due_in| due_in.min(longest));
        let mut heard = self.lock_state();
        if heard.idle_until.len() >= IDLE_ANSWERS_MAX {
            heard.idle_until.clear();
        }
        if heard.change_count == news {
            heard.idle_until.insert(idle_key(claim), (news, until));
        }
    }
}

/// How long a worker is told from memory that there is nothing. One that asks is noted as alive, so it
/// may not be silent for long. Polls are jittered by less than half, so each of a brisk one is sent.
fn idle_answer_max(claim: &Claim) -> Duration {
    let poll = duration_from_millis(claim.poll_interval_ms);
    let quiet = if poll < FREQUENT_POLL_MAX { poll / 2 } else { IDLE_ANSWER_MAX };
    quiet.min(duration_from_millis(claim.lease_ms) / 6)
}

fn duration_from_millis(ms: Millis) -> Duration {
    Duration::from_millis(ms.max(0).unsigned_abs())
}

fn idle_key(claim: Option<&Claim>) -> IdleKey {
    claim.map(|claim| (claim.worker.clone(), claim.queues.clone(), claim.kinds.clone()))
}

#[expect(clippy::disallowed_methods, reason = "how long a hint holds; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a pace in the background; nothing depends on it")]
pub(super) async fn sleep(length: Duration) {
    tokio::time::sleep(length).await;
}

impl NotifierContext {
    /// Notifies other processes. A notification that is lost costs them a poll.
    async fn send_notification(&self) {
        let client = match self.pool.get().await {
            Ok(client) => client,
            Err(error) => return tracing::debug!(%error, "no connection for a notification"),
        };
        match timeout(self.timeouts.request, client.batch_execute(NOTIFY_WITHOUT_SYNC)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a notification could not be sent"),
            Err(_) => {
                tracing::debug!("a notification was not answered; its connection is closed");
                return PooledConnection::take(client).abort();
            }
        }
        if !self.connector.is_current(&client) {
            drop(PooledConnection::take(client));
        }
    }

    /// Opens the connection that listens; see [`ATTEMPT_INTERVAL`].
    async fn connect_listener(&self, wake: &WakeFn) -> Result<(Client, ListenerConnection)> {
        let mut attempts = JoinSet::new();
        loop {
            if attempts.len() < CONNECT_ATTEMPTS_MAX {
                let connector = self.connector.clone();
                attempts.spawn(async move { connector.open_listener().await });
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
                () = sleep(jittered(CONNECT_ATTEMPT_INTERVAL)) => {
                    self.network.record_outage();
                    wake();
                }
            }
        }
    }

    /// Reports that the connection that listens did not answer.
    fn no_answer_error(&self) -> Error {
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
type WakeFn = dyn Fn() + Send + Sync;

/// Listens until the connection is lost, or does not answer a probe. A connection on which nothing
/// was received for the deadline of a heartbeat is probed, with the same deadline.
async fn run_listener(
    context: &NotifierContext,
    wake: &WakeFn,
    idle_cache: &IdleCache,
) -> Result<()> {
    let opened = context.connect_listener(wake).await;
    let opened = opened.inspect_err(|error| context.network.record_failed_attempt(error));
    let (client, mut connection) = opened?;
    context.network.record_answer();
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
        let answer = timeout(context.timeouts.heartbeat, client.batch_execute(statement));
        let answer = tokio::select! {
            lost = &mut messages => return lost.map_err(|error| to_store_error(&error)),
            answer = answer => answer,
        };
        let answer = answer.inspect_err(|_| context.network.record_outage());
        let answer = answer.map_err(|_| context.no_answer_error())?;
        answer.map_err(|error| {
            // A standby executes no LISTEN. The next attempt begins with the first server of the URL.
            if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                context.connector.clear_failures();
            }
            to_store_error(&error)
        })?;
        if statement != PROBE_STATEMENT {
            // What changed before the LISTEN took effect.
            wake();
            idle_cache.set_listening(true);
            statement = PROBE_STATEMENT;
        }
        while is_alive.swap(false, Ordering::Relaxed) {
            tokio::select! {
                lost = &mut messages => return lost.map_err(|error| to_store_error(&error)),
                () = sleep(context.timeouts.heartbeat) => {}
            }
        }
        is_alive.store(true, Ordering::Relaxed);
    }
}
