//! Connections, transactions, and the statements in them.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate_core::Result;
use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::attempt_guard::check_attempt_runs;
use super::call;
use super::claim::record_worker;
use super::connection::PooledConnection;
use super::error::TxError;
use super::jitter::jittered;
use super::notifications::sleep;
use super::round_trip_stats::TxRoundTrips;
use super::{PostgresInner, make_workflow_limits};

/// Called before every statement with its text. A test holds a transaction there.
pub type StatementHook =
    Arc<dyn Fn(&'static str) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Times a transaction is tried again because of others.
const TRIES_MAX: u32 = 200;

/// Tries that follow each other at once. Later tries pause, so that many processes which retry the
/// same rows do not keep each other from committing.
const TRIES_WITHOUT_PAUSE: u32 = 5;

/// The longest pause between two tries.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(50);

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The answer to a BEGIN that was sent.
type BeginAnswer<'a> = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send + 'a>>;

/// One transaction, READ COMMITTED: every statement sees what was committed before it began.
///
/// Statements that are awaited together are sent together: the server runs them in their order,
/// each with its own snapshot, and they cost one round trip. The BEGIN goes with the first of
/// them.
pub(super) struct Tx<'a> {
    mode: TxMode<'a>,
    statement_hook: Option<StatementHook>,
    round_trips: TxRoundTrips,
    send_turn: Mutex<()>,
    /// The server has been told to begin, and not yet to end.
    is_open: AtomicBool,
    /// The COMMIT has been sent: what comes now would be a transaction of its own.
    is_commit_sent: AtomicBool,
}

enum TxMode<'a> {
    Owned(&'a PooledConnection),
    /// None: every statement is a transaction of its own.
    Autocommit(&'a PooledConnection),
    Borrowed(&'a tokio_postgres::Transaction<'a>),
}

impl<'a> Tx<'a> {
    fn new(store: &PostgresInner, mode: TxMode<'a>) -> Self {
        let (statement_hook, round_trips) =
            (store.options.statement_hook.clone(), TxRoundTrips::new(&store.meter));
        let (is_open, is_commit_sent) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            mode,
            statement_hook,
            round_trips,
            send_turn: Mutex::default(),
            is_open,
            is_commit_sent,
        }
    }

    pub(super) fn begin(store: &PostgresInner, client: &'a PooledConnection) -> Self {
        Self::new(store, TxMode::Owned(client))
    }

    /// For statements that only read, or one that does it all.
    pub(super) fn autocommit(store: &PostgresInner, client: &'a PooledConnection) -> Self {
        Self::new(store, TxMode::Autocommit(client))
    }

    /// A transaction of the caller's; it is the caller who commits it.
    pub(super) fn borrowed_from_caller(
        store: &PostgresInner,
        tx: &'a tokio_postgres::Transaction<'a>,
    ) -> Self {
        Self::new(store, TxMode::Borrowed(tx))
    }

    pub(super) async fn query(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, TxError> {
        let (turn, begun) = self.wait_for_turn(sql).await?;
        let rows = match &self.mode {
            TxMode::Owned(client) | TxMode::Autocommit(client) => {
                let statement = client.prepare_cached(sql).await?;
                self.send_and_wait(turn, begun, client.query(&statement, params)).await
            }
            TxMode::Borrowed(tx) => self.send_and_wait(turn, begun, tx.query(sql, params)).await,
        }?;
        call::count_rows(rows.len() as u64);
        Ok(rows)
    }

    /// For a statement that always returns one row.
    pub(super) async fn query_one(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Row, TxError> {
        self.query(sql, params).await?.pop().ok_or(TxError::MissingRow(sql))
    }

    /// For a row that a concurrent transaction may have removed since the statement before.
    pub(super) async fn query_one_or_retry(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Row, TxError> {
        self.query(sql, params).await?.pop().ok_or(TxError::Retry)
    }

    pub(super) async fn execute(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<u64, TxError> {
        let (turn, begun) = self.wait_for_turn(sql).await?;
        let rows = match &self.mode {
            TxMode::Owned(client) | TxMode::Autocommit(client) => {
                let statement = client.prepare_cached(sql).await?;
                self.send_and_wait(turn, begun, client.execute(&statement, params)).await
            }
            TxMode::Borrowed(tx) => self.send_and_wait(turn, begun, tx.execute(sql, params)).await,
        }?;
        call::count_rows(rows);
        Ok(rows)
    }

    /// A statement is sent in its turn, also where its text has to be prepared first. The first
    /// one sends the BEGIN, and has its answer to wait for.
    async fn wait_for_turn(
        &self,
        sql: &'static str,
    ) -> Result<(MutexGuard<'_, ()>, Option<BeginAnswer<'_>>), TxError> {
        let turn = self.send_turn.lock().await;
        if let Some(step) = &self.statement_hook {
            step(sql).await;
        }
        debug_assert!(!self.is_commit_sent.load(Ordering::Relaxed), "after the COMMIT: {sql}");
        let mut begun = None;
        if let TxMode::Owned(client) = &self.mode
            && !self.is_open.swap(true, Ordering::Relaxed)
        {
            let text = begin_sql();
            let mut begin: BeginAnswer<'_> =
                Box::pin(async move { client.batch_execute(&text).await });
            if let Poll::Ready(answer) = poll_once(begin.as_mut()) {
                answer?;
            } else {
                begun = Some(begin);
            }
        }
        Ok((turn, begun))
    }

    /// Sends a statement, lets the next one go, and waits for the answer.
    async fn send_and_wait<T>(
        &self,
        turn: MutexGuard<'_, ()>,
        begun: Option<BeginAnswer<'_>>,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, TxError> {
        let _sent = self.round_trips.start_statement();
        let mut statement = std::pin::pin!(statement);
        let sent = std::future::poll_fn(|cx| Poll::Ready(statement.as_mut().poll(cx))).await;
        // Where a test holds statements, each is answered before the next.
        let turn = self.statement_hook.is_some().then_some(turn);
        if let Some(begun) = begun {
            // Without a transaction the statements were each one of its own.
            begun.await?;
        }
        let answer = match sent {
            Poll::Ready(answer) => answer,
            Poll::Pending => statement.await,
        };
        drop(turn);
        if is_from_server(&answer) {
            self.round_trips.record_answer();
        }
        Ok(answer?)
    }

    /// The last statement; it may be sent together with those before it. Where one of them fails
    /// the server commits nothing, and it is that one's error that counts.
    pub(super) async fn commit(&self) -> Result<(), TxError> {
        let TxMode::Owned(client) = &self.mode else {
            return Ok(());
        };
        let (turn, begun) = self.wait_for_turn("COMMIT").await?;
        self.is_open.store(false, Ordering::Relaxed);
        self.is_commit_sent.store(true, Ordering::Relaxed);
        self.send_and_wait(turn, begun, client.batch_execute("COMMIT")).await
    }

    /// Undoes what was not committed, and waits until it is: whoever tries again on another
    /// connection must not meet the locks of its own first try.
    pub(super) async fn rollback(&self) {
        if let TxMode::Owned(client) = &self.mode
            && self.is_open.swap(false, Ordering::Relaxed)
        {
            let _sent = self.round_trips.start_statement();
            // A connection that is lost has no transaction.
            if let Err(error) = client.batch_execute("ROLLBACK").await {
                tracing::debug!(%error, "a ROLLBACK failed");
            }
        }
    }
}

/// A verb that was cut off: what it did in a transaction of several statements is undone before the
/// connection serves anybody else; a statement on its own is done once it is sent. Nobody waits for it:
/// whatever the connection is sent next comes after.
impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if let TxMode::Owned(client) = &self.mode
            && self.is_open.swap(false, Ordering::Relaxed)
        {
            // A connection that is lost has no transaction.
            if let Poll::Ready(Err(error)) =
                poll_once(std::pin::pin!(client.batch_execute("ROLLBACK")))
            {
                tracing::debug!(%error, "a ROLLBACK could not be sent");
            }
        }
    }
}

/// The statements that begin a transaction of the current call.
fn begin_sql() -> Cow<'static, str> {
    match call::maintenance_statement_timeout_ms() {
        None => Cow::Borrowed("BEGIN"),
        Some(timeout) => Cow::Owned(format!(
            "BEGIN; SET LOCAL statement_timeout = {timeout}; \
             SET LOCAL idle_in_transaction_session_timeout = {timeout}"
        )),
    }
}

/// Returns whether the server has answered. A broken connection is no answer: it must not make other requests
/// conclude that the network works.
fn is_from_server<T>(answer: &Result<T, tokio_postgres::Error>) -> bool {
    answer.as_ref().err().is_none_or(|error| error.as_db_error().is_some())
}

/// Sends a statement without waiting for the answer.
fn poll_once<T>(statement: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
    statement.poll(&mut Context::from_waker(Waker::noop()))
}

/// Counts how often a transaction was tried, and says whether to try again.
#[derive(Debug, Default)]
pub(super) struct RetryPolicy(u32);

impl RetryPolicy {
    /// The outcome, or none to try again.
    pub(super) async fn handle_outcome<T>(
        &mut self,
        store: &PostgresInner,
        outcome: Result<T, TxError>,
    ) -> Result<Option<T>> {
        self.0 += 1;
        let fault = match outcome {
            Ok(value) => return Ok(Some(value)),
            Err(fault) if self.0 < TRIES_MAX && self.may_retry(&fault) => fault,
            Err(fault) => return Err(fault.into()),
        };
        call::count_retry();
        self.pause_before_retry().await;
        // After the pause, because what is announced here holds for a part of a lease only.
        match fault {
            TxError::MissingWorkflowLimits(names) => make_workflow_limits(store, names).await?,
            TxError::WorkerNotRecorded(claim) => record_worker(store, &claim).await?,
            TxError::AttemptNotRunning(task, token) => {
                check_attempt_runs(store, (task, token)).await?
            }
            fault if fault.is_conflict() => {
                store.conflicts.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
        Ok(None)
    }

    fn may_retry(&self, error: &TxError) -> bool {
        match error {
            TxError::Retry
            | TxError::MissingWorkflowLimits(_)
            | TxError::WorkerNotRecorded(_)
            | TxError::AttemptNotRunning(..) => true,
            // A server that was demoted: the next connection may lead to the new primary.
            fault => fault.is_conflict() || (fault.is_read_only() && self.0 == 1),
        }
    }

    async fn pause_before_retry(&self) {
        match self.0.checked_sub(TRIES_WITHOUT_PAUSE) {
            None => tokio::task::yield_now().await,
            Some(doubled) => {
                let longest = Duration::from_millis(1 << doubled.min(6)).min(RETRY_PAUSE_MAX);
                sleep(jittered(longest)).await;
            }
        }
    }
}

/// Runs `$body` in a transaction of its own and commits it; again where others were in the way.
/// `reader` uses a connection for reads, `heartbeat` the one for heartbeats.
macro_rules! in_transaction {
    (heartbeat $store:expr, $tx:ident => $body:expr) => {
        $crate::postgres::transaction::in_transaction!($store, heartbeat_connection, $tx => $body)
    };
    (reader $store:expr, $tx:ident => $body:expr) => {
        $crate::postgres::transaction::in_transaction!($store, reader_connection, $tx => $body)
    };
    ($store:expr, $tx:ident => $body:expr) => {
        $crate::postgres::transaction::in_transaction!($store, request_connection, $tx => $body)
    };
    ($store:expr, $connection:ident, $tx:ident => $body:expr) => {
        $crate::postgres::transaction::with_retries!($store, $connection, begin, $tx => async {
            match $body.await {
                Ok(value) => $tx.commit().await.map(|()| value),
                Err(fault) => Err(fault),
            }
        })
    };
}

/// The same where `$body` commits itself, together with its last statements.
macro_rules! in_pipelined_transaction {
    ($store:expr, $tx:ident => $body:expr) => {
        $crate::postgres::transaction::with_retries!($store, request_connection, begin, $tx => $body)
    };
}

/// The same where every statement is a transaction of its own: for those that only read, or one that
/// does it all.
macro_rules! with_autocommit {
    ($store:expr, $tx:ident => $body:expr) => {
        $crate::postgres::transaction::with_retries!($store, request_connection, autocommit, $tx => $body)
    };
}

/// Runs `$body` until it succeeds or must not be tried again.
macro_rules! with_retries {
    ($store:expr, $connection:ident, $begin:ident, $tx:ident => $body:expr) => {{
        let mut retry_policy = $crate::postgres::transaction::RetryPolicy::default();
        loop {
            let outcome = $crate::postgres::transaction::run_once!($store, $connection, $begin, $tx => $body);
            if let Some(value) = retry_policy.handle_outcome($store, outcome).await? {
                break value;
            }
        }
    }};
}

/// Runs `$body` once, on a connection of its own and within the deadline of the call. What is not
/// committed when `$body` ends is undone.
macro_rules! run_once {
    ($store:expr, $connection:ident, $begin:ident, $tx:ident => $body:expr) => {{
        let client = $store.$connection().await?;
        let began_ns = $store.meter.elapsed_ns();
        let outcome = {
            let $tx = $crate::postgres::transaction::Tx::$begin($store, &client);
            // In a box, as the state of a transaction is large.
            let transaction = Box::pin(async {
                let outcome = $body.await;
                $tx.rollback().await;
                outcome
            });
            let timeouts = &$store.options.timeouts;
            $crate::postgres::call::within_deadline(timeouts, transaction).await
        };
        $store.return_connection(client, began_ns, outcome.as_ref().err());
        outcome
    }};
}

pub(super) use {
    in_pipelined_transaction, in_transaction, run_once, with_autocommit, with_retries,
};

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio_postgres::{Config, NoTls};

    use super::*;

    /// An ErrorResponse: the server shuts down.
    const SHUTDOWN: &[u8] = b"E\0\0\0\x23SFATAL\0VFATAL\0C57P01\0Mstopped\0\0";

    /// Connects to a server that sends these bytes and closes the connection.
    async fn error_after(bytes: &[u8]) -> Result<(), tokio_postgres::Error> {
        let (client, mut server) = tokio::io::duplex(1024);
        server.write_all(bytes).await.expect("written");
        server.shutdown().await.expect("closed");
        let connected = Config::new().user("u").connect_raw(client, NoTls).await;
        Err(connected.map(drop).expect_err("no server"))
    }

    #[tokio::test]
    async fn error_of_the_server_is_an_answer_and_a_broken_connection_is_none() {
        assert!(is_from_server(&Ok(())));
        let refused = error_after(SHUTDOWN).await;
        assert!(refused.as_ref().is_err_and(|error| error.code().is_some()), "{refused:?}");
        assert!(is_from_server(&refused));
        let broken = error_after(b"").await;
        assert!(!is_from_server(&broken), "{broken:?}");
    }
}
