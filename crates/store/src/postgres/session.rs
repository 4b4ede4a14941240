//! Connections, transactions, and the statements in them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use deadpool_postgres::{Object, Transaction};
use tidegate_core::Result;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::error::Fault;
use super::{Inner, make_workflows};

/// Called before every statement with its text. A test holds a transaction there.
pub type Step = Arc<dyn Fn(&'static str) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Times a transaction is tried again because of others.
const TRIES_MAX: u32 = 200;

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// One transaction, READ COMMITTED: every statement sees what was committed before it began.
pub(super) struct Tx<'a> {
    inner: Whose<'a>,
    step: Option<Step>,
}

enum Whose<'a> {
    Own(Transaction<'a>),
    Callers(&'a tokio_postgres::Transaction<'a>),
}

impl<'a> Tx<'a> {
    pub(super) async fn begin(store: &Inner, client: &'a mut Object) -> Result<Self, Fault> {
        let inner = Whose::Own(client.transaction().await?);
        Ok(Self { inner, step: store.options.step.clone() })
    }

    /// A transaction of the caller's; it is the caller who commits it.
    pub(super) fn of_caller(store: &Inner, tx: &'a tokio_postgres::Transaction<'a>) -> Self {
        Self { inner: Whose::Callers(tx), step: store.options.step.clone() }
    }

    pub(super) async fn query(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Fault> {
        self.step(sql).await;
        let rows = match &self.inner {
            Whose::Own(tx) => tx.query(&tx.prepare_cached(sql).await?, params).await?,
            Whose::Callers(tx) => tx.query(sql, params).await?,
        };
        Ok(rows)
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
        self.step(sql).await;
        let rows = match &self.inner {
            Whose::Own(tx) => tx.execute(&tx.prepare_cached(sql).await?, params).await?,
            Whose::Callers(tx) => tx.execute(sql, params).await?,
        };
        Ok(rows)
    }

    pub(super) async fn commit(self) -> Result<(), Fault> {
        self.step("COMMIT").await;
        match self.inner {
            Whose::Own(tx) => tx.commit().await?,
            Whose::Callers(_) => {}
        }
        Ok(())
    }

    pub(super) async fn rollback(self) {
        if let Whose::Own(tx) = self.inner {
            // A connection that cannot roll back is closed by the pool.
            let _ = tx.rollback().await;
        }
    }

    async fn step(&self, sql: &'static str) {
        if let Some(step) = &self.step {
            step(sql).await;
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
macro_rules! transact {
    ($store:expr, $tx:ident => $body:expr) => {{
        let mut tries = $crate::postgres::session::Tries::default();
        loop {
            let mut client = $store.client().await?;
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

pub(super) use transact;
