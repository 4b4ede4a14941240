//! apalis on PostgreSQL: large batches, handlers in parallel, woken by notifications.

use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::{Config, PgConnection, PgPool, PostgresStorage, queries};
use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::Command;
use crate::protocol::{self, Noop};

const QUEUE: &str = "noop";

const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub async fn run(url: &str, command: Command) -> anyhow::Result<()> {
    let pool = PgPool::connect(url).await?;
    match command {
        Command::Setup => Ok(PostgresStorage::setup(&pool).await?),
        Command::Enqueue { jobs, call } => {
            let mut connection = pool.acquire().await?;
            protocol::enqueue(jobs, call, async |part| push(&mut connection, part).await).await
        }
        Command::Work => protocol::work(|end| work(pool, end)).await,
        Command::Latency { jobs } => latency(url, pool, jobs).await,
    }
}

async fn push(connection: &mut PgConnection, jobs: usize) -> anyhow::Result<()> {
    let payload = serde_json::to_vec(&Noop::new())?;
    let tasks = (0..jobs).map(|_| TaskBuilder::new(payload.clone()).build()).collect();
    Ok(queries::push_tasks(connection, QUEUE, tasks).await?)
}

async fn noop(_: Noop) -> Result<(), BoxDynError> {
    protocol::handle();
    Ok(())
}

async fn work(pool: PgPool, end: BoxFuture<'static, ()>) -> anyhow::Result<()> {
    let config = Config::default().queue(QUEUE).batch_size(500).lock_tasks(false);
    let backend = PostgresStorage::new(&pool)
        .with_config(config)
        .with_pubsub()
        .poll_with_interval(POLL_INTERVAL);
    let worker = WorkerBuilder::new(format!("noop-{}", std::process::id()))
        .backend(backend)
        .parallelize(tokio::spawn)
        .build(noop);
    Ok(worker.run_until(end.map(Ok::<_, WorkerError>)).await?)
}

/// Whoever enqueues has connections of its own.
async fn latency(url: &str, pool: PgPool, jobs: usize) -> anyhow::Result<()> {
    let apart = PgPool::connect(url).await?;
    let mut connection = apart.acquire().await?;
    let measured = protocol::latency(jobs, async || push(&mut connection, 1).await);
    tokio::select! {
        worked = work(pool, futures::future::pending().boxed()) => worked,
        measured = measured => measured,
    }
}
