//! Drives connections and closes them in an orderly way: the server gets the message Terminate, then the end of the TLS
//! session. A server with TLS reports every other end in its log.

use std::convert::Infallible;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{Connection, Socket};

use super::tls::EncryptedStream;
use crate::postgres::error::to_store_error;
use crate::postgres::runtime::{CLOSE_TIMEOUT, OpenConnection};

/// The task that drives the connection of a client. Dropping it lets the connection close.
pub(super) struct Driver {
    task: JoinHandle<()>,
    _is_in_use: oneshot::Sender<Infallible>,
}

impl Driver {
    pub(super) fn spawn(
        mut connection: Connection<Socket, EncryptedStream>,
        open: OpenConnection,
    ) -> Self {
        let (is_in_use, is_dropped) = oneshot::channel();
        let task = tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = is_dropped => close(connection).await,
                ended = &mut connection => if let Err(error) = ended {
                    tracing::warn!(error = %to_store_error(&error), "a connection to PostgreSQL broke");
                },
            }
            drop(open);
        });
        Self { task, _is_in_use: is_in_use }
    }

    /// Closes the connection without waiting for the answers of the server.
    pub(super) fn abort(&self) {
        self.task.abort();
    }
}

/// Closes a connection whose client is dropped. It is closed after the answers to all statements if they arrive
/// within [`CLOSE_TIMEOUT`], and cut off otherwise.
pub(super) async fn close(connection: Connection<Socket, EncryptedStream>) {
    match timeout(CLOSE_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::debug!(error = %to_store_error(&error), "a connection broke while it was closed");
        }
        Err(_) => tracing::debug!("a connection was cut off, because its last statement goes on"),
    }
}
