//! Connections, transactions, and the statements in them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use deadpool_postgres::{Object, Transaction};
use tidegate_core::Result;
use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::claim::announce;
use super::error::Fault;
use super::{Inner, make_workflows};

/// Called before every statement with its text. A test holds a transaction there.
pub type Step = Arc<dyn Fn(&'static str) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Times a transaction is tried again because of others.
const TRIES_MAX: u32 = 200;

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// One transaction, READ COMMITTED: every statement sees what was committed before it began.
///
/// Statements that are awaited together are sent together: the server runs them in their order,
/// each with its own snapshot, and they cost one round trip.
pub(super) struct Tx<'a> {
    inner: Whose<'a>,
    step: Option<Step>,
    turn: Mutex<()>,
}

enum Whose<'a> {
    Own(Transaction<'a>),
    /// None: every statement is a transaction of its own.
    Nobodys(&'a Object),
    Callers(&'a tokio_postgres::Transaction<'a>),
}

impl<'a> Tx<'a> {
    pub(super) async fn begin(store: &Inner, client: &'a mut Object) -> Result<Self, Fault> {
        let inner = Whose::Own(client.transaction().await?);
        Ok(Self { inner, step: store.options.step.clone(), turn: Mutex::default() })
    }

    /// For one statement that only reads.
    pub(super) fn none(store: &Inner, client: &'a Object) -> Self {
        let inner = Whose::Nobodys(client);
        Self { inner, step: store.options.step.clone(), turn: Mutex::default() }
    }

    /// A transaction of the caller's; it is the caller who commits it.
    pub(super) fn of_caller(store: &Inner, tx: &'a tokio_postgres::Transaction<'a>) -> Self {
        Self { inner: Whose::Callers(tx), step: store.options.step.clone(), turn: Mutex::default() }
    }

    pub(super) async fn query(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Fault> {
        let turn = self.turn(sql).await;
        match &self.inner {
            Whose::Own(tx) => {
                let statement = tx.prepare_cached(sql).await?;
                self.answer(turn, tx.query(&statement, params)).await
            }
            Whose::Nobodys(client) => {
                let statement = client.prepare_cached(sql).await?;
                self.answer(turn, client.query(&statement, params)).await
            }
            Whose::Callers(tx) => self.answer(turn, tx.query(sql, params)).await,
        }
    }

    pub(super) async fn one(&self, sql: &'static str, params: Params<'_>) -> Result<Row, Fault> {
        let mut rows = self.query(sql, params).await?;
        rows.pop().ok_or(Fault::Again)
    }

    pub(super) async fn execute(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<u64, Fault> {
        let turn = self.turn(sql).await;
        match &self.inner {
            Whose::Own(tx) => {
                let statement = tx.prepare_cached(sql).await?;
                self.answer(turn, tx.execute(&statement, params)).await
            }
            Whose::Nobodys(client) => {
                let statement = client.prepare_cached(sql).await?;
                self.answer(turn, client.execute(&statement, params)).await
            }
            Whose::Callers(tx) => self.answer(turn, tx.execute(sql, params)).await,
        }
    }

    /// A statement is sent in its turn, also where its text has to be prepared first.
    async fn turn(&self, sql: &'static str) -> MutexGuard<'_, ()> {
        let turn = self.turn.lock().await;
        if let Some(step) = &self.step {
            step(sql).await;
        }
        turn
    }

    /// Sends a statement, lets the next one go, and waits for the answer.
    async fn answer<T>(
        &self,
        turn: MutexGuard<'_, ()>,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Fault> {
        let mut statement = std::pin::pin!(statement);
        let sent = std::future::poll_fn(|cx| Poll::Ready(statement.as_mut().poll(cx))).await;
        // Where a test holds statements, each is answered before the next.
        let turn = self.step.is_some().then_some(turn);
        let answer = match sent {
            Poll::Ready(answer) => answer,
            Poll::Pending => statement.await,
        };
        drop(turn);
        Ok(answer?)
    }

    pub(super) async fn commit(self) -> Result<(), Fault> {
        drop(self.turn("COMMIT").await);
        match self.inner {
            Whose::Own(tx) => tx.commit().await?,
            Whose::Nobodys(_) | Whose::Callers(_) => {}
        }
        Ok(())
    }

    pub(super) async fn rollback(self) {
        if let Whose::Own(tx) = self.inner {
            // A connection that cannot roll back is closed by the pool.
            let _ = tx.rollback().await;
        }
    }
}

/// Counts how often a transaction was tried, and says whether to try again.
#[derive(Debug, Default)]
pub(super) struct Tries(u32);

impl Tries {
    /// The outcome, or none to try again.
    pub(super) async fn judge<T>(
        &mut self,
        store: &Inner,
        outcome: Result<T, Fault>,
    ) -> Result<Option<T>> {
        self.0 += 1;
        match outcome {
            Ok(value) => return Ok(Some(value)),
            Err(fault) if self.0 >= TRIES_MAX => return Err(fault.into()),
            Err(Fault::Again) => {}
            Err(Fault::NoLimit(names)) => make_workflows(store, names).await?,
            Err(Fault::Unnoted(claim)) => announce(store, &claim).await?,
            Err(fault) if fault.is_conflict() => {
                store.conflicts.fetch_add(1, Ordering::Relaxed);
            }
            Err(fault) => return Err(fault.into()),
        }
        tokio::task::yield_now().await;
        Ok(None)
    }
}

/// Runs `$body` in a transaction of its own and commits it; again where others were in the way.
/// `reading` uses a connection for reads, `beating` the one for heartbeats.
macro_rules! transact {
    (beating $store:expr, $tx:ident => $body:expr) => {
        $crate::postgres::session::transact!($store, heartbeat, $tx => $body)
    };
    (reading $store:expr, $tx:ident => $body:expr) => {
        $crate::postgres::session::transact!($store, reader, $tx => $body)
    };
    ($store:expr, $tx:ident => $body:expr) => {
        $crate::postgres::session::transact!($store, client, $tx => $body)
    };
    ($store:expr, $connection:ident, $tx:ident => $body:expr) => {{
        let mut tries = $crate::postgres::session::Tries::default();
        loop {
            let mut client = $store.$connection().await?;
            let outcome = match $crate::postgres::session::Tx::begin($store, &mut client).await {
                Ok($tx) => match $body.await {
                    Ok(value) => $tx.commit().await.map(|()| value),
                    Err(fault) => {
                        $tx.rollback().await;
                        Err(fault)
                    }
                },
                Err(fault) => Err(fault),
            };
            drop(client);
            if let Some(value) = tries.judge($store, outcome).await? {
                break value;
            }
        }
    }};
}

/// The same for one statement that only reads, without a transaction.
macro_rules! glimpse {
    ($store:expr, $tx:ident => $body:expr) => {{
        let mut tries = $crate::postgres::session::Tries::default();
        loop {
            let client = $store.client().await?;
            let outcome = {
                let $tx = $crate::postgres::session::Tx::none($store, &client);
                $body.await
            };
            drop(client);
            if let Some(value) = tries.judge($store, outcome).await? {
                break value;
            }
        }
    }};
}

pub(super) use {glimpse, transact};
