//! What a claim costs after a great many completions while somebody holds an old snapshot, beside the
//! cost before them: what was claimed stays in the tables until the snapshot is gone.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rusqlite::Connection;
use tidegate_core::{Attempt, Finish};
use tidegate_engine::time;
use tidegate_store::StoreLocation;
use tokio_postgres::{Client, NoTls};

use super::cost::{BATCH, CountingStore, add_runnable, claim_request, completions};
use super::drain::{NOOP_KIND, kind, register};
use super::target::Target;
use super::throughput::raw_drain_seconds;
use crate::clock::Stopwatch;
use crate::report::ResultLine;

/// Tasks that are claimed in one measurement.
const CLAIMED_TASKS: u64 = 10_000;

/// What to measure.
#[derive(Debug, Clone)]
pub struct HeldSnapshot {
    /// The store. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// Tasks that are completed between the two measurements.
    pub tasks: u64,
    /// How long the snapshot is held at least; the tasks are spread over it.
    pub hold: Duration,
}

/// Measures, completes tasks, and measures again, all by one worker.
pub async fn held_snapshot(
    scenario: &HeldSnapshot,
    mut each: impl FnMut(ResultLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let target = Target::new(scenario.url.as_deref())?;
    register(&*target.open().await?.store, vec![kind(NOOP_KIND)]).await?;
    let claimed = CLAIMED_TASKS.min(scenario.tasks);
    add_runnable(&target, scenario.tasks + 2 * claimed).await?;
    let raw = raw_drain_seconds(&target, BATCH, claimed, 1).await?;
    let counted = CountingStore::open(&target).await?;
    let stopwatch = Stopwatch::start();
    let holder = SnapshotHolder::begin(&target.place).await?;
    let before = counted.cost(claimed).await?;
    complete(&counted, scenario).await?;
    let after = counted.cost(claimed).await?;
    let held_s = stopwatch.seconds();
    holder.end().await?;
    let line = ResultLine::new("held-snapshot", target.name(), claimed, after.seconds)
        .with_extra("completed", scenario.tasks)
        .with_extra("held_s", held_s);
    let mut line = after.compared_line(before, line, &target);
    line.raw_per_s = raw.map(|seconds| claimed as f64 / seconds);
    each(line)
}

/// Completes the tasks evenly over the time, each step with the next claim as a worker has it.
async fn complete(counted: &CountingStore, scenario: &HeldSnapshot) -> anyhow::Result<()> {
    let began = time::now();
    let mut running: Vec<Attempt> = Vec::new();
    let mut completed = 0;
    while completed < scenario.tasks {
        completed += running.len() as u64;
        let wanted = scenario.tasks.saturating_sub(completed).min(u64::from(BATCH)) as u32;
        let claim = (wanted > 0).then(|| {
            let mut claim = claim_request();
            claim.tasks_max = wanted;
            claim
        });
        running = match (running.as_slice(), claim) {
            ([], Some(claim)) => counted.store().claim(claim).await?,
            (done, claim) => {
                let finish = Finish { completions: completions(done), claim };
                counted.store().finish(finish).await?.claimed
            }
        };
        ensure!(wanted == 0 || !running.is_empty(), "{completed} tasks were there to complete");
        let share = completed as f64 / scenario.tasks as f64;
        time::sleep_until(began + scenario.hold.mul_f64(share.min(1.0))).await;
    }
    Ok(())
}

/// Somebody who looked once and does not let go.
enum SnapshotHolder {
    Sqlite(Connection),
    Postgres(Client),
}

impl SnapshotHolder {
    async fn begin(place: &StoreLocation) -> anyhow::Result<Self> {
        match place {
            StoreLocation::Memory => anyhow::bail!("the memory store has no snapshots"),
            StoreLocation::Sqlite { path, .. } => {
                let connection = Connection::open(path).context("open the file once more")?;
                connection.execute_batch("begin")?;
                connection.query_row("select count(*) from sqlite_schema", [], |_| Ok(()))?;
                Ok(Self::Sqlite(connection))
            }
            StoreLocation::Postgres(url) => {
                let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
                // It ends with the client; what goes wrong on it, the client's calls report.
                tokio::spawn(connection);
                client.batch_execute("begin isolation level repeatable read; select 1").await?;
                Ok(Self::Postgres(client))
            }
        }
    }

    /// It was held until now, or what was measured is not what was asked.
    async fn end(self) -> anyhow::Result<()> {
        match self {
            Self::Sqlite(connection) => connection.execute_batch("commit")?,
            Self::Postgres(client) => client.batch_execute("commit").await?,
        }
        Ok(())
    }
}
