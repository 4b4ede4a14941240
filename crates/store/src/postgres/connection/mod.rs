//! Connections to PostgreSQL: where the servers are, how a session is encrypted and set up, and the
//! pools that keep connections open.

mod candidates;
mod channel_binding;
mod connect_error;
mod driver;
mod environment;
mod passfile;
mod pool;
mod pooler;
mod settings;
mod tls;
mod url;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use rustls::ClientConfig;
use tidegate_core::reader::ConnectionEncryption;
use tidegate_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_postgres::config::{Host, SslMode as Negotiation};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};

use super::runtime::{OpenConnection, StoreRuntime};
use super::timeouts::Timeouts;
use candidates::{Candidate, CandidateFailures, connect_first_address, resolve_addresses};
use driver::Driver;
use environment::Environment;
use settings::{Password, Server, Settings, SslMode};
use tls::TlsMaker;

pub(super) use pool::{
    Pool, PoolError, PooledClient, PooledConnection, build_pool, check_out_connection,
    session_setup_sql,
};
pub(crate) use url::{display_address, without_password};

/// Opens connections. The runtime of the store drives all of them, because a caller could block the
/// threads of its own runtime.
pub(super) struct Connector {
    settings: Settings,
    runtime: Handle,
    open: OpenConnection,
    /// Connections of an earlier generation are closed instead of used again.
    generation: watch::Sender<u64>,
    failures: CandidateFailures,
    encryption: Mutex<Option<ConnectionEncryption>>,
}

/// A client and the connection that has to be driven for it.
type ConnectedClient = (Client, Connection<Socket, tls::EncryptedStream>);

/// What is read from files for each connection, so that passwords and certificates can be replaced
/// while the process runs.
#[derive(Clone)]
struct Secrets {
    password: Option<Password>,
    /// Where the password comes from, or why there is none.
    password_source: String,
    tls: Option<Arc<ClientConfig>>,
}

/// Why one try to connect failed.
struct ConnectFailure {
    error: tokio_postgres::Error,
    was_encrypted: bool,
}

impl Connector {
    /// Checks the settings; opens nothing.
    pub(super) fn new(url: &str, timeouts: &Timeouts, home: &StoreRuntime) -> Result<Arc<Self>> {
        let settings = Settings::parse(url, &Environment::of_process(), timeouts)?;
        Ok(Arc::new(Self {
            settings,
            runtime: home.handle()?,
            open: home.open_connection(),
            generation: watch::Sender::new(0),
            failures: CandidateFailures::default(),
            encryption: Mutex::default(),
        }))
    }

    /// Forgets which servers failed, so the next connections try them in the order of the URL.
    pub(super) fn clear_failures(&self) {
        self.failures.clear();
    }

    /// Starts a new generation: the LISTEN connection closes at once, a pooled connection when it is next
    /// taken or returned.
    pub(super) fn invalidate_connections(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Returns how the newest connection is encrypted.
    pub(super) fn encryption(&self) -> Option<ConnectionEncryption> {
        self.encryption.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the URL sets a parameter of the server itself.
    pub(super) fn sets_parameter(&self, parameter: &str) -> bool {
        self.settings.sets_parameter(parameter)
    }

    /// Opens a connection for a pool and runs the statements of `setup` on it.
    async fn open_pooled(self: &Arc<Self>, setup: &str) -> Result<PooledClient> {
        Ok(self.open_pooled_at(setup, None).await?.0)
    }

    /// Opens a connection for a pool, at one server and address only if `candidate` names them. Also returns where
    /// it leads to.
    async fn open_pooled_at(
        self: &Arc<Self>,
        setup: &str,
        candidate: Option<Candidate>,
    ) -> Result<(PooledClient, Candidate)> {
        let (connector, setup) = (self.clone(), setup.to_owned());
        let open = async move {
            let generation = *connector.generation.borrow();
            let ((client, connection), candidate) =
                connector.open_any_server(&setup, candidate).await?;
            let driver = Driver::spawn(connection, connector.open.clone());
            Ok((PooledClient::new(client, driver, generation), candidate))
        };
        self.run_on_store_runtime(Box::pin(open)).await
    }

    /// Opens a connection for notifications.
    pub(super) async fn open_listener(self: &Arc<Self>) -> Result<(Client, ListenerConnection)> {
        let mut generation = self.generation.subscribe();
        let connector = self.clone();
        let closed = Box::pin(async move {
            // An error means that the store is gone.
            let _ = generation.changed().await;
        });
        let open = async move {
            let setup = connector.settings.server_tcp_settings_sql();
            let ((client, connection), _) = connector.open_any_server(&setup, None).await?;
            let (runtime, open) = (connector.runtime.clone(), connector.open.clone());
            Ok((client, ListenerConnection { connection: Some(connection), closed, runtime, open }))
        };
        self.run_on_store_runtime(open).await.map_err(invalid_to_refused)
    }

    /// Runs a future on the runtime of the store. Dropping the returned future aborts it.
    async fn run_on_store_runtime<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut task = AbortOnDrop(self.runtime.spawn(task));
        (&mut task.0).await.unwrap_or_else(|cause| {
            Err(Error::new(ErrorKind::Unavailable, format!("connecting was interrupted: {cause}")))
        })
    }

    /// Tries the servers in order, or only the one that `candidate` names. The error names every server and its
    /// cause.
    async fn open_any_server(
        &self,
        setup: &str,
        candidate: Option<Candidate>,
    ) -> Result<(ConnectedClient, Candidate)> {
        let mut failures = Vec::new();
        let mut order =
            self.failures.server_order(self.settings.servers.len(), self.settings.is_order_random);
        order.retain(|index| candidate.is_none_or(|(only, _)| only == *index));
        for index in order {
            let server = &self.settings.servers[index];
            let attempt = self.failures.start_attempt((index, None));
            let only = candidate.map(|(_, address)| address);
            match self.open_any_address(index, server, setup, only).await {
                Ok((link, address)) => {
                    attempt.mark_succeeded();
                    return Ok((link, (index, address)));
                }
                Err(error) => {
                    failures.push(Error::new(error.kind(), format!("{server}: {error}")));
                }
            }
        }
        // If one server failed with a retryable error, the whole error is retryable.
        let kind = failures.iter().find(|failure| failure.is_retryable()).or(failures.first());
        let kind = kind.map_or(ErrorKind::Unavailable, Error::kind);
        let texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
        Err(Error::new(kind, texts.join("; ")))
    }

    /// Tries the addresses of a server in order, each within its own time limit. Also returns the address of the
    /// connection.
    async fn open_any_address(
        &self,
        index: usize,
        server: &Server,
        setup: &str,
        only: Option<Option<IpAddr>>,
    ) -> Result<(ConnectedClient, Option<IpAddr>)> {
        let mut addresses = match only {
            Some(address) => vec![address],
            None => resolve_addresses(server, self.settings.address_limit(1)).await?,
        };
        self.failures.sort_addresses(index, &mut addresses, self.settings.is_order_random);
        let limit = self.settings.address_limit(addresses.len());
        connect_first_address(&addresses, limit, |address| async move {
            let attempt = self.failures.start_attempt((index, address));
            let server = Server { address, ..server.clone() };
            let link = self.open_server(&server, setup).await?;
            attempt.mark_succeeded();
            Ok((link, address))
        })
        .await
    }

    async fn open_server(&self, server: &Server, setup: &str) -> Result<ConnectedClient> {
        // As in libpq, a socket is not encrypted.
        let is_plain = server.is_socket() || self.settings.tls.mode == SslMode::Disable;
        let secrets = self.read_secrets(server, is_plain).await?;
        let mode = if is_plain { SslMode::Disable } else { self.settings.tls.mode };
        let opened = match self.connect_to_server(server, mode, &secrets).await {
            Err(failure) if mode == SslMode::Prefer && failure.may_work_without_tls() => {
                let plain = self.connect_to_server(server, SslMode::Disable, &secrets).await;
                plain.map_err(|second| {
                    let error = self.explain(&second.error, server, SslMode::Disable, &secrets);
                    tracing::debug!(%error, "connecting without encryption failed as well");
                    failure
                })
            }
            opened => opened,
        };
        let (client, mut connection) =
            opened.map_err(|failure| self.explain(&failure.error, server, mode, &secrets))?;
        if !setup.is_empty() {
            let done = tokio::select! {
                biased;
                ended = &mut connection => Err(ended.err()),
                done = client.batch_execute(setup) => done.map_err(Some),
            };
            done.map_err(|error| match error {
                Some(error) => self.explain(&error, server, mode, &secrets),
                None => Error::new(ErrorKind::Unavailable, "the server closed the connection"),
            })?;
        }
        Ok((client, connection))
    }

    async fn connect_to_server(
        &self,
        server: &Server,
        mode: SslMode,
        secrets: &Secrets,
    ) -> Result<ConnectedClient, ConnectFailure> {
        let mut config = self.settings.config.clone();
        config.port(server.port).ssl_mode(match mode {
            SslMode::Disable => Negotiation::Disable,
            SslMode::Prefer => Negotiation::Prefer,
            _ => Negotiation::Require,
        });
        match &server.host {
            Host::Tcp(name) => config.host(name),
            Host::Unix(folder) => config.host_path(folder),
        };
        if let Some(address) = server.address {
            config.hostaddr(address);
        }
        if let Some(Password(password)) = &secrets.password {
            config.password(password);
        }
        let tls = secrets.tls.clone().filter(|_| mode != SslMode::Disable);
        let tls = TlsMaker::new(tls, &self.settings.tls);
        let opened = config.connect(tls.clone()).await;
        let agreed = tls.agreed();
        if opened.is_ok() {
            let verified = self.settings.tls.verification().filter(|_| agreed.is_some());
            let encryption = ConnectionEncryption {
                is_encrypted: agreed.is_some(),
                is_unix_socket: server.is_socket(),
                tls_version: agreed.as_ref().map(|agreed| agreed.protocol.clone()),
                cipher_suite: agreed.as_ref().map(|agreed| agreed.cipher.clone()),
                certificate_verification: verified.map(SslMode::name),
            };
            *self.encryption.lock().unwrap_or_else(PoisonError::into_inner) = Some(encryption);
        }
        opened.map_err(|error| ConnectFailure { error, was_encrypted: agreed.is_some() })
    }

    /// Reads the files, on a thread that may block.
    async fn read_secrets(&self, server: &Server, is_plain: bool) -> Result<Secrets> {
        let (settings, server) = (self.settings.clone(), server.clone());
        let read = move || {
            let (password, password_source) = match settings.password.clone() {
                Some(password) => (Some(password), settings.password_source.to_owned()),
                None => settings.stored_password(&server),
            };
            let tls = if is_plain { None } else { Some(tls::load_tls_config(&settings.tls)?) };
            Ok(Secrets { password, password_source, tls })
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|cause| {
            Err(Error::new(ErrorKind::Unavailable, format!("reading files was cut off: {cause}")))
        })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl ConnectFailure {
    /// As in libpq: the handshake failed, or the server refuses this user or database under TLS.
    fn may_work_without_tls(&self) -> bool {
        let is_refused = self.error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
        connect_error::handshake_error(&self.error).is_some() || self.was_encrypted && is_refused
    }
}

/// A connection on which notifications arrive. Dropping it closes the connection.
pub(super) struct ListenerConnection {
    /// None once it has ended.
    connection: Option<Connection<Socket, tls::EncryptedStream>>,
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
    runtime: Handle,
    open: OpenConnection,
}

impl ListenerConnection {
    /// Returns the next message, or none if the connection has ended or must not be used any more.
    pub(super) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(None);
        };
        if self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        let message = connection.poll_message(cx);
        if let Poll::Ready(None | Some(Err(_))) = &message {
            self.connection = None;
        }
        message
    }
}

impl Drop for ListenerConnection {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            let open = self.open.clone();
            self.runtime.spawn(async move {
                driver::close(connection).await;
                drop(open);
            });
        }
    }
}

/// Turns `Invalid` into the retryable `Refused`, for connections of a store that is already open. A bad
/// certificate or key is a configuration error when the store is opened; later the file is probably being
/// replaced.
fn invalid_to_refused(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Invalid => Error::new(ErrorKind::Refused, error.to_string()),
        _ => error,
    }
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
