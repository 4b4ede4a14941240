//! How fast the SQLite store claims and finishes tasks that no limit applies to, one worker,
//! `finish` and `claim` in one step.
//!
//!     cargo run --release -p tidegate-store --example sqlite -- 200000 1 10 100 500

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{
    Claim, Exit, Finish, Kind, NewTask, Outcome, Registration, Result, Store, Submission, WorkerId,
};
use tidegate_store::sqlite::{Options, Sqlite, Synchronous};

const PAYLOAD: &[u8] = b"\"sixteen bytes.\"";

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn now() -> Instant {
    Instant::now()
}

async fn store(path: &std::path::Path, synchronous: Synchronous) -> Result<Sqlite> {
    let store = Sqlite::open(path, Options { synchronous, ..Options::default() })?;
    store.migrate().await?;
    let kind = Kind { remove_on_completed_days: Some(0), ..Kind::new("noop") };
    let registration = Registration { kinds: vec![kind], ..Registration::default() };
    store.register(registration).await?;
    Ok(store)
}

async fn fill(store: &Sqlite, tasks: usize) -> Result<Duration> {
    let begin = now();
    for first in (0..tasks).step_by(1000) {
        let number = (tasks - first).min(1000);
        let tasks = (0..number).map(|_| NewTask::new("noop", PAYLOAD)).collect();
        store.submit(Submission { jobs: vec![], tasks }).await?;
    }
    Ok(now() - begin)
}

async fn drain(store: &Sqlite, batch: u32) -> Result<(usize, Duration)> {
    let names = |name: &str| -> Arc<[Arc<str>]> { Arc::new([Arc::from(name)]) };
    let claim = Claim {
        worker: WorkerId("w".into()),
        queues: names("default"),
        kinds: names("noop"),
        tasks_max: batch,
        lease_ms: 30_000,
    };
    let (begin, mut done, mut exits) = (now(), 0, Vec::new());
    loop {
        let finish = Finish { exits: std::mem::take(&mut exits), claim: Some(claim.clone()) };
        let finished = store.finish(finish).await?;
        if finished.claimed.is_empty() {
            return Ok((done, now() - begin));
        }
        done += finished.claimed.len();
        exits.extend(finished.claimed.into_iter().map(|attempt| Exit {
            task: attempt.task,
            token: attempt.token,
            outcome: Outcome::Completed(b"null".to_vec()),
        }));
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let tasks = numbers.next().unwrap_or(200_000);
    let mut batches: Vec<usize> = numbers.collect();
    if batches.is_empty() {
        batches = vec![1, 10, 100, 500];
    }
    for synchronous in [Synchronous::Full, Synchronous::Normal] {
        for batch in &batches {
            let folder = tempfile::tempdir().expect("a folder for the file");
            let store = store(&folder.path().join("tasks.db"), synchronous).await?;
            let filled = fill(&store, tasks).await?;
            let (done, took) = drain(&store, *batch as u32).await?;
            println!(
                "{synchronous:?} batch {batch}: submit {:.0}/s, claim and finish {:.0}/s",
                tasks as f64 / filled.as_secs_f64(),
                done as f64 / took.as_secs_f64(),
            );
        }
    }
    Ok(())
}
