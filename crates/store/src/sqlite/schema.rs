//! The schema: numbered migrations, each with a checksum, and the refusal of files this version
//! cannot work with.

use rusqlite::{Connection, OptionalExtension, params};
use tidegate_core::{Error, ErrorKind, Millis, Result};

use super::error::SqliteResultExt;

/// Marks a file as ours: `tdgt`.
const APPLICATION_ID: i64 = 0x7464_6774;

/// One step of the schema. It is online if programs of the version before can work on beside it:
/// then its text begins with [`ONLINE`].
struct Migration {
    name: &'static str,
    sql: &'static str,
}

/// How the text of a migration begins that programs of the version before can bear.
const ONLINE_PREFIX: &str = "-- Online:";

/// The version of the schema that this program knows.
pub(super) const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

const MIGRATIONS: &[Migration] =
    &[Migration { name: "0001_initial", sql: include_str!("migrations/0001_initial.sql") }];

/// How a file's schema relates to the one this version needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaStatus {
    /// There is none.
    Missing,
    /// It needs migrations.
    Outdated(usize),
    /// It fits.
    Current,
}

impl SchemaStatus {
    /// Refuses work on a schema that does not fit.
    pub(super) fn check_is_current(self) -> Result<()> {
        let text = match self {
            Self::Current => return Ok(()),
            Self::Missing => {
                "the file has no tidegate schema yet; run `tidegate migrate`".to_owned()
            }
            Self::Outdated(version) => format!(
                "the file has schema {version} and this version of tidegate needs {}; run \
                 `tidegate migrate`",
                MIGRATIONS.len()
            ),
        };
        Err(Error::new(ErrorKind::Incompatible, text))
    }
}

/// Reads the schema's version. Refuses files of a newer version that does not bear this one, of an earlier
/// build, and of other programs.
pub(super) fn read_schema_status(connection: &Connection) -> Result<SchemaStatus> {
    status_for(connection, MIGRATIONS)
}

fn status_for(connection: &Connection, migrations: &[Migration]) -> Result<SchemaStatus> {
    let pragma = |name: &str| -> Result<i64> {
        connection.pragma_query_value(None, name, |row| row.get(0)).into_store_result()
    };
    if pragma("application_id")? != APPLICATION_ID {
        return match count_tables(connection)? {
            0 => Ok(SchemaStatus::Missing),
            _ => Err(incompatible_error(
                "this is the database of another program; give another path",
            )),
        };
    }
    let version = pragma("user_version")?;
    let known = migrations.len() as i64;
    if version > known {
        refuse_earlier_build(connection, version, migrations)?;
        if min_program_version(connection, version).is_some_and(|oldest| oldest <= known) {
            return Ok(SchemaStatus::Current);
        }
    }
    match usize::try_from(version) {
        Ok(0) => Ok(SchemaStatus::Missing),
        Ok(version) if version == migrations.len() => Ok(SchemaStatus::Current),
        Ok(version) if version < migrations.len() => Ok(SchemaStatus::Outdated(version)),
        _ => Err(incompatible_error(format!(
            "the file has schema {version}, made by a newer version of tidegate; this one knows \
             schemas up to {known}, use the newer one"
        ))),
    }
}

/// Refuses a file whose first migration has another text: builds before this schema had other migrations, and
/// more of them.
fn refuse_earlier_build(
    connection: &Connection,
    version: i64,
    migrations: &[Migration],
) -> Result<()> {
    let has_table = include_str!("queries/has_migrations_table.sql");
    let has_table: bool =
        connection.query_row(has_table, [], |row| row.get(0)).into_store_result()?;
    let first = include_str!("queries/first_checksum.sql");
    let first: Option<String> = match has_table {
        true => connection.query_row(first, [], |row| row.get(0)).optional().into_store_result()?,
        false => None,
    };
    let expected = migrations.first().map(|migration| checksum(migration.sql));
    if first == expected {
        return Ok(());
    }
    Err(incompatible_error(format!(
        "the file has schema {version} of an earlier build of tidegate; this version starts again at 1: \
         create a new file"
    )))
}

/// The version that a program must know to work with a schema, where that says so.
fn min_program_version(connection: &Connection, version: i64) -> Option<i64> {
    let of_version = include_str!("queries/min_program_version.sql");
    connection.query_row(of_version, [version], |row| row.get(0)).ok().flatten()
}

/// Applies what is missing. The caller holds the write transaction.
pub(super) fn migrate(connection: &Connection, now: Millis) -> Result<()> {
    apply_migrations(connection, now, MIGRATIONS)
}

fn apply_migrations(connection: &Connection, now: Millis, migrations: &[Migration]) -> Result<()> {
    let applied = match status_for(connection, migrations)? {
        SchemaStatus::Missing => {
            connection
                .execute_batch(include_str!("queries/create_migrations_table.sql"))
                .into_store_result()?;
            connection.pragma_update(None, "application_id", APPLICATION_ID).into_store_result()?;
            0
        }
        SchemaStatus::Outdated(version) => version,
        SchemaStatus::Current => migrations.len(),
    };
    if applied > 0 {
        verify_against(connection, migrations)?;
    }
    if applied == migrations.len() {
        return Ok(());
    }
    for (index, migration) in migrations.iter().enumerate().skip(applied) {
        let version = index as i64 + 1;
        let is_online = migration.sql.starts_with(ONLINE_PREFIX);
        let oldest =
            min_program_version(connection, version - 1).filter(|_| is_online).unwrap_or(version);
        if !is_online && index > 0 {
            refuse_outdated_workers(connection, migration.name, oldest, now)?;
        }
        connection.execute_batch(migration.sql).into_store_result()?;
        let row = params![version, migration.name, checksum(migration.sql), now, oldest];
        connection
            .execute(include_str!("queries/record_migration.sql"), row)
            .into_store_result()?;
    }
    connection.pragma_update(None, "user_version", migrations.len() as i64).into_store_result()
}

fn refuse_outdated_workers(
    connection: &Connection,
    name: &str,
    oldest: i64,
    now: Millis,
) -> Result<()> {
    let old = include_str!("queries/outdated_workers.sql");
    let mut old = connection.prepare(old).into_store_result()?;
    let old = old.query_map([now, oldest], |row| row.get(0)).into_store_result()?;
    let old = old.collect::<rusqlite::Result<Vec<String>>>().into_store_result()?;
    if old.is_empty() {
        return Ok(());
    }
    Err(incompatible_error(format!(
        "migration {name} cannot be applied while workers of an older version live: {}; end them \
         and migrate again",
        old.join(", ")
    )))
}

/// Compares what was applied with what this version would apply.
pub(super) fn verify_checksums(connection: &Connection) -> Result<()> {
    verify_against(connection, MIGRATIONS)
}

fn verify_against(connection: &Connection, migrations: &[Migration]) -> Result<()> {
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    refuse_earlier_build(connection, version.into_store_result()?, migrations)?;
    let mut applied =
        connection.prepare(include_str!("queries/applied_migrations.sql")).into_store_result()?;
    let mut rows = applied.query([]).into_store_result()?;
    while let Some(row) = rows.next().into_store_result()? {
        let version: i64 = row.get(0).into_store_result()?;
        let found: String = row.get(1).into_store_result()?;
        let known = usize::try_from(version - 1).ok().and_then(|index| migrations.get(index));
        // One that is newer was looked at before.
        if known.is_some_and(|migration| checksum(migration.sql) != found) {
            return Err(incompatible_error(format!(
                "migration {version} of the file is not the one of this version; use the version \
                 of tidegate that made it"
            )));
        }
    }
    Ok(())
}

fn count_tables(connection: &Connection) -> Result<i64> {
    connection
        .query_row(include_str!("queries/count_tables.sql"), [], |row| row.get(0))
        .into_store_result()
}

fn incompatible_error(text: impl Into<String>) -> Error {
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
    fn migration_is_repeatable_and_verifies_checksums() {
        let connection = Connection::open_in_memory().unwrap();
        assert_eq!(read_schema_status(&connection).unwrap(), SchemaStatus::Missing);
        migrate(&connection, 1).unwrap();
        migrate(&connection, 2).unwrap();
        assert_eq!(read_schema_status(&connection).unwrap(), SchemaStatus::Current);
        connection.execute("update migrations set checksum = 'x'", []).unwrap();
        assert_eq!(verify_checksums(&connection).unwrap_err().kind(), ErrorKind::Incompatible);
    }

    /// A program of this version, after a newer one has applied a migration of its own.
    fn status_after_later_migration(sql: &'static str) -> (Connection, Result<SchemaStatus>) {
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, 1).unwrap();
        apply_migrations(&connection, 2, &with_later(&[sql])).unwrap();
        let read = read_schema_status(&connection);
        (connection, read)
    }

    /// This version's migrations, and later ones.
    fn with_later(later: &[&'static str]) -> Vec<Migration> {
        let known = MIGRATIONS.iter().map(|one| Migration { name: one.name, sql: one.sql });
        known.chain(later.iter().map(|sql| Migration { name: "later", sql })).collect()
    }

    fn user_version(connection: &Connection) -> i64 {
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    }

    #[test]
    fn later_migrations_are_applied_in_order() {
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, 1).unwrap();
        let later = with_later(&["create table second (x)", "alter table second add column y"]);
        assert_eq!(status_for(&connection, &later).unwrap(), SchemaStatus::Outdated(1));
        let error = SchemaStatus::Outdated(1).check_is_current().unwrap_err();
        assert!(error.to_string().contains("has schema 1"), "{error}");
        apply_migrations(&connection, 2, &later).unwrap();
        assert_eq!(status_for(&connection, &later).unwrap(), SchemaStatus::Current);
        connection.execute("insert into second (x, y) values (1, 2)", []).unwrap();
        let all: Vec<i64> = (1..=later.len() as i64).collect();
        let mut applied =
            connection.prepare("select version from migrations order by version").unwrap();
        let applied = applied.query_map([], |row| row.get(0)).unwrap();
        assert_eq!(applied.map(|version| version.unwrap()).collect::<Vec<i64>>(), all);
        connection.execute("update migrations set checksum = 'x' where version = 2", []).unwrap();
        let error = verify_against(&connection, &later).unwrap_err();
        assert!(error.to_string().contains("migration 2 of the file"), "{error}");
    }

    #[test]
    fn failed_later_migration_leaves_the_version_before() {
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, 1).unwrap();
        let later = with_later(&["create table second (x)", "alter table missing add column y"]);
        connection.execute_batch("begin").unwrap();
        apply_migrations(&connection, 2, &later).unwrap_err();
        connection.execute_batch("rollback").unwrap();
        assert_eq!(user_version(&connection), SCHEMA_VERSION);
        assert_eq!(read_schema_status(&connection).unwrap(), SchemaStatus::Current);
        verify_checksums(&connection).unwrap();
    }

    #[test]
    fn online_migrations_keep_the_oldest_version_that_may_work() {
        let connection = Connection::open_in_memory().unwrap();
        let chain = with_later(&[
            "-- Online: a table more.\ncreate table second (x)",
            "-- Online: a column more.\nalter table second add column y",
            "alter table second drop column y",
        ]);
        apply_migrations(&connection, 1, &chain[..3]).unwrap();
        assert_eq!(
            (min_program_version(&connection, 2), min_program_version(&connection, 3)),
            (Some(1), Some(1))
        );
        assert_eq!(
            read_schema_status(&connection).unwrap(),
            SchemaStatus::Current,
            "version 1 may work on"
        );
        let worker = "insert into workers (id, alive_until, schema_version) values ('old', 10, 3)";
        connection.execute(worker, []).unwrap();
        let error = apply_migrations(&connection, 9, &chain).unwrap_err();
        assert!(error.to_string().contains("older version live: old"), "{error}");
        assert_eq!(user_version(&connection), 3, "nothing was applied");
        apply_migrations(&connection, 10, &chain).expect("the worker is dead");
        assert_eq!(min_program_version(&connection, 4), Some(4));
        assert!(read_schema_status(&connection).unwrap_err().to_string().contains("newer"));
    }

    /// A file of an earlier build, with as many migrations as it had.
    fn earlier_build(table: &str, versions: i64) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        let make = format!(
            "create table {table} (version integer, name text, checksum text, oldest integer)"
        );
        connection.execute_batch(&make).unwrap();
        let row = format!("insert into {table} values (?1, 'earlier', 'x', 1)");
        for version in 1..=versions {
            connection.execute(&row, [version]).unwrap();
        }
        connection.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        connection.pragma_update(None, "user_version", versions).unwrap();
        connection
    }

    #[test]
    fn file_of_an_earlier_build_is_refused() {
        for (table, versions) in
            [("migration", 7), ("migrations", 7), ("migration", 1), ("migrations", 1)]
        {
            let connection = earlier_build(table, versions);
            let before = connection.changes();
            let opened =
                read_schema_status(&connection).and_then(|_| verify_checksums(&connection));
            for error in [opened.unwrap_err(), migrate(&connection, 1).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::Incompatible);
                let text = format!("schema {versions} of an earlier build of tidegate");
                assert!(error.to_string().contains(&text), "{error}");
            }
            assert_eq!(connection.changes(), before, "nothing is written");
            assert_eq!(count_tables(&connection).unwrap(), 1, "nothing is written");
        }
    }

    #[test]
    fn newer_schema_that_supports_this_version_is_accepted() {
        let (connection, read) = status_after_later_migration(
            "-- Online: one more column.\nalter table paused_queues add x integer;",
        );
        assert_eq!(read.unwrap(), SchemaStatus::Current);
        migrate(&connection, 3).unwrap();
        let version: i64 =
            connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        assert_eq!(version, SCHEMA_VERSION + 1, "it is left as it is");
        let (_, read) = status_after_later_migration("alter table paused_queues rename to queues;");
        let error = read.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert_snapshot!(
            error,
            @"the file has schema 2, made by a newer version of tidegate; this one knows schemas up to 1, use the newer one"
        );
    }

    #[test]
    fn migration_that_live_workers_do_not_support_is_rejected() {
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, 1).unwrap();
        let worker = "insert into workers (id, alive_until, schema_version) values ('old', 10, ?1)";
        connection.execute(worker, [SCHEMA_VERSION]).unwrap();
        let error =
            refuse_outdated_workers(&connection, "more", SCHEMA_VERSION + 1, 9).unwrap_err();
        assert_snapshot!(
            error,
            @"migration more cannot be applied while workers of an older version live: old; end them and migrate again"
        );
        refuse_outdated_workers(&connection, "more", SCHEMA_VERSION + 1, 10).expect("it is dead");
        refuse_outdated_workers(&connection, "more", SCHEMA_VERSION, 9).expect("it bears it");
    }

    #[test]
    fn foreign_or_newer_file_is_rejected() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("create table theirs (x)").unwrap();
        assert_eq!(read_schema_status(&connection).unwrap_err().kind(), ErrorKind::Incompatible);
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, 1).unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
        let error = read_schema_status(&connection).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert_snapshot!(
            error,
            @"the file has schema 99, made by a newer version of tidegate; this one knows schemas up to 1, use the newer one"
        );
    }
}
