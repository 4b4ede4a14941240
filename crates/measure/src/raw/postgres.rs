//! The raw loop on PostgreSQL: several connections, each with one transaction that completes the
//! tasks of its last batch and claims its next, sent in one round trip.
//!
//! Three shapes were tried (4 connections, fsync on, 2 cores not quiet, median of 3, tasks/s):
//!
//! | claim, completion | batch 1 | 10 | 100 | 500 |
//! |---|---|---|---|---|
//! | move from ready to running by place, delete | 5,588 | 26,881 | 88,016 | 145,233 |
//! | move from ready to running by id, delete | 5,110 | 24,375 | 93,570 | 141,313 |
//! | update the state, delete | 4,708 | 28,304 | 74,657 | 118,281 |
//!
//! The first is kept. The two that move differ by less than the machine's noise, but finding a row
//! by its place (`ctid`) saves a look into the index. It is safe here: rows of `ready` are never
//! updated, so a row that is locked stays in its place.

use std::fmt;

use futures_util::future::{try_join, try_join_all, try_join4};
use tokio_postgres::{Client, Error, NoTls, Row, Statement};

use super::{DUE, Outcome, PAYLOAD, Task};

/// Waiting and running tasks are apart, so that no row is ever updated.
pub(super) const SCHEMA: &str = "
    drop schema if exists tidegate_raw cascade;
    create schema tidegate_raw;
    create table tidegate_raw.ready (
        id bigint primary key,
        queue text not null,
        kind text not null,
        attempts integer not null,
        priority integer not null,
        run_at bigint not null,
        payload bytea not null
    );
    create index on tidegate_raw.ready (queue, priority, run_at, id);
    create table tidegate_raw.running (
        id bigint primary key,
        queue text not null,
        kind text not null,
        attempts integer not null,
        priority integer not null,
        run_at bigint not null,
        locked_at bigint not null,
        payload bytea not null
    );
    create sequence tidegate_raw.id;";

const INSERT: &str = "
    insert into tidegate_raw.ready
    select nextval('tidegate_raw.id'), 'default', 'noop', 0, 0, $1, $2
    from generate_series(1, $3::bigint)";

/// With the payloads from outside, as an engine gets them.
pub(super) const INSERT_PAYLOADS: &str = "
    insert into tidegate_raw.ready
    select nextval('tidegate_raw.id'), 'default', 'noop', 0, 0, $1, payload
    from unnest($2::bytea[]) as one (payload)
    returning id";

const COMPLETE: &str = "delete from tidegate_raw.running where id = any($1)";

const RETRY: &str = "
    with ended as (delete from tidegate_raw.running where id = any($1) returning *)
    insert into tidegate_raw.ready
    select id, queue, kind, attempts, priority, run_at, payload from ended";

/// The limit stands in the text: as a parameter, the planner may guess a tenth of the table.
fn claim(batch: u32) -> String {
    format!(
        "with taken as (
            delete from tidegate_raw.ready where ctid = any(array(
                select ctid from tidegate_raw.ready where queue = 'default' and run_at <= $1
                order by priority, run_at, id limit {batch} for update skip locked))
            returning *
        )
        insert into tidegate_raw.running
        select id, queue, kind, attempts + 1, priority, run_at, $1, payload from taken
        returning id, kind, attempts, payload"
    )
}

/// A set of connections to one database with the tables of the loop.
pub struct RawPostgres {
    clients: Vec<Client>,
}

impl fmt::Debug for RawPostgres {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RawPostgres").field("connections", &self.clients.len()).finish()
    }
}

impl RawPostgres {
    /// Connects to the database at `url` and makes the tables new and empty.
    pub async fn open(url: &str, connections: usize) -> Result<Self, Error> {
        let clients = try_join_all((0..connections.max(1)).map(|_| connect(url))).await?;
        clients[0].batch_execute(SCHEMA).await?;
        Ok(Self { clients })
    }

    /// Inserts `count` tasks in one transaction.
    pub async fn insert(&self, count: u64) -> Result<(), Error> {
        let client = &self.clients[0];
        client.execute(INSERT, &[&DUE, &PAYLOAD.as_slice(), &(count as i64)]).await?;
        // As autovacuum would have it after a while; a new table has no statistics at all.
        client.batch_execute("analyze").await
    }

    /// Inserts `count` tasks, `batch` in one transaction, over one connection.
    pub async fn insert_batches(&self, batch: u32, count: u64) -> Result<(), Error> {
        let client = &self.clients[0];
        let put = client.prepare(INSERT_PAYLOADS).await?;
        let mut left = count;
        while left > 0 {
            let part = left.min(u64::from(batch));
            let payloads = vec![PAYLOAD.as_slice(); part as usize];
            client.query(&put, &[&DUE, &payloads]).await?;
            left -= part;
        }
        Ok(())
    }

    /// Claims and completes all tasks, `batch` at a time on every connection; gives how many were
    /// completed.
    pub async fn drain(&self, batch: u32) -> Result<u64, Error> {
        self.drain_with(batch, |_| Outcome::Complete).await
    }

    /// The same with a handler that says how each task ends.
    pub async fn drain_with(
        &self,
        batch: u32,
        handle: impl Fn(&Task) -> Outcome,
    ) -> Result<u64, Error> {
        self.prepare_drain(batch).await?.run(handle).await
    }

    /// Prepares the statements on every connection, so that a drain only drains.
    pub async fn prepare_drain(&self, batch: u32) -> Result<Drain<'_>, Error> {
        let turns = self.clients.iter().map(|client| BatchStatements::new(client, batch));
        Ok(Drain(try_join_all(turns).await?))
    }

    /// How many tasks there are, in whatever state.
    pub async fn count(&self) -> Result<i64, Error> {
        let count = "select (select count(*) from tidegate_raw.ready)
            + (select count(*) from tidegate_raw.running)";
        Ok(self.clients[0].query_one(count, &[]).await?.get(0))
    }
}

pub(super) async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // It ends with the client; what goes wrong on it, the client's calls report.
    tokio::spawn(connection);
    Ok(client)
}

/// Connections that are ready to drain.
pub struct Drain<'a>(Vec<BatchStatements<'a>>);

impl fmt::Debug for Drain<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Drain").field("connections", &self.0.len()).finish()
    }
}

impl Drain<'_> {
    /// Claims all tasks and ends them as the handler says; gives how many were completed.
    pub async fn run(&self, handle: impl Fn(&Task) -> Outcome) -> Result<u64, Error> {
        let drains = self.0.iter().map(|turn| drain_one(turn, &handle));
        Ok(try_join_all(drains).await?.into_iter().sum())
    }
}

async fn drain_one(
    turn: &BatchStatements<'_>,
    handle: &impl Fn(&Task) -> Outcome,
) -> Result<u64, Error> {
    let mut ended = BatchOutcomes::default();
    let mut completed = 0;
    loop {
        let claimed = turn.run(&ended).await?;
        completed += ended.complete.len() as u64;
        if claimed.is_empty() {
            return Ok(completed);
        }
        ended = BatchOutcomes::default();
        for task in claimed.iter().map(task) {
            match handle(&task) {
                Outcome::Complete => ended.complete.push(task.id),
                Outcome::Retry => ended.retry.push(task.id),
            }
        }
    }
}

/// The tasks of the last batch, by how they ended.
#[derive(Default)]
pub(super) struct BatchOutcomes {
    complete: Vec<i64>,
    retry: Vec<i64>,
}

/// The statements of one transaction, prepared once.
pub(super) struct BatchStatements<'a> {
    client: &'a Client,
    complete: Statement,
    retry: Statement,
    claim: Statement,
}

impl<'a> BatchStatements<'a> {
    pub(super) async fn new(client: &'a Client, batch: u32) -> Result<Self, Error> {
        Ok(Self {
            client,
            complete: client.prepare(COMPLETE).await?,
            retry: client.prepare(RETRY).await?,
            claim: client.prepare(&claim(batch)).await?,
        })
    }

    /// The parts are sent at once, in this order, and the answers awaited together. Where one
    /// fails, the server passes over the rest and the commit takes nothing.
    pub(super) async fn run(&self, ended: &BatchOutcomes) -> Result<Vec<Row>, Error> {
        let begin = self.client.batch_execute("begin");
        let finish = try_join(self.complete(&ended.complete), self.retry(&ended.retry));
        let claim = self.claim();
        let commit = self.client.batch_execute("commit");
        let ((), _, claimed, ()) = try_join4(begin, finish, claim, commit).await?;
        Ok(claimed)
    }

    pub(super) async fn complete(&self, ids: &[i64]) -> Result<(), Error> {
        if !ids.is_empty() {
            self.client.execute(&self.complete, &[&ids]).await?;
        }
        Ok(())
    }

    async fn retry(&self, ids: &[i64]) -> Result<(), Error> {
        if !ids.is_empty() {
            self.client.execute(&self.retry, &[&ids]).await?;
        }
        Ok(())
    }

    async fn claim(&self) -> Result<Vec<Row>, Error> {
        self.client.query(&self.claim, &[&DUE]).await
    }
}

fn task(row: &Row) -> Task {
    Task { id: row.get(0), kind: row.get(1), attempts: row.get(2), payload: row.get(3) }
}
