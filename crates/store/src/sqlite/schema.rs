//! The schema: numbered migrations, each with a checksum, and the refusal of files this version
//! cannot work with.

use rusqlite::{Connection, params};
use tidegate_core::{Error, ErrorKind, Millis, Result};

use super::error::Translated;

/// Marks a file as ours: `tdgt`.
const APPLICATION_ID: i64 = 0x7464_6774;

struct Migration {
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration { name: "0001_tasks", sql: include_str!("migrations/0001_tasks.sql") },
    Migration { name: "0002_operations", sql: include_str!("migrations/0002_operations.sql") },
    Migration {
        name: "0003_registrations",
        sql: include_str!("migrations/0003_registrations.sql"),
    },
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

/// Reads the schema's version. Refuses files of a newer version and of other programs.
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

/// Applies what is missing. The caller holds the write transaction.
pub(super) fn migrate(connection: &Connection, now: Millis) -> Result<()> {
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
    for (index, migration) in MIGRATIONS.iter().enumerate().skip(applied) {
        connection.execute_batch(migration.sql).translated()?;
        let row = params![index as i64 + 1, migration.name, checksum(migration.sql), now];
        connection.execute(include_str!("queries/put_migration.sql"), row).translated()?;
    }
    connection.pragma_update(None, "user_version", MIGRATIONS.len() as i64).translated()
}

/// Compares what was applied with what this version would apply.
pub(super) fn verify(connection: &Connection) -> Result<()> {
    let mut applied = connection.prepare(include_str!("queries/migrations.sql")).translated()?;
    let mut rows = applied.query([]).translated()?;
    while let Some(row) = rows.next().translated()? {
        let version: i64 = row.get(0).translated()?;
        let found: String = row.get(1).translated()?;
        let known = usize::try_from(version - 1).ok().and_then(|index| MIGRATIONS.get(index));
        if known.is_none_or(|migration| checksum(migration.sql) != found) {
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
        assert!(error.to_string().contains("newer"), "{error}");
    }
}
