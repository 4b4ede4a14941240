//! The schema: numbered migrations, each with a checksum, and the refusal of files this version
//! cannot work with.

use rusqlite::{Connection, params};
use tidegate_core::{Error, ErrorKind, Millis, Result};

use super::error::Translated;

/// Marks a file as ours: `tdgt`.
const APPLICATION_ID: i64 = 0x7464_6774;

/// One step of the schema. It is online if programs of the version before can work on beside it:
/// then its text begins with [`ONLINE`].
struct Migration {
    name: &'static str,
    sql: &'static str,
}

/// How the text of a migration begins that programs of the version before can bear.
const ONLINE: &str = "-- Online:";

/// The first version in which workers say what they know.
const WORKERS_SAY: usize = 3;

/// The version of the schema that this program knows.
pub(super) const KNOWN: i64 = MIGRATIONS.len() as i64;

const MIGRATIONS: &[Migration] = &[
    Migration { name: "0001_tasks", sql: include_str!("migrations/0001_tasks.sql") },
    Migration { name: "0002_operations", sql: include_str!("migrations/0002_operations.sql") },
    Migration {
        name: "0003_registrations",
        sql: include_str!("migrations/0003_registrations.sql"),
    },
    Migration {
        name: "0004_jobs_and_workflows",
        sql: include_str!("migrations/0004_jobs_and_workflows.sql"),
    },
    Migration { name: "0005_reports", sql: include_str!("migrations/0005_reports.sql") },
    Migration {
        name: "0006_arrivals_of_jobs",
        sql: include_str!("migrations/0006_arrivals_of_jobs.sql"),
    },
    Migration { name: "0007_heartbeats", sql: include_str!("migrations/0007_heartbeats.sql") },
];

/// How a file's schema relates to the one this version needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Schema {
    /// There is none.
    Missing,
    /// It needs migrations.
    Older(usize),
    /// It fits.
    Current,
}

impl Schema {
    /// Refuses work on a schema that does not fit.
    pub(super) fn check(self) -> Result<()> {
        let text = match self {
            Self::Current => return Ok(()),
            Self::Missing => {
                "the file has no tidegate schema yet; run `tidegate migrate`".to_owned()
            }
            Self::Older(version) => format!(
                "the file has schema {version} and this version of tidegate needs {}; run \
                 `tidegate migrate`",
                MIGRATIONS.len()
            ),
        };
        Err(Error::new(ErrorKind::Incompatible, text))
    }
}

/// Reads the schema's version. Refuses files of a newer version that does not bear this one, and of other
/// programs.
pub(super) fn read(connection: &Connection) -> Result<Schema> {
    let pragma = |name: &str| -> Result<i64> {
        connection.pragma_query_value(None, name, |row| row.get(0)).translated()
    };
    if pragma("application_id")? != APPLICATION_ID {
        return match tables(connection)? {
            0 => Ok(Schema::Missing),
            _ => Err(incompatible("this is the database of another program; give another path")),
        };
    }
    let version = pragma("user_version")?;
    if version > KNOWN && oldest(connection, version).is_some_and(|oldest| oldest <= KNOWN) {
        return Ok(Schema::Current);
    }
    match usize::try_from(version) {
        Ok(0) => Ok(Schema::Missing),
        Ok(version) if version == MIGRATIONS.len() => Ok(Schema::Current),
        Ok(version) if version < MIGRATIONS.len() => Ok(Schema::Older(version)),
        _ => Err(incompatible(format!(
            "the file has schema {version}, made by a newer version of tidegate; this one knows \
             schemas up to {}, use the newer one",
            MIGRATIONS.len()
        ))),
    }
}

/// The version that a program must know to work with a schema, where that says so.
fn oldest(connection: &Connection, version: i64) -> Option<i64> {
    let of_version = include_str!("queries/oldest.sql");
    connection.query_row(of_version, [version], |row| row.get(0)).ok().flatten()
}

/// Applies what is missing. The caller holds the write transaction.
pub(super) fn migrate(connection: &Connection, now: Millis) -> Result<()> {
    migrate_to(connection, now, MIGRATIONS)
}

fn migrate_to(connection: &Connection, now: Millis, migrations: &[Migration]) -> Result<()> {
    let applied = match read(connection)? {
        Schema::Missing => {
            connection.execute_batch(include_str!("queries/make_migration.sql")).translated()?;
            connection.pragma_update(None, "application_id", APPLICATION_ID).translated()?;
            0
        }
        Schema::Older(version) => version,
        Schema::Current => MIGRATIONS.len(),
    };
    verify(connection)?;
    if applied == migrations.len() {
        return Ok(());
    }
    make_oldest(connection)?;
    for (index, migration) in migrations.iter().enumerate().skip(applied) {
        let version = index as i64 + 1;
        let is_online = migration.sql.starts_with(ONLINE);
        let oldest = oldest(connection, version - 1).filter(|_| is_online).unwrap_or(version);
        if !is_online && index >= WORKERS_SAY {
            refuse_old_workers(connection, migration.name, oldest, now)?;
        }
        connection.execute_batch(migration.sql).translated()?;
        let row = params![version, migration.name, checksum(migration.sql), now, oldest];
        connection.execute(include_str!("queries/put_migration.sql"), row).translated()?;
    }
    connection.pragma_update(None, "user_version", migrations.len() as i64).translated()
}

/// The table of migrations of an older file does not say how old a program may be.
fn make_oldest(connection: &Connection) -> Result<()> {
    let has = include_str!("queries/has_oldest.sql");
    let has: bool = connection.query_row(has, [], |row| row.get(0)).translated()?;
    match has {
        true => Ok(()),
        false => connection.execute_batch(include_str!("queries/make_oldest.sql")).translated(),
    }
}

fn refuse_old_workers(connection: &Connection, name: &str, oldest: i64, now: Millis) -> Result<()> {
    let old = include_str!("queries/old_workers.sql");
    let mut old = connection.prepare(old).translated()?;
    let old = old.query_map([now, oldest], |row| row.get(0)).translated()?;
    let old = old.collect::<rusqlite::Result<Vec<String>>>().translated()?;
    if old.is_empty() {
        return Ok(());
    }
    Err(incompatible(format!(
        "migration {name} cannot be applied while workers of an older version live: {}; end them \
         and migrate again",
        old.join(", ")
    )))
}

/// Compares what was applied with what this version would apply.
pub(super) fn verify(connection: &Connection) -> Result<()> {
    let mut applied = connection.prepare(include_str!("queries/migrations.sql")).translated()?;
    let mut rows = applied.query([]).translated()?;
    while let Some(row) = rows.next().translated()? {
        let version: i64 = row.get(0).translated()?;
        let found: String = row.get(1).translated()?;
        let known = usize::try_from(version - 1).ok().and_then(|index| MIGRATIONS.get(index));
        // One that is newer was looked at before.
        if known.is_some_and(|migration| checksum(migration.sql) != found) {
            return Err(incompatible(format!(
                "migration {version} of the file is not the one of this version; use the version \
                 of tidegate that made it"
            )));
        }
    }
    Ok(())
}

fn tables(connection: &Connection) -> Result<i64> {
    connection
        .query_row(include_str!("queries/count_tables.sql"), [], |row| row.get(0))
        .translated()
}

fn incompatible(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Incompatible, text)
}

/// FNV-1a. It guards against mistakes, not against malice.
fn checksum(sql: &str) -> String {
    let hash = sql.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn migrations_can_be_repeated_and_are_verified() {
        let connection = Connection::open_in_memory().unwrap();
        assert_eq!(read(&connection).unwrap(), Schema::Missing);
        migrate(&connection, 1).unwrap();
        migrate(&connection, 2).unwrap();
        assert_eq!(read(&connection).unwrap(), Schema::Current);
        connection.execute("update migration set checksum = 'x'", []).unwrap();
        assert_eq!(verify(&connection).unwrap_err().kind(), ErrorKind::Incompatible);
    }

    /// A program of this version, after a newer one has applied a migration of its own.
    fn after(sql: &'static str) -> (Connection, Result<Schema>) {
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, 1).unwrap();
        let more = [Migration { name: "more", sql }];
        let known = MIGRATIONS.iter().map(|one| Migration { name: one.name, sql: one.sql });
        let all: Vec<Migration> = known.chain(more).collect();
        migrate_to(&connection, 2, &all).unwrap();
        let read = read(&connection);
        (connection, read)
    }

    #[test]
    fn a_newer_schema_that_bears_this_version_is_worked_with() {
        let (connection, read) =
            after("-- Online: one more column.\nalter table queue add x integer;");
        assert_eq!(read.unwrap(), Schema::Current);
        migrate(&connection, 3).unwrap();
        let version: i64 =
            connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        assert_eq!(version, KNOWN + 1, "it is left as it is");
        let (_, read) = after("alter table queue rename to queues;");
        let error = read.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert_snapshot!(
            error,
            @"the file has schema 8, made by a newer version of tidegate; this one knows schemas up to 7, use the newer one"
        );
    }

    #[test]
    fn a_migration_that_live_workers_cannot_bear_is_refused() {
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, 1).unwrap();
        let worker = "insert into worker (id, alive_until, schema_version) values ('old', 10, ?1)";
        connection.execute(worker, [KNOWN]).unwrap();
        let error = refuse_old_workers(&connection, "more", KNOWN + 1, 9).unwrap_err();
        assert_snapshot!(
            error,
            @"migration more cannot be applied while workers of an older version live: old; end them and migrate again"
        );
        refuse_old_workers(&connection, "more", KNOWN + 1, 10).expect("it is dead");
        refuse_old_workers(&connection, "more", KNOWN, 9).expect("it bears it");
    }

    #[test]
    fn foreign_and_newer_files_are_refused() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("create table theirs (x)").unwrap();
        assert_eq!(read(&connection).unwrap_err().kind(), ErrorKind::Incompatible);
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, 1).unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
        let error = read(&connection).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert_snapshot!(
            error,
            @"the file has schema 99, made by a newer version of tidegate; this one knows schemas up to 7, use the newer one"
        );
    }
}
