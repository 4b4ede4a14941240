//! Pools of connections whose sessions are set up alike.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::managed::{self, Metrics, QueueMode, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use tidegate_core::{Error, ErrorKind, Result};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::{Connector, invalid_to_refused};
use crate::postgres::timeouts::{Timeouts, statement_timeout_ms};

pub(in crate::postgres) type Pool = managed::Pool<Manager>;
pub(in crate::postgres) type Object = managed::Object<Manager>;
pub(in crate::postgres) type PoolError = managed::PoolError<Error>;

/// A connection of a pool, with its prepared statements.
pub(in crate::postgres) struct PooledClient {
    client: ClientWrapper,
    generation: u64,
}

impl PooledClient {
    pub(super) fn new(client: Client, driver: JoinHandle<()>, generation: u64) -> Self {
        Self { client: ClientWrapper::new(client, driver), generation }
    }
}

impl Deref for PooledClient {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        &self.client
    }
}

impl DerefMut for PooledClient {
    fn deref_mut(&mut self) -> &mut ClientWrapper {
        &mut self.client
    }
}

/// Opens the connections of one pool.
pub(in crate::postgres) struct Manager {
    connector: Arc<Connector>,
    /// Statements that set up each session.
    setup: String,
    /// A connection of the pooler check, open but without session settings. The next `create` sets it up.
    preopened: Mutex<Option<PooledClient>>,
}

impl Manager {
    /// Adds a connection that is already open: the pool uses it instead of opening its next one.
    pub(in crate::postgres) fn keep(&self, client: PooledClient) {
        *self.preopened.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
    }

    /// Closes the connection that [`keep`](Self::keep) added, if the pool has not used it yet.
    pub(in crate::postgres) fn discard(&self) {
        drop(self.preopened.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn is_current(&self, client: &PooledClient) -> bool {
        self.connector.is_current(client)
    }
}

impl Connector {
    /// Returns whether a connection belongs to the current generation.
    pub(in crate::postgres) fn is_current(&self, client: &PooledClient) -> bool {
        client.generation == *self.generation.borrow()
    }
}

impl managed::Manager for Manager {
    type Type = PooledClient;
    type Error = Error;

    async fn create(&self) -> Result<PooledClient> {
        let preopened = self.preopened.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(client) = preopened.filter(|client| self.is_current(client)) {
            let limit = self.connector.settings.connect_timeout;
            match tokio::time::timeout(limit, client.batch_execute(&self.setup)).await {
                Ok(Ok(())) => return Ok(client),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a session was not set up; another one is opened");
                }
                Err(_) => tracing::debug!(
                    "a session was not set up within {} s; another one is opened",
                    limit.as_secs_f64()
                ),
            }
        }
        // In a box: the state of a handshake is large, and every request waits for a pool.
        let opened = Box::pin(self.connector.open_pooled(&self.setup)).await;
        opened.map_err(invalid_to_refused)
    }

    async fn recycle(&self, client: &mut PooledClient, _: &Metrics) -> RecycleResult<Error> {
        if client.is_closed() {
            return Err(RecycleError::message("the connection is closed"));
        }
        if !self.is_current(client) {
            return Err(RecycleError::message(
                "the connection was opened before a failover or a network outage",
            ));
        }
        Ok(())
    }
}

/// Makes a pool of up to `size` connections; opens none.
pub(in crate::postgres) fn pool(
    connector: &Arc<Connector>,
    setup: String,
    size: usize,
    timeouts: &Timeouts,
) -> Result<Pool> {
    let manager = Manager { connector: connector.clone(), setup, preopened: Mutex::default() };
    // The connection that was used last has the statements prepared, and the caches of its server process
    // are filled.
    let pool = Pool::builder(manager)
        .max_size(size)
        .queue_mode(QueueMode::Lifo)
        .runtime(deadpool::Runtime::Tokio1)
        .wait_timeout(Some(timeouts.pool_wait))
        .build();
    pool.map_err(|cause| {
        Error::new(ErrorKind::Unavailable, format!("no pool of connections: {cause}"))
    })
}

/// Returns the statements that set up a session: settings written as for the start-up `options`
/// (`-c name=value`), which a pooler such as PgBouncer refuses, and the timeouts that belong to the
/// deadline of a request. A timeout that the URL sets has precedence.
pub(in crate::postgres) fn setup_text(
    connector: &Connector,
    options: &str,
    deadline: Duration,
) -> String {
    let settings = options.split_whitespace().filter_map(|word| word.split_once('='));
    let mut text: String =
        settings.map(|(name, value)| format!("SET {name} = '{value}';")).collect();
    text.push_str(&connector.settings.server_tcp_text());
    // The second one ends a transaction whose client was cut off between two statements.
    for name in ["statement_timeout", "idle_in_transaction_session_timeout"] {
        if !connector.sets(name) {
            text.push_str(&format!("SET {name} = {};", statement_timeout_ms(deadline)));
        }
    }
    text
}
