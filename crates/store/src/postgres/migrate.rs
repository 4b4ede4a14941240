//! Brings the schema up to date.

use tidegate_core::{Error, ErrorKind, Result};
use tokio_postgres::GenericClient;

use super::Inner;
use super::error::Fault;

/// Every migration, in order. One that was released is never changed.
const MIGRATIONS: [(&str, &str); 7] = [
    ("0001_tasks", include_str!("migrations/0001_tasks.sql")),
    ("0002_operations", include_str!("migrations/0002_operations.sql")),
    ("0003_packed_leases", include_str!("migrations/0003_packed_leases.sql")),
    ("0004_enqueue", include_str!("migrations/0004_enqueue.sql")),
    ("0005_autovacuum", include_str!("migrations/0005_autovacuum.sql")),
    ("0006_relay", include_str!("migrations/0006_relay.sql")),
    ("0007_registrations", include_str!("migrations/0007_registrations.sql")),
];

const EXISTS: &str = include_str!("queries/migrate_exists.sql");
const LOCK: &str = include_str!("queries/migrate_lock.sql");
const PREPARE: &str = include_str!("queries/migrate_prepare.sql");
const APPLIED: &str = include_str!("queries/migrate_applied.sql");
const RECORD: &str = include_str!("queries/migrate_record.sql");

pub(super) async fn migrate(store: &Inner) -> Result<()> {
    let mut client = store.client().await?;
    let migrate = async {
        if is_done(&**client).await? {
            return Ok(());
        }
        let tx = client.transaction().await?;
        // Several processes may start at once: one migrates, the others wait and find it done.
        tx.query(LOCK, &[]).await?;
        if is_done(&*tx).await? {
            return Ok(());
        }
        tx.batch_execute(PREPARE).await?;
        let applied = applied(&*tx).await?;
        for (index, (name, source)) in MIGRATIONS.iter().enumerate().skip(applied) {
            tx.batch_execute(source).await?;
            tx.execute(RECORD, &[&(index as i64 + 1), name, source]).await?;
        }
        tx.commit().await?;
        Ok(())
    };
    migrate.await.map_err(|fault: Fault| {
        let error = Error::from(fault);
        match error.kind() {
            ErrorKind::Refused => Error::new(
                error.kind(),
                format!(
                    "{error}; the schema is not of this version, and this role may not change it: \
                     run `tidegate migrate` as its owner"
                ),
            ),
            _ => error,
        }
    })
}

/// Who may not change the schema can still find that there is nothing to change.
async fn is_done(client: &impl GenericClient) -> Result<bool, Fault> {
    let exists: bool = client.query_one(EXISTS, &[]).await?.get("exists");
    Ok(exists && applied(client).await? == MIGRATIONS.len())
}

/// How many migrations were applied. They are those that this program knows.
async fn applied(client: &impl GenericClient) -> Result<usize, Fault> {
    let sources: Vec<&str> = MIGRATIONS.iter().map(|(_, source)| *source).collect();
    let applied = client.query(APPLIED, &[&sources]).await?;
    for row in &applied {
        let version: i64 = row.get("version");
        let known = usize::try_from(version - 1).ok().and_then(|i| MIGRATIONS.get(i));
        match known {
            None => return Err(Fault::Rule(newer(version))),
            Some((name, _)) if !row.get::<_, bool>("is_same") => {
                return Err(Fault::Rule(changed(name)));
            }
            Some(_) => {}
        }
    }
    Ok(applied.len())
}

fn newer(version: i64) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "the database has version {version} of the tidegate schema and this program knows \
             {}; use a newer tidegate",
            MIGRATIONS.len()
        ),
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
