//! Finds a connection pooler that gives a client another server session for each transaction, such as PgBouncer
//! in transaction mode. The store needs one session per connection: it prepares statements, changes
//! settings and listens for notifications.
//!
//! Without a pooler, each of the two connections keeps its own server process, and no other client uses it.
//! PgBouncer assigns the process released last: without other load both connections get the same process;
//! under load another client uses it in between, and its statement appears in `pg_stat_get_activity`. The age
//! of a process proves nothing, because a pooler starts a process when a client needs one.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Error, ErrorKind, Result};
use tokio_postgres::SimpleQueryMessage;

use super::{Connector, PooledClient};
use crate::postgres::error::to_store_error;

/// Which of the two connections sends a statement next. Both orders occur, and both connections send twice
/// in a row, so that a round-robin pooler is found too.
const SEND_ORDER: [usize; 12] = [0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0];

const SHARED_SESSION_ERROR: &str = "the connection pooler gives server sessions to other clients between two \
    transactions (pool_mode = transaction or statement); tidegate needs a session per connection, because \
    it uses prepared statements, session settings and LISTEN: set pool_mode = session for this \
    database, or connect to PostgreSQL directly";

impl Connector {
    /// Opens two connections without settings to one server, and fails if a pooler shares server sessions between them
    /// and other clients. If the second connection is refused, the check fails: without it a pooler could
    /// give the settings of a session to other clients.
    pub(in crate::postgres) async fn open_checked(
        self: &Arc<Self>,
    ) -> Result<(PooledClient, PooledClient)> {
        let (first, candidate) = self.open_pooled_at("", None).await?;
        let mut first = PoolerProbe::new(first);
        first.send_marked_statement(None, self.settings.connect_timeout).await?;
        // Another server has process ids of its own, which may be equal, and other statements.
        let (second, _) = self.open_pooled_at("", Some(candidate)).await?;
        let mut second = PoolerProbe::new(second);
        second.send_marked_statement(None, self.settings.connect_timeout).await?;
        let mut probes = [first, second];
        let mut turns = SEND_ORDER.iter();
        let mut is_shared = probes[0].pid == probes[1].pid;
        while let Some(turn) = turns.next().filter(|_| !is_shared) {
            let [first, second] = &mut probes;
            let (probe, other) = if *turn == 0 { (first, second) } else { (second, first) };
            let before = probe.pid;
            let other_text =
                probe.send_marked_statement(Some(other.pid), self.settings.connect_timeout).await?;
            // The server cuts long texts off.
            let is_foreign = |text: String| !text.starts_with(&other.marker);
            is_shared =
                probe.pid != before || probe.pid == other.pid || other_text.is_some_and(is_foreign);
        }
        if is_shared {
            return Err(Error::invalid(SHARED_SESSION_ERROR));
        }
        let [first, second] = probes;
        Ok((first.client, second.client))
    }
}

/// A connection of the check.
struct PoolerProbe {
    client: PooledClient,
    /// The process that ran its last statement.
    pid: i64,
    /// How its last statement begins.
    marker: String,
}

impl PoolerProbe {
    fn new(client: PooledClient) -> Self {
        Self { client, pid: 0, marker: String::new() }
    }

    /// Sends a statement that no other client sends. Returns the last statement of the process `other`, if it
    /// is idle and this user may see its statement.
    async fn send_marked_statement(
        &mut self,
        other: Option<i64>,
        limit: Duration,
    ) -> Result<Option<String>> {
        let mark = RandomState::new().build_hasher().finish();
        let other = other.map_or("NULL".to_owned(), |pid| pid.to_string());
        self.marker = format!("/* tidegate {mark:x} */");
        // The server returns a text such as `<insufficient privilege>` in place of a statement that this user
        // may not see.
        let text = format!(
            "{} SELECT pg_backend_pid(), \
             (SELECT query FROM pg_stat_get_activity({other}) AS other \
              WHERE {other} IS NOT NULL AND other.state = 'idle' AND query NOT LIKE '<%')",
            self.marker
        );
        let answer = tokio::time::timeout(limit, self.client.simple_query(&text)).await;
        let answer = answer.map_err(|_| {
            let text = format!("no answer to the first statement within {} s", limit.as_secs_f64());
            Error::new(ErrorKind::Unavailable, text)
        })?;
        let answer = answer.map_err(|error| to_store_error(&error))?;
        let row = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let pid = row.and_then(|row| row.get(0)?.parse().ok());
        self.pid = pid.unwrap_or_default();
        Ok(row.and_then(|row| row.get(1)).map(str::to_owned))
    }
}
