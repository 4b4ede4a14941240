//! The one writer of a store: a thread that takes whatever commands wait, runs them in one
//! transaction and commits once for all of them.
//!
//! Between processes the file is locked with an advisory lock around every write transaction.
//! SQLite's own lock is not fair: whoever waits for it sleeps longer and longer while a busy
//! process takes it again and again. `busy_timeout` stays as the safety net against programs that
//! do not take the advisory lock.
//!
//! While somebody waits in `changed()` and no command comes, the thread asks every
//! [`WATCH_EVERY`] whether another process has committed. One question takes about 45 us of
//! processor, the thread's waking included, so waiting costs 0.2 % of one core. Whoever waits is
//! woken only if the number of `news` in the file has moved: most commits are heartbeats and ends
//! of tasks, which give nobody else anything to do.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tidegate_core::{Error, Millis, Result};
use tokio::sync::Notify;

use super::Clock;
use super::command_queue::{CloseQueueOnDrop, Command, CommandQueue, WakeReason};
use super::error::with_file_path;
use super::fault_injection::{FaultInjection, InjectedBug};
use super::file_lock::FileLock;
use super::row_cache::RowCache;
use super::schema::{self, SchemaStatus};
use super::statements::{Query, Statements};
use super::tables::Transaction;

/// Commands that share a commit.
const COMMANDS_PER_COMMIT_MAX: usize = 256;

/// Tasks the commands of one commit are about, unless a single one is about more.
const TASKS_PER_COMMIT_MAX: usize = 20_000;

/// How often another process's commits are looked for while somebody waits for them.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What the writer thread works with.
pub(super) struct WriterThread {
    pub(super) connection: Connection,
    pub(super) file_lock: FileLock,
    pub(super) path: PathBuf,
    pub(super) clock: Clock,
    pub(super) queue: Arc<CommandQueue>,
    pub(super) notify: Arc<Notify>,
    pub(super) fault_injection: FaultInjection,
}

impl WriterThread {
    /// Works until the queue is closed.
    pub(super) fn run(self) {
        let _abandon = CloseQueueOnDrop(self.queue.clone());
        let mut session = WriterState {
            statements: Statements::new(&self.connection, self.fault_injection),
            cache: RowCache::default(),
            data_version: None,
            polled_data_version: None,
            known_notifications: None,
            notified_due_at: None,
            schema: SchemaStatus::Missing,
            writer: &self,
        };
        loop {
            match self.queue.wait_for_commands(POLL_INTERVAL) {
                WakeReason::Closed => return,
                WakeReason::PollForChanges => session.poll_for_changes(),
                WakeReason::Commands => {
                    let mut commands =
                        self.queue.take_commands(COMMANDS_PER_COMMIT_MAX, TASKS_PER_COMMIT_MAX);
                    while !commands.is_empty() {
                        session.commit_commands(&mut commands);
                    }
                }
            }
        }
    }
}

struct WriterState<'c> {
    writer: &'c WriterThread,
    statements: Statements<'c>,
    cache: RowCache,
    /// What SQLite counts up when another connection has committed.
    data_version: Option<i64>,
    /// The same number when news were last looked for.
    polled_data_version: Option<i64>,
    /// How many news the file had by then, with those of this connection.
    known_notifications: Option<i64>,
    /// The last time that was told because something was due then.
    notified_due_at: Option<Millis>,
    schema: SchemaStatus,
}

/// A command that was run, with its error if it has one.
type FinishedCommand = (Box<dyn Command>, Option<Error>);

impl WriterState<'_> {
    /// Runs commands in one transaction, commits and replies. Commands that are left over when
    /// a transaction breaks off stay in the queue.
    fn commit_commands(&mut self, commands: &mut VecDeque<Box<dyn Command>>) {
        commands.retain(|command| !command.is_abandoned());
        if commands.is_empty() {
            return;
        }
        let is_late = self.writer.fault_injection.is_injected(InjectedBug::LockAfterRead);
        let turn = (!is_late).then(|| self.writer.file_lock.acquire());
        let mut done = Vec::with_capacity(commands.len());
        let mut wakes = false;
        let result = self.run_transaction(commands, &mut done, &mut wakes);
        if result.is_err() {
            self.roll_back_transaction();
        }
        drop(turn);
        if result.is_ok() && wakes {
            self.known_notifications = self.cache.counters_row.map(|(meta, _)| meta.notifications);
            self.notify_waiting_callers();
        }
        let path = &self.writer.path;
        let failed = result.err();
        if failed.is_some() && done.is_empty() {
            done.extend(commands.drain(..).map(|command| (command, None)));
        }
        for (command, own) in done {
            command.reply(own.or_else(|| failed.clone()).map(|error| with_file_path(path, error)));
        }
    }

    fn run_transaction(
        &mut self,
        commands: &mut VecDeque<Box<dyn Command>>,
        done: &mut Vec<FinishedCommand>,
        has_new_work: &mut bool,
    ) -> Result<()> {
        self.statements.execute(Query::BeginWrite, [])?;
        self.discard_stale_cache()?;
        self.cache.begin_transaction();
        let now = (self.writer.clock)();
        let together = commands.len() > 1;
        while let Some(mut command) = commands.pop_front() {
            // The caller may have given up while this thread waited for its turn.
            if command.is_abandoned() {
                continue;
            }
            let ran = self.run_command(command.as_mut(), now, together, has_new_work);
            let broken = ran.is_err() && (!together || self.writer.connection.is_autocommit());
            done.push((command, ran.clone().err()));
            if broken {
                return ran;
            }
        }
        self.statements.execute(Query::Commit, []).map(drop)
    }

    /// Runs one command. Several in one transaction each have a savepoint, so that a failure
    /// undoes that command alone.
    fn run_command(
        &mut self,
        command: &mut dyn Command,
        now: i64,
        needs_savepoint: bool,
        wakes: &mut bool,
    ) -> Result<()> {
        if needs_savepoint {
            self.statements.execute(Query::Savepoint, [])?;
        }
        let mut tx = Transaction::new(&mut self.statements, &mut self.cache, now);
        tx.schema_status = self.schema;
        let ran = command.run(&mut tx).and_then(|()| tx.write_pending_rows());
        *wakes |= tx.has_new_work;
        self.schema = tx.schema_status;
        if ran.is_err() {
            self.cache.clear();
        }
        if needs_savepoint && !self.writer.connection.is_autocommit() {
            if ran.is_err() {
                self.statements.execute(Query::RollbackToSavepoint, [])?;
            }
            self.statements.execute(Query::ReleaseSavepoint, [])?;
        }
        ran
    }

    /// Forgets what another process may have changed.
    fn discard_stale_cache(&mut self) -> Result<()> {
        let version = self.read_data_version()?;
        if self.data_version != version {
            if !self.writer.fault_injection.is_injected(InjectedBug::StaleCache) {
                self.cache.clear();
            }
            self.schema = schema::read_schema_status(&self.writer.connection)?;
            self.data_version = version;
            self.notify_if_new_work(version);
        }
        Ok(())
    }

    /// Looks whether something has become due or another process has committed. An error shows with
    /// the next command, which also finds that what is remembered is old.
    fn poll_for_changes(&mut self) {
        let now = (self.writer.clock)();
        let due = self.cache.next_due_at().filter(|at| *at <= now);
        if due.is_some() && self.notified_due_at != due {
            self.notified_due_at = due;
            self.notify_waiting_callers();
        }
        match self.read_data_version() {
            Ok(version) => self.notify_if_new_work(version),
            Err(error) => tracing::debug!(%error, "the version of the data could not be read"),
        }
    }

    /// Tells who waits if another process has made something claimable.
    fn notify_if_new_work(&mut self, version: Option<i64>) {
        if self.polled_data_version == version {
            return;
        }
        self.polled_data_version = version;
        let news = self.statements.query_first(Query::NotificationCount, [], |row| row.get(0));
        // Where there is no such number yet, it may be anything.
        let news = news.unwrap_or_else(|error| {
            tracing::debug!(%error, "the number of notifications could not be read");
            None
        });
        if news.is_none() || self.known_notifications != news {
            self.notify_waiting_callers();
        }
        self.known_notifications = news;
    }

    fn read_data_version(&mut self) -> Result<Option<i64>> {
        self.statements.query_first(Query::DataVersion, [], |row| row.get(0))
    }

    fn roll_back_transaction(&mut self) {
        self.cache.clear();
        self.data_version = None;
        if !self.writer.connection.is_autocommit() {
            // Where this fails too, the next BEGIN fails and its caller gets the error.
            if let Err(error) = self.statements.execute(Query::Rollback, []) {
                tracing::warn!(%error, "a transaction could not be rolled back");
            }
        }
    }

    /// Wakes everybody in `changed()`. Nobody there: the next to come is not kept waiting,
    /// since it may have looked before this commit.
    fn notify_waiting_callers(&self) {
        self.writer.notify.notify_waiters();
        self.writer.notify.notify_one();
    }
}
