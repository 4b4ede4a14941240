//! Finds a connection pooler that gives a client another server session for each transaction, such as PgBouncer
//! in transaction mode. The store needs one session per connection: it prepares statements, changes
//! settings and listens for notifications.
//!
//! A direct connection gets a server process of its own, which is younger than the connection. Where the process
//! is older, a pooler gave it to this client, and the two connections of the check have to keep their
//! processes over several statements: each has its own, and no other client uses it in between. PgBouncer
//! gives the process that was released last, so the second connection gets that of the first, unless
//! another client took it in between; its statement is then seen in `pg_stat_get_activity`.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Error, ErrorKind, Result};
use tokio_postgres::SimpleQueryMessage;

use super::{Connector, PooledClient, now};
use crate::postgres::error::translate;

/// Which of the two connections sends a statement next. Both orders occur, and both connections send twice
/// in a row, so that a pooler which takes turns is found too.
const TURNS: [usize; 12] = [0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0];

const REASON: &str = "the connection pooler gives server sessions to other clients between two \
    transactions (pool_mode = transaction or statement); tidegate needs a session per connection, because \
    it uses prepared statements, session settings and LISTEN: set pool_mode = session for this \
    database, or connect to PostgreSQL directly";

impl Connector {
    /// Opens two connections without settings, and fails if a pooler shares server sessions between them
    /// and other clients. The second connection is missing if the server does not allow it: then
    /// nothing can be found out.
    pub(in crate::postgres) async fn open_checked(
        self: &Arc<Self>,
    ) -> Result<(PooledClient, Option<PooledClient>)> {
        let mut first = Probe::new(self.open_pooled("").await?);
        first.send(None, self.settings.connect_timeout).await?;
        let mut second = match self.open_pooled("").await {
            Ok(client) => Probe::new(client),
            Err(error) => {
                tracing::warn!("the mode of a connection pooler was not checked: {error}");
                return Ok((first.client, None));
            }
        };
        second.send(None, self.settings.connect_timeout).await?;
        let mut probes = [first, second];
        let is_direct = probes.iter().all(|probe| !probe.is_older_than_connection);
        let mut turns = if is_direct { [].iter() } else { TURNS.iter() };
        let mut is_shared = probes[0].pid == probes[1].pid;
        while let Some(turn) = turns.next().filter(|_| !is_shared) {
            let [first, second] = &mut probes;
            let (probe, other) = if *turn == 0 { (first, second) } else { (second, first) };
            let before = probe.pid;
            let other_text = probe.send(Some(other.pid), self.settings.connect_timeout).await?;
            let is_foreign = |text: String| text != other.text;
            is_shared =
                probe.pid != before || probe.pid == other.pid || other_text.is_some_and(is_foreign);
        }
        if is_shared {
            return Err(Error::invalid(REASON));
        }
        let [first, second] = probes;
        Ok((first.client, Some(second.client)))
    }
}

/// A connection of the check.
struct Probe {
    client: PooledClient,
    /// The process that ran its last statement.
    pid: i64,
    /// Its last statement.
    text: String,
    is_older_than_connection: bool,
}

impl Probe {
    fn new(client: PooledClient) -> Self {
        Self { client, pid: 0, text: String::new(), is_older_than_connection: false }
    }

    /// Sends a statement that no other client sends. Returns the last statement of another process, if this
    /// user may see it.
    async fn send(&mut self, other: Option<i64>, limit: Duration) -> Result<Option<String>> {
        let mark = RandomState::new().build_hasher().finish();
        let other = other.map_or("NULL".to_owned(), |pid| pid.to_string());
        self.text = format!(
            "/* tidegate {mark:x} */ SELECT pid, \
             trunc(extract(epoch FROM clock_timestamp() - backend_start) * 1000)::bigint, \
             (SELECT query FROM pg_stat_get_activity({other}) AS other \
              WHERE {other} IS NOT NULL AND other.state = 'idle' AND query NOT LIKE '<%') \
             FROM pg_stat_get_activity(pg_backend_pid())"
        );
        let answer = tokio::time::timeout(limit, self.client.simple_query(&self.text)).await;
        let answer = answer.map_err(|_| {
            let text = format!("no answer to the first statement within {} s", limit.as_secs_f64());
            Error::new(ErrorKind::Unavailable, text)
        })?;
        let connected_ms = (now() - self.client.began_at).as_millis();
        let answer = answer.map_err(|error| translate(&error))?;
        let row = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let number = |column| row.and_then(|row| row.get(column)?.parse::<i64>().ok());
        self.pid = number(0).unwrap_or_default();
        let age_ms = u128::try_from(number(1).unwrap_or_default()).unwrap_or_default();
        self.is_older_than_connection = age_ms > connected_ms;
        Ok(row.and_then(|row| row.get(2)).map(str::to_owned))
    }
}
