//! The raw loop on SQLite: one writer, and one transaction that completes the tasks of the last
//! batch and claims the next.
//!
//! Three shapes of the claim were tried (200,000 tasks waiting, 2 cores, median of 3, tasks/s):
//!
//! | claim | FULL 1 | FULL 10 | FULL 100 | FULL 500 | NORMAL 1 | NORMAL 10 | NORMAL 100 | NORMAL 500 |
//! |---|---|---|---|---|---|---|---|---|
//! | select, then update each by id | 6,894 | 49,912 | 235,027 | 319,059 | 56,215 | 196,825 | 350,554 | 373,244 |
//! | update where id in (select) returning | 6,562 | 53,079 | 203,565 | 308,696 | 45,552 | 176,232 | 309,590 | 367,963 |
//! | update from (select) returning, checkpoint at 4,000 | 5,569 | 40,141 | 186,098 | 276,030 | 30,121 | 166,706 | 322,194 | 348,281 |
//!
//! The first is kept: `returning` fills a table of its own, and costs most where batches are small.
//! A checkpoint every 4,000 pages instead of SQLite's 1,000 was slower for every small batch.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Result, Row, Statement, params};

use super::{DUE, Outcome, PAYLOAD, Task};

const SCHEMA: &str = "
    create table if not exists task (
        id integer primary key,
        queue text not null,
        kind text not null,
        state integer not null,
        attempts integer not null,
        priority integer not null,
        run_at integer not null,
        locked_at integer,
        payload blob not null
    );
    create index if not exists ready on task (queue, priority, run_at) where state = 0;
";

const INSERT: &str = "
    insert into task (queue, kind, state, attempts, priority, run_at, payload)
    values ('default', 'noop', 0, 0, 0, ?1, ?2)";

const SELECT: &str = "
    select id, kind, attempts + 1, payload from task
    where state = 0 and queue = 'default' and run_at <= ?1
    order by priority, run_at, id limit ?2";

const CLAIM: &str = "update task set state = 1, attempts = ?2, locked_at = ?3 where id = ?1";

const COMPLETE: &str = "delete from task where id = ?1 and state = 1";

const RETRY: &str = "update task set state = 0, locked_at = null where id = ?1 and state = 1";

/// When a commit is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synchronous {
    /// At every commit, against the loss of power too.
    Full,
    /// At every checkpoint; a loss of power may take the last commits.
    Normal,
}

impl Synchronous {
    /// The name SQLite gives it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "FULL",
            Self::Normal => "NORMAL",
        }
    }
}

/// A database file with one table of tasks.
#[derive(Debug)]
pub struct RawSqlite {
    connection: Connection,
}

impl RawSqlite {
    /// Opens the database at `path`, making it if there is none.
    pub fn open(path: impl AsRef<Path>, synchronous: Synchronous) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", synchronous.name())?;
        connection.pragma_update(None, "cache_size", -65_536)?;
        connection.pragma_update(None, "mmap_size", 268_435_456)?;
        connection.pragma_update(None, "temp_store", "memory")?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        connection.execute_batch(SCHEMA)?;
        Ok(Self { connection })
    }

    /// Inserts `count` tasks in one transaction.
    pub fn insert(&self, count: u64) -> Result<()> {
        let transaction = self.connection.unchecked_transaction()?;
        let mut insert = transaction.prepare(INSERT)?;
        for _ in 0..count {
            insert.execute(params![DUE, PAYLOAD])?;
        }
        drop(insert);
        transaction.commit()?;
        // So that a drain does not depend on the log the insert left: with it, most batch sizes were
        // slower, by up to a third.
        self.connection.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))
    }

    /// Inserts `count` tasks, `batch` in one transaction.
    pub fn insert_batches(&self, batch: u32, count: u64) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let part = left.min(u64::from(batch));
            let transaction = self.connection.unchecked_transaction()?;
            let mut insert = transaction.prepare_cached(INSERT)?;
            for _ in 0..part {
                insert.execute(params![DUE, PAYLOAD])?;
            }
            drop(insert);
            transaction.commit()?;
            left -= part;
        }
        Ok(())
    }

    /// Claims and completes all tasks, `batch` at a time; gives how many were completed.
    pub fn drain(&self, batch: u32) -> Result<u64> {
        self.drain_with(batch, |_| Outcome::Complete)
    }

    /// The same with a handler that says how each task ends.
    pub fn drain_with(&self, batch: u32, mut handle: impl FnMut(&Task) -> Outcome) -> Result<u64> {
        let mut turn = BatchStatements::new(&self.connection)?;
        let mut ended: Vec<(i64, Outcome)> = Vec::new();
        let mut completed = 0;
        loop {
            let claimed = turn.run(&ended, batch)?;
            completed +=
                ended.iter().filter(|(_, outcome)| *outcome == Outcome::Complete).count() as u64;
            if claimed.is_empty() {
                return Ok(completed);
            }
            ended.clear();
            ended.extend(claimed.iter().map(|task| (task.id, handle(task))));
        }
    }

    /// How many tasks there are, in whatever state.
    pub fn count(&self) -> Result<i64> {
        self.connection.query_row("select count(*) from task", [], |row| row.get(0))
    }
}

/// The statements of one transaction, prepared once.
struct BatchStatements<'a> {
    begin: Statement<'a>,
    select: Statement<'a>,
    claim: Statement<'a>,
    complete: Statement<'a>,
    retry: Statement<'a>,
    commit: Statement<'a>,
}

impl<'a> BatchStatements<'a> {
    fn new(connection: &'a Connection) -> Result<Self> {
        Ok(Self {
            begin: connection.prepare("begin immediate")?,
            select: connection.prepare(SELECT)?,
            claim: connection.prepare(CLAIM)?,
            complete: connection.prepare(COMPLETE)?,
            retry: connection.prepare(RETRY)?,
            commit: connection.prepare("commit")?,
        })
    }

    fn run(&mut self, ended: &[(i64, Outcome)], batch: u32) -> Result<Vec<Task>> {
        self.begin.execute([])?;
        for (id, outcome) in ended {
            self.finish(*id, *outcome)?;
        }
        let claimed = self.claim(batch)?;
        self.commit.execute([])?;
        Ok(claimed)
    }

    fn finish(&mut self, id: i64, outcome: Outcome) -> Result<()> {
        let statement = match outcome {
            Outcome::Complete => &mut self.complete,
            Outcome::Retry => &mut self.retry,
        };
        // One writer holds all of them, so each must still be there.
        let changed = statement.execute([id])?;
        debug_assert_eq!(changed, 1);
        Ok(())
    }

    fn claim(&mut self, batch: u32) -> Result<Vec<Task>> {
        let mut claimed = Vec::with_capacity(batch as usize);
        for task in self.select.query_map(params![DUE, batch], task)? {
            claimed.push(task?);
        }
        for task in &claimed {
            self.claim.execute(params![task.id, task.attempts, DUE])?;
        }
        Ok(claimed)
    }
}

fn task(row: &Row<'_>) -> Result<Task> {
    Ok(Task { id: row.get(0)?, kind: row.get(1)?, attempts: row.get(2)?, payload: row.get(3)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_loop_completes_each_task_once_and_retries() {
        let folder = tempfile::tempdir().unwrap();
        let raw = RawSqlite::open(folder.path().join("raw.db"), Synchronous::Normal).unwrap();
        raw.insert(1_000).unwrap();
        let mut handled = 0;
        let handle = |task: &Task| {
            handled += 1;
            if task.id % 10 == 0 && task.attempts == 1 { Outcome::Retry } else { Outcome::Complete }
        };
        assert_eq!(raw.drain_with(7, handle).unwrap(), 1_000);
        assert_eq!(handled, 1_100);
        assert_eq!(raw.count().unwrap(), 0);
    }
}
