//! How long statements took on the server and how many pages they asked for, by its own count.

use std::ops::Sub;

use tidegate_store::StoreLocation;
use tokio_postgres::{Client, NoTls, Row};

use super::target::Target;

/// What to say where the server does not count.
pub(super) const NOT_COUNTED_NOTE: &str = "no times of statements: put pg_stat_statements into the \
    server's shared_preload_libraries, restart it, and say CREATE EXTENSION pg_stat_statements in \
    the database";

const IS_COUNTED: &str = "SELECT to_regclass('pg_stat_statements') IS NOT NULL";

/// All that the store has sent. Commits and their like have times of their own.
const STATEMENTS: &str = "
    SELECT query, calls, total_exec_time, shared_blks_hit + shared_blks_read
    FROM pg_stat_statements
    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (query LIKE '%tidegate.%' OR query LIKE '%pg_advisory_xact_lock%')
      AND query NOT LIKE '%pg_stat%'";

/// How often a statement ran, how long in all, and how many pages it asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct StatementStats {
    calls: i64,
    ms: f64,
    pages: i64,
}

impl StatementStats {
    /// How long it took in the mean; none if it never ran.
    pub(super) fn mean_ms(self) -> Option<f64> {
        (self.calls > 0).then(|| self.ms / self.calls as f64)
    }

    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.ms += other.ms;
        self.pages += other.pages;
    }
}

impl Sub for StatementStats {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            ms: self.ms - earlier.ms,
            pages: self.pages - earlier.pages,
        }
    }
}

/// What the statements of a store have taken so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StatementTimes {
    pub(super) claim: StatementStats,
    pub(super) finish: StatementStats,
    /// A finish that goes on with the next in line.
    pub(super) hand_off: StatementStats,
    all: StatementStats,
}

impl StatementTimes {
    fn add(&mut self, query: &str, ran: StatementStats) {
        self.all.add(ran);
        match statement_role(query) {
            Some(StatementRole::Claim) => self.claim.add(ran),
            Some(StatementRole::Bodies) => self.claim.add(StatementStats { calls: 0, ..ran }),
            Some(StatementRole::Finish) => self.finish.add(ran),
            Some(StatementRole::HandOff) => self.hand_off.add(ran),
            None => {}
        }
    }

    /// Pages that all statements have asked for, found in memory or not.
    pub(super) fn pages(self) -> u64 {
        self.all.pages.unsigned_abs()
    }

    /// Of all statements, for each of so many tasks.
    pub(super) fn per_task_ms(self, tasks: u64) -> f64 {
        self.all.ms / tasks as f64
    }
}

impl Sub for StatementTimes {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            claim: self.claim - earlier.claim,
            finish: self.finish - earlier.finish,
            hand_off: self.hand_off - earlier.hand_off,
            all: self.all - earlier.all,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum StatementRole {
    Claim,
    /// What it is that was claimed.
    Bodies,
    Finish,
    HandOff,
}

/// Statements are known by what they do: the server keeps their texts without their numbers.
fn statement_role(query: &str) -> Option<StatementRole> {
    let does = |what: &str| query.contains(what);
    if does("SELECT unnest(tasks) FROM tidegate.leases") && does("FROM tidegate.tasks") {
        return Some(StatementRole::Bodies);
    }
    let begins = does("INSERT INTO tidegate.leases");
    match (does("DELETE FROM tidegate.tasks"), begins) {
        (true, _) if does("DELETE FROM tidegate.waiters\n") => Some(StatementRole::HandOff),
        (true, false) if does("DELETE FROM tidegate.leases") => Some(StatementRole::Finish),
        (false, true) if does("DELETE FROM tidegate.ready") => Some(StatementRole::Claim),
        _ => None,
    }
}

/// What the server has counted; none where it does not.
pub(super) async fn statement_times(target: &Target) -> anyhow::Result<Option<StatementTimes>> {
    match &target.place {
        StoreLocation::Postgres(url) => statement_times_at(url).await,
        _ => Ok(None),
    }
}

/// The same of the database at a URL.
pub(super) async fn statement_times_at(url: &str) -> anyhow::Result<Option<StatementTimes>> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let times = read_statement_times(&client).await;
    drop(client);
    connection.await??;
    Ok(times)
}

async fn read_statement_times(client: &Client) -> Option<StatementTimes> {
    let is_counted = client.query_one(IS_COUNTED, &[]).await.ok()?;
    if !is_counted.get::<_, bool>(0) {
        return None;
    }
    // It refuses where it is there and was not loaded.
    let rows = client.query(STATEMENTS, &[]).await.ok()?;
    let mut times = StatementTimes::default();
    for row in rows {
        // Texts of others cannot be seen.
        let query: Option<&str> = row.get(0);
        times.add(query.unwrap_or_default(), statement_stats(&row));
    }
    Some(times)
}

fn statement_stats(row: &Row) -> StatementStats {
    StatementStats { calls: row.get(1), ms: row.get(2), pages: row.get(3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! sql {
        ($($name:literal),+) => {
            concat!($(include_str!(concat!("../../../store/src/postgres/queries/", $name, ".sql"))),+)
        };
    }

    #[test]
    fn statement_role_is_derived_from_its_sql() {
        for claim in [
            sql!(
                "claim_probe",
                "claim_task_count",
                "claim_lanes",
                "claim_pick_single_lane",
                "claim_take_general"
            ),
            sql!(
                "claim_probe",
                "claim_task_count",
                "claim_lanes",
                "claim_pick_lanes",
                "claim_take_fast"
            ),
            sql!(
                "claim_probe",
                "claim_task_count",
                "claim_lanes_after_admit",
                "claim_pick_lanes",
                "claim_take_general"
            ),
        ] {
            assert_eq!(statement_role(claim), Some(StatementRole::Claim));
        }
        assert_eq!(statement_role(sql!("claim_task_rows")), Some(StatementRole::Bodies));
        assert_eq!(
            statement_role(sql!("finish_fast", "complete_tasks", "finish_fast_result")),
            Some(StatementRole::Finish)
        );
        for relay in [
            sql!(
                "claim_probe",
                "hand_off_eligible",
                "hand_off_start",
                "record_limit_deltas",
                "complete_tasks",
                "hand_off_result"
            ),
            sql!(
                "claim_probe",
                "hand_off_eligible",
                "hand_off_admit",
                "record_limit_deltas",
                "complete_tasks",
                "hand_off_admit_result"
            ),
        ] {
            assert_eq!(statement_role(relay), Some(StatementRole::HandOff));
        }
        for other in [sql!("claim_probe", "claim_probe_result"), sql!("lock_leases")] {
            assert_eq!(statement_role(other), None);
        }
    }

    #[test]
    fn statement_mean_covers_only_the_interval() {
        let (mut before, mut after) = (StatementTimes::default(), StatementTimes::default());
        let claim = sql!(
            "claim_probe",
            "claim_task_count",
            "claim_lanes",
            "claim_pick_lanes",
            "claim_take_general"
        );
        before.add(claim, StatementStats { calls: 2, ms: 100.0, pages: 20 });
        after.add(claim, StatementStats { calls: 4, ms: 103.0, pages: 29 });
        after.add("SELECT 1", StatementStats { calls: 1, ms: 1.0, pages: 1 });
        let meanwhile = after - before;
        assert_eq!(meanwhile.claim.mean_ms(), Some(1.5));
        assert_eq!(meanwhile.hand_off.mean_ms(), None);
        assert_eq!(meanwhile.per_task_ms(4), 1.0);
        assert_eq!(meanwhile.pages(), 10);
    }
}
