//! Pools of connections whose sessions are set up alike.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::managed::{self, Metrics, QueueMode, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use tidegate_core::{Error, ErrorKind, Result};
use tokio_postgres::Client;

use super::driver::Driver;
use super::{Connector, invalid_to_refused};
use crate::postgres::network::Network;
use crate::postgres::timeouts::{Timeouts, statement_timeout_ms};
use crate::requests;

/// How often a call starts its connection attempt again because the network has returned meanwhile.
const RESTARTS_MAX: u32 = 3;

pub(in crate::postgres) type Pool = managed::Pool<ConnectionManager>;
pub(in crate::postgres) type PooledConnection = managed::Object<ConnectionManager>;
pub(in crate::postgres) type PoolError = managed::PoolError<Error>;

/// A connection of a pool, with its prepared statements.
pub(in crate::postgres) struct PooledClient {
    /// Dropped before the client, so that the driver knows that the client is closed on purpose.
    driver: Driver,
    client: ClientWrapper,
    generation: u64,
}

impl PooledClient {
    pub(super) fn new(client: Client, driver: Driver, generation: u64) -> Self {
        // The wrapper aborts its task when it is dropped, which would cut the connection off.
        let client = ClientWrapper::new(client, tokio::spawn(async {}));
        Self { driver, client, generation }
    }

    /// Closes the connection at once: what was sent is not answered in time.
    pub(in crate::postgres) fn abort(self) {
        self.driver.abort();
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
pub(in crate::postgres) struct ConnectionManager {
    connector: Arc<Connector>,
    /// Statements that set up each session.
    setup: String,
    /// A connection of the pooler check, open but without session settings. The next `create` sets it up.
    preopened: Mutex<Option<PooledClient>>,
}

impl ConnectionManager {
    /// Adds a connection that is already open: the pool uses it instead of opening its next one.
    pub(in crate::postgres) fn add_preopened(&self, client: PooledClient) {
        *self.preopened.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
    }

    /// Closes the connection that [`keep`](Self::keep) added, if the pool has not used it yet.
    pub(in crate::postgres) fn discard_preopened(&self) {
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

impl managed::Manager for ConnectionManager {
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
pub(in crate::postgres) fn build_pool(
    connector: &Arc<Connector>,
    setup: String,
    size: usize,
    timeouts: &Timeouts,
) -> Result<Pool> {
    let manager =
        ConnectionManager { connector: connector.clone(), setup, preopened: Mutex::default() };
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

/// Waits for a connection of a pool. A connection attempt that began before the network returned starts
/// again, because its first bytes may be lost. The pool wait timeout counts from the first wait on, but every
/// restart waits at least a tenth of it: the time before may have been that of a connection attempt. The
/// attempt after [`RESTARTS_MAX`] restarts is not interrupted.
pub(in crate::postgres) async fn check_out_connection<M: managed::Manager<Error = Error>>(
    pool: &managed::Pool<M>,
    network: &Network,
) -> Result<managed::Object<M>, PoolError> {
    let began_at = requests::now();
    let mut timeouts = pool.timeouts();
    let mut restarts = 0;
    loop {
        let returned = network.wait_until_reachable();
        let waited = requests::now().saturating_duration_since(began_at);
        timeouts.wait = pool.timeouts().wait.map(|wait| wait.saturating_sub(waited).max(wait / 10));
        let got = tokio::select! {
            biased;
            got = pool.timeout_get(&timeouts) => got,
            () = returned, if restarts < RESTARTS_MAX => {
                restarts += 1;
                continue;
            }
        };
        return got.inspect_err(|error| {
            if let PoolError::Backend(error) = error {
                network.record_failed_attempt(error);
            }
        });
    }
}

/// Returns the statements that set up a session: settings written as for the start-up `options`
/// (`-c name=value`), which a pooler such as PgBouncer refuses, and the timeouts that belong to the
/// deadline of a request. A timeout that the URL sets has precedence.
pub(in crate::postgres) fn session_setup_sql(
    connector: &Connector,
    options: &str,
    deadline: Duration,
) -> String {
    let settings = options.split_whitespace().filter_map(|word| word.split_once('='));
    let mut text: String =
        settings.map(|(name, value)| format!("SET {name} = '{value}';")).collect();
    text.push_str(&connector.settings.server_tcp_settings_sql());
    // The second one ends a transaction whose client was cut off between two statements.
    for name in ["statement_timeout", "idle_in_transaction_session_timeout"] {
        if !connector.sets_parameter(name) {
            text.push_str(&format!("SET {name} = {};", statement_timeout_ms(deadline)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    struct UnitManager;

    impl managed::Manager for UnitManager {
        type Type = ();
        type Error = Error;

        async fn create(&self) -> Result<()> {
            Ok(())
        }

        async fn recycle(&self, (): &mut (), _: &Metrics) -> RecycleResult<Error> {
            Ok(())
        }
    }

    fn pool_in_use(wait: Duration) -> managed::Pool<UnitManager> {
        let pool = managed::Pool::builder(UnitManager).max_size(1).wait_timeout(Some(wait));
        pool.runtime(deadpool::Runtime::Tokio1).build().unwrap()
    }

    #[tokio::test]
    async fn pool_wait_is_bounded_while_network_flaps() {
        const WAIT: Duration = Duration::from_millis(600);
        let pool = pool_in_use(WAIT);
        let _in_use = pool.get().await.unwrap();
        let network = Network::default();
        let returning = async {
            let mut interval = tokio::time::interval(WAIT / 10 * 9);
            loop {
                interval.tick().await;
                network.record_outage();
                network.record_answer();
            }
        };
        let began_at = requests::now();
        let got = tokio::select! {
            got = check_out_connection(&pool, &network) => got,
            () = returning => unreachable!(),
        };
        assert!(matches!(got, Err(PoolError::Timeout(_))));
        // With a new wait after each of the three restarts it would take 3.7 times as long.
        let waited = requests::now().saturating_duration_since(began_at);
        assert!(waited < WAIT * 3, "{waited:?}");
    }
}
