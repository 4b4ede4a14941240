//! What claims read, by the count of the database.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure};
use tidegate_core::{Attempt, Claim, Completion, Finish, Outcome, Store, WorkerId};
use tidegate_engine::time;
use tidegate_store::postgres::{self, Postgres};
use tidegate_store::sqlite::{Options, Sqlite};
use tidegate_store::{OpenOptions, StoreLocation, open};
use tokio_postgres::NoTls;

use super::drain::{NOOP_KIND, kind, task};
use super::pg_stats::statement_times_at;
use super::submit;
use super::target::Target;
use crate::clock::Stopwatch;
use crate::report::ResultLine;

/// Tasks in one claim.
pub(super) const BATCH: u32 = 100;

/// A kind that the worker serves and that a limit stops.
pub(super) const BLOCKED_KIND: &str = "blocked";

/// A session of PostgreSQL tells what it has read when a statement has ended, but not more often than
/// once a second.
const STATS_INTERVAL: Duration = Duration::from_millis(1_100);

/// Pages of all tables and indexes that were asked for, found in memory or not; by whomever, a vacuum
/// too. So they are counted where the server does not count by statement.
const PAGES: &str = "
    select coalesce(sum(coalesce(heap_blks_read, 0) + coalesce(heap_blks_hit, 0)
        + coalesce(idx_blks_read, 0) + coalesce(idx_blks_hit, 0)), 0)::bigint
    from pg_statio_user_tables where schemaname = 'tidegate'";

/// What claiming tasks took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) seconds: f64,
    /// What the database read: pages on PostgreSQL; on SQLite the steps of its machine, of which
    /// every row that is looked at takes one at least.
    reads: f64,
}

impl Cost {
    /// Adds what was read beside what was read without what the scenario is about.
    pub(super) fn compared_line(
        self,
        without: Self,
        line: ResultLine,
        target: &Target,
    ) -> ResultLine {
        let unit = match target.place {
            StoreLocation::Postgres(_) => "pages",
            _ => "steps",
        };
        let tasks = line.tasks as f64;
        let per_task = |reads: f64| (10.0 * reads / tasks).round() / 10.0;
        let mut line = line
            .with_batch(BATCH)
            .with_extra(format!("{unit}_per_task"), per_task(self.reads))
            .with_extra(format!("{unit}_per_task_without"), per_task(without.reads))
            .with_extra("seconds_without", without.seconds);
        line.ratio = Some(self.reads / without.reads);
        line
    }
}

/// A worker's store that counts what it reads.
pub(super) enum CountingStore {
    Sqlite(Sqlite),
    Postgres(Postgres, String),
}

impl CountingStore {
    pub(super) async fn open(target: &Target) -> anyhow::Result<Self> {
        Ok(match &target.place {
            StoreLocation::Memory => bail!("the memory store does not count what it reads"),
            StoreLocation::Sqlite { path, synchronous } => {
                let synchronous = synchronous.unwrap_or_default();
                Self::Sqlite(Sqlite::open(path, Options { synchronous, ..Options::default() })?)
            }
            StoreLocation::Postgres(url) => {
                let store = Postgres::connect(url, postgres::Options::default()).await?;
                Self::Postgres(store, url.clone())
            }
        })
    }

    pub(super) fn store(&self) -> &dyn Store {
        match self {
            Self::Sqlite(store) => store,
            Self::Postgres(store, _) => store,
        }
    }

    /// Counts what it takes to claim so many tasks, and completes them.
    pub(super) async fn cost(&self, tasks: u64) -> anyhow::Result<Cost> {
        let before = self.reads().await?;
        let (seconds, claimed) = claim_all(self.store(), tasks).await?;
        let reads = match self {
            // It counts from the last reading.
            Self::Sqlite(_) => self.reads().await?,
            Self::Postgres(..) => self.reads().await? - before,
        };
        for part in claimed.chunks(BATCH as usize) {
            self.store().finish(Finish { completions: completions(part), claim: None }).await?;
        }
        Ok(Cost { seconds, reads: reads as f64 })
    }

    async fn reads(&self) -> anyhow::Result<u64> {
        match self {
            Self::Sqlite(store) => Ok(store.take_vm_steps().await?),
            Self::Postgres(store, url) => {
                if let Some(times) = statement_times_at(url).await? {
                    return Ok(times.pages());
                }
                time::sleep(STATS_INTERVAL).await;
                // The connection that was used last is used again, and tells.
                store.admit().await?;
                Ok(pages(url).await?.unsigned_abs())
            }
        }
    }
}

async fn pages(url: &str) -> anyhow::Result<i64> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let pages = client.query_one(PAGES, &[]).await?.get(0);
    drop(client);
    connection.await??;
    Ok(pages)
}

/// Counts what it takes a new worker to claim so many tasks.
pub(super) async fn measure(target: &Target, tasks: u64) -> anyhow::Result<Cost> {
    if let StoreLocation::Postgres(url) = &target.place {
        vacuum(url).await?;
    }
    CountingStore::open(target).await?.cost(tasks).await
}

/// Clears away the rows that a million tasks left behind on their way, as the server does by
/// itself before long: the question is what tasks cost that are there.
async fn vacuum(url: &str) -> anyhow::Result<()> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    client.batch_execute("vacuum").await?;
    drop(client);
    Ok(connection.await??)
}

/// What the worker asks for. Its lease outlasts every measurement.
pub(super) fn claim_request() -> Claim {
    Claim {
        worker: WorkerId("bench".into()),
        queues: Arc::new([kind(NOOP_KIND).queue]),
        kinds: Arc::new([NOOP_KIND.into(), BLOCKED_KIND.into()]),
        tasks_max: BATCH,
        lease_ms: 3_600_000,
        poll_interval_ms: 1000,
    }
}

/// Claims so many of the runnable tasks; gives the seconds it took, too.
async fn claim_all(store: &dyn Store, tasks: u64) -> anyhow::Result<(f64, Vec<Attempt>)> {
    let stopwatch = Stopwatch::start();
    let mut all = Vec::new();
    while (all.len() as u64) < tasks {
        let claimed = store.claim(claim_request()).await?;
        ensure!(!claimed.is_empty(), "{} of {tasks} tasks were claimed", all.len());
        all.extend(claimed);
    }
    Ok((stopwatch.seconds(), all))
}

/// That these went well.
pub(super) fn completions(claimed: &[Attempt]) -> Vec<Completion> {
    let exit = |attempt: &Attempt| Completion {
        task: attempt.task,
        token: attempt.token,
        outcome: Outcome::Completed(b"null".to_vec()),
    };
    claimed.iter().map(exit).collect()
}

/// Tasks that nothing stops.
pub(super) async fn add_runnable(target: &Target, tasks: u64) -> anyhow::Result<()> {
    let opened = open(&target.url, OpenOptions::default()).await?;
    Ok(submit(&*opened.store, &[], (0..tasks).map(|_| task(NOOP_KIND))).await?)
}
