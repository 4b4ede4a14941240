//! The audit: who holds which slot after every commit, in the order in which the server committed.
//!
//! A reading of the tables sees some moments and misses those in between. The server's own log has
//! them all, so the audit replays it: what [`Replay`] finds is so for every commit there was.

mod decode;
mod replay;

use std::pin::pin;

use anyhow::{Context as _, bail, ensure};
use futures_util::TryStreamExt as _;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use decode::Decoder;
pub use replay::{Findings, Replay, Violation};

/// Which tables are decoded: what of them is not asked for costs little.
const PUBLICATION: &str = "tidegate_audit";

const CHANGES: &str = "SELECT data FROM pg_logical_slot_get_binary_changes($1, NULL, NULL,
    'proto_version', '1', 'publication_names', 'tidegate_audit')";

/// An audit under way.
#[derive(Debug)]
pub struct Audit {
    client: Client,
    connection: JoinHandle<Result<(), tokio_postgres::Error>>,
    slot: String,
    decoder: Decoder,
    replay: Replay,
}

impl Audit {
    /// Begins with what is held now, while nobody works on the store. Every limit is judged as if
    /// it had `less` than it has, which is 0 unless the audit itself is to be proved.
    ///
    /// The slot goes with its connection, so nothing keeps the server's log when this process dies.
    pub async fn begin(url: &str, less: u32) -> anyhow::Result<Self> {
        let (client, connection) =
            tokio_postgres::connect(url, NoTls).await.context("connect for the audit")?;
        let connection = tokio::spawn(connection);
        check_wal_level(&client).await?;
        let publish = format!(
            "DROP PUBLICATION IF EXISTS {PUBLICATION};
             CREATE PUBLICATION {PUBLICATION}
             FOR TABLE tidegate.limits, tidegate.slots, tidegate.leases"
        );
        client.batch_execute(&publish).await.context("publish the tables to the audit")?;
        let made = "SELECT slot_name::text FROM pg_create_logical_replication_slot(
                        'tidegate_audit_' || pg_backend_pid(), 'pgoutput', true)";
        let made = client.query_one(made, &[]).await.context(
            "begin to decode the server's log; the user needs the right REPLICATION, and \
             max_replication_slots has to leave one",
        )?;
        let mut replay = Replay::new(less);
        read_held_slots(&client, &mut replay).await?;
        let decoder = Decoder::default();
        Ok(Self { client, connection, slot: made.get(0), decoder, replay })
    }

    /// Replays what was committed since the last time. The server keeps its log until then.
    pub async fn catch_up(&mut self) -> anyhow::Result<()> {
        let changes = self.client.query_raw(CHANGES, [&self.slot]).await;
        let mut changes = pin!(changes.context("read the server's log")?);
        while let Some(row) = changes.try_next().await.context("read the server's log")? {
            if let Some(change) = self.decoder.decode(row.get(0))? {
                self.replay.apply(change)?;
            }
        }
        Ok(())
    }

    /// Replays the rest and says what was found.
    pub async fn finish(mut self) -> anyhow::Result<Findings> {
        // What others committed without waiting for the disk is there when this is.
        let mark = "SET synchronous_commit = on;
                    SELECT pg_logical_emit_message(true, 'tidegate', 'the end of the audit')";
        self.client.batch_execute(mark).await.context("mark the end of the audit")?;
        self.catch_up().await?;
        let drop = format!("DROP PUBLICATION {PUBLICATION}");
        self.client.batch_execute(&drop).await.context("clean up after the audit")?;
        close_connection(self.client, self.connection).await;
        Ok(self.replay.into_findings())
    }
}

/// Waits until the server has let go of the slot: it keeps its database from being dropped.
async fn close_connection(
    client: Client,
    connection: JoinHandle<Result<(), tokio_postgres::Error>>,
) {
    drop(client);
    let _ = connection.await;
}

async fn check_wal_level(client: &Client) -> anyhow::Result<()> {
    let level = client.query_one("SHOW wal_level", &[]).await.context("ask for the wal_level")?;
    let level: String = level.get(0);
    ensure!(
        level == "logical",
        "the audit reads the order of commits from the server's log, for which the server needs \
         wal_level = logical; it has {level}. Set it (`ALTER SYSTEM SET wal_level = 'logical'`) \
         and restart the server, or leave out --store: then a server is started for the run"
    );
    Ok(())
}

async fn read_held_slots(client: &Client, replay: &mut Replay) -> anyhow::Result<()> {
    let read = async |sql| client.query(sql, &[]).await.context("read what is held");
    for row in read("SELECT id, name, capacity FROM tidegate.limits").await? {
        replay.put_limit(row.get(0), row.get(1), row.get(2));
    }
    for row in read("SELECT limit_id, number, task FROM tidegate.slots").await? {
        replay.put_slot((row.get(0), row.get(1)), row.get(2));
    }
    for row in read("SELECT token, tasks, limits, numbers FROM tidegate.leases").await? {
        replay.put_lease(row.get(0), Some(row.get(1)), Some(row.get(2)), Some(row.get(3)))?;
    }
    if replay.holds_anything() {
        bail!("tasks hold slots already; audit a store on which nobody works yet");
    }
    replay.clear_changes();
    Ok(())
}
