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

use super::connection::Object;
use super::error::Fault;
use super::listen::pause;
use super::{Inner, call};

/// Every migration, in order. One that was released is never changed.
const MIGRATIONS: [Migration<'static>; 1] =
    [("0001_initial", include_str!("migrations/0001_initial.sql"))];

/// How the text of a migration begins that programs of the version before can bear.
const ONLINE: &str = "-- Online:";

const EXISTS: &str = include_str!("queries/migrate_exists.sql");
const LOCK: &str = include_str!("queries/migrate_lock.sql");
const PATIENCE: &str = include_str!("queries/migrate_lock_timeout.sql");
const PREPARE: &str = include_str!("queries/migrate_prepare.sql");
const APPLIED: &str = include_str!("queries/migrate_applied.sql");
const OLD_WORKERS: &str = include_str!("queries/migrate_outdated_workers.sql");
const RECORD: &str = include_str!("queries/migrate_record.sql");

/// Between two tries of a migration that others are in the way of, and how many there are at most:
/// five minutes.
const PAUSE: Duration = Duration::from_millis(400);
const TRIES_MAX: u32 = 600;

/// Workers that a refusal names.
const NAMED_MAX: usize = 5;

/// A name and a text.
type Migration<'a> = (&'a str, &'a str);

/// The version of the schema that this program knows.
pub(super) const KNOWN: i64 = MIGRATIONS.len() as i64;

/// Applies what is missing, and `more` after it.
pub(super) async fn migrate(store: &Inner, more: &[Migration<'_>]) -> Result<()> {
    let all: Vec<Migration<'_>> = MIGRATIONS.iter().chain(more).copied().collect();
    let mut tries = 0;
    loop {
        let mut client = store.client().await?;
        let began = store.meter.now_ns();
        let step = step(store, &mut client, &all);
        let outcome = call::within_deadline(&store.options.timeouts, step).await;
        store.give_back(client, began, outcome.as_ref().err());
        match outcome {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(fault) if is_locked(&fault) && tries < TRIES_MAX => {
                tries += 1;
                pause(PAUSE).await;
            }
            Err(fault) => return Err(told(fault)),
        }
    }
}

/// Applies the next migration in a transaction of its own; true where there is none.
async fn step(store: &Inner, client: &mut Object, all: &[Migration<'_>]) -> Result<bool, Fault> {
    // In a transaction of its own: the locks of its reads are released before the wait for other processes.
    let tx = begin(client).await?;
    if is_done(&*tx, all).await? {
        return Ok(true);
    }
    tx.rollback().await?;
    let tx = begin(client).await?;
    // Several processes may start at once: one migrates, the others wait and find it done.
    tx.query(LOCK, &[]).await?;
    if is_done(&*tx, all).await? {
        return Ok(true);
    }
    tx.batch_execute(PATIENCE).await?;
    tx.batch_execute(PREPARE).await?;
    let applied = applied(&*tx, all).await?;
    let (name, text) = all[applied.number];
    let version = applied.number as i64 + 1;
    let oldest = if text.starts_with(ONLINE) { applied.oldest } else { version };
    if applied.number > 0 && oldest == version {
        refuse_old_workers(&*tx, name, oldest, store.options.now()).await?;
    }
    tx.batch_execute(text).await?;
    tx.execute(RECORD, &[&version, &name, &text, &oldest]).await?;
    tx.commit().await?;
    Ok(false)
}

/// Begins a transaction whose statements may take as long as a migration.
async fn begin(client: &mut Object) -> Result<Transaction<'_>, Fault> {
    let tx = client.transaction().await?;
    if let Some(timeout) = call::own_statement_timeout_ms() {
        tx.batch_execute(&format!("SET LOCAL statement_timeout = {timeout}")).await?;
    }
    Ok(tx)
}

/// Who may not change the schema can still find that there is nothing to change.
async fn is_done(client: &impl GenericClient, all: &[Migration<'_>]) -> Result<bool, Fault> {
    let exists: bool = client.query_one(EXISTS, &[]).await?.get("exists");
    Ok(exists && applied(client, all).await?.number == all.len())
}

/// What was applied.
struct Applied {
    /// How many migrations of those that are known.
    number: usize,
    /// The version that a program must know to work with it.
    oldest: i64,
}

/// What was applied is what this program knows, or newer and bears it.
async fn applied(client: &impl GenericClient, all: &[Migration<'_>]) -> Result<Applied, Fault> {
    let texts: Vec<&str> = all.iter().map(|(_, text)| *text).collect();
    let mut applied = Applied { number: 0, oldest: 0 };
    let mut newest = 0;
    for row in client.query(APPLIED, &[&texts]).await? {
        newest = row.get("version");
        applied.oldest = row.get("min_program_version");
        let known = usize::try_from(newest - 1).ok().and_then(|index| all.get(index));
        if let Some((name, _)) = known {
            if !row.get::<_, bool>("is_same") {
                let is_first = newest == 1;
                return Err(Fault::Rule(if is_first { earlier_build() } else { changed(name) }));
            }
            applied.number += 1;
        }
    }
    if applied.oldest > all.len() as i64 {
        return Err(Fault::Rule(newer(newest, all.len())));
    }
    Ok(applied)
}

async fn refuse_old_workers(
    client: &impl GenericClient,
    name: &str,
    oldest: i64,
    now: Option<Millis>,
) -> Result<(), Fault> {
    let old = client.query(OLD_WORKERS, &[&oldest, &now]).await?;
    if old.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = old.iter().take(NAMED_MAX).map(|row| row.get("id")).collect();
    let more = old.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(Fault::Rule(Error::new(
        ErrorKind::Incompatible,
        format!(
            "migration {name} cannot be applied while workers of an older version live: {}{more}; \
             end them and migrate again",
            names.join(", ")
        ),
    )))
}

/// Whether others hold what a migration has to lock.
fn is_locked(fault: &Fault) -> bool {
    let busy = [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED];
    let Fault::Server(error) = fault else { return false };
    error.code().is_some_and(|code| busy.contains(code))
}

fn told(fault: Fault) -> Error {
    let is_locked = is_locked(&fault);
    let error = Error::from(fault);
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

fn newer(version: i64, known: usize) -> Error {
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

fn changed(name: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "migration {name} was applied with another text than this program has; the database \
             was made by another build"
        ),
    )
}
