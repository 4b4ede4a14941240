//! How long statements took on the server and how many pages they asked for, by its own count.

use std::ops::Sub;

use tidegate_store::Place;
use tokio_postgres::{Client, NoTls, Row};

use super::target::Target;

/// What to say where the server does not count.
pub(super) const UNCOUNTED: &str = "no times of statements: put pg_stat_statements into the \
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
pub(super) struct Ran {
    calls: i64,
    ms: f64,
    pages: i64,
}

impl Ran {
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

impl Sub for Ran {
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
pub(super) struct Times {
    pub(super) claim: Ran,
    pub(super) finish: Ran,
    /// A finish that goes on with the next in line.
    pub(super) relay: Ran,
    all: Ran,
}

impl Times {
    fn add(&mut self, query: &str, ran: Ran) {
        self.all.add(ran);
        match role(query) {
            Some(Role::Claim) => self.claim.add(ran),
            Some(Role::Bodies) => self.claim.add(Ran { calls: 0, ..ran }),
            Some(Role::Finish) => self.finish.add(ran),
            Some(Role::Relay) => self.relay.add(ran),
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

impl Sub for Times {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            claim: self.claim - earlier.claim,
            finish: self.finish - earlier.finish,
            relay: self.relay - earlier.relay,
            all: self.all - earlier.all,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Role {
    Claim,
    /// What it is that was claimed.
    Bodies,
    Finish,
    Relay,
}

/// Statements are known by what they do: the server keeps their texts without their numbers.
fn role(query: &str) -> Option<Role> {
    let does = |what: &str| query.contains(what);
    if does("SELECT unnest(tasks) FROM tidegate.leases") && does("FROM tidegate.tasks") {
        return Some(Role::Bodies);
    }
    let begins = does("INSERT INTO tidegate.leases");
    match (does("DELETE FROM tidegate.tasks"), begins) {
        (true, _) if does("DELETE FROM tidegate.waiters\n") => Some(Role::Relay),
        (true, false) if does("DELETE FROM tidegate.leases") => Some(Role::Finish),
        (false, true) if does("DELETE FROM tidegate.ready") => Some(Role::Claim),
        _ => None,
    }
}

/// What the server has counted; none where it does not.
pub(super) async fn times(target: &Target) -> anyhow::Result<Option<Times>> {
    match &target.place {
        Place::Postgres(url) => times_at(url).await,
        _ => Ok(None),
    }
}

/// The same of the database at a URL.
pub(super) async fn times_at(url: &str) -> anyhow::Result<Option<Times>> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let times = counted(&client).await;
    drop(client);
    connection.await??;
    Ok(times)
}

async fn counted(client: &Client) -> Option<Times> {
    let is_counted = client.query_one(IS_COUNTED, &[]).await.ok()?;
    if !is_counted.get::<_, bool>(0) {
        return None;
    }
    // It refuses where it is there and was not loaded.
    let rows = client.query(STATEMENTS, &[]).await.ok()?;
    let mut times = Times::default();
    for row in rows {
        // Texts of others cannot be seen.
        let query: Option<&str> = row.get(0);
        times.add(query.unwrap_or_default(), ran(&row));
    }
    Some(times)
}

fn ran(row: &Row) -> Ran {
    Ran { calls: row.get(1), ms: row.get(2), pages: row.get(3) }
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
    fn statements_are_known_by_what_they_do() {
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
            assert_eq!(role(claim), Some(Role::Claim));
        }
        assert_eq!(role(sql!("claim_task_rows")), Some(Role::Bodies));
        assert_eq!(
            role(sql!("finish_fast", "complete_tasks", "finish_fast_result")),
            Some(Role::Finish)
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
            assert_eq!(role(relay), Some(Role::Relay));
        }
        for other in [sql!("claim_probe", "claim_probe_result"), sql!("lock_leases")] {
            assert_eq!(role(other), None);
        }
    }

    #[test]
    fn the_mean_is_of_what_ran_meanwhile() {
        let (mut before, mut after) = (Times::default(), Times::default());
        let claim = sql!(
            "claim_probe",
            "claim_task_count",
            "claim_lanes",
            "claim_pick_lanes",
            "claim_take_general"
        );
        before.add(claim, Ran { calls: 2, ms: 100.0, pages: 20 });
        after.add(claim, Ran { calls: 4, ms: 103.0, pages: 29 });
        after.add("SELECT 1", Ran { calls: 1, ms: 1.0, pages: 1 });
        let meanwhile = after - before;
        assert_eq!(meanwhile.claim.mean_ms(), Some(1.5));
        assert_eq!(meanwhile.relay.mean_ms(), None);
        assert_eq!(meanwhile.per_task_ms(4), 1.0);
        assert_eq!(meanwhile.pages(), 10);
    }
}
