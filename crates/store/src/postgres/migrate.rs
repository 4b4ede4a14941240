//! Brings the schema up to date, beside programs that work.
//!
//! A migration is *online* if programs that know the version before can work on beside it: its text
//! begins with [`ONLINE`]. With every version the table of migrations says how old a program may be. One
//! that meets a newer schema goes on if it is not too old, and a migration that live workers are
//! too old for is refused.
//!
//! A statement that waits for the lock of a table keeps everybody waiting who comes after it. So
//! a migration waits for [a moment](PATIENCE) and then tries again, for as long as it takes others
//! to end their transactions.

use std::time::Duration;

use deadpool_postgres::Transaction;
use tidegate_core::{Error, ErrorKind, Millis, Result};
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;

use super::connection::PooledConnection;
use super::error::TxError;
use super::notifications::sleep;
use super::{PostgresInner, call};

/// Every migration, in order. One that was released is never changed.
const MIGRATIONS: [Migration<'static>; 1] =
    [("0001_initial", include_str!("migrations/0001_initial.sql"))];

/// How the text of a migration begins that programs of the version before can bear.
const ONLINE_PREFIX: &str = "-- Online:";

const MIGRATE_EXISTS: &str = include_str!("queries/migrate_exists.sql");
const MIGRATE_LOCK: &str = include_str!("queries/migrate_lock.sql");
const MIGRATE_LOCK_TIMEOUT: &str = include_str!("queries/migrate_lock_timeout.sql");
const MIGRATE_PREPARE: &str = include_str!("queries/migrate_prepare.sql");
const MIGRATE_APPLIED: &str = include_str!("queries/migrate_applied.sql");
const MIGRATE_OUTDATED_WORKERS: &str = include_str!("queries/migrate_outdated_workers.sql");
const MIGRATE_RECORD: &str = include_str!("queries/migrate_record.sql");

/// Between two tries of a migration that others are in the way of, and how many there are at most:
/// five minutes.
const RETRY_PAUSE: Duration = Duration::from_millis(400);
const TRIES_MAX: u32 = 600;

/// Workers that a refusal names.
const NAMED_WORKERS_MAX: usize = 5;

/// A name and a text.
type Migration<'a> = (&'a str, &'a str);

/// The version of the schema that this program knows.
pub(super) const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// Applies what is missing, and `more` after it.
pub(super) async fn migrate(store: &PostgresInner, more: &[Migration<'_>]) -> Result<()> {
    let all: Vec<Migration<'_>> = MIGRATIONS.iter().chain(more).copied().collect();
    let mut tries = 0;
    loop {
        let mut client = store.request_connection().await?;
        let began = store.meter.elapsed_ns();
        let step = apply_next(store, &mut client, &all);
        let outcome = call::within_deadline(&store.options.timeouts, step).await;
        store.return_connection(client, began, outcome.as_ref().err());
        match outcome {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(fault) if is_lock_conflict(&fault) && tries < TRIES_MAX => {
                tries += 1;
                sleep(RETRY_PAUSE).await;
            }
            Err(fault) => return Err(with_advice(fault)),
        }
    }
}

/// Applies the next migration in a transaction of its own; true where there is none.
async fn apply_next(
    store: &PostgresInner,
    client: &mut PooledConnection,
    all: &[Migration<'_>],
) -> Result<bool, TxError> {
    // In a transaction of its own: the locks of its reads are released before the wait for other processes.
    let tx = begin(client).await?;
    if is_up_to_date(&*tx, all).await? {
        return Ok(true);
    }
    tx.rollback().await?;
    let tx = begin(client).await?;
    // Several processes may start at once: one migrates, the others wait and find it done.
    tx.query(MIGRATE_LOCK, &[]).await?;
    if is_up_to_date(&*tx, all).await? {
        return Ok(true);
    }
    tx.batch_execute(MIGRATE_LOCK_TIMEOUT).await?;
    tx.batch_execute(MIGRATE_PREPARE).await?;
    let applied = read_applied(&*tx, all).await?;
    let (name, text) = all[applied.count];
    let version = applied.count as i64 + 1;
    let oldest =
        if text.starts_with(ONLINE_PREFIX) { applied.oldest_program_version } else { version };
    if applied.count > 0 && oldest == version {
        refuse_old_workers(&*tx, name, oldest, store.options.now_override()).await?;
    }
    tx.batch_execute(text).await?;
    tx.execute(MIGRATE_RECORD, &[&version, &name, &text, &oldest]).await?;
    tx.commit().await?;
    Ok(false)
}

/// Begins a transaction whose statements may take as long as a migration.
async fn begin(client: &mut PooledConnection) -> Result<Transaction<'_>, TxError> {
    let tx = client.transaction().await?;
    if let Some(timeout) = call::maintenance_statement_timeout_ms() {
        tx.batch_execute(&format!("SET LOCAL statement_timeout = {timeout}")).await?;
    }
    Ok(tx)
}

/// Who may not change the schema can still find that there is nothing to change.
async fn is_up_to_date(
    client: &impl GenericClient,
    all: &[Migration<'_>],
) -> Result<bool, TxError> {
    let exists: bool = client.query_one(MIGRATE_EXISTS, &[]).await?.get("exists");
    Ok(exists && read_applied(client, all).await?.count == all.len())
}

/// What was applied.
struct AppliedMigrations {
    /// How many migrations of those that are known.
    count: usize,
    /// The version that a program must know to work with it.
    oldest_program_version: i64,
}

/// What was applied is what this program knows, or newer and bears it.
async fn read_applied(
    client: &impl GenericClient,
    all: &[Migration<'_>],
) -> Result<AppliedMigrations, TxError> {
    let texts: Vec<&str> = all.iter().map(|(_, text)| *text).collect();
    let mut applied = AppliedMigrations { count: 0, oldest_program_version: 0 };
    let mut newest = 0;
    for row in client.query(MIGRATE_APPLIED, &[&texts]).await? {
        newest = row.get("version");
        applied.oldest_program_version = row.get("min_program_version");
        let known = usize::try_from(newest - 1).ok().and_then(|index| all.get(index));
        if let Some((name, _)) = known {
            if !row.get::<_, bool>("is_same") {
                let is_first = newest == 1;
                return Err(TxError::Rule(if is_first {
                    earlier_build()
                } else {
                    changed_migration_error(name)
                }));
            }
            applied.count += 1;
        }
    }
    if applied.oldest_program_version > all.len() as i64 {
        return Err(TxError::Rule(newer_schema_error(newest, all.len())));
    }
    Ok(applied)
}

async fn refuse_old_workers(
    client: &impl GenericClient,
    name: &str,
    oldest: i64,
    now: Option<Millis>,
) -> Result<(), TxError> {
    let old = client.query(MIGRATE_OUTDATED_WORKERS, &[&oldest, &now]).await?;
    if old.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = old.iter().take(NAMED_WORKERS_MAX).map(|row| row.get("id")).collect();
    let more = old.len().saturating_sub(NAMED_WORKERS_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(TxError::Rule(Error::new(
        ErrorKind::Incompatible,
        format!(
            "migration {name} cannot be applied while workers of an older version live: {}{more}; \
             end them and migrate again",
            names.join(", ")
        ),
    )))
}

/// Whether others hold what a migration has to lock.
fn is_lock_conflict(fault: &TxError) -> bool {
    let busy = [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED];
    let TxError::Server(error) = fault else { return false };
    error.code().is_some_and(|code| busy.contains(code))
}

fn with_advice(error: TxError) -> Error {
    let is_locked = is_lock_conflict(&error);
    let error = Error::from(error);
    let advice = match error.kind() {
        ErrorKind::Refused => {
            "this role may not read the schema, or it is not of this version and the role may not \
             change it: run `tidegate migrate` as its owner, and submit by `tidegate.enqueue` in SQL \
             where a role may do no more"
        }
        _ if is_locked => {
            "a long transaction of somebody else is in the way of the migration: end it, or \
             migrate again later"
        }
        _ => return error,
    };
    Error::new(error.kind(), format!("{error}; {advice}"))
}

fn newer_schema_error(version: i64, known: usize) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "the database has version {version} of the tidegate schema and this program knows \
             {known}; use a newer tidegate"
        ),
    )
}

/// The first migration has another text: builds before this schema had other migrations.
fn earlier_build() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "the schema tidegate of the database was made by an earlier build of tidegate; create a new \
         database, or drop the schema tidegate",
    )
}

fn changed_migration_error(name: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "migration {name} was applied with another text than this program has; the database \
             was made by another build"
        ),
    )
}
