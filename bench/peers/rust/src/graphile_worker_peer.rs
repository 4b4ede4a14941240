//! graphile_worker with its local queue and batched completions.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext,
    WorkerOptions,
};

use crate::Command;
use crate::protocol::{self, Noop};

const BATCH_DELAY: Duration = Duration::from_millis(1);

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        protocol::handle();
        Ok::<(), String>(())
    }
}

pub async fn run(url: &str, command: Command) -> anyhow::Result<()> {
    let worker = Arc::new(worker(url).await?);
    match command {
        // A worker brings the schema up to date as it is made.
        Command::Setup => Ok(()),
        Command::Enqueue { jobs, call } => {
            let (utils, spec) = (worker.create_utils(), JobSpec::default());
            protocol::enqueue(jobs, call, async |part| {
                let jobs = vec![(Noop::new(), &spec); part];
                utils.add_jobs::<Noop>(&jobs).await?;
                Ok(())
            })
            .await
        }
        Command::Work => protocol::work(|end| work(worker, end)).await,
        Command::Latency { jobs } => latency(url, worker, jobs).await,
    }
}

async fn worker(url: &str) -> anyhow::Result<Worker> {
    let options = WorkerOptions::default()
        .database_url(url)
        .max_pg_conn(25)
        .concurrency(24)
        .local_queue(LocalQueueConfig::default().with_size(500))
        .complete_job_batch_delay(BATCH_DELAY)
        .fail_job_batch_delay(BATCH_DELAY)
        .listen_os_shutdown_signals(false)
        .define_job::<Noop>();
    Ok(options.init().await?)
}

async fn work(worker: Arc<Worker>, end: BoxFuture<'static, ()>) -> anyhow::Result<()> {
    let (worked, ()) = tokio::join!(worker.run(), async {
        end.await;
        worker.request_shutdown();
    });
    Ok(worked?)
}

/// Whoever enqueues has connections of its own.
async fn latency(url: &str, running: Arc<Worker>, jobs: usize) -> anyhow::Result<()> {
    let utils = worker(url).await?.create_utils();
    let measured = protocol::latency(jobs, async || {
        utils.add_job(Noop::new(), JobSpec::default()).await?;
        Ok(())
    });
    tokio::select! {
        worked = running.run() => Ok(worked?),
        measured = measured => measured,
    }
}
