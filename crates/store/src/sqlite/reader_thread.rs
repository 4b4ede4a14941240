//! Readers: threads with a connection that cannot write. Each read sees one committed state and
//! never holds up the writer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tidegate_core::Result;

use super::Clock;
use super::command_queue::{CloseQueueOnDrop, Command, CommandQueue, WakeReason};
use super::error::with_file_path;
use super::fault_injection::FaultInjection;
use super::row_cache::RowCache;
use super::schema;
use super::statements::{Query, Statements};
use super::tables::Transaction;

/// Readers never watch for other processes.
const POLL_INTERVAL: Duration = Duration::MAX;

/// What a reader thread works with.
pub(super) struct ReaderThread {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) clock: Clock,
    pub(super) queue: Arc<CommandQueue>,
    pub(super) fault_injection: FaultInjection,
}

impl ReaderThread {
    /// Works until the queue is closed.
    pub(super) fn run(self) {
        let _abandon = CloseQueueOnDrop(self.queue.clone());
        let mut statements = Statements::new(&self.connection, self.fault_injection);
        while let WakeReason::Commands = self.queue.wait_for_commands(POLL_INTERVAL) {
            for mut command in self.queue.take_commands(1, 0) {
                if command.is_abandoned() {
                    continue;
                }
                let read = self.run_command(&mut statements, command.as_mut());
                if !self.connection.is_autocommit() {
                    // Nothing was written; an error shows with the next read.
                    if let Err(error) = statements.execute(Query::Rollback, []) {
                        tracing::debug!(%error, "a read transaction could not be ended");
                    }
                }
                command.reply(read.err().map(|error| with_file_path(&self.path, error)));
            }
        }
    }

    fn run_command(
        &self,
        statements: &mut Statements<'_>,
        command: &mut dyn Command,
    ) -> Result<()> {
        statements.execute(Query::BeginRead, [])?;
        let schema = schema::read_schema_status(&self.connection)?;
        // The cache lives as long as the read: a transaction always agrees with itself.
        let mut cache = RowCache::default();
        let mut tx = Transaction::new(statements, &mut cache, (self.clock)());
        tx.schema_status = schema;
        command.run(&mut tx)
    }
}
