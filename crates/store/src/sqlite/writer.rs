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
use super::cache::Cache;
use super::error::at;
use super::lock::Lock;
use super::planted::{Bug, Planted};
use super::queue::{Abandon, Command, Queue, Woken};
use super::schema::{self, Schema};
use super::statements::{Query, Statements};
use super::tables::Transaction;

/// Commands that share a commit.
const COMMANDS_MAX: usize = 256;

/// Tasks the commands of one commit are about, unless a single one is about more.
const TASKS_MAX: usize = 20_000;

/// How often another process's commits are looked for while somebody waits for them.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// What the writer thread works with.
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) lock: Lock,
    pub(super) path: PathBuf,
    pub(super) clock: Clock,
    pub(super) queue: Arc<Queue>,
    pub(super) changed: Arc<Notify>,
    pub(super) planted: Planted,
}

impl Writer {
    /// Works until the queue is closed.
    pub(super) fn work(self) {
        let _abandon = Abandon(self.queue.clone());
        let mut session = Session {
            statements: Statements::new(&self.connection, self.planted),
            cache: Cache::default(),
            data_version: None,
            watched: None,
            news: None,
            told_due: None,
            schema: Schema::Missing,
            writer: &self,
        };
        loop {
            match self.queue.wait(WATCH_EVERY) {
                Woken::Closed => return,
                Woken::Watch => session.watch(),
                Woken::Commands => {
                    let mut commands = self.queue.take(COMMANDS_MAX, TASKS_MAX);
                    while !commands.is_empty() {
                        session.commit_some(&mut commands);
                    }
                }
            }
        }
    }
}

struct Session<'c> {
    writer: &'c Writer,
    statements: Statements<'c>,
    cache: Cache,
    /// What SQLite counts up when another connection has committed.
    data_version: Option<i64>,
    /// The same number when news were last looked for.
    watched: Option<i64>,
    /// How many news the file had by then, with those of this connection.
    news: Option<i64>,
    /// The last time that was told because something was due then.
    told_due: Option<Millis>,
    schema: Schema,
}

/// A command that was run, with its error if it has one.
type Done = (Box<dyn Command>, Option<Error>);

impl Session<'_> {
    /// Runs commands in one transaction, commits and replies. Commands that are left over when
    /// a transaction breaks off stay in the queue.
    fn commit_some(&mut self, commands: &mut VecDeque<Box<dyn Command>>) {
        commands.retain(|command| !command.is_abandoned());
        if commands.is_empty() {
            return;
        }
        let is_late = self.writer.planted.is(Bug::LateLock);
        let turn = (!is_late).then(|| self.writer.lock.turn());
        let mut done = Vec::with_capacity(commands.len());
        let mut wakes = false;
        let result = self.transact(commands, &mut done, &mut wakes);
        if result.is_err() {
            self.roll_back();
        }
        drop(turn);
        if result.is_ok() && wakes {
            self.news = self.cache.meta.map(|(meta, _)| meta.news);
            self.tell();
        }
        let path = &self.writer.path;
        let failed = result.err();
        if failed.is_some() && done.is_empty() {
            done.extend(commands.drain(..).map(|command| (command, None)));
        }
        for (command, own) in done {
            command.reply(own.or_else(|| failed.clone()).map(|error| at(path, error)));
        }
    }

    fn transact(
        &mut self,
        commands: &mut VecDeque<Box<dyn Command>>,
        done: &mut Vec<Done>,
        wakes: &mut bool,
    ) -> Result<()> {
        self.statements.execute(Query::BeginWrite, [])?;
        self.refresh()?;
        self.cache.begin();
        let now = (self.writer.clock)();
        let together = commands.len() > 1;
        while let Some(mut command) = commands.pop_front() {
            // The caller may have given up while this thread waited for its turn.
            if command.is_abandoned() {
                continue;
            }
            let ran = self.run(command.as_mut(), now, together, wakes);
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
    fn run(
        &mut self,
        command: &mut dyn Command,
        now: i64,
        together: bool,
        wakes: &mut bool,
    ) -> Result<()> {
        if together {
            self.statements.execute(Query::Savepoint, [])?;
        }
        let mut tx = Transaction::new(&mut self.statements, &mut self.cache, now);
        tx.schema = self.schema;
        let ran = command.run(&mut tx).and_then(|()| tx.flush());
        *wakes |= tx.wakes;
        self.schema = tx.schema;
        if ran.is_err() {
            self.cache.clear();
        }
        if together && !self.writer.connection.is_autocommit() {
            if ran.is_err() {
                self.statements.execute(Query::RollbackToSavepoint, [])?;
            }
            self.statements.execute(Query::ReleaseSavepoint, [])?;
        }
        ran
    }

    /// Forgets what another process may have changed.
    fn refresh(&mut self) -> Result<()> {
        let version = self.read_data_version()?;
        if self.data_version != version {
            if !self.writer.planted.is(Bug::StaleCache) {
                self.cache.clear();
            }
            self.schema = schema::read(&self.writer.connection)?;
            self.data_version = version;
            self.hear(version);
        }
        Ok(())
    }

    /// Looks whether something has become due or another process has committed. An error shows with
    /// the next command, which also finds that what is remembered is old.
    fn watch(&mut self) {
        let now = (self.writer.clock)();
        let due = self.cache.next_due().filter(|at| *at <= now);
        if due.is_some() && self.told_due != due {
            self.told_due = due;
            self.tell();
        }
        match self.read_data_version() {
            Ok(version) => self.hear(version),
            Err(error) => tracing::debug!(%error, "the version of the data could not be read"),
        }
    }

    /// Tells who waits if another process has made something claimable.
    fn hear(&mut self, version: Option<i64>) {
        if self.watched == version {
            return;
        }
        self.watched = version;
        let news = self.statements.first(Query::NotificationCount, [], |row| row.get(0));
        // Where there is no such number yet, it may be anything.
        let news = news.unwrap_or_else(|error| {
            tracing::debug!(%error, "the number of notifications could not be read");
            None
        });
        if news.is_none() || self.news != news {
            self.tell();
        }
        self.news = news;
    }

    fn read_data_version(&mut self) -> Result<Option<i64>> {
        self.statements.first(Query::DataVersion, [], |row| row.get(0))
    }

    fn roll_back(&mut self) {
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
    fn tell(&self) {
        self.writer.changed.notify_waiters();
        self.writer.changed.notify_one();
    }
}
