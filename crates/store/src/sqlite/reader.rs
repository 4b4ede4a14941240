//! Readers: threads with a connection that cannot write. Each read sees one committed state and
//! never holds up the writer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tidegate_core::Result;

use super::Clock;
use super::cache::Cache;
use super::error::at;
use super::planted::Planted;
use super::queue::{Abandon, Command, Queue, Woken};
use super::schema;
use super::statements::{Query, Statements};
use super::tables::Transaction;

/// Readers never watch for other processes.
const NEVER: Duration = Duration::MAX;

/// What a reader thread works with.
pub(super) struct Reader {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) clock: Clock,
    pub(super) queue: Arc<Queue>,
    pub(super) planted: Planted,
}

impl Reader {
    /// Works until the queue is closed.
    pub(super) fn work(self) {
        let _abandon = Abandon(self.queue.clone());
        let mut statements = Statements::new(&self.connection, self.planted);
        while let Woken::Commands = self.queue.wait(NEVER) {
            for mut command in self.queue.take(1, 0) {
                if command.is_abandoned() {
                    continue;
                }
                let read = self.read(&mut statements, command.as_mut());
                if !self.connection.is_autocommit() {
                    // Nothing was written; an error shows with the next read.
                    if let Err(error) = statements.execute(Query::Rollback, []) {
                        tracing::debug!(%error, "a read transaction could not be ended");
                    }
                }
                command.reply(read.err().map(|error| at(&self.path, error)));
            }
        }
    }

    fn read(&self, statements: &mut Statements<'_>, command: &mut dyn Command) -> Result<()> {
        statements.execute(Query::BeginRead, [])?;
        let schema = schema::read(&self.connection)?;
        // The cache lives as long as the read: a transaction always agrees with itself.
        let mut cache = Cache::default();
        let mut tx = Transaction::new(statements, &mut cache, (self.clock)());
        tx.schema = schema;
        command.run(&mut tx)
    }
}
